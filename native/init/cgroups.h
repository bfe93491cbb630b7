/*
 * The cgroups that a process joins: one, and more where controllers have
 * hierarchies of their own. Both functions return 0 or -errno.
 */
#pragma once

#define CGROUPS_MAX 8

struct cgroups {
	const char *dirs[CGROUPS_MAX];
	unsigned int count;
};

int cgroups_add(struct cgroups *groups, const char *dir);
/* In the order in which they were added; what the caller starts from then on is in them too. */
int cgroups_join(const struct cgroups *groups);
