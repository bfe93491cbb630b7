/*
 * The list follows Docker's default profile: what ordinary programs need. A
 * call that is not on it is refused with EPERM; a call that is newer than this
 * file gets ENOSYS, so that programs try an older one. Also left out, unlike
 * Docker's, are calls for things that CRIU cannot save: programs use something
 * else instead.
 */
#include "syscall_wall.h"

#include "syscall_numbers.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#define NATIVE_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE_ARCH AUDIT_ARCH_AARCH64
#else
#error "which system calls may a branch make on this architecture?"
#endif

#define NAMESPACES                                                                                 \
	(CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |             \
		CLONE_NEWPID | CLONE_NEWNET)

#define ANSWER(error) (SECCOMP_RET_ERRNO | (error))

/* Calls whose arguments decide are not here: see add_conditions(). */
/* clang-format off */
static const uint16_t allowed[] = {
	/* files */
	SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_lseek, SYS_mmap,
	SYS_mprotect, SYS_munmap, SYS_brk, SYS_ioctl, SYS_pread64, SYS_pwrite64, SYS_readv,
	SYS_writev, SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_openat, SYS_openat2,
	SYS_close_range, SYS_faccessat, SYS_faccessat2, SYS_pipe2, SYS_dup, SYS_dup3, SYS_fcntl,
	SYS_flock, SYS_fsync, SYS_fdatasync, SYS_sync, SYS_syncfs, SYS_sync_file_range,
	SYS_truncate, SYS_ftruncate, SYS_fallocate, SYS_fadvise64, SYS_readahead, SYS_getdents64,
	SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_chroot, SYS_mkdirat, SYS_mknodat, SYS_unlinkat,
	SYS_linkat, SYS_symlinkat, SYS_readlinkat, SYS_renameat, SYS_renameat2, SYS_fchmod,
	SYS_fchmodat, SYS_fchmodat2, SYS_fchown, SYS_fchownat, SYS_utimensat, SYS_umask, SYS_statfs,
	SYS_fstatfs, SYS_sendfile, SYS_splice, SYS_tee, SYS_vmsplice, SYS_copy_file_range,
	SYS_name_to_handle_at, SYS_cachestat, SYS_statmount, SYS_listmount,
	/* extended attributes */
	SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_getxattrat, SYS_setxattr, SYS_lsetxattr,
	SYS_fsetxattr, SYS_setxattrat, SYS_listxattr, SYS_llistxattr, SYS_flistxattr,
	SYS_listxattrat, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr, SYS_removexattrat,
	/* memory */
	SYS_mremap, SYS_msync, SYS_mincore, SYS_madvise, SYS_mlock, SYS_mlock2, SYS_mlockall,
	SYS_munlock, SYS_munlockall, SYS_remap_file_pages, SYS_memfd_create, SYS_pkey_alloc,
	SYS_pkey_free, SYS_pkey_mprotect, SYS_mseal, SYS_map_shadow_stack, SYS_membarrier,
	SYS_shmget, SYS_shmat, SYS_shmctl, SYS_shmdt,
	/* processes */
	SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_getpid,
	SYS_getppid, SYS_gettid, SYS_setpgid, SYS_getpgid, SYS_getsid, SYS_setsid, SYS_prctl,
	SYS_set_tid_address, SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_pidfd_open,
	SYS_pidfd_send_signal, SYS_process_mrelease, SYS_ptrace, SYS_process_vm_readv,
	SYS_process_vm_writev, SYS_restart_syscall, SYS_seccomp,
	/* who */
	SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid,
	SYS_getgroups, SYS_setuid, SYS_setgid, SYS_setreuid, SYS_setregid, SYS_setresuid,
	SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capget, SYS_capset,
	/* scheduling and limits */
	SYS_sched_yield, SYS_sched_setparam, SYS_sched_getparam, SYS_sched_setscheduler,
	SYS_sched_getscheduler, SYS_sched_setattr, SYS_sched_getattr, SYS_sched_setaffinity,
	SYS_sched_getaffinity, SYS_sched_get_priority_max, SYS_sched_get_priority_min,
	SYS_sched_rr_get_interval, SYS_getpriority, SYS_setpriority, SYS_ioprio_get, SYS_ioprio_set,
	SYS_getrlimit, SYS_setrlimit, SYS_prlimit64, SYS_getrusage, SYS_getcpu, SYS_sysinfo,
	SYS_uname, SYS_times,
	/* signals */
	SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending,
	SYS_rt_sigtimedwait, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, SYS_rt_sigsuspend,
	SYS_rt_sigreturn, SYS_sigaltstack, SYS_signalfd4,
	/* time; without CAP_SYS_TIME adjtimex can only read */
	SYS_nanosleep, SYS_clock_nanosleep, SYS_clock_gettime, SYS_clock_getres, SYS_clock_adjtime,
	SYS_adjtimex, SYS_gettimeofday, SYS_getitimer, SYS_setitimer, SYS_timer_create,
	SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun, SYS_timer_delete,
	SYS_timerfd_create, SYS_timerfd_settime, SYS_timerfd_gettime,
	/* waiting */
	SYS_futex, SYS_futex_waitv, SYS_futex_wait, SYS_futex_wake, SYS_futex_requeue, SYS_pselect6,
	SYS_ppoll, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2,
	SYS_eventfd2, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
	SYS_fanotify_mark, SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_cancel,
	SYS_io_getevents, SYS_io_pgetevents,
	/* talking */
	SYS_bind, SYS_connect, SYS_listen, SYS_accept, SYS_accept4, SYS_shutdown, SYS_getsockname,
	SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_sendmsg, SYS_sendmmsg,
	SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg, SYS_msgget, SYS_msgsnd, SYS_msgrcv, SYS_msgctl,
	SYS_semget, SYS_semop, SYS_semctl, SYS_semtimedop, SYS_mq_open, SYS_mq_unlink,
	SYS_mq_timedsend, SYS_mq_timedreceive, SYS_mq_notify, SYS_mq_getsetattr,
	/* chance */
	SYS_getrandom,
#ifdef __x86_64__
	/* what newer architectures have in one form only */
	SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_access, SYS_pipe, SYS_dup2, SYS_getdents,
	SYS_rename, SYS_mkdir, SYS_rmdir, SYS_mknod, SYS_link, SYS_unlink, SYS_symlink,
	SYS_readlink, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime, SYS_utimes, SYS_futimesat,
	SYS_fork, SYS_vfork, SYS_getpgrp, SYS_select, SYS_poll, SYS_epoll_create, SYS_epoll_wait,
	SYS_epoll_ctl_old, SYS_epoll_wait_old, SYS_eventfd, SYS_signalfd, SYS_inotify_init,
	SYS_alarm, SYS_pause, SYS_time, SYS_arch_prctl, SYS_modify_ldt, SYS_get_thread_area,
	SYS_set_thread_area, SYS_uretprobe,
#endif
};
/* clang-format on */

