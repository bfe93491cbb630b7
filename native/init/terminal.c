#include "terminal.h"

#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>

/*
 * More than the kernel buffers between slave and master (8 KiB in the port,
 * 4 KiB in the line discipline). After that many bytes everything older than
 * a report has been read, even if a background job never stops writing.
 */
#define PTY_BUFFERED_MAX (64 * 1024)
#define SPLICE_SIZE	 4096 /* the line discipline never has more */

void terminal_clear(struct terminal *t)
{
	t->master = -1;
	t->slave = -1;
	t->output[0] = t->output[1] = -1;
	t->input_kept[0] = t->input_kept[1] = -1;
	t->status_fifo = -1;
	t->go_fifo = -1;
	t->exec_status = -1;
}

void terminal_close(struct terminal *t)
{
	close_fd(&t->master);
	close_fd(&t->slave);
	for (unsigned int end = 0; end < 2; end++) {
		close_fd(&t->output[end]);
		close_fd(&t->input_kept[end]);
	}
	close_fd(&t->status_fifo);
	close_fd(&t->go_fifo);
	close_fd(&t->exec_status);
	t->input_len = 0;
}

/* Takes over `from`, which may be the result of a failed call. */
static int move_fd(int from, unsigned int slot, enum terminal_fd which)
{
	auto_close int fd = from;
	int to = TERMINAL_FDS_FIRST + (int)(TERMINAL_FDS * slot) + (int)which;

	if (fd < 0)
		return -1;
	return dup3(fd, to, O_CLOEXEC);
}

static int open_pipe(int ends[2], unsigned int slot, enum terminal_fd read_end)
{
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	ends[0] = move_fd(ends[0], slot, read_end);
	ends[1] = move_fd(ends[1], slot, read_end + 1);
	return ends[0] < 0 || ends[1] < 0 ? -EMFILE : 0;
}

int terminal_open_pty(struct terminal *t, unsigned int slot, char *path, size_t size)
{
	int flags = O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK;
	struct termios mode;
	int err;

	t->master = move_fd(posix_openpt(flags), slot, FD_MASTER);
	if (t->master < 0 || unlockpt(t->master))
		return -errno;
	if (ptsname_r(t->master, path, size))
		return -errno;
	t->slave = move_fd(open(path, flags), slot, FD_SLAVE);
	if (t->slave < 0 || tcgetattr(t->slave, &mode))
		return -errno;
	err = open_pipe(t->output, slot, FD_OUTPUT_READ);
	if (!err)
		err = open_pipe(t->input_kept, slot, FD_INPUT_READ);
	if (err)
		return err;
	mode.c_iflag |= IUTF8;
	if (tcsetattr(t->slave, TCSANOW, &mode))
		return -errno;
	if (t->uid != geteuid() && fchown(t->slave, t->uid, (gid_t)-1))
		return -errno;
	return terminal_resize(t, t->rows, t->cols);
}

/*
 * The pipe in between costs a copy. Without it we could be stopped between
 * checking what the host has added and reading from the PTY, and would not know
 * afterwards which came first.
 */
int terminal_read(struct terminal *t, uint64_t limit)
{
	struct ring *ring = terminal_ring(t);
	size_t budget = READ_BUDGET;

	while (limit > 0 && budget > 0) {
		size_t space;
		uint8_t *to = ring_space(ring, &space);
		ssize_t got;

		if (space > limit)
			space = (size_t)limit;
		got = read(t->output[0], to, space);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			/* EAGAIN comes only after the tty layer has run its pending work. */
			got = splice(t->master, NULL, t->output[1], NULL, SPLICE_SIZE,
				SPLICE_F_NONBLOCK);
			if (got > 0 || (got < 0 && errno == EINTR))
				continue;
			return 1;
		}
		ring_commit(ring, (size_t)got);
		t->read_since += (size_t)got;
		limit -= (uint64_t)got;
		budget -= (size_t)got < budget ? (size_t)got : budget;
	}
	return t->read_since >= PTY_BUFFERED_MAX;
}

/* poll() makes n_tty run its pending work. */
void terminal_settle_input(const struct terminal *t)
{
	struct pollfd pfd = {.fd = t->slave, .events = POLLIN};

	poll(&pfd, 1, 0);
}

/* gVisor cannot flush; outside of canonical mode the input can be read instead. */
void terminal_discard_input(const struct terminal *t)
{
	struct termios mode;
	struct termios raw;
	char rest[1024];

	terminal_settle_input(t);
	if (!tcflush(t->slave, TCIFLUSH) || tcgetattr(t->slave, &mode))
		return;
	raw = mode;
	raw.c_lflag &= ~(tcflag_t)ICANON;
	if (tcsetattr(t->slave, TCSANOW, &raw))
		return;
	while (read(t->slave, rest, sizeof(rest)) > 0)
		;
	tcsetattr(t->slave, TCSANOW, &mode);
}

