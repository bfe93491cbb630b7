/*
 * Host side: turn a mounted overlay into a branch. The caller's process enters
 * the cgroup and makes the namespaces; its child becomes process 1, and touches
 * no path before the pivot, so that no symlink of the base can lead back to the
 * host.
 */
#include "cgroups.h"
#include "child.h"
#include "fd.h"
#include "modes.h"
#include "namespace.h"
#include "walls.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define INIT_PATH "/.waypoint/init"
#define STATUS_FD 3

struct branch {
	const char *root;
	struct cgroups cgroups;
	const char *hostname;
	int report_fd;
	int net_fd; /* of the network namespace to enter; -1 for a new one */
	bool allow_self;
	struct walls walls;
};

/* The name of a failed step, and its errno. */
struct failure {
	const char *step;
	int error;
};

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

static int mount_kernel_filesystems(bool privileged)
{
	const unsigned long hardened = MS_NOSUID | MS_NODEV | MS_NOEXEC;
	int err = mount_at("/proc", "proc", hardened, NULL);

	if (!err)
		err = mount_at("/sys", "sysfs", privileged ? hardened : hardened | MS_RDONLY, NULL);
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
	/* CRIU cannot find the file of a descriptor that was opened before the pivot. */
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

/* The steps of the child, in order; returns only if one failed. */
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
	STEP("mount paths", mount_paths(&branch->walls));
	STEP("mount kernel file systems", mount_kernel_filesystems(branch->walls.privileged));
	STEP("mask kernel files", mask_kernel_files(&branch->walls));
	STEP("set hostname", set_hostname(branch->hostname));
	if (branch->net_fd < 0)
		STEP("bring up loopback", bring_loopback_up());
	umask(022);
	STEP("reset signals", reset_signals());
	STEP("replace descriptors", replace_descriptors(*status_fd));
	*status_fd = STATUS_FD;
	STEP("leave keyring", leave_keyring());
	STEP("drop privileges", drop_privileges(&branch->walls));
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
	int err = cgroups_join(&branch->cgroups);

	if (err) {
		snprintf(text, size, "join cgroup: %s", strerror(-err));
		return err;
	}
	setsid(); /* fails only if the caller already did it */
	if (branch->net_fd >= 0 && setns(branch->net_fd, CLONE_NEWNET)) {
		snprintf(text, size, "enter network: %m");
		return -1;
	}
	if (unshare(CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
		    (branch->net_fd < 0 ? CLONE_NEWNET : 0))) {
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
		{"net", required_argument, NULL, 'n'},
		{"allow-self", no_argument, NULL, 's'},
		{"privileged", no_argument, NULL, 'p'},
		{"no-new-privs", no_argument, NULL, 'g'},
		{"read-only", required_argument, NULL, 'o'},
		{"writable", required_argument, NULL, 'd'},
		{0},
	};
	int option;
	int err = 0;

	while (!err && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			branch->root = optarg;
		else if (option == 'c')
			err = cgroups_add(&branch->cgroups, optarg);
		else if (option == 'h')
			branch->hostname = optarg;
		else if (option == 'f')
			branch->report_fd = atoi(optarg);
		else if (option == 'n')
			branch->net_fd = atoi(optarg);
		else if (option == 's')
			branch->allow_self = true;
		else if (option == 'p')
			branch->walls.privileged = true;
		else if (option == 'g')
			branch->walls.no_new_privs = true;
		else if (option == 'o')
			err = add_path(branch->walls.read_only, optarg);
		else if (option == 'd')
			err = add_path(branch->walls.writable, optarg);
		else
			err = -EINVAL;
	}
	if (err)
		return err;
	if (!branch->root || !branch->cgroups.count || !branch->hostname || branch->report_fd < 0)
		return -EINVAL;
	return 0;
}

int branch_main(int argc, char **argv)
{
	struct branch branch = {.report_fd = -1, .net_fd = -1};
	char text[256] = "";
	pid_t pid = -1;
	int err = parse_options(argc, argv, &branch);

	if (err == -E2BIG)
		fputs("waypoint-init: too many of --cgroup, --read-only or --writable\n", stderr);
	else if (err)
		fputs("waypoint-init: branch needs --root, --cgroup, --hostname and --report\n",
			stderr);
	if (err)
		return 2;
	if (start_branch(&branch, &pid, text, sizeof(text))) {
		dprintf(branch.report_fd, "error %s\n", text);
		return 1;
	}
	dprintf(branch.report_fd, "ok %d\n", (int)pid);
	return 0;
}
