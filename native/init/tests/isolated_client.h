/* What a client does with isolated jobs. */
#pragma once

#include "../request.h"
#include "client.h"

struct spawn {
	uint8_t flags;
	uint32_t uid;
	uint32_t gid;
	uint32_t group; /* in addition to gid; 0: no groups are sent */
	const char *cwd;
	const char *path;
};

static inline void send_spawn(struct client *to, const struct spawn *how, const char *const *argv)
{
	size_t cap = 4096;
	uint32_t argc = 0;
	struct writer w;
	uint8_t *buf;

	for (; argv[argc]; argc++)
		cap += strlen(argv[argc]) + 4;
	buf = malloc(cap);
	w = request_begin(buf, cap, REQ_SPAWN);
	put_u8(&w, how->flags);
	put_u32(&w, how->uid);
	put_u32(&w, how->gid);
	put_text(&w, how->cwd ? how->cwd : "/");
	put_u32(&w, argc);
	for (uint32_t i = 0; i < argc; i++)
		put_text(&w, argv[i]);
	put_u32(&w, 2);
	put_text(&w, how->path ? how->path : "PATH=/usr/local/bin:/usr/bin:/bin");
	put_text(&w, "GIVEN=by the caller");
	if (how->group) {
		put_u32(&w, 1);
		put_u32(&w, how->group);
	}
	request_send(to, &w);
	free(buf);
}

/* The job's number, or minus the error code and its text in `message`. */
static inline int64_t receive_started(struct client *from, char *message, size_t size)
{
	struct frame frame;
	uint8_t kind = receive_kind(from, &frame);
	struct bytes text;
	int code;

	if (kind == REP_STARTED)
		return read_u32(&frame.body);
	CHECK(kind == REP_ERROR);
	code = read_u16(&frame.body);
	text = read_str(&frame.body);
	snprintf(message, size, "%.*s", (int)text.len, text.data);
	return -code;
}

static inline int64_t spawn_shell(struct client *to, uint8_t flags, const char *script)
{
	const struct spawn how = {.flags = flags, .uid = geteuid(), .gid = getegid()};
	const char *argv[] = {"sh", "-c", script, NULL};
	char message[300];

	send_spawn(to, &how, argv);
	return receive_started(to, message, sizeof(message));
}

static inline uint32_t start_shell(struct client *to, uint8_t flags, const char *script)
{
	int64_t job = spawn_shell(to, flags, script);

	CHECK(job > 0);
	return (uint32_t)job;
}

static inline void send_write_at(
	struct client *to, uint32_t job, uint64_t offset, const void *data, size_t len)
{
	uint8_t *buf = malloc(len + 32);
	struct writer w = request_begin(buf, len + 32, REQ_WRITE);

	put_u32(&w, job);
	put_u64(&w, offset);
	put_str(&w, data, (uint32_t)len);
	request_send(to, &w);
	free(buf);
}

static inline void send_write(struct client *to, uint32_t job, const void *data, size_t len)
{
	send_write_at(to, job, WRITE_AT_END, data, len);
}

static inline int write_input(struct client *to, uint32_t job, const void *data, size_t len)
{
	send_write(to, job, data, len);
	return receive_outcome(to);
}

static inline int kill_job(struct client *to, uint32_t job, uint8_t signo)
{
	uint8_t buf[32];
	struct writer w = request_begin(buf, sizeof(buf), REQ_KILL);

	put_u32(&w, job);
	put_u8(&w, signo);
	request_send(to, &w);
	return receive_outcome(to);
}

static inline void send_wait(struct client *to, uint32_t job)
{
	uint8_t buf[32];
	struct writer w = request_begin(buf, sizeof(buf), REQ_WAIT);

	put_u32(&w, job);
	request_send(to, &w);
}

struct end {
	uint8_t how;
	int32_t status;
	uint64_t length;
	uint64_t error_length;
};

static inline struct end receive_ended(struct client *from, uint32_t job)
{
	struct frame frame;
	struct end end;

	CHECK(receive_kind(from, &frame) == REP_ENDED);
	CHECK(read_u32(&frame.body) == job);
	end.how = read_u8(&frame.body);
	end.status = (int32_t)read_u32(&frame.body);
	end.length = read_u64(&frame.body);
	end.error_length = read_u64(&frame.body);
	CHECK(!frame.body.bad && frame.body.left == 0);
	return end;
}

static inline struct end wait_for(struct client *to, uint32_t job)
{
	send_wait(to, job);
	return receive_ended(to, job);
}

/* Does nothing arrive for `ms`? */
static inline bool is_quiet(struct client *from, int ms)
{
	struct pollfd pfd = {.fd = from->fd, .events = POLLIN};

	return from->used == from->len && poll(&pfd, 1, ms) == 0;
}

static inline struct result run_shell(struct client *to, const char *script)
{
	struct result r = {0};

	start_shell(to, SPAWN_FOLLOW, script);
	follow_to_the_end(to, &r);
	return r;
}

struct listed {
	uint8_t kind;
	char terminal[80];
	uint8_t state;
	uint8_t how;
	int32_t status;
	uint64_t length, kept_from, error_length, error_kept_from;
	uint32_t pid;
};

static inline bool find_listed(struct client *to, uint32_t job, struct listed *found)
{
	uint8_t buf[16];
	struct writer w = request_begin(buf, sizeof(buf), REQ_JOBS);
	struct frame frame;
	bool is_there = false;

	request_send(to, &w);
	while (receive_kind(to, &frame) == REP_JOB) {
		struct reader *body = &frame.body;
		uint32_t id = read_u32(body);
		struct listed l = {.kind = read_u8(body)};
		struct bytes name = read_str(body);

		snprintf(l.terminal, sizeof(l.terminal), "%.*s", (int)name.len, name.data);
		l.state = read_u8(body);
		l.how = read_u8(body);
		l.status = (int32_t)read_u32(body);
		l.length = read_u64(body);
		l.kept_from = read_u64(body);
		l.error_length = read_u64(body);
		l.error_kept_from = read_u64(body);
		l.pid = read_u32(body);
		CHECK(!body->bad && body->left == 0);
		if (id == job) {
			*found = l;
			is_there = true;
		}
	}
	CHECK(frame.kind == REP_END);
	return is_there;
}

/* Waits until each stream has that length: programs on a loaded machine are slow. */
static inline void wait_until_written(
	struct client *to, uint32_t job, uint64_t length, uint64_t error_length)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;
	struct listed l;

	for (;;) {
		CHECK(find_listed(to, job, &l) && clock_ms() < deadline);
		if (l.length >= length && l.error_length >= error_length)
			return;
		poll(NULL, 0, 5);
	}
}
