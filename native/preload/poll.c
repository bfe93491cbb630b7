/*
 * To inspect a process, CRIU interrupts the system call that it is in. It lets the
 * process make most calls again. It cannot know how to continue those that the
 * kernel would continue by itself, and makes them fail as interrupted, although
 * there was no signal; tail and script, for example, give up then. With this, a
 * poll() without a timeout is made again like the others.
 */
#include "poll.h"

#ifdef __x86_64__ /* other machines have ppoll() only, which CRIU lets the process make again */
#include <sys/syscall.h>
#include <sys/user.h>

/* Internal to the kernel: no program ever sees them. */
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

void poll_continue(struct iovec *registers)
{
	struct user_regs_struct *r = registers->iov_base;

	if (registers->iov_len == sizeof(*r) && r->orig_rax == SYS_poll &&
		(long)r->rax == -ERESTART_RESTARTBLOCK && (int)r->rdx < 0)
		r->rax = -ERESTARTNOHAND;
}
#else
void poll_continue(struct iovec *registers)
{
	(void)registers;
}
#endif
