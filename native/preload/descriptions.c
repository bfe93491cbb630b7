#include "descriptions.h"

#include "locks_seen.h"
#include "watch_record.h"
#include "watches.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
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

/* Only files that have a name, other than devices, can have locks that CRIU forgets. */
static bool may_have_locks(const char *target)
{
	return target[0] == '/' && strncmp(target, "/dev/", strlen("/dev/")) != 0;
}

int description_open(openat_function *next, int dir, const char *path, int flags)
{
	char link[32], target[32] = "";
	int fd, description, pid;
	bool is_fanotify;

	errno = 0;
	if (sscanf(path, "fdinfo/%d", &fd) != 1)
		return -1;
	snprintf(link, sizeof(link), "fd/%d", fd);
	if (readlinkat(dir, link, target, sizeof(target) - 1) < 0)
		target[0] = 0;
	if (strcmp(target, "anon_inode:inotify") == 0)
		return watches_describe(next, dir, path, flags, pid_of_directory(dir), fd);
	description = next(dir, path, flags, 0);
	if (description < 0)
		return description;
	is_fanotify = strcmp(target, "anon_inode:[fanotify]") == 0;
	if (!is_fanotify && !may_have_locks(target))
		return description;
	pid = pid_of_directory(dir);
	if (pid == getpid())
		return description; /* CRIU's duplicate of one that it has looked at already */
	if (is_fanotify)
		watches_note_fanotify(pid, fd);
	else
		locks_seen_add(pid, fd, description);
	return description;
}
