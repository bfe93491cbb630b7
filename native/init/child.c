#include "child.h"

#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

/* Half of the scale: init may hold up to half of the memory limit more than a shell and still
 * outlive it. */
enum { OOM_SCORE_ABOVE_INIT = 500, OOM_SCORE_MAX = 1000 };

int reset_signals(void)
{
	const uint64_t all_default[8] = {0}; /* at least as large as the kernel's sigaction */
	sigset_t none;

	/*
	 * Bypasses the C library, which reserves two signals for itself, and
	 * whose posix_spawn() leaves them ignored. The kernel refuses KILL and
	 * STOP: they need no reset.
	 */
	for (int signo = 1; signo < NSIG; signo++)
		syscall(SYS_rt_sigaction, signo, all_default, NULL, sizeof(uint64_t));
	sigemptyset(&none);
	return sigprocmask(SIG_SETMASK, &none, NULL) ? -errno : 0;
}

int offer_to_oom_killer(void)
{
	auto_close int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
	char text[16] = "";
	int score;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) < 0)
		return -errno;
	score = atoi(text) + OOM_SCORE_ABOVE_INIT;
	snprintf(text, sizeof(text), "%d", score < OOM_SCORE_MAX ? score : OOM_SCORE_MAX);
	return pwrite(fd, text, strlen(text), 0) < 0 ? -errno : 0;
}

int drop_to_user(const struct program *program)
{
	if (program->uid == geteuid() && program->gid == getegid() && !program->group_count)
		return 0;
	if (setgroups(program->group_count, program->groups) || setgid(program->gid) ||
		setuid(program->uid))
		return -errno;
	return 0;
}
