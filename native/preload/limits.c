/*
 * Loaded into CRIU: lets it read the resource limits of other users' processes.
 *
 * prlimit() on them needs CAP_SYS_RESOURCE, which root lacks in many containers and
 * virtual machines; /proc/PID/limits has the same values and needs no capability.
 */
#include "terminals.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAME_WIDTH 26 /* of the first column, the name of a limit */

static const char *read_value(const char *text, rlim64_t *value)
{
	char *end;

	if (strncmp(text, "unlimited", 9) == 0) {
		*value = RLIM64_INFINITY;
		return text + 9;
	}
	*value = strtoull(text, &end, 10);
	return end;
}

/* A heading, then a line for each resource in the order of their numbers. */
static int read_limit(pid_t pid, int resource, struct rlimit64 *limit)
{
	char line[256];
	char path[64];
	FILE *file;
	int found = -1;

	snprintf(path, sizeof(path), "/proc/%d/limits", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	for (int at = -1; at <= resource && fgets(line, sizeof(line), file); at++) {
		const char *text = line + NAME_WIDTH;

		if (at < resource || strlen(line) <= NAME_WIDTH)
			continue;
		text = read_value(text, &limit->rlim_cur);
		text += strspn(text, " ");
		read_value(text, &limit->rlim_max);
		found = 0;
	}
	fclose(file);
	return found;
}

static long get_limit(pid_t pid, int resource, const struct rlimit64 *change,
	struct rlimit64 *limit, syscall_function *next)
{
	long err = next(SYS_prlimit64, pid, resource, change, limit, 0L, 0L);

	if (err == 0 || errno != EPERM || change || !limit)
		return err;
	if (read_limit(pid, resource, limit) == 0)
		return 0;
	errno = EPERM;
	return -1;
}

/*
 * CRIU makes this call by its number. All others that it makes so are passed on
 * to the C library.
 */
long syscall(long number, ...)
{
	static syscall_function *next;
	long a[6];
	va_list args;

	va_start(args, number);
	for (unsigned int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (!next)
		next = (syscall_function *)dlsym(RTLD_NEXT, "syscall");
	if (number == SYS_clone3)
		return terminals_fork(next, (const struct clone_args *)a[0], (size_t)a[1]);
	if (number == SYS_prlimit64)
		return get_limit((pid_t)a[0], (int)a[1], (const struct rlimit64 *)a[2],
			(struct rlimit64 *)a[3], next);
	return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
