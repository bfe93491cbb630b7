/*
 * What a branch may not do to the host: the steps between the pivot and the
 * exec of init. All return 0 or -errno.
 */
#pragma once

#include <stdbool.h>

#define PATHS_MAX 256

struct walls {
	bool privileged; /* no walls */
	bool no_new_privs;
	/* Each ends with NULL. Mount points that become read-only, and paths below that do not. */
	const char *read_only[PATHS_MAX + 1];
	const char *writable[PATHS_MAX + 1];
};

/* -E2BIG if there are too many. */
int add_path(const char *paths[PATHS_MAX + 1], const char *path);

/* Allows devices in /dev; then makes paths read-only, except those that stay writable. */
int mount_paths(const struct walls *walls);
/* Hides and write-protects files of the kernel that are not the branch's business. */
int mask_kernel_files(const struct walls *walls);
/* Joins a keyring of its own: the caller's may hold keys of the host's root. */
int leave_keyring(void);
/* The last step: capabilities, system calls, no_new_privs. */
int drop_privileges(const struct walls *walls);
