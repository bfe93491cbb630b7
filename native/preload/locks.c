/*
 * Loaded into CRIU: a restore fails if another process holds a file lock.
 *
 * CRIU would wait for it for ever: on a volume the lock of a saved process is often
 * still held by the very branch that the checkpoint was taken of.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/file.h>

typedef int flock_function(int fd, int operation);
typedef int fcntl_function(int fd, int command, ...);

int flock(int fd, int operation)
{
	static flock_function *next;

	if (!next)
		next = (flock_function *)dlsym(RTLD_NEXT, "flock");
	return next(fd, operation | LOCK_NB);
}

int fcntl64(int fd, int command, ...)
{
	static fcntl_function *next;
	va_list args;
	long argument;

	va_start(args, command);
	argument = va_arg(args, long);
	va_end(args);
	if (!next)
		next = (fcntl_function *)dlsym(RTLD_NEXT, "fcntl64");
	if (command == F_SETLKW)
		command = F_SETLK;
	else if (command == F_OFD_SETLKW)
		command = F_OFD_SETLK;
	return next(fd, command, argument);
}
