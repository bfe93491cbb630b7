#include "reap.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* A signal handler gets no argument: the only global of the program. */
static int wake_fd = -1;

static void on_child(int signo)
{
	int saved = errno;

	(void)signo;
	if (write(wake_fd, "", 1) < 0) {
		/* Full: a wake-up is already pending. */
	}
	errno = saved;
}

static bool is_fault(int signo)
{
	return signo == SIGSEGV || signo == SIGBUS || signo == SIGILL || signo == SIGFPE ||
	       signo == SIGTRAP || signo == SIGABRT;
}

int reap_setup(void)
{
	struct sigaction action = {.sa_handler = on_child, .sa_flags = SA_RESTART | SA_NOCLDSTOP};
	sigset_t none;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	wake_fd = ends[1];
	/* An ignored fault would repeat for ever; no other signal may end process 1. */
	for (int signo = 1; signo < NSIG; signo++) {
		if (!is_fault(signo))
			signal(signo, SIG_IGN);
	}
	if (sigaction(SIGCHLD, &action, NULL))
		return -errno;
	sigemptyset(&none);
	return sigprocmask(SIG_SETMASK, &none, NULL) ? -errno : ends[0];
}

pid_t reap_next(int *status)
{
	for (;;) {
		pid_t pid = waitpid(-1, status, WNOHANG);

		if (pid >= 0)
			return pid;
		if (errno != EINTR)
			return 0;
	}
}

void reap_acknowledge(int fd)
{
	char drop[64];

	while (read(fd, drop, sizeof(drop)) > 0)
		;
}