int terminal_type(const struct terminal *t, const void *data, size_t len)
{
	ssize_t put = write(t->master, data, len);

	if (put == (ssize_t)len)
		return 0;
	return put < 0 ? -errno : -EAGAIN;
}

int terminal_queue_input(struct terminal *t, struct bytes text)
{
	if (text.len > INPUT_MAX - t->input_len)
		return -EMSGSIZE;
	if (text.len)
		memcpy(t->input + t->input_len, text.data, text.len);
	t->input_len += text.len;
	t->input_since_run = true;
	terminal_flush_input(t);
	return 0;
}

void terminal_flush_input(struct terminal *t)
{
	size_t done = 0;

	while (done < t->input_len) {
		ssize_t put = write(t->master, t->input + done, t->input_len - done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			break;
		done += (size_t)put;
	}
	memmove(t->input, t->input + done, t->input_len - done);
	t->input_len -= done;
	terminal_settle_input(t);
}

int terminal_unread_bytes(const struct terminal *t)
{
	int count = 0;

	return ioctl(t->slave, FIONREAD, &count) ? 0 : count;
}

bool terminal_has_typed_line(const struct terminal *t)
{
	struct termios mode;

	if (t->input_len &&
		(memchr(t->input, '\n', t->input_len) || memchr(t->input, '\r', t->input_len)))
		return true;
	/* In canonical mode FIONREAD counts whole lines only. */
	return !tcgetattr(t->slave, &mode) && (mode.c_lflag & ICANON) &&
	       terminal_unread_bytes(t) > 0;
}

/* Types the character of SIGINT without its echo, and discards the character itself. */
static int press_interrupt(struct terminal *t)
{
	struct termios mode;
	struct termios silent;
	int err;

	if (tcgetattr(t->slave, &mode))
		return -errno;
	if (!(mode.c_lflag & ISIG) || mode.c_cc[VINTR] == _POSIX_VDISABLE)
		return -ENOTTY;
	silent = mode;
	silent.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
	if (tcsetattr(t->slave, TCSANOW, &silent))
		return -errno;
	err = terminal_type(t, &mode.c_cc[VINTR], 1);
	terminal_discard_input(t);
	t->input_len = 0;
	if (tcsetattr(t->slave, TCSANOW, &mode) && !err)
		err = -errno;
	return err;
}

int terminal_signal(struct terminal *t, int signo)
{
	bool from_keyboard = signo == SIGINT || signo == SIGQUIT || signo == SIGTSTP;
	struct termios mode;
	pid_t group;

	if (ioctl(t->master, TIOCGPGRP, &group)) {
		/*
		 * gVisor reports it to members of the session only, but knows
		 * it when a key is pressed.
		 */
		if (signo == SIGINT && !press_interrupt(t))
			return 0;
		group = foreground_guess(t->shell);
	}
	if (group <= 1)
		return -ESRCH;
	if (group == t->shell && !from_keyboard && signo != SIGWINCH && signo != SIGCONT)
		return -EPERM;
	/*
	 * As the key would do. It also discards a run line that the shell has
	 * not read yet; otherwise the interrupted command would still run,
	 * unseen.
	 */
	if (from_keyboard && !tcgetattr(t->slave, &mode) && !(mode.c_lflag & NOFLSH)) {
		terminal_discard_input(t);
		t->input_len = 0;
	}
	if (!kill(-group, signo))
		return 0;
	/* The last program has ended, and its shell is about to take the foreground back. */
	if (errno == ESRCH && from_keyboard && !kill(-t->shell, signo))
		return 0;
	return -errno;
}

int terminal_resize(struct terminal *t, uint16_t rows, uint16_t cols)
{
	struct winsize size = {.ws_row = rows, .ws_col = cols};

	if (ioctl(t->master, TIOCSWINSZ, &size))
		return -errno;
	t->rows = rows;
	t->cols = cols;
	sizes_note(&t->sizes, terminal_ring(t)->end, rows, cols);
	return 0;
}

void terminal_kill(struct terminal *t)
{
	static const int signals[] = {SIGHUP, SIGKILL};
	pid_t group;

	if (t->state == TERM_DEAD || t->shell <= 0)
		return;
	if (ioctl(t->master, TIOCGPGRP, &group))
		group = 0;
	for (unsigned int i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
		if (group > 1)
			kill(-group, signals[i]);
		kill(-t->shell, signals[i]);
		kill(t->shell, signals[i]); /* it may not have reached its setsid() yet */
	}
}
