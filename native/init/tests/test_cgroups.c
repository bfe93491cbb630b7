#include "../cgroups.h"
#include "../fd.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>

/* Directories that look like cgroups: what was written there can be read back. */
static char made[2][64];

static void make_directories(void)
{
	for (unsigned int i = 0; i < 2; i++) {
		char procs[160];
		auto_close int fd = -1;

		snprintf(made[i], sizeof(made[i]), "/tmp/waypoint-cgroups-%d-%u", (int)getpid(), i);
		CHECK(mkdir(made[i], 0700) == 0);
		snprintf(procs, sizeof(procs), "%s/cgroup.procs", made[i]);
		fd = open(procs, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		CHECK(fd >= 0);
	}
}

static void remove_directories(void)
{
	for (unsigned int i = 0; i < 2; i++) {
		char procs[160];

		snprintf(procs, sizeof(procs), "%s/cgroup.procs", made[i]);
		CHECK(unlink(procs) == 0 && rmdir(made[i]) == 0);
	}
}

static bool is_joined(unsigned int i)
{
	char path[160];
	char text[8] = "";
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "%s/cgroup.procs", made[i]);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && read(fd, text, sizeof(text) - 1) >= 0);
	return strcmp(text, "0") == 0; /* the kernel takes 0 for whoever writes it */
}

static void all_are_joined(void)
{
	struct cgroups groups = {0};

	make_directories();
	CHECK(!cgroups_add(&groups, made[0]) && !cgroups_add(&groups, made[1]));
	CHECK(cgroups_join(&groups) == 0);
	CHECK(is_joined(0) && is_joined(1));
	remove_directories();
}

static void a_missing_cgroup_stops_the_rest(void)
{
	struct cgroups groups = {0};

	make_directories();
	CHECK(!cgroups_add(&groups, "/no/such/cgroup") && !cgroups_add(&groups, made[1]));
	CHECK(cgroups_join(&groups) == -ENOENT);
	CHECK(!is_joined(1));
	remove_directories();
}

static void no_cgroup_is_fine_and_too_many_are_refused(void)
{
	struct cgroups groups = {0};

	CHECK(cgroups_join(&groups) == 0);
	for (unsigned int i = 0; i < CGROUPS_MAX; i++)
		CHECK(cgroups_add(&groups, "/") == 0);
	CHECK(cgroups_add(&groups, "/") == -E2BIG);
	CHECK(groups.count == CGROUPS_MAX);
}

int main(void)
{
	RUN_TEST(all_are_joined);
	RUN_TEST(a_missing_cgroup_stops_the_rest);
	RUN_TEST(no_cgroup_is_fine_and_too_many_are_refused);
	return 0;
}
