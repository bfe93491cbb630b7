/*
 * Loaded into CRIU: lets it save descriptors of /dev/tty, and restore those of a
 * terminal without changing its timestamp.
 *
 * CRIU saves such a descriptor only if the terminal behind it was opened by the
 * same process, and refuses everything else ("ctty inheritance"): less, fzf or ssh
 * at a prompt would keep a branch from being saved. The kernel knows which terminal
 * it is; given its number instead of that of /dev/tty, CRIU saves an ordinary
 * descriptor of an ordinary terminal.
 */
#include "files_seen.h"

#include <fcntl.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#ifndef TIOCGDEV
#define TIOCGDEV _IOR('T', 0x32, unsigned int)
#endif

/* The kernel's encoding: 12 bits of major between the two parts of the minor. */
static dev_t decode(unsigned int number)
{
	return makedev((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xfff00));
}

int fstat64(int fd, struct stat64 *status)
{
	int err = fstatat64(fd, "", status, AT_EMPTY_PATH);
	unsigned int number;

	if (!err)
		files_seen_add(status);
	if (!err && S_ISCHR(status->st_mode) && status->st_rdev == makedev(5, 0) &&
		!ioctl(fd, TIOCGDEV, &number))
		status->st_rdev = decode(number);
	return err;
}

/*
 * CRIU gives every terminal the owner that it had. If it has that owner
 * already, this would only set the time of its last change, by which we
 * distinguish a terminal of the host from a later one with the same number.
 */
int fchown(int fd, uid_t owner, gid_t group)
{
	struct stat64 status;

	if (!fstatat64(fd, "", &status, AT_EMPTY_PATH) && S_ISCHR(status.st_mode) &&
		status.st_uid == owner && status.st_gid == group)
		return 0;
	return fchownat(fd, "", owner, group, AT_EMPTY_PATH);
}
