/*
 * Loaded into CRIU: after a restore all processes of a session have its terminal.
 *
 * The kernel gives a controlling terminal to the leader of a session only; others
 * have it if they are forked by one who has. CRIU forks all processes first and
 * opens terminals later, so that everyone but the leader would be left without: a
 * shell in a shell could not give the foreground to its programs any more, and
 * nobody could open /dev/tty.
 *
 * The environment says which terminals init holds, in order, and whose they are:
 * "0=2,1=57" for /dev/pts/0 of session 2 and /dev/pts/1 of session 57. Init opens
 * them before it forks. A leader takes its own as soon as it has its session. When
 * CRIU opens them in init, it gets what is open already. Whatever goes wrong here
 * leaves everything to CRIU.
 */
#include "terminals.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TERMINALS "WAYPOINT_TERMINALS"
#define TERMINALS_MAX 16
#define KEPT_FROM 320 /* above the descriptors of init, and not where CRIU has its own */

typedef int openat_function(int dir, const char *path, int flags, ...);
typedef int ioctl_function(int fd, unsigned long request, ...);
typedef pid_t setsid_function(void);

struct terminal {
	int index;
	pid_t session; /* 0: nobody's */
	int master, slave;
};

static struct terminal terminals[TERMINALS_MAX];
static unsigned int count;
static unsigned int offered; /* how many of them CRIU has been shown since it took one */
static bool is_made;

static int real_ioctl(int fd, unsigned long request, void *argument)
{
	static ioctl_function *next;

	if (!next)
		next = (ioctl_function *)dlsym(RTLD_NEXT, "ioctl");
	return next(fd, request, argument);
}

static void read_terminals(void)
{
	const char *at = getenv(TERMINALS);

	for (count = 0; at && *at && count < TERMINALS_MAX; count++) {
		struct terminal *t = &terminals[count];
		int index, session, len = 0;

		if (sscanf(at, "%d=%d%n", &index, &session, &len) != 2)
			return;
		*t = (struct terminal){index, session, -1, -1};
		at += len + (at[len] == ',');
	}
}

static void close_kept(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Out of the way of the descriptors that CRIU restores. */
static int keep(int fd)
{
	int kept = fcntl(fd, F_DUPFD_CLOEXEC, KEPT_FROM);

	close(fd);
	return kept;
}

/* A new terminal gets the lowest number that is free; those that come before are not wanted. */
static int open_master(int index)
{
	int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	int got = -1;
	int found = -1;

	if (fd < 0)
		return -1;
	if (!real_ioctl(fd, TIOCGPTN, &got) && got == index)
		return keep(fd);
	if (got >= 0 && got < index)
		found = open_master(index);
	close(fd);
	return found;
}

static bool make(struct terminal *t)
{
	int unlocked = 0;
	char path[32];
	int fd;

	t->master = open_master(t->index);
	if (t->master < 0 || real_ioctl(t->master, TIOCSPTLCK, &unlocked)) {
		close_kept(&t->master);
		return false;
	}
	snprintf(path, sizeof(path), "/dev/pts/%d", t->index);
	/* As long as nobody has this end open, a terminal is nobody's. */
	fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	t->slave = fd < 0 ? -1 : keep(fd);
	if (t->slave < 0)
		close_kept(&t->master);
	return t->slave >= 0;
}

static void make_all(void)
{
	unsigned int made = 0;

	is_made = true;
	read_terminals();
	while (made < count && make(&terminals[made]))
		made++;
	count = made; /* CRIU finds the others where it looks after these */
}

long terminals_fork(syscall_function *next, const struct clone_args *args, size_t size)
{
	bool is_shared = args->flags & (CLONE_VM | CLONE_FILES);
	long pid;

	if (!is_made && getpid() == 1)
		make_all();
	pid = next(SYS_clone3, args, size, 0L, 0L, 0L, 0L);
	for (unsigned int i = 0; pid == 0 && !is_shared && i < count; i++) {
		close_kept(&terminals[i].master);
		close_kept(&terminals[i].slave);
	}
	return pid;
}

static bool is_init(void)
{
	return is_made && getpid() == 1;
}

pid_t setsid(void)
{
	static setsid_function *next;
	char path[32];
	pid_t session;

	if (!next)
		next = (setsid_function *)dlsym(RTLD_NEXT, "setsid");
	session = next();
	for (unsigned int i = 0; i < count; i++) {
		if (session <= 0 || terminals[i].session != session)
			continue;
		snprintf(path, sizeof(path), "/dev/pts/%d", terminals[i].index);
		close(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)); /* is its own from now on */
	}
	return session;
}

/* CRIU opens terminals until one has the number that it wants, and closes the others. */
static int offer(int flags)
{
	while (offered < count && terminals[offered].master < 0)
		offered++;
	if (offered == count)
		return -1;
	fcntl(terminals[offered].master, F_SETFL, flags & (O_NONBLOCK | O_APPEND));
	return dup(terminals[offered++].master);
}

/* The lock that CRIU takes off the one that it wanted. */
static void hand_over(int fd)
{
	int index;

	offered = 0;
	if (real_ioctl(fd, TIOCGPTN, &index))
		return;
	for (unsigned int i = 0; i < count; i++) {
		if (terminals[i].index == index)
			close_kept(&terminals[i].master);
	}
}

static void let_go_of(const char *path)
{
	const char *name = strstr(path, "dev/pts/");

	for (unsigned int i = 0; name && i < count; i++) {
		if (terminals[i].master < 0 && terminals[i].index == atoi(name + strlen("dev/pts/")))
			close_kept(&terminals[i].slave);
	}
}

static bool is_multiplexer(const char *path)
{
	const char *name = strrchr(path, '/');

	return name && strcmp(name, "/ptmx") == 0;
}

int openat64(int dir, const char *path, int flags, ...)
{
	static openat_function *next;
	va_list args;
	mode_t mode;
	int fd;

	va_start(args, flags);
	mode = va_arg(args, mode_t);
	va_end(args);
	if (!next)
		next = (openat_function *)dlsym(RTLD_NEXT, "openat64");
	if (is_init() && is_multiplexer(path)) {
		fd = offer(flags);
		if (fd >= 0)
			return fd;
	}
	fd = next(dir, path, flags, mode);
	if (fd >= 0 && is_init() && !is_multiplexer(path))
		let_go_of(path);
	return fd;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	if (request == TIOCSPTLCK && is_init())
		hand_over(fd);
	return real_ioctl(fd, request, argument);
}
