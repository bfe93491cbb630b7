/* A blocking client of init for black-box tests; every wait has a deadline. */
#pragma once

#include "../frame.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 30000

struct init {
	pid_t pid;
	char dir[64];
};

struct client {
	int fd;
	uint8_t buf[FRAME_REPLY_MAX + FRAME_HEADER];
	size_t len;
	size_t used; /* the frame last returned */
};

struct result {
	uint8_t *output;
	size_t len;
	uint64_t lost;
	uint32_t job;
	uint8_t how;
	int32_t status;
};

static inline int64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int try_connect(const struct init *init)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock", init->dir);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static inline struct init start_init(const char *binary)
{
	struct init init = {.dir = "/tmp/waypoint-init-test.XXXXXX"};
	int64_t deadline = clock_ms() + DEADLINE_MS;
	int fd;

	CHECK(mkdtemp(init.dir));
	init.pid = fork();
	CHECK(init.pid >= 0);
	if (init.pid == 0) {
		/* A failed check must not leave it behind. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(binary, binary, "init", "--dir", init.dir, "--any-peer", NULL);
		_exit(127);
	}
	while ((fd = try_connect(&init)) < 0) {
		CHECK(clock_ms() < deadline && waitpid(init.pid, NULL, WNOHANG) == 0);
		poll(NULL, 0, 5);
	}
	close(fd);
	return init;
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* Also fails if init has ended before: a crash must not pass for a clean stop. */
static inline void stop_init(struct init *init)
{
	int status;

	CHECK(waitpid(init->pid, &status, WNOHANG) == 0);
	kill(init->pid, SIGKILL);
	CHECK(waitpid(init->pid, &status, 0) == init->pid);
	nftw(init->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void send_bytes(struct client *c, const void *data, size_t len)
{
	const uint8_t *at = data;

	while (len > 0) {
		ssize_t put = send(c->fd, at, len, MSG_NOSIGNAL);

		CHECK(put > 0);
		at += put;
		len -= (size_t)put;
	}
}

/* 1: a frame; 0: the other side has closed. */
static inline int receive(struct client *c, struct frame *frame)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;

	memmove(c->buf, c->buf + c->used, c->len - c->used);
	c->len -= c->used;
	c->used = 0;
	for (;;) {
		int ready = frame_parse(c->buf, c->len, FRAME_REPLY_MAX, frame);
		struct pollfd pfd = {.fd = c->fd, .events = POLLIN};
		ssize_t got;

		CHECK(ready >= 0);
		if (ready == 1) {
			c->used = frame->size;
			return 1;
		}
		CHECK(poll(&pfd, 1, (int)(deadline - clock_ms())) == 1);
		got = recv(c->fd, c->buf + c->len, sizeof(c->buf) - c->len, 0);
		if (got <= 0)
			return 0;
		c->len += (size_t)got;
	}
}

static inline uint8_t receive_kind(struct client *c, struct frame *frame)
{
	return receive(c, frame) ? frame->kind : 0;
}

static inline void connect_client(const struct init *init, struct client *c)
{
	struct frame frame;

	c->len = 0;
	c->used = 0;
	c->fd = try_connect(init);
	CHECK(c->fd >= 0);
	CHECK(receive_kind(c, &frame) == REP_HELLO && read_u16(&frame.body) == 1);
}

static inline struct writer request_begin(uint8_t *buf, size_t cap, uint8_t kind)
{
	struct writer w = {.buf = buf, .cap = cap};

	frame_begin(&w, kind);
	return w;
}

static inline void request_send(struct client *c, struct writer *w)
{
	CHECK(frame_end(w) == 0);
	send_bytes(c, w->buf, w->len);
}

static inline void put_text(struct writer *w, const char *text)
{
	put_str(w, text, (uint32_t)strlen(text));
}

/* Sends a request without payload and returns the kind of the reply. */
static inline uint8_t ask(struct client *c, uint8_t kind)
{
	uint8_t buf[16];
	struct writer w = request_begin(buf, sizeof(buf), kind);
	struct frame frame;

	request_send(c, &w);
	return receive_kind(c, &frame);
}

/* 0 for OK, else the error code. */
static inline int receive_outcome(struct client *c)
{
	struct frame frame;
	uint8_t kind = receive_kind(c, &frame);

	if (kind == REP_OK)
		return 0;
	CHECK(kind == REP_ERROR);
	return read_u16(&frame.body);
}

static inline int open_terminal(
	const struct init *init, struct client *c, const char *name, const char *shell)
{
	uint8_t buf[4096];
	char text[1024];
	struct writer w = request_begin(buf, sizeof(buf), REQ_OPEN);

	put_text(&w, name);
	put_u16(&w, 24);
	put_u16(&w, 80);
	put_u32(&w, geteuid());
	put_u32(&w, getegid());
	put_text(&w, "/nowhere");
	snprintf(text, sizeof(text),
		"report() { builtin printf '%%s\\n' \"$?\" >%s/%s/status;"
		" builtin read -r _ <%s/%s/go; }\nPROMPT_COMMAND=report PS1= PS2=\n",
		init->dir, name, init->dir, name);
	put_text(&w, text);
	snprintf(text, sizeof(text), " . %s/%s/cmd\n", init->dir, name);
	put_text(&w, text);
	put_u32(&w, 6);
	put_text(&w, shell);
	put_text(&w, "--noprofile");
	put_text(&w, "--rcfile");
	snprintf(text, sizeof(text), "%s/%s/rc", init->dir, name);
	put_text(&w, text);
	put_text(&w, "--noediting");
	put_text(&w, "-i");
	put_u32(&w, 2);
	put_text(&w, "PATH=/usr/local/bin:/usr/bin:/bin");
	put_text(&w, "LC_ALL=C");
	request_send(c, &w);
	return receive_outcome(c);
}

/* The job's number, or minus the error code. */
static inline int64_t start_run(struct client *c, const char *name, uint8_t flags, const char *text)
{
	size_t cap = strlen(text) + 256;
	uint8_t *buf = malloc(cap);
	struct writer w = request_begin(buf, cap, REQ_RUN);
	struct frame frame;
	uint8_t kind;

	put_text(&w, name);
	put_u8(&w, flags);
	put_text(&w, text);
	request_send(c, &w);
	free(buf);
	kind = receive_kind(c, &frame);
	if (kind == REP_STARTED)
		return read_u32(&frame.body);
	CHECK(kind == REP_ERROR);
	return -(int64_t)read_u16(&frame.body);
}

/* Takes one frame of a followed job: false once it has ended. */
static inline bool follow_step(struct client *c, struct result *result)
{
	struct frame frame;
	uint8_t kind = receive_kind(c, &frame);

	if (kind == REP_OUTPUT) {
		CHECK(read_u64(&frame.body) == result->len + result->lost);
		result->output = realloc(result->output, result->len + frame.body.left + 1);
		memcpy(result->output + result->len, frame.body.at, frame.body.left);
		result->len += frame.body.left;
		result->output[result->len] = 0;
		return true;
	}
	if (kind == REP_LOST) {
		uint64_t from = read_u64(&frame.body);

		CHECK(from == result->len + result->lost);
		result->lost += read_u64(&frame.body) - from;
		return true;
	}
	CHECK(kind == REP_ENDED);
	result->job = read_u32(&frame.body);
	result->how = read_u8(&frame.body);
	result->status = (int32_t)read_u32(&frame.body);
	CHECK(read_u64(&frame.body) == result->len + result->lost);
	return false;
}

static inline struct result run(struct client *c, const char *name, const char *text)
{
	struct result result = {0};

	CHECK(start_run(c, name, 1, text) > 0);
	while (follow_step(c, &result))
		;
	return result;
}

static inline void send_follow(struct client *c, uint32_t job, uint64_t offset)
{
	uint8_t buf[32];
	struct writer w = request_begin(buf, sizeof(buf), REQ_FOLLOW);

	put_u32(&w, job);
	put_u64(&w, offset);
	request_send(c, &w);
}

static inline int send_signal(struct client *c, const char *name, uint8_t signo)
{
	uint8_t buf[128];
	struct writer w = request_begin(buf, sizeof(buf), REQ_SIGNAL);

	put_text(&w, name);
	put_u8(&w, signo);
	request_send(c, &w);
	return receive_outcome(c);
}

static inline int send_input(struct client *c, const char *name, const char *text)
{
	static uint8_t buf[256 * 1024];
	struct writer w = request_begin(buf, sizeof(buf), REQ_INPUT);

	put_text(&w, name);
	put_text(&w, text);
	request_send(c, &w);
	return receive_outcome(c);
}

static inline int terminal_state(struct client *c, const char *name)
{
	uint8_t buf[16];
	struct writer w = request_begin(buf, sizeof(buf), REQ_TERMINALS);
	struct frame frame;
	int state = -1;

	request_send(c, &w);
	while (receive_kind(c, &frame) == REP_TERMINAL) {
		struct bytes found = read_str(&frame.body);

		if (found.len == strlen(name) && memcmp(found.data, name, found.len) == 0)
			state = read_u8(&frame.body);
	}
	CHECK(frame.kind == REP_END);
	return state;
}

/* No event tells of a state: ask until it is reached. */
static inline void wait_until_state(struct client *c, const char *name, int state)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;

	while (terminal_state(c, name) != state) {
		CHECK(clock_ms() < deadline);
		poll(NULL, 0, 2);
	}
}
