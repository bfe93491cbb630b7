/*
 * Host side: turn a mounted overlay into a branch. The caller's process enters
 * the cgroup and makes the namespaces; its child becomes process 1, and only
 * after the pivot touches any path, so that no symlink of the base can lead
 * back to the host.
 */
#include "child.h"
#include "fd.h"
#include "modes.h"
#include "namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define INIT_PATH "/.waypoint/init"
#define STATUS_FD 3

struct branch {
	const char *root;
	const char *cgroup;
	const char *hostname;
	int report_fd;
	bool allow_self;
};

/* A failed step by name; the errno is kept beside it. */
struct failure {
	const char *step;
	int error;
};

#define CAP(name) (UINT64_C(1) << CAP_##name)

static const uint64_t kept_capabilities = CAP(CHOWN) | CAP(DAC_OVERRIDE) | CAP(FSETID) |
					  CAP(FOWNER) | CAP(NET_RAW) | CAP(SETGID) | CAP(SETUID) |
					  CAP(SETFCAP) | CAP(SETPCAP) | CAP(NET_BIND_SERVICE) |
					  CAP(SYS_CHROOT) | CAP(KILL) | CAP(AUDIT_WRITE);

static int drop_capabilities(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	uint64_t keep;

	for (int cap = 0; cap < 64; cap++) {
		if (kept_capabilities & (UINT64_C(1) << cap))
			continue;
		if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0)
			continue;
		if (errno == EINVAL) /* the kernel knows no capability from here on */
			break;
		return -errno;
	}
	prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
	if (syscall(SYS_capget, &header, data))
		return -errno;
	/* Asking for more than is permitted now would be refused as a whole. */
	keep = kept_capabilities & (data[0].permitted | (uint64_t)data[1].permitted << 32);
	for (int i = 0; i < 2; i++) {
		data[i].permitted = (uint32_t)(keep >> (32 * i));
		data[i].effective = data[i].permitted;
		data[i].inheritable = 0;
	}
	return syscall(SYS_capset, &header, data) ? -errno : 0;
}

static int pivot_into(const char *root)
{
	if (chdir(root))
		return -errno;
	/* The old root is stacked under the new one at "."; the unmount uncovers it. */
	if (syscall(SYS_pivot_root, ".", "."))
		return -errno;
	if (umount2(".", MNT_DETACH))
		return -errno;
	return chdir("/") ? -errno : 0;
}

static int mount_at(const char *path, const char *type, unsigned long flags, const char *options)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		return -errno;
	return mount(type, path, type, flags, options) ? -errno : 0;
}

static int mount_kernel_filesystems(void)
{
	const unsigned long hardened = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	int err = mount_at("/proc", "proc", hardened, NULL);

	if (!err)
		err = mount_at("/sys", "sysfs", hardened | MS_RDONLY, NULL);
	if (!err)
		err = mount_at("/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
			"newinstance,ptmxmode=0666,mode=620,gid=5");
	return err;
}

/* Leaves only /dev/null of the new root and the status pipe, at STATUS_FD. */
static int replace_descriptors(int status_fd)
{
	int null_fd;

	/* It survives the exec: init closes it when it listens. */
	if (status_fd != STATUS_FD && dup2(status_fd, STATUS_FD) < 0)
		return -errno;
	if (status_fd == STATUS_FD && fcntl(STATUS_FD, F_SETFD, 0))
		return -errno;
	if (close_range(STATUS_FD + 1, ~0U, 0))
		return -errno;
	/* CRIU cannot place a descriptor that was opened before the pivot. */
	null_fd = open("/dev/null", O_RDWR);
	if (null_fd < 0)
		return -errno;
	for (int fd = 0; fd < STATUS_FD; fd++) {
		if (dup2(null_fd, fd) < 0)
			return -errno;
	}
	if (null_fd > STATUS_FD)
		close(null_fd);
	return 0;
}

static int set_hostname(const char *name)
{
	return sethostname(name, strlen(name)) ? -errno : 0;
}

static int start_session(void)
{
	return setsid() < 0 ? -errno : 0;
}

static int exec_init(bool allow_self)
{
	char *const argv[] = {"init", "--ready", "3", allow_self ? "--allow-self" : NULL, NULL};
	char *const environment[] = {NULL};

	execve(INIT_PATH, argv, environment);
	return -errno;
}

