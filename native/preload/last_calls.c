/*
 * Some things can be restored only when CRIU has done all it does, by the processes
 * themselves: when it lets the first one go.
 *
 * A process loses its POSIX locks on a file when it closes any descriptor of it. CRIU
 * sets the locks, and later closes the descriptors by which it has mapped files. And a
 * client that its server has not accepted yet connects again, to the listener that is
 * there only now.
 *
 * The descriptor that the environment names then has a line for each call:
 *
 *   lock PID FD TYPE START LENGTH
 *   connect PID FD FLAGS ADDRESS    a struct sockaddr, in hexadecimal digits
 */
#include "last_calls.h"

#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LAST_CALLS "WAYPOINT_LAST_CALLS"

static long set_lock(struct injection *i, int fd, const char *words)
{
	struct flock lock = {.l_whence = SEEK_SET};
	long long start, length;

	if (sscanf(words, "%hd %lld %lld", &lock.l_type, &start, &length) != 3)
		return -EINVAL;
	lock.l_start = start;
	lock.l_len = length;
	return injection_call(
		i, SYS_fcntl, (const long[]){fd, F_SETLK, INJECTED_DATA}, &lock, sizeof(lock));
}

static long set_flags(struct injection *i, int fd, int flags)
{
	return injection_call(i, SYS_fcntl, (const long[]){fd, F_SETFL, flags}, "", 0);
}

static long connect_again(struct injection *i, int fd, const char *words)
{
	unsigned char address[sizeof(struct sockaddr_in6)];
	size_t size = 0;
	int flags, at = 0;
	unsigned int byte;
	long result;

	if (sscanf(words, "%d %n", &flags, &at) != 1)
		return -EINVAL;
	for (words += at; size < sizeof(address) && sscanf(words, "%2x", &byte) == 1; words += 2)
		address[size++] = (unsigned char)byte;
	result = set_flags(i, fd, flags | O_NONBLOCK);
	if (result < 0)
		return result;
	result = injection_call(
		i, SYS_connect, (const long[]){fd, INJECTED_DATA, (long)size}, address, size);
	if (result == -EINPROGRESS)
		result = 0;
	return result < 0 ? result : set_flags(i, fd, flags);
}

static long make_call(struct injection *i, int fd, const char *kind, const char *words)
{
	if (strcmp(kind, "lock") == 0)
		return set_lock(i, fd, words);
	if (strcmp(kind, "connect") == 0)
		return connect_again(i, fd, words);
	return -EINVAL;
}

static int make_all(ptrace_function *trace, FILE *calls)
{
	struct injection injection = {.memory = -1};
	char line[256], kind[16];
	int pid, fd, at, current = 0;
	long result = 0;

	while (result >= 0 && fgets(line, sizeof(line), calls)) {
		if (sscanf(line, "%15s %d %d %n", kind, &pid, &fd, &at) != 3)
			return -1;
		if (pid != current) {
			injection_end(&injection);
			result = injection_begin(&injection, trace, pid) ? -errno : 0;
			current = pid;
		}
		if (result == -ENOSYS) /* CRIU has set the locks on files that are not mapped */
			return 0;
		if (result >= 0)
			result = make_call(&injection, fd, kind, line + at);
		if (result < 0)
			report_error("process %d cannot %s again by its descriptor %d: %s", pid, kind, fd,
				strerror((int)-result));
	}
	injection_end(&injection);
	errno = result < 0 ? (int)-result : 0;
	return result < 0 ? -1 : 0;
}

int last_calls_make(ptrace_function *trace)
{
	static bool is_done;
	const char *given = getenv(LAST_CALLS);
	FILE *calls;
	int err;

	if (is_done || !given)
		return 0;
	is_done = true;
	calls = fdopen(atoi(given), "r");
	if (!calls)
		return -1;
	err = make_all(trace, calls);
	fclose(calls);
	return err;
}
