/* Starts the program of an isolated job. */
#include "child.h"
#include "fd.h"
#include "isolated.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define REPORT_FD 3

/* Why the exec failed: nothing is written if it succeeds. */
struct exec_failure {
	int error;
	char text[240];
};

/* Takes over `from`, which may be the result of a failed call. */
static int move_up(int from)
{
	auto_close int fd = from;

	return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, ISOLATED_FDS_FIRST);
}

/* `ours` becomes non-blocking; the program's end must not be. */
static int open_pipe(int *ours, unsigned int our_end, int *theirs)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return -errno;
	*theirs = ends[!our_end];
	*ours = move_up(ends[our_end]);
	return *ours < 0 || fcntl(*ours, F_SETFL, O_NONBLOCK) ? -errno : 0;
}

__attribute__((format(printf, 2, 3))) static void fail(int report_fd, const char *what, ...)
{
	struct exec_failure failure = {.error = errno};
	size_t len;
	va_list args;

	va_start(args, what);
	vsnprintf(failure.text, sizeof(failure.text), what, args);
	va_end(args);
	/* The reason must be reported even if the name is too long for both. */
	len = strnlen(failure.text, sizeof(failure.text) - 80);
	snprintf(failure.text + len, sizeof(failure.text) - len, ": %s", strerror(failure.error));
	_exit(write(report_fd, &failure, sizeof(failure)) < 0 ? 126 : 127);
}

/* Keeps only these three and the report: what init closes later must not stay open here. */
static void take_descriptors(const int stdio[3], int *report_fd)
{
	for (int to = 0; to < 3; to++) {
		if (dup2(stdio[to], to) < 0)
			fail(*report_fd, "cannot set up descriptor %d", to);
	}
	if (*report_fd != REPORT_FD && dup3(*report_fd, REPORT_FD, O_CLOEXEC) < 0)
		fail(*report_fd, "cannot set up descriptor %d", REPORT_FD);
	*report_fd = REPORT_FD;
	close_range(REPORT_FD + 1, ~0U, 0);
}

/* Programs open /dev/stdout and the like again, with their own rights. */
static void chown_pipes(const struct program *program)
{
	struct stat st;

	for (int fd = 0; fd < 3; fd++) {
		if (!fstat(fd, &st) && S_ISFIFO(st.st_mode) &&
			fchown(fd, program->uid, program->gid))
			return; /* few programs need it */
	}
}

static void become_program(const struct program *program, const int stdio[3], int report_fd)
{
	take_descriptors(stdio, &report_fd);
	if (reset_signals() || setsid() < 0)
		fail(report_fd, "cannot start a session");
	umask(022);
	offer_to_oom_killer(); /* if this fails, it runs all the same */
	chown_pipes(program);
	if (drop_to_user(program))
		fail(report_fd, "user %u, group %u", program->uid, program->gid);
	if (chdir(program->cwd))
		fail(report_fd, "cwd %s", program->cwd);
	/* execvpe() searches the PATH of the environment of its caller. */
	environ = (char **)program->env;
	execvpe(program->argv[0], program->argv, environ);
	fail(report_fd, "%s", program->argv[0]);
}

int spawn_start(struct isolated *p, struct program *program, int null_fd)
{
	auto_close int child_input = -1;
	auto_close int child_output = -1;
	auto_close int child_error = -1;
	auto_close int child_report = -1;
	int err = open_pipe(&p->exec_status, 0, &child_report);

	if (!err)
		err = open_pipe(&p->output[STREAM_OUTPUT], 0, &child_output);
	if (!err)
		err = open_pipe(&p->output[STREAM_ERROR], 0, &child_error);
	if (!err && (p->flags & SPAWN_STDIN))
		err = open_pipe(&p->input, 1, &child_input);
	if (err)
		return err;
	p->pid = fork();
	if (p->pid < 0)
		return -errno;
	if (p->pid == 0) {
		int stdio[3] = {child_input < 0 ? null_fd : child_input, child_output, child_error};

		become_program(program, stdio, child_report);
	}
	return 0;
}

int spawn_result(struct isolated *p, char *text, size_t size)
{
	struct exec_failure failure;
	ssize_t got = read(p->exec_status, &failure, sizeof(failure));

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return -EAGAIN;
	close_fd(&p->exec_status);
	if (got != sizeof(failure))
		return 0;
	snprintf(text, size, "%s", failure.text);
	return -failure.error;
}
