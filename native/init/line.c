#include "line.h"

#include "connect.h"
#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <linux/vm_sockets.h>

enum {
	PIECE = 16384,
	WORD_MAX = 192,
	NONCE_MAX = 32,
	RANDOM_MAX = 64,
	/* A port reports that a caller has connected separately from his data, and later. */
	HANGUP_MS = 5000,
	DOWN_MAX = 2 * PIECE + 2 * WORD_MAX, /* a piece of which every byte is escaped, and words */
};

/* Bytes on their way: those from begin to end are not sent yet. */
struct queue {
	size_t begin;
	size_t end;
	uint8_t bytes[DOWN_MAX];
};

struct line {
	const struct line_service *service;
	int fd;
	int epoll;
	int sock; /* to init; -1 without a caller */
	bool is_announced;
	bool is_escaped;
	bool in_word;
	char nonce[NONCE_MAX];
	char word[WORD_MAX];
	size_t word_len;
	struct queue up;
	struct queue down;
};

static bool is_for_later(int error)
{
	return error == EAGAIN || error == EINTR;
}

static bool is_empty(const struct queue *queue)
{
	return queue->begin == queue->end;
}

static void put(struct queue *queue, uint8_t byte)
{
	if (is_empty(queue))
		queue->begin = queue->end = 0;
	if (queue->end < sizeof(queue->bytes)) /* else the host asks and never reads */
		queue->bytes[queue->end++] = byte;
}

static void put_word(struct queue *queue, const char *word)
{
	put(queue, LINE_FLAG);
	while (*word)
		put(queue, (uint8_t)*word++);
	put(queue, LINE_WORD_END);
}

static void put_escaped(struct queue *queue, uint8_t byte)
{
	if (byte != LINE_FLAG && byte != LINE_ESCAPE) {
		put(queue, byte);
		return;
	}
	put(queue, LINE_ESCAPE);
	put(queue, byte == LINE_FLAG ? LINE_ESCAPED_FLAG : LINE_ESCAPED_ESCAPE);
}

/* For this caller, not for one before or after it. */
static void put_nonce(struct line *line, char letter)
{
	char word[NONCE_MAX + 2];

	snprintf(word, sizeof(word), "%c%s", letter, line->nonce);
	put_word(&line->down, word);
}

/* Edge-triggered: a port reports POLLHUP as long as nobody is at its other end. */
static int watch(const struct line *line, int fd)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};

	return epoll_ctl(line->epoll, EPOLL_CTL_ADD, fd, &event) ? -errno : 0;
}

static void disconnect_caller(struct line *line)
{
	close_fd(&line->sock);
	line->up.begin = line->up.end = 0;
	line->down.begin = line->down.end = 0;
}

/* Keeps `down`: the caller may not have read yet what init sent last. */
static void announce_end(struct line *line)
{
	close_fd(&line->sock);
	line->up.begin = line->up.end = 0;
	put_nonce(line, 'E');
}

/* Returns whether something was moved. */
static bool send_to_init(struct line *line)
{
	struct queue *up = &line->up;
	ssize_t sent;

	if (line->sock < 0 || is_empty(up))
		return false;
	sent = send(line->sock, up->bytes + up->begin, up->end - up->begin, MSG_NOSIGNAL);
	if (sent < 0) {
		if (!is_for_later(errno))
			announce_end(line);
		return false;
	}
	up->begin += (size_t)sent;
	return true;
}

/* What the line still holds for the previous caller is not for this one. */
static void accept_caller(struct line *line, const char *nonce)
{
	send_to_init(line);
	disconnect_caller(line);
	line->is_announced = false;
	snprintf(line->nonce, sizeof(line->nonce), "%s", nonce);
	line->sock = connect_to_init(line->service->dir, "sock", SOCK_NONBLOCK);
	if (line->sock >= 0 && watch(line, line->sock))
		close_fd(&line->sock);
	if (line->sock < 0)
		announce_end(line);
}

static size_t parse_hex(const char *text, uint8_t *bytes, size_t size)
{
	size_t len = 0;
	unsigned int byte;

	while (len < size && sscanf(text + 2 * len, "%2x", &byte) == 1)
		bytes[len++] = (uint8_t)byte;
	return len;
}

static int renew(const struct line *line, const char *text)
{
	uint8_t random[RANDOM_MAX];
	struct timespec now = {0};
	char *end;
	double seconds = strtod(text, &end);

	if (!line->service->renew)
		return 0;
	if (end == text || *end != ' ' || !(seconds > 0))
		return -EINVAL;
	now.tv_sec = (time_t)seconds;
	now.tv_nsec = (long)((seconds - (double)now.tv_sec) * 1e9);
	return line->service->renew(&now, random, parse_hex(end + 1, random, sizeof(random)));
}

