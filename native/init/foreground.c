/*
 * Guesses which group is in the foreground, on a kernel that does not report
 * it: an interactive shell gives each job a group of its own, and the job it
 * waits for is the one it started last.
 */
#include "fd.h"
#include "terminal.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct process {
	pid_t parent;
	pid_t group;
	unsigned long long started;
};

static bool read_process(pid_t pid, struct process *found)
{
	char path[32];
	char text[512];
	const char *after_name;
	auto_close int fd = -1;
	ssize_t got;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	got = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (got <= 0)
		return false;
	text[got] = 0;
	after_name = strrchr(text, ')'); /* the name may hold anything */
	return after_name && sscanf(after_name + 1,
				     " %*c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d "
				     "%*d %*d %*d %*d %llu",
				     &found->parent, &found->group, &found->started) == 3;
}

pid_t foreground_guess(pid_t shell)
{
	unsigned long long youngest = 0;
	pid_t group = shell;
	DIR *proc = opendir("/proc");
	struct dirent *entry;

	if (!proc)
		return group;
	while ((entry = readdir(proc))) {
		pid_t pid = atoi(entry->d_name);
		struct process process;

		if (pid <= 1 || !read_process(pid, &process))
			continue;
		if (process.parent != shell || process.group != pid)
			continue;
		/* Of two that began in the same tick the one with the greater pid is younger. */
		if (process.started < youngest || (process.started == youngest && pid < group))
			continue;
		youngest = process.started;
		group = pid;
	}
	closedir(proc);
	return group;
}