/* The steps of the child, in order; returns only to tell which one failed. */
static struct failure become_init(const struct branch *branch, int *status_fd)
{
	int err;

#define STEP(name, call)                                                                           \
	do {                                                                                       \
		err = (call);                                                                      \
		if (err)                                                                           \
			return (struct failure){name, -err};                                       \
	} while (0)

	/* CRIU refuses a process 1 whose session leader is outside its namespace. */
	STEP("setsid", start_session());
	STEP("make mounts private", make_mounts_private());
	STEP("pivot root", pivot_into(branch->root));
	STEP("mount kernel file systems", mount_kernel_filesystems());
	STEP("set hostname", set_hostname(branch->hostname));
	STEP("bring up loopback", bring_loopback_up());
	umask(022);
	STEP("reset signals", reset_signals());
	STEP("replace descriptors", replace_descriptors(*status_fd));
	*status_fd = STATUS_FD;
	STEP("drop capabilities", drop_capabilities());
	STEP("exec " INIT_PATH, exec_init(branch->allow_self));
#undef STEP
	return (struct failure){"exec", EINVAL};
}

static void run_child(const struct branch *branch, int status_fd)
{
	struct failure failure = become_init(branch, &status_fd);

	dprintf(status_fd, "%s: %s", failure.step, strerror(failure.error));
	_exit(1);
}

/* What the child wrote before it failed; empty once init listens. */
static int read_status(int fd, char *text, size_t size)
{
	size_t len = 0;

	for (;;) {
		ssize_t got = read(fd, text + len, size - 1 - len);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		if (got == 0)
			break;
		len += (size_t)got;
	}
	text[len] = 0;
	return 0;
}

static int start_branch(const struct branch *branch, pid_t *pid, char *text, size_t size)
{
	auto_close int read_end = -1;
	auto_close int write_end = -1;
	int ends[2];
	int err = join_cgroup(branch->cgroup);

	if (err) {
		snprintf(text, size, "join cgroup: %s", strerror(-err));
		return err;
	}
	setsid(); /* fails only if the caller already did it */
	if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET)) {
		snprintf(text, size, "unshare: %m");
		return -1;
	}
	if (pipe2(ends, O_CLOEXEC)) {
		snprintf(text, size, "pipe: %m");
		return -1;
	}
	read_end = ends[0];
	write_end = ends[1];
	*pid = fork();
	if (*pid < 0) {
		snprintf(text, size, "fork: %m");
		return -1;
	}
	if (*pid == 0)
		run_child(branch, write_end);
	close_fd(&write_end);
	err = read_status(read_end, text, size);
	if (err)
		snprintf(text, size, "read status: %s", strerror(-err));
	if (text[0] == 0)
		return 0;
	kill(*pid, SIGKILL);
	waitpid(*pid, NULL, 0);
	return -1;
}

static int parse_options(int argc, char **argv, struct branch *branch)
{
	static const struct option options[] = {
		{"root", required_argument, NULL, 'r'},
		{"cgroup", required_argument, NULL, 'c'},
		{"hostname", required_argument, NULL, 'h'},
		{"report", required_argument, NULL, 'f'},
		{"allow-self", no_argument, NULL, 's'},
		{0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			branch->root = optarg;
		else if (option == 'c')
			branch->cgroup = optarg;
		else if (option == 'h')
			branch->hostname = optarg;
		else if (option == 'f')
			branch->report_fd = atoi(optarg);
		else if (option == 's')
			branch->allow_self = true;
		else
			return -EINVAL;
	}
	if (!branch->root || !branch->cgroup || !branch->hostname || branch->report_fd < 0)
		return -EINVAL;
	return 0;
}

int branch_main(int argc, char **argv)
{
	struct branch branch = {.report_fd = -1};
	char text[256] = "";
	pid_t pid = -1;

	if (parse_options(argc, argv, &branch)) {
		fputs("waypoint-init: branch needs --root, --cgroup, --hostname and --report\n",
			stderr);
		return 2;
	}
	if (start_branch(&branch, &pid, text, sizeof(text))) {
		dprintf(branch.report_fd, "error %s\n", text);
		return 1;
	}
	dprintf(branch.report_fd, "ok %d\n", (int)pid);
	return 0;
}
