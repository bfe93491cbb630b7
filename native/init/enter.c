/*
 * Host side: run a program, usually CRIU, in chosen cgroups and a chosen
 * network namespace, with a private /run that holds a copy of CRIU's kernel
 * probe, and mounts that nobody else sees.
 */
#include "cgroups.h"
#include "fd.h"
#include "modes.h"
#include "namespace.h"
#include "walls.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define KDAT_PATH "/run/criu.kdat"

enum { EXIT_STEP_FAILED = 125, EXIT_NOT_FOUND = 127 };

#define BINDS_MAX 256

struct entry {
	const char *net;
	struct cgroups cgroups;
	const char *kdat;
	const char *save_kdat;
	const char *sources[BINDS_MAX];
	const char *targets[BINDS_MAX];
	unsigned int bind_count;
	char **command;
};

static int fail(const char *step, int err)
{
	fprintf(stderr, "waypoint-init: %s: %s\n", step, strerror(-err));
	return EXIT_STEP_FAILED;
}

static int copy_bytes(int from, int to)
{
	char buffer[16384];

	for (;;) {
		ssize_t got = read(from, buffer, sizeof(buffer));

		if (got == 0)
			return 0;
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return -errno;
		for (ssize_t done = 0; done < got;) {
			ssize_t put = write(to, buffer + done, (size_t)(got - done));

			if (put < 0)
				return -errno;
			done += put;
		}
	}
}

static int enter_network(const char *net)
{
	auto_close int fd = -1;

	if (strcmp(net, "new") == 0)
		return unshare(CLONE_NEWNET) ? -errno : bring_loopback_up();
	fd = open(net, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return setns(fd, CLONE_NEWNET) ? -errno : 0;
}

static int make_private_mounts(const struct entry *entry)
{
	int err = unshare(CLONE_NEWNS) ? -errno : make_mounts_private();

	for (unsigned int i = 0; !err && i < entry->bind_count; i++) {
		if (mount(entry->sources[i], entry->targets[i], NULL, MS_BIND, NULL))
			err = -errno;
	}
	return err;
}

/* `file` is opened before the mount, because it may itself live under /run. */
static int make_private_run(const char *file)
{
	auto_close int from = open(file, O_RDONLY | O_CLOEXEC);
	auto_close int to = -1;

	if (from < 0 && errno != ENOENT)
		return -errno;
	/* CRIU keeps its probe cache only where it finds a tmpfs. */
	if (mount("tmpfs", "/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m"))
		return -errno;
	if (from < 0)
		return 0;
	to = open(KDAT_PATH, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	return copy_bytes(from, to);
}

static int save_probe(int dir_fd, const char *name)
{
	auto_close int from = open(KDAT_PATH, O_RDONLY | O_CLOEXEC);
	auto_close int to = -1;
	char draft[300];
	int err;

	if (from < 0)
		return -errno;
	if (snprintf(draft, sizeof(draft), ".%s.%d", name, (int)getpid()) >= (int)sizeof(draft))
		return -ENAMETOOLONG;
	to = openat(dir_fd, draft, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (to < 0)
		return -errno;
	err = copy_bytes(from, to);
	if (!err && (fsync(to) || renameat(dir_fd, draft, dir_fd, name) || fsync(dir_fd)))
		err = -errno;
	if (err)
		unlinkat(dir_fd, draft, 0);
	return err;
}

/* Returns only if the program could not be started. */
static int exec_command(char **command)
{
	int err;

	execvp(command[0], command);
	err = errno;
	fail(command[0], -err);
	return err == ENOENT ? EXIT_NOT_FOUND : EXIT_STEP_FAILED;
}

static int run_and_save(const struct entry *entry, int dir_fd, const char *name)
{
	int status;
	int err;
	pid_t pid = fork();

	if (pid < 0)
		return fail("fork", -errno);
	if (pid == 0)
		_exit(exec_command(entry->command));
	while (waitpid(pid, &status, 0) < 0) {
		if (errno != EINTR)
			return fail("wait", -errno);
	}
	if (WIFSIGNALED(status))
		return 128 + WTERMSIG(status);
	if (WEXITSTATUS(status) == 0) {
		err = save_probe(dir_fd, name);
		if (err)
			return fail("save kdat", err);
	}
	return WEXITSTATUS(status);
}

static int parse_options(int argc, char **argv, struct entry *entry)
{
	static const struct option options[] = {
		{"net", required_argument, NULL, 'n'},
		{"cgroup", required_argument, NULL, 'c'},
		{"kdat", required_argument, NULL, 'k'},
		{"save-kdat", required_argument, NULL, 's'},
		{"bind", required_argument, NULL, 'b'},
		{"to", required_argument, NULL, 't'},
		{0},
	};
	const char *source = NULL;
	int option;

	/* "+": options after the command's name are the command's. */
	while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		if (option == 'n')
			entry->net = optarg;
		else if (option == 'c' && !cgroups_add(&entry->cgroups, optarg))
			continue;
		else if (option == 'k')
			entry->kdat = optarg;
		else if (option == 's')
			entry->save_kdat = optarg;
		else if (option == 'b')
			source = optarg;
		else if (option == 't' && source && entry->bind_count < BINDS_MAX) {
			entry->sources[entry->bind_count] = source;
			entry->targets[entry->bind_count++] = optarg;
		} else
			return -EINVAL;
	}
	entry->command = argv + optind;
	return optind < argc ? 0 : -EINVAL;
}

int enter_main(int argc, char **argv)
{
	static struct entry entry;
	char dir_copy[4096];
	char name_copy[4096];
	auto_close int save_dir = -1;
	const char *probe;
	int err;

	if (parse_options(argc, argv, &entry)) {
		fputs("waypoint-init: enter needs a command after --\n", stderr);
		return EXIT_STEP_FAILED;
	}
	if ((err = cgroups_join(&entry.cgroups)))
		return fail("join cgroup", err);
	/* What CRIU restores into a cgroup inherits its keyring. */
	if (entry.cgroups.count && (err = leave_keyring()))
		return fail("leave keyring", err);
	if (entry.net && (err = enter_network(entry.net)))
		return fail("enter network", err);
	if (entry.save_kdat) {
		snprintf(dir_copy, sizeof(dir_copy), "%s", entry.save_kdat);
		snprintf(name_copy, sizeof(name_copy), "%s", entry.save_kdat);
		save_dir = open(dirname(dir_copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (save_dir < 0)
			return fail("open kdat directory", -errno);
	}
	probe = entry.kdat ? entry.kdat : entry.save_kdat;
	if ((probe || entry.bind_count) && (err = make_private_mounts(&entry)))
		return fail("make private mounts", err);
	if (probe && (err = make_private_run(probe)))
		return fail("make private /run", err);
	if (entry.save_kdat)
		return run_and_save(&entry, save_dir, basename(name_copy));
	return exec_command(entry.command);
}
