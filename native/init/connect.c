#include "connect.h"

#include "fd.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

int connect_to_init(const char *dir, const char *name, int flags)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
	int keep;

	if (fd < 0)
		return -errno;
	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, name) >=
		(int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)))
		return -errno;
	keep = fd;
	fd = -1;
	return keep;
}