/*
 * Answered as if the kernel did not have them. A filter cannot look into the
 * argument of clone3; the C library then uses clone. CRIU loses a Landlock
 * domain without an error: a program that relied on it would continue
 * unconfined after a restore.
 */
static const uint16_t missing[] = {
	SYS_clone3,
	SYS_landlock_create_ruleset,
	SYS_landlock_add_rule,
	SYS_landlock_restrict_self,
	SYS_memfd_secret,
};

/* What CRIU can save. AF_PACKET is a matter of CAP_NET_RAW. */
static const uint32_t socket_families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET};

/* Linux, with or without the uname of 2.6 and of a 32-bit system; or only to query. */
static const uint32_t personalities[] = {0x0, 0x8, 0x20000, 0x20008, 0xffffffff};

struct filter {
	struct sock_filter *code;
	size_t len;
};

static void add(struct filter *f, uint16_t code, uint8_t jt, uint8_t jf, uint32_t k)
{
	if (f->len < FILTER_MAX)
		f->code[f->len] = (struct sock_filter){.code = code, .jt = jt, .jf = jf, .k = k};
	f->len++;
}

static void add_return(struct filter *f, uint32_t action)
{
	add(f, BPF_RET | BPF_K, 0, 0, action);
}

static void add_load(struct filter *f, size_t offset)
{
	add(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

/* The first argument: the kernel itself uses only 32 bits of it in all calls here. */
static void add_load_argument(struct filter *f)
{
	add_load(f, offsetof(struct seccomp_data, args[0]));
}

/* `number` is allowed with one of `count` values as its first argument, else answered `action`. */
static void add_choice(
	struct filter *f, uint32_t number, const uint32_t *values, uint8_t count, uint32_t action)
{
	/* Jumps over the load, the comparisons and both returns. */
	add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(count + 3), number);
	add_load_argument(f);
	for (uint8_t i = 0; i < count; i++)
		add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint8_t)(count - i), 0, values[i]);
	add_return(f, action);
	add_return(f, SECCOMP_RET_ALLOW);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void add_conditions(struct filter *f)
{
	add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, SYS_clone);
	add_load_argument(f);
	add(f, BPF_JMP | BPF_JSET | BPF_K, 0, 1, NAMESPACES);
	add_return(f, ANSWER(EPERM));
	add_return(f, SECCOMP_RET_ALLOW);
	add_choice(f, SYS_socket, socket_families, COUNT(socket_families), ANSWER(EAFNOSUPPORT));
	add_choice(
		f, SYS_socketpair, socket_families, COUNT(socket_families), ANSWER(EAFNOSUPPORT));
	add_choice(f, SYS_personality, personalities, COUNT(personalities), ANSWER(EPERM));
}

