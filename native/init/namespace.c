#include "namespace.h"

#include "fd.h"

#include <errno.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

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
