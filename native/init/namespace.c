#include "namespace.h"

#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

int join_cgroup(const char *dir)
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

int make_mounts_private(void)
{
	return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ? -errno : 0;
}

int bring_loopback_up(void)
{
	struct ifreq request = {.ifr_name = "lo"};
	auto_close int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCGIFFLAGS, &request))
		return -errno;
	request.ifr_flags |= IFF_UP | IFF_RUNNING;
	return ioctl(fd, SIOCSIFFLAGS, &request) ? -errno : 0;
}
