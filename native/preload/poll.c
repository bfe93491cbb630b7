/*
 * Loaded into CRIU: a process that waits in poll() without a timeout continues to
 * wait.
 *
 * To inspect a process, CRIU interrupts the system call that it is in. It lets the
 * process make most calls again. It cannot know how to continue those that the
 * kernel would continue by itself, and makes them fail as interrupted, although
 * there was no signal; tail and script, for example, give up then. With this, a
 * poll() without a timeout is made again like the others.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/ptrace.h>
#include <sys/types.h>

#ifdef __x86_64__ /* other machines have ppoll() only, which CRIU lets the process make again */
#include <elf.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>

/* Internal to the kernel: no program ever sees them. */
#define ERESTARTNOHAND 514
#define ERESTART_RESTARTBLOCK 516

typedef long ptrace_function(enum __ptrace_request request, ...);

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_function *next;
	struct user_regs_struct *registers;
	void *address, *data;
	va_list args;
	pid_t pid;
	long err;

	va_start(args, request);
	pid = va_arg(args, pid_t);
	address = va_arg(args, void *);
	data = va_arg(args, void *);
	va_end(args);
	if (!next)
		next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
	err = next(request, pid, address, data);
	if (err || request != PTRACE_GETREGSET || (long)address != NT_PRSTATUS ||
		((struct iovec *)data)->iov_len != sizeof(*registers))
		return err;
	registers = ((struct iovec *)data)->iov_base;
	if (registers->orig_rax == SYS_poll && (long)registers->rax == -ERESTART_RESTARTBLOCK &&
		(int)registers->rdx < 0)
		registers->rax = -ERESTARTNOHAND;
	return err;
}
#endif
