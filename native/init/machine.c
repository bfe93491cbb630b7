/*
 * machine: process 1 of a virtual machine. From the initramfs it loads the
 * drivers, mounts the disk, and starts two children: the relay, and init in a
 * pid namespace of its own, where the session's processes can neither see nor
 * signal the relay. If one of them ends, so does the machine.
 */
#include "child.h"
#include "fd.h"
#include "line.h"
#include "modes.h"
#include "namespace.h"
#include "renew.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define MODULE_ORDER "/modules/order"
#define OWN_PROGRAM  "/init"
#define CONTROL_DIR  "/.waypoint"
#define INIT_PATH    CONTROL_DIR "/init"
#define READY_FD     3

enum { DEVICE_TRIES = 1000, DEVICE_PAUSE_MS = 10 };

struct machine {
	const char *root;
	const char *port;
	unsigned int vsock;
};

static int load_module(const char *name)
{
	char path[128];
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "/modules/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return syscall(SYS_finit_module, fd, "", 0) && errno != EEXIST ? -errno : 0;
}

static int load_modules(void)
{
	FILE *order = fopen(MODULE_ORDER, "re");
	char name[100];
	int err = 0;

	if (!order)
		return -errno;
	while (!err && fscanf(order, "%99s", name) == 1)
		err = load_module(name);
	fclose(order);
	return err;
}

/*
 * Finds the first device that matches a pattern: the name of a port contains
 * the number of its bus. A driver may find its device some time after it was
 * loaded, and this early nothing reports when.
 */
static int find_device(const char *pattern, char *path, size_t size)
{
	for (int left = DEVICE_TRIES; left > 0; left--) {
		glob_t found;

		if (glob(pattern, 0, NULL, &found) == 0) {
			snprintf(path, size, "%s", found.gl_pathv[0]);
			globfree(&found);
			return 0;
		}
		poll(NULL, 0, DEVICE_PAUSE_MS);
	}
	return -ENODEV;
}

static int mount_disk(const char *pattern)
{
	char device[PATH_MAX];
	int err = find_device(pattern, device, sizeof(device));

	if (err)
		return err;
	return mount(device, "/root", "ext4", MS_NOATIME, "discard") ? -errno : 0;
}

/* The disk may come from anywhere: it gets the program that fits this host at every start. */
static int install_self(void)
{
	auto_close int from = open(OWN_PROGRAM, O_RDONLY | O_CLOEXEC);
	auto_close int to = -1;
	struct stat size;
	off_t at = 0;

	if (from < 0 || fstat(from, &size))
		return -errno;
	if (mkdir("/root" CONTROL_DIR, 0755) && errno != EEXIST)
		return -errno;
	unlink("/root" INIT_PATH);
	to = open("/root" INIT_PATH, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0755);
	if (to < 0)
		return -errno;
	while (at < size.st_size) {
		if (sendfile(to, from, &at, (size_t)(size.st_size - at)) <= 0)
			return errno ? -errno : -EIO;
	}
	return 0;
}

static int switch_root(void)
{
	unlink(OWN_PROGRAM);
	if (chdir("/root") || mount(".", "/", NULL, MS_MOVE, NULL) || chroot(".") || chdir("/"))
		return -errno;
	return 0;
}

static int mount_at(const char *path, const char *type, unsigned long flags, const char *options)
{
	if (mkdir(path, 0755) && errno != EEXIST)
		return -errno;
	return mount(type, path, type, flags, options) ? -errno : 0;
}

static int link_descriptors(void)
{
	static const char *const links[][2] = {
		{"/proc/self/fd", "/dev/fd"},
		{"/proc/self/fd/0", "/dev/stdin"},
		{"/proc/self/fd/1", "/dev/stdout"},
		{"/proc/self/fd/2", "/dev/stderr"},
	};

	for (size_t i = 0; i < sizeof(links) / sizeof(links[0]); i++) {
		if (symlink(links[i][0], links[i][1]) && errno != EEXIST)
			return -errno;
	}
	return 0;
}

