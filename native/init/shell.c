/* Starts a shell on a terminal, and makes the files through which it communicates with us. */
#include "child.h"
#include "fd.h"
#include "terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

static int remove_any(int dir, const char *name)
{
	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	return unlinkat(dir, name, AT_REMOVEDIR) ? -errno : 0;
}

static int chown_to_shell(const struct terminal *t, int fd)
{
	if (t->uid == geteuid() && t->gid == getegid())
		return 0;
	return fchown(fd, t->uid, t->gid) ? -errno : 0;
}

/* The shell's user owns this directory, so nothing in it is followed or trusted. */
static int open_directory(const char *dir, const char *name)
{
	auto_close int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd;

	if (parent < 0)
		return -errno;
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP) && unlinkat(parent, name, 0))
		return -errno;
	if (fd < 0 && mkdirat(parent, name, 0755) && errno != EEXIST)
		return -errno;
	if (fd < 0)
		fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Replaces the file as a whole: the shell may read `name` at any time. */
static int write_file(const struct terminal *t, int dir, const char *name, struct bytes text)
{
	auto_close int fd = -1;
	char draft[16];
	int err;

	snprintf(draft, sizeof(draft), ".%s.new", name);
	err = remove_any(dir, draft);
	if (err)
		return err;
	fd = openat(dir, draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	err = chown_to_shell(t, fd);
	for (uint32_t done = 0; !err && done < text.len;) {
		ssize_t put = write(fd, text.data + done, text.len - done);

		if (put >= 0)
			done += (uint32_t)put;
		else if (errno != EINTR)
			err = -errno;
	}
	if (!err && renameat(dir, draft, dir, name))
		err = -errno;
	if (err)
		unlinkat(dir, draft, 0);
	return err;
}

/* Open for both directions: neither end then ever blocks or sees an end of file. */
static int make_fifo(const struct terminal *t, int dir, const char *name)
{
	auto_close int fd = -1;
	struct stat st;
	int keep;
	int err = remove_any(dir, name);

	if (err)
		return err;
	if (mkfifoat(dir, name, 0600))
		return -errno;
	fd = openat(dir, name, O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	/* Not a file that the shell's user has put there meanwhile: its owner must not change. */
	if (!S_ISFIFO(st.st_mode) || st.st_nlink != 1)
		return -EEXIST;
	err = chown_to_shell(t, fd);
	if (err)
		return err;
	keep = fd;
	fd = -1;
	return keep;
}

static int make_control_files(struct terminal *t, const char *dir, struct bytes rc)
{
	auto_close int fd = open_directory(dir, t->name);
	int err;

	if (fd < 0)
		return fd;
	err = chown_to_shell(t, fd);
	if (!err && fchmod(fd, 0755))
		err = -errno;
	if (!err)
		err = write_file(t, fd, "rc", rc);
	if (err)
		return err;
	t->status_fifo = make_fifo(t, fd, "status");
	if (t->status_fifo < 0)
		return t->status_fifo;
	t->go_fifo = make_fifo(t, fd, "go");
	return t->go_fifo < 0 ? t->go_fifo : 0;
}

static bool is_same_file(int dir, const char *name, int fd)
{
	struct stat by_name;
	struct stat by_fd;

	/* Both are looked up now: a restore gives the file system another number. */
	return !fstatat(dir, name, &by_name, AT_SYMLINK_NOFOLLOW) && !fstat(fd, &by_fd) &&
	       by_name.st_dev == by_fd.st_dev && by_name.st_ino == by_fd.st_ino;
}

int shell_write_command(const struct terminal *t, const char *dir, struct bytes text)
{
	auto_close int fd = open_directory(dir, t->name);

	if (fd < 0)
		return fd;
	if (!is_same_file(fd, "status", t->status_fifo) || !is_same_file(fd, "go", t->go_fifo))
		return -ESTALE;
	return write_file(t, fd, "cmd", text);
}

static int become_shell(const char *pts, struct program *program)
{
	int err = reset_signals();
	int fd;

	if (err)
		return err;
	if (setsid() < 0)
		return -errno;
	fd = open(pts, O_RDWR);
	/* Taking the tty also makes this group its foreground group. */
	if (fd < 0 || ioctl(fd, TIOCSCTTY, 0))
		return -errno;
	for (int to = 0; to < 3; to++) {
		if (dup2(fd, to) < 0)
			return -errno;
	}
	if (fd > 2)
		close(fd);
	offer_to_oom_killer(); /* if this fails, it runs all the same */
	err = drop_to_user(program);
	if (err)
		return err;
	if (chdir(program->cwd) && chdir("/"))
		return -errno;
	execve(program->argv[0], program->argv, program->env);
	return -errno;
}

int shell_start(struct terminal *t, unsigned int slot, const char *dir, struct request *request)
{
	auto_close int exec_write = -1;
	char pts[64];
	int ends[2];
	int err = make_control_files(t, dir, request->rc);

	if (!err)
		err = terminal_open_pty(t, slot, pts, sizeof(pts));
	if (err)
		return err;
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	t->exec_status = ends[0];
	exec_write = ends[1];
	t->shell = fork();
	if (t->shell < 0)
		return -errno;
	if (t->shell == 0) {
		err = -become_shell(pts, &request->program);
		if (write(exec_write, &err, sizeof(err)) < 0)
			_exit(126);
		_exit(127);
	}
	return 0;
}
