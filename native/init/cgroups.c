#include "cgroups.h"

#include "fd.h"

#include <errno.h>
#include <fcntl.h>

int cgroups_add(struct cgroups *groups, const char *dir)
{
	if (groups->count == CGROUPS_MAX)
		return -E2BIG;
	groups->dirs[groups->count++] = dir;
	return 0;
}

static int join_cgroup(const char *dir)
{
	auto_close int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	auto_close int procs = -1;

	if (dir_fd < 0)
		return -errno;
	procs = openat(dir_fd, "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (procs < 0)
		return -errno;
	return write(procs, "0", 1) == 1 ? 0 : -errno;
}

int cgroups_join(const struct cgroups *groups)
{
	int err = 0;

	for (unsigned int i = 0; !err && i < groups->count; i++)
		err = join_cgroup(groups->dirs[i]);
	return err;
}
