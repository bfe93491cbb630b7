/*
 * When it saves a tree, CRIU reads the description of each descriptor, but forgets the
 * locks that a process has through one that it has inherited. A line for each lock,
 * with the pid and the descriptor before what the kernel says, is written to the
 * descriptor that the environment names. (/proc/locks has all of them, but makes the
 * whole machine wait for milliseconds.)
 */
#include "locks_seen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOCKS_SEEN "WAYPOINT_LOCKS_SEEN"

static FILE *output;

__attribute__((constructor)) static void begin(void)
{
	const char *given = getenv(LOCKS_SEEN);

	if (given)
		output = fdopen(atoi(given), "w");
	unsetenv(LOCKS_SEEN);
}

static void write_locks(int pid, int fd, char *text)
{
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		if (strncmp(line, "lock:", strlen("lock:")) == 0)
			fprintf(output, "%d %d %s\n", pid, fd, line + strlen("lock:"));
	}
	fflush(output);
}

void locks_seen_add(int pid, int fd, int description)
{
	static char text[1 << 16];
	static char *all = text;
	static size_t size = sizeof(text);
	ssize_t len;

	if (!output)
		return;
	/* A file with many locks has a long description. */
	while ((len = pread(description, all, size - 1, 0)) == (ssize_t)size - 1) {
		char *larger = malloc(size * 2);

		if (!larger)
			break;
		if (all != text)
			free(all);
		all = larger;
		size *= 2;
	}
	if (len <= 0)
		return;
	all[len] = 0;
	if (strstr(all, "\nlock:"))
		write_locks(pid, fd, all);
}