static void handle_word(struct line *line)
{
	char answer[NONCE_MAX + 16];

	line->word[line->word_len] = 0;
	if (line->word[0] == 'O')
		accept_caller(line, line->word + 1);
	if (line->word[0] == 'R') {
		snprintf(answer, sizeof(answer), "R%s %d", line->nonce,
			-renew(line, line->word + 1));
		put_word(&line->down, answer);
	}
}

static void handle_byte(struct line *line, uint8_t byte)
{
	if (byte == LINE_FLAG) {
		line->in_word = true;
		line->word_len = 0;
		line->is_escaped = false;
	} else if (line->in_word) {
		line->in_word = byte != LINE_WORD_END && line->word_len < WORD_MAX - 1;
		if (byte == LINE_WORD_END)
			handle_word(line);
		else
			line->word[line->word_len++] = (char)byte;
	} else if (byte == LINE_ESCAPE && !line->is_escaped) {
		line->is_escaped = true;
	} else {
		if (line->is_escaped)
			byte = byte == LINE_ESCAPED_FLAG ? LINE_FLAG : LINE_ESCAPE;
		line->is_escaped = false;
		if (line->sock >= 0)
			put(&line->up, byte);
	}
}

/* 1: something was read; 0: nothing to read now; -1: the other side has closed. */
static int read_line(struct line *line)
{
	static uint8_t piece[PIECE];
	ssize_t got = read(line->fd, piece, sizeof(piece));

	if (got < 0)
		return is_for_later(errno) ? 0 : -1;
	for (ssize_t i = 0; i < got; i++)
		handle_byte(line, piece[i]);
	return got == 0 ? -1 : 1;
}

static bool read_init(struct line *line)
{
	static uint8_t piece[PIECE];
	ssize_t got;

	if (line->sock < 0 || !is_empty(&line->down))
		return false;
	got = recv(line->sock, piece, sizeof(piece), 0);
	if (got < 0 && is_for_later(errno))
		return false;
	if (got <= 0) {
		announce_end(line);
		return true;
	}
	if (!line->is_announced) {
		put_nonce(line, 'O');
		line->is_announced = true;
	}
	for (ssize_t i = 0; i < got; i++)
		put_escaped(&line->down, piece[i]);
	return true;
}

static bool write_line(struct line *line)
{
	struct queue *down = &line->down;
	ssize_t done;

	if (is_empty(down))
		return false;
	done = write(line->fd, down->bytes + down->begin, down->end - down->begin);
	down->begin += done > 0 ? (size_t)done : 0;
	return done > 0;
}

/* Waits for something to do. Returns 0 if nothing came in time, else 1 or -errno. */
static int wait_for_events(const struct line *line, int timeout_ms)
{
	struct epoll_event event;
	int ready = epoll_wait(line->epoll, &event, 1, timeout_ms);

	if (ready < 0)
		return errno == EINTR ? 1 : -errno;
	return ready;
}

static int serve(struct line *line, bool is_device)
{
	for (;;) {
		bool has_moved = write_line(line) | read_init(line) | send_to_init(line);
		bool is_hung_up = false;
		int err = 1;

		if (is_empty(&line->up)) {
			int got = read_line(line);

			if (got < 0 && !is_device)
				return 0;
			is_hung_up = got < 0;
			has_moved |= got > 0;
		}
		if (!has_moved)
			err = wait_for_events(line, is_hung_up && line->sock >= 0 ? HANGUP_MS : -1);
		if (err < 0)
			return err;
		if (err == 0)
			disconnect_caller(line);
	}
}

int line_serve(const struct line_service *service, int fd, bool is_device)
{
	static struct line line;
	int flags = fcntl(fd, F_GETFL);
	int err;

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	line = (struct line){.service = service, .fd = fd, .sock = -1};
	line.epoll = epoll_create1(EPOLL_CLOEXEC);
	if (line.epoll < 0)
		return -errno;
	err = watch(&line, fd);
	if (!err)
		err = serve(&line, is_device);
	disconnect_caller(&line);
	close_fd(&line.epoll);
	return err;
}

int line_serve_device(const struct line_service *service, const char *path)
{
	auto_close int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);

	return fd < 0 ? -errno : line_serve(service, fd, true);
}

int line_serve_vsock(const struct line_service *service, unsigned int port)
{
	struct sockaddr_vm address = {
		.svm_family = AF_VSOCK, .svm_port = port, .svm_cid = VMADDR_CID_ANY};
	auto_close int listener = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC, 0);

	signal(SIGPIPE, SIG_IGN);
	if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof(address)) ||
		listen(listener, 16))
		return -errno;
	for (;;) {
		auto_close int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		int err = 0;

		if (fd >= 0)
			err = line_serve(service, fd, false);
		else if (errno != EINTR && errno != ECONNABORTED)
			err = -errno;
		if (err)
			return err;
	}
}
