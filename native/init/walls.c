#include "walls.h"

#include "fd.h"
#include "syscall_wall.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CAP(name)    (UINT64_C(1) << CAP_##name)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Docker's default set without MKNOD. */
static const uint64_t kept_capabilities = CAP(CHOWN) | CAP(DAC_OVERRIDE) | CAP(FSETID) |
					  CAP(FOWNER) | CAP(NET_RAW) | CAP(SETGID) | CAP(SETUID) |
					  CAP(SETFCAP) | CAP(SETPCAP) | CAP(NET_BIND_SERVICE) |
					  CAP(SYS_CHROOT) | CAP(KILL) | CAP(AUDIT_WRITE);

/*
 * What covers a masked path. Files of the branch itself would not do: root
 * inside could change, move or delete them. These belong to the kernel: a
 * directory that is always empty, and a file that nobody may open for reading.
 */
#define EMPTY_DIRECTORY "/sys/fs/cgroup"
#define SEALED_FILE	"/sys/bus/platform/uevent"

static const char *const masked[] = {
	"/proc/acpi",
	"/proc/asound",
	"/proc/interrupts",
	"/proc/kcore",
	"/proc/keys",
	"/proc/latency_stats",
	"/proc/sched_debug",
	"/proc/scsi",
	"/proc/timer_list",
	"/proc/timer_stats",
	"/sys/devices/virtual/powercap",
	"/sys/firmware",
};

static const char *const write_protected[] = {
	"/proc/bus",
	"/proc/fs",
	"/proc/irq",
	"/proc/sys",
	"/proc/sysrq-trigger",
};

static int bind_at(const char *source, const char *target, unsigned long flags)
{
	if (mount(source, target, NULL, MS_BIND, NULL))
		return -errno;
	/* A bind takes the flags of its source; only a second call can change them. */
	return mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | flags, NULL) ? -errno : 0;
}

static int ignore_missing(int err)
{
	return err == -ENOENT || err == -ENOTDIR ? 0 : err;
}

int add_path(const char *paths[PATHS_MAX + 1], const char *path)
{
	for (size_t i = 0; i < PATHS_MAX; i++) {
		if (paths[i])
			continue;
		paths[i] = path;
		return 0;
	}
	return -E2BIG;
}

/*
 * Includes what is mounted below it. The files may come from a checkpoint:
 * programs may have put a link on the way, to make something else writable.
 */
static int keep_writable(const char *path)
{
	const struct open_how how = {
		.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
		.resolve = RESOLVE_NO_SYMLINKS,
	};
	auto_close int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

	if (fd < 0)
		return errno == ELOOP ? 0 : ignore_missing(-errno);
	if (fchdir(fd) || mount(".", ".", NULL, MS_BIND | MS_REC, NULL))
		return -errno;
	return chdir("/") ? -errno : 0;
}

int mount_paths(const struct walls *walls)
{
	/* The root is mounted nodev: only devices that we have made can be opened. */
	int err = bind_at("/dev", "/dev", MS_NOSUID);

	for (size_t i = 0; !err && walls->writable[i]; i++)
		err = keep_writable(walls->writable[i]);
	for (size_t i = 0; !err && walls->read_only[i]; i++) {
		if (mount(NULL, walls->read_only[i], NULL,
			    MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NODEV, NULL))
			err = -errno;
	}
	return err;
}

static int mask(const char *path)
{
	struct stat st;
	int err = stat(path, &st) ? -errno : 0;

	if (err)
		return ignore_missing(err);
	/* /sys is read-only, and so is what is bound from it. */
	return mount(S_ISDIR(st.st_mode) ? EMPTY_DIRECTORY : SEALED_FILE, path, NULL, MS_BIND, NULL)
		       ? -errno
		       : 0;
}

int mask_kernel_files(const struct walls *walls)
{
	const unsigned long hardened = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
	int err = 0;

	if (walls->privileged)
		return 0;
	for (size_t i = 0; !err && i < COUNT(masked); i++)
		err = mask(masked[i]);
	for (size_t i = 0; !err && i < COUNT(write_protected); i++)
		err = ignore_missing(bind_at(write_protected[i], write_protected[i], hardened));
	return err;
}

int leave_keyring(void)
{
	if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL) < 0 && errno != ENOSYS)
		return -errno;
	return 0;
}

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

int drop_privileges(const struct walls *walls)
{
	int err;

	/* The groups of the user who created the session mean nothing inside. */
	if (setgroups(0, NULL))
		return -errno;
	if (walls->no_new_privs && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
		return -errno;
	if (walls->privileged)
		return 0;
	/* In this order: without no_new_privs the filter needs CAP_SYS_ADMIN. */
	err = wall_off_syscalls();
	return err ? err : drop_capabilities();
}
