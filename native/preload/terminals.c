/*
 * Loaded into CRIU: after a restore all processes of a session have its terminal.
 *
 * The kernel gives a controlling terminal to the leader of a session only; others
 * have it if they are forked by a process that has it. CRIU forks all processes
 * first and opens terminals later, so that only the leader would have it: a shell
 * in a shell could no longer give the foreground to its programs, and they could
 * not open /dev/tty.
 *
 * The environment says which terminals init holds, in order, and the session of
 * each: "0=2,1=57" for /dev/pts/0 of session 2 and /dev/pts/1 of session 57. Init
 * opens them before it forks. A leader takes its own as soon as it has its session.
 * When CRIU opens them in init, it gets what is open already. If anything goes
 * wrong here, all is left to CRIU.
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
#define KEPT_FDS_FIRST 320 /* above the descriptors of init, and not where CRIU has its own */

typedef int ioctl_function(int fd, unsigned long request, ...);
typedef pid_t setsid_function(void);

struct terminal {
	int index;
	pid_t session; /* 0: of no session */
	int master, slave;
};

static struct terminal terminals[TERMINALS_MAX];
static unsigned int count;
static unsigned int offered; /* how many of them CRIU was offered since it took one */
static bool is_prepared;

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
static int move_up(int fd)
{
	int kept = fcntl(fd, F_DUPFD_CLOEXEC, KEPT_FDS_FIRST);

	close(fd);
	return kept;
}

/*
 * A new terminal gets the lowest free number: opens until it is `index`, and
 * closes those before.
 */
static int open_master(int index)
{
	int fd = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
	int got = -1;
	int found = -1;

	if (fd < 0)
		return -1;
	if (!real_ioctl(fd, TIOCGPTN, &got) && got == index)
		return move_up(fd);
	if (got >= 0 && got < index)
		found = open_master(index);
	close(fd);
	return found;
}

static bool open_pair(struct terminal *t)
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
	/* While nobody has this end open, a terminal belongs to no session. */
	fd = open(path, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	t->slave = fd < 0 ? -1 : move_up(fd);
	if (t->slave < 0)
		close_kept(&t->master);
	return t->slave >= 0;
}

static void open_all(void)
{
	unsigned int made = 0;

	is_prepared = true;
	read_terminals();
	while (made < count && open_pair(&terminals[made]))
		made++;
	count = made; /* CRIU opens the others itself, after these */
}

long terminals_fork(syscall_function *next, const struct clone_args *args, size_t size)
{
	bool is_shared = args->flags & (CLONE_VM | CLONE_FILES);
	long pid;

	if (!is_prepared && getpid() == 1)
		open_all();
	pid = next(SYS_clone3, args, size, 0L, 0L, 0L, 0L);
	for (unsigned int i = 0; pid == 0 && !is_shared && i < count; i++) {
		close_kept(&terminals[i].master);
		close_kept(&terminals[i].slave);
	}
	return pid;
}

static bool is_init(void)
{
	return is_prepared && getpid() == 1;
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
		close(open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)); /* now it is the session's */
	}
	return session;
}

/* CRIU opens terminals until one has the number that it wants, and closes the others. */
static int offer_master(int flags)
{
	while (offered < count && terminals[offered].master < 0)
		offered++;
	if (offered == count)
		return -1;
	fcntl(terminals[offered].master, F_SETFL, flags & (O_NONBLOCK | O_APPEND));
	return dup(terminals[offered++].master);
}

/* CRIU unlocks the terminal that it wanted: it has that one now. */
static void release_master(int fd)
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

static void release_slave(const char *path)
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

int terminals_open(openat_function *next, int dir, const char *path, int flags, mode_t mode)
{
	int fd = is_init() && is_multiplexer(path) ? offer_master(flags) : -1;

	if (fd >= 0)
		return fd;
	fd = next(dir, path, flags, mode);
	if (fd >= 0 && is_init() && !is_multiplexer(path))
		release_slave(path);
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
		release_master(fd);
	return real_ioctl(fd, request, argument);
}
