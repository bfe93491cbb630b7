/*
 * A process loses its POSIX locks on a file when it closes any descriptor of it. CRIU
 * sets the locks, and later closes the descriptors by which it has mapped files: the
 * locks on those are gone. So they are set again when nothing is closed any more, and
 * before any process runs: when CRIU lets the first one go.
 *
 * The descriptor that the environment names then has a line for each lock: the pid,
 * the descriptor, the type, the start and the length.
 */
#include "posix_locks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOCKS "WAYPOINT_POSIX_LOCKS"

static int set_lock(struct injection *i, int fd, const struct flock *lock)
{
	long result = injection_call(i, SYS_fcntl, fd, F_SETLK, lock, sizeof(*lock));

	if (result >= 0)
		return 0;
	errno = (int)-result;
	return -1;
}

static int set_all(ptrace_function *trace, FILE *locks)
{
	struct injection injection = {.memory = -1};
	int pid, fd, type, current = 0;
	long long start, length;
	int err = 0;

	while (!err && fscanf(locks, "%d %d %d %lld %lld", &pid, &fd, &type, &start, &length) == 5) {
		struct flock lock = {
			.l_type = (short)type, .l_whence = SEEK_SET, .l_start = start, .l_len = length};

		if (pid != current) {
			injection_end(&injection);
			err = injection_begin(&injection, trace, pid);
			if (err && errno == ENOSYS)
				return 0; /* CRIU has set those on files that are not mapped */
			current = pid;
		}
		if (!err)
			err = set_lock(&injection, fd, &lock);
		if (err)
			fprintf(stderr, "waypoint: cannot set a lock of process %d on its descriptor %d: %m\n",
				pid, fd);
	}
	injection_end(&injection);
	return err;
}

int posix_locks_set(ptrace_function *trace)
{
	static bool is_done;
	const char *given = getenv(LOCKS);
	FILE *locks;
	int err;

	if (is_done || !given)
		return 0;
	is_done = true;
	locks = fdopen(atoi(given), "r");
	if (!locks)
		return -1;
	err = set_all(trace, locks);
	fclose(locks);
	return err;
}
