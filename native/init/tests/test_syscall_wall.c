/* The filter of system calls, on the real kernel: each check runs in a child behind it. */
#include "../syscall_wall.h"

#include "check.h"

#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct call {
	const char *name;
	long number;
	long first; /* argument */
	int error;
};

/*
 * Makes the call in a child behind the filter, which exits with the errno of
 * the call. Returns its wait status.
 */
static int status_behind_filter(const struct call *call)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || wall_off_syscalls())
			_exit(250);
		errno = 0;
		syscall(call->number, call->first, 0, 0, 0, 0, 0);
		_exit(errno);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static void check_calls(const struct call *calls, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		int status = status_behind_filter(&calls[i]);

		if (WIFEXITED(status) && WEXITSTATUS(status) == calls[i].error)
			continue;
		fprintf(stderr, "%s: ended with %#x instead of error %d\n", calls[i].name, status,
			calls[i].error);
		exit(1);
	}
}

#define CALL(name, first, error)                                                                   \
	{                                                                                          \
#name, SYS_##name, first, error                                                    \
	}
#define CHECK_CALLS(calls) check_calls(calls, sizeof(calls) / sizeof((calls)[0]))

static void what_programs_need_reaches_the_kernel(void)
{
	static const struct call calls[] = {
		CALL(read, -1, EBADF),
		CALL(getpid, 0, 0),
		CALL(ptrace, 9999, ESRCH),
		CALL(openat, -1, EFAULT),
		CALL(chroot, 0, EFAULT),
		CALL(socket, AF_UNIX, ESOCKTNOSUPPORT),
		CALL(socketpair, AF_UNIX, EFAULT),
		CALL(personality, 0xffffffff, 0),
		CALL(clone, CLONE_SIGHAND, EINVAL),
	};

	CHECK_CALLS(calls);
}

static void what_is_not_on_the_list_is_refused(void)
{
	static const struct call calls[] = {
		CALL(mount, 0, EPERM),
		CALL(umount2, 0, EPERM),
		CALL(pivot_root, 0, EPERM),
		CALL(setns, -1, EPERM),
		CALL(unshare, 0, EPERM),
		CALL(bpf, 9999, EPERM),
		CALL(perf_event_open, 0, EPERM),
		CALL(keyctl, 9999, EPERM),
		CALL(userfaultfd, -1, EPERM),
		CALL(io_uring_setup, 0, EPERM),
		CALL(open_by_handle_at, -1, EPERM),
		CALL(kexec_load, 0, EPERM),
		CALL(finit_module, -1, EPERM),
		CALL(reboot, 0, EPERM),
		CALL(swapon, 0, EPERM),
		CALL(settimeofday, 0, EPERM),
		CALL(sethostname, 0, EPERM),
		CALL(quotactl, 0, EPERM),
		CALL(pidfd_getfd, -1, EPERM),
		CALL(open_tree, -1, EPERM),
		CALL(personality, 0x40000, EPERM),
		CALL(clone, CLONE_NEWUSER, EPERM),
		CALL(clone, CLONE_NEWNET | SIGCHLD, EPERM),
		CALL(socket, AF_VSOCK, EAFNOSUPPORT),
		CALL(socket, AF_ALG, EAFNOSUPPORT),
		CALL(socketpair, AF_TIPC, EAFNOSUPPORT),
	};

	CHECK_CALLS(calls);
}

static void what_is_newer_than_the_list_gets_enosys(void)
{
	static const struct call calls[] = {
		CALL(clone3, 0, ENOSYS),
		CALL(landlock_create_ruleset, 0, ENOSYS),
		{"between", 400, 0, ENOSYS},
		{"next", 467, 0, ENOSYS},
		{"far", 100000, 0, ENOSYS},
		{"x32", 0x40000000 | SYS_getpid, 0, ENOSYS},
		{"negative", -1, 0, ENOSYS},
	};

	CHECK_CALLS(calls);
}

#ifdef __x86_64__
static void a_call_of_another_architecture_ends_the_process(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid == 0) {
		long result = 20; /* getpid of i386 */

		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || wall_off_syscalls())
			_exit(250);
		__asm__ volatile("int $0x80" : "+a"(result) : : "memory");
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	/* A kernel without 32-bit programs answers the instruction itself with a fault. */
	CHECK(WIFSIGNALED(status));
	CHECK(WTERMSIG(status) == SIGSYS || WTERMSIG(status) == SIGSEGV);
}
#endif

int main(void)
{
	RUN_TEST(what_programs_need_reaches_the_kernel);
	RUN_TEST(what_is_not_on_the_list_is_refused);
	RUN_TEST(what_is_newer_than_the_list_gets_enosys);
#ifdef __x86_64__
	RUN_TEST(a_call_of_another_architecture_ends_the_process);
#endif
	return 0;
}