static int mount_kernel_filesystems(void)
{
	int err = mount_at("/dev", "devtmpfs", MS_NOSUID, "mode=755");

	if (!err)
		err = mount_at("/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	if (!err)
		err = mount_at("/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
			"ptmxmode=0666,mode=620,gid=5");
	if (!err)
		err = mount_at("/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
	if (!err)
		err = mount_at("/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755");
	return err ? err : link_descriptors();
}

static int forget_console(void)
{
	int null_fd = open("/dev/null", O_RDWR);

	if (null_fd < 0)
		return -errno;
	for (int fd = 0; fd < 3; fd++) {
		if (dup2(null_fd, fd) < 0)
			return -errno;
	}
	if (null_fd > 2)
		close(null_fd);
	return 0;
}

static int become_init(int ready_fd)
{
	char *const argv[] = {"init", "--ready", "3", NULL};
	char *const environment[] = {NULL};
	int err;

	setsid();
	umask(022);
	err = mount_at("/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
	if (!err)
		err = reset_signals();
	if (!err && dup2(ready_fd, READY_FD) < 0)
		err = -errno;
	if (!err)
		err = forget_console();
	if (!err) {
		execve(INIT_PATH, argv, environment);
		err = -errno;
	}
	return err;
}

/* Returns 0 once init listens, or -errno if it could not. */
static int start_init(void)
{
	auto_close int listens = -1;
	auto_close int ready = -1;
	char failure[128];
	int ends[2];
	ssize_t got;
	pid_t pid;

	if (pipe(ends))
		return -errno;
	listens = ends[0];
	ready = ends[1];
	/*
	 * As fork(), with a pid namespace for this child only: unshare() would
	 * put later ones there too.
	 */
	pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid < 0)
		return -errno;
	if (pid == 0) {
		dprintf(ready, "start init: %s", strerror(-become_init(ready)));
		_exit(1);
	}
	close_fd(&ready);
	got = read(listens, failure, sizeof(failure));
	if (got == 0)
		return 0;
	fprintf(stderr, "%.*s\n", (int)(got < 0 ? 0 : got), failure);
	return -EIO;
}

static int start_relay(const struct machine *machine)
{
	const struct line_service service = {.dir = CONTROL_DIR, .renew = renew_machine};
	char device[PATH_MAX];
	pid_t pid = fork();
	int err;

	if (pid < 0)
		return -errno;
	if (pid > 0)
		return 0;
	setsid();
	if (machine->port)
		err = find_device(machine->port, device, sizeof(device));
	else
		err = line_serve_vsock(&service, machine->vsock);
	if (!err)
		err = line_serve_device(&service, device);
	fprintf(stderr, "waypoint-init: relay: %s\n", strerror(-err));
	_exit(1);
}

static int set_hostname(void)
{
	static const char name[] = "microvm";

	return sethostname(name, sizeof(name) - 1) ? -errno : 0;
}

/* Returns only if a step failed, with its name. */
static const char *bring_up(const struct machine *machine, int *err)
{
#define STEP(name, call)                                                                           \
	do {                                                                                       \
		*err = (call);                                                                     \
		if (*err)                                                                          \
			return name;                                                               \
	} while (0)

	STEP("mount /dev", mount_at("/dev", "devtmpfs", 0, NULL));
	STEP("load modules", load_modules());
	STEP("mount disk", mount_disk(machine->root));
	STEP("install init", install_self());
	STEP("switch root", switch_root());
	STEP("mount kernel file systems", mount_kernel_filesystems());
	STEP("set hostname", set_hostname());
	STEP("bring up loopback", bring_loopback_up());
	STEP("start init", start_init());
	STEP("start relay", start_relay(machine));
#undef STEP
	wait(NULL);
	*err = -ECHILD;
	return "run";
}

static int parse_options(int argc, char **argv, struct machine *machine)
{
	static const struct option options[] = {
		{"root", required_argument, NULL, 'r'},
		{"port", required_argument, NULL, 'p'},
		{"vsock", required_argument, NULL, 'v'},
		{0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'r')
			machine->root = optarg;
		else if (option == 'p')
			machine->port = optarg;
		else if (option == 'v')
			machine->vsock = (unsigned int)strtoul(optarg, NULL, 10);
		else
			return -EINVAL;
	}
	return machine->port || machine->vsock ? 0 : -EINVAL;
}

int machine_main(int argc, char **argv)
{
	struct machine machine = {.root = "/dev/vda"};
	const char *step = "options";
	int err = parse_options(argc, argv, &machine);

	if (getpid() != 1) {
		fputs("waypoint-init: machine is for process 1 of a virtual machine\n", stderr);
		return 2;
	}
	if (!err)
		step = bring_up(&machine, &err);
	fprintf(stderr, "waypoint-init: machine: %s: %s\n", step, strerror(-err));
	sync();
	reboot(RB_AUTOBOOT); /* the host takes a restart for the end of the machine */
	return 1;
}
