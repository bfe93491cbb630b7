/* A blocking client of init for black-box tests; every wait has a deadline. */
#pragma once

#include "../frame.h"
#include "../version.h"
#include "check.h"
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

struct client {
	int fd;
	uint8_t buf[FRAME_REPLY_MAX + FRAME_HEADER];
	size_t len;
	size_t used; /* the frame last returned */
};

/* What a follower received of a job. */
struct result {
	uint8_t *output;
	size_t len;
	uint64_t lost;
	uint8_t *error;
	size_t error_len;
	uint64_t error_lost;
	uint32_t job;
	uint8_t how;
	int32_t status;
};

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
	CHECK(receive_kind(c, &frame) == REP_HELLO && read_u16(&frame.body) == PROTOCOL_VERSION);
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
	/* As in src/waypoint/shell/profile.py: tokens, void lines, reports that end no job. */
	snprintf(text, sizeof(text),
		"report() { builtin set -- \"$?\" \"$ended\" \"$last\"; last=$1 ended=;"
		" [[ $1:$2:$3 != 2::130 && $2 != 0 ]] || builtin set -- -; asked=$((asked + 1));"
		" builtin printf '#%%s\\n%%s\\n' \"$asked\" \"$1\" >%s/%s/status;"
		" while builtin read -r go <%s/%s/go && [[ $go && $go != \"$asked\" ]]; do"
		" [[ $go != !* ]] || over=${go#!}; done; }\n"
		"end() { builtin set -- \"$?\" \"$1\"; ended=$(($2 > over)); return \"$1\"; }\n"
		"over=0 PROMPT_COMMAND=report PS1= PS2=\n",
		init->dir, name, init->dir, name);
	put_text(&w, text);
	snprintf(text, sizeof(text),
		" { case $((__waypoint_job > over)) in 1) . %s/%s/cmd;; esac;"
		" end __waypoint_job; }\n",
		init->dir, name);
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

static inline void append(uint8_t **to, size_t *len, const struct reader *body)
{
	*to = realloc(*to, *len + body->left + 1);
	memcpy(*to + *len, body->at, body->left);
	*len += body->left;
	(*to)[*len] = 0;
}

static inline void count_lost(struct reader *body, size_t len, uint64_t *lost)
{
	uint64_t from = read_u64(body);

	CHECK(from == len + *lost);
	*lost += read_u64(body) - from;
}

/* Handles one frame about a followed job: false once the job has ended. */
static inline bool follow_frame(struct frame *frame, struct result *result)
{
	struct reader *body = &frame->body;

	if (frame->kind == REP_OUTPUT) {
		CHECK(read_u64(body) == result->len + result->lost);
		append(&result->output, &result->len, body);
		return true;
	}
	if (frame->kind == REP_ERROR_OUTPUT) {
		CHECK(read_u64(body) == result->error_len + result->error_lost);
		append(&result->error, &result->error_len, body);
		return true;
	}
	if (frame->kind == REP_LOST) {
		if (read_u8(body) == 0)
			count_lost(body, result->len, &result->lost);
		else
			count_lost(body, result->error_len, &result->error_lost);
		return true;
	}
	CHECK(frame->kind == REP_ENDED);
	result->job = read_u32(body);
	result->how = read_u8(body);
	result->status = (int32_t)read_u32(body);
	CHECK(read_u64(body) == result->len + result->lost);
	CHECK(read_u64(body) == result->error_len + result->error_lost);
	CHECK(!body->bad && body->left == 0);
	return false;
}

static inline bool follow_step(struct client *c, struct result *result)
{
	struct frame frame;

	CHECK(receive(c, &frame));
	return follow_frame(&frame, result);
}

static inline void follow_to_the_end(struct client *c, struct result *result)
{
	while (follow_step(c, result))
		;
}

static inline void free_result(struct result *result)
{
	free(result->output);
	free(result->error);
	*result = (struct result){0};
}

static inline struct result run(struct client *c, const char *name, const char *text)
{
	struct result result = {0};

	CHECK(start_run(c, name, 1, text) > 0);
	while (follow_step(c, &result))
		;
	return result;
}

static inline void send_follow_from(
	struct client *c, uint32_t job, uint64_t offset, uint64_t error_offset)
{
	uint8_t buf[32];
	struct writer w = request_begin(buf, sizeof(buf), REQ_FOLLOW);

	put_u32(&w, job);
	put_u64(&w, offset);
	put_u64(&w, error_offset);
	request_send(c, &w);
}

static inline void send_follow(struct client *c, uint32_t job, uint64_t offset)
{
	send_follow_from(c, job, offset, 0);
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

/* No frame announces a state: ask until it is reached. */
static inline void wait_until_state(struct client *c, const char *name, int state)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;

	while (terminal_state(c, name) != state) {
		CHECK(clock_ms() < deadline);
		poll(NULL, 0, 2);
	}
}
