#include "child.h"

#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

int reset_signals(void)
{
	const uint64_t all_default[8] = {0}; /* as the kernel lays a sigaction out, and more */
	sigset_t none;

	/*
	 * Past the library, which keeps two signals to itself, and whose posix_spawn()
	 * leaves them ignored. Refused for KILL and STOP: they need no reset.
	 */
	for (int signo = 1; signo < NSIG; signo++)
		syscall(SYS_rt_sigaction, signo, all_default, NULL, sizeof(uint64_t));
	sigemptyset(&none);
	return sigprocmask(SIG_SETMASK, &none, NULL) ? -errno : 0;
}

int drop_to_user(uid_t uid, gid_t gid)
{
	if (uid == geteuid() && gid == getegid())
		return 0;
	if (setgroups(0, NULL) || setgid(gid) || setuid(uid))
		return -errno;
	return 0;
}