static uint32_t verdict(uint32_t number)
{
	for (size_t i = 0; i < COUNT(allowed); i++) {
		if (allowed[i] == number)
			return SECCOMP_RET_ALLOW;
	}
	for (size_t i = 0; i < COUNT(missing); i++) {
		if (missing[i] == number)
			return ANSWER(ENOSYS);
	}
	/*
	 * The numbers between the old ones of each architecture and the common
	 * ones are not assigned.
	 */
	if (number > LAST_OLD_NUMBER && number < FIRST_COMMON_NUMBER)
		return ANSWER(ENOSYS);
	return ANSWER(EPERM);
}

/* One comparison for each run of numbers with the same verdict. */
static void add_verdicts(struct filter *f)
{
	uint32_t current = verdict(0);

	for (uint32_t number = 1; number <= LAST_KNOWN_NUMBER; number++) {
		uint32_t next = verdict(number);

		if (next == current)
			continue;
		add(f, BPF_JMP | BPF_JGE | BPF_K, 1, 0, number);
		add_return(f, current);
		current = next;
	}
	add(f, BPF_JMP | BPF_JGT | BPF_K, 1, 0, LAST_KNOWN_NUMBER);
	add_return(f, current);
	/* Newer than this list, or the x32 form of a call. */
	add_return(f, ANSWER(ENOSYS));
}

int syscall_filter(struct sock_filter code[FILTER_MAX])
{
	struct filter filter = {.code = code};
	struct filter *f = &filter;

	add_load(f, offsetof(struct seccomp_data, arch));
	add(f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, NATIVE_ARCH);
	add_return(f, SECCOMP_RET_KILL_PROCESS);
	add_load(f, offsetof(struct seccomp_data, nr));
	add_conditions(f);
	add_verdicts(f);
	return f->len <= FILTER_MAX ? (int)f->len : -E2BIG;
}

int wall_off_syscalls(void)
{
	struct sock_filter code[FILTER_MAX];
	struct sock_fprog program = {.filter = code};
	int len = syscall_filter(code);

	if (len < 0)
		return len;
	program.len = (unsigned short)len;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) ? -errno : 0;
}
