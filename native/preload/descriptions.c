#include "descriptions.h"

#include "locks_seen.h"
#include "watch_record.h"
#include "watches.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The pid of the process whose directory below /proc is open; 0 if it is none. */
static int pid_of_directory(int dir)
{
	char path[PATH_MAX];
	int pid = 0;

	if (path_of_descriptor(dir, path))
		sscanf(path, "/proc/%d", &pid);
	return pid;
}

int description_open(openat_function *next, int dir, const char *path, int flags)
{
	char link[32], target[32] = "";
	int fd, pid, description;

	errno = 0;
	if (sscanf(path, "fdinfo/%d", &fd) != 1)
		return -1;
	pid = pid_of_directory(dir);
	snprintf(link, sizeof(link), "fd/%d", fd);
	if (readlinkat(dir, link, target, sizeof(target) - 1) < 0)
		target[0] = 0;
	if (strcmp(target, "anon_inode:inotify") == 0)
		return watches_describe(next, dir, path, flags, pid, fd);
	description = next(dir, path, flags, 0);
	if (description >= 0 && pid != getpid()) {
		locks_seen_add(pid, fd, description);
		if (strcmp(target, "anon_inode:[fanotify]") == 0)
			watches_note_fanotify(pid, fd);
	}
	return description;
}
