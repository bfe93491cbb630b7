#include "server.h"

#include "fd.h"
#include "version.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

static struct connection *find_place(struct server *s)
{
	struct connection *idle = NULL;

	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd < 0)
			return c;
		if (!c->job && !c->opening && (!idle || c->last_active < idle->last_active))
			idle = c;
	}
	if (idle)
		connection_close(s, idle);
	return idle;
}

void connection_open(struct server *s, int fd)
{
	struct connection *c = find_place(s);
	struct writer w;

	if (!c) {
		close(fd);
		return;
	}
	*c = (struct connection){
		.fd = fd,
		.serial = ++s->serial,
		.last_active = ++s->activity,
		.in = c->in,
		.out = c->out,
	};
	reply_begin(c, &w, REP_HELLO);
	put_u16(&w, PROTOCOL_VERSION);
	put_str(&w, PROGRAM_VERSION, sizeof(PROGRAM_VERSION) - 1);
	reply_end(c, &w);
	connection_flush(s, c);
}

void connection_close(struct server *s, struct connection *c)
{
	follow_hold(s, c);
	close_fd(&c->fd);
	/* `out` lies right behind `in`: one call gives both back. */
	madvise(c->in, IN_SIZE + OUT_SIZE, MADV_DONTNEED);
}

struct connection *connection_find(struct server *s, uint64_t serial)
{
	for (unsigned int i = 0; serial && i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd >= 0 && c->serial == serial)
			return c;
	}
	return NULL;
}

void connection_receive(struct server *s, struct connection *c)
{
	ssize_t got;

	if (c->eof || c->closing || c->in_len == IN_SIZE)
		return;
	got = recv(c->fd, c->in + c->in_len, IN_SIZE - c->in_len, MSG_DONTWAIT);
	if (got > 0) {
		c->in_len += (size_t)got;
		c->last_active = ++s->activity;
	} else if (got == 0) {
		c->eof = true;
	} else if (errno != EAGAIN && errno != EINTR) {
		connection_close(s, c);
	}
}

void connection_flush(struct server *s, struct connection *c)
{
	while (c->out_len > 0) {
		ssize_t put =
			send(c->fd, c->out + c->out_at, c->out_len, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno == EAGAIN)
			return;
		if (put < 0) {
			connection_close(s, c);
			return;
		}
		c->out_at += (size_t)put;
		c->out_len -= (size_t)put;
		c->last_active = ++s->activity;
	}
	c->out_at = 0;
	if (c->job_told) {
		c->job = 0;
		c->job_told = false;
	}
	if (c->closing || (c->eof && !c->in_len && !c->job && !c->streaming && !c->opening))
		connection_close(s, c);
}

static void refuse(struct server *s, struct connection *c, enum error_code code, const char *why)
{
	reply_error(c, code, "%s", why);
	c->closing = true;
	c->in_len = 0;
	c->deadline_ms = s->now_ms + FRAME_TIMEOUT_MS;
}

static bool is_paused(const struct connection *c)
{
	return c->closing || c->opening || c->streaming ||
	       c->out_len > OUT_STREAM_MAX + FRAME_REPLY_MAX;
}

/* Serves the first frame at `at`: its size, or 0 if there is none to serve now. */
static size_t serve_one(struct server *s, struct connection *c, size_t at)
{
	struct request *request = &s->request;
	struct frame frame;
	int ready = frame_parse(c->in + at, c->in_len - at, FRAME_REQUEST_MAX, &frame);
	int err;

	if (ready < 0) {
		refuse(s, c, ready == -EMSGSIZE ? ERR_TOO_LARGE : ERR_MALFORMED,
			"bad frame length");
		return 0;
	}
	if (ready == 0)
		return 0;
	c->deadline_ms = 0;
	err = request_parse(&frame, request);
	if (err == -E2BIG)
		reply_error(
			c, ERR_LIMIT, "more than %d arguments or %d variables", ARGS_MAX, ENV_MAX);
	else if (err)
		refuse(s, c, ERR_MALFORMED, "malformed request");
	else
		answer(s, c, request);
	return frame.size;
}

void connection_serve(struct server *s, struct connection *c)
{
	uint64_t serial = c->serial;
	size_t at = 0;
	size_t largest = 0;

	while (at < c->in_len && !is_paused(c)) {
		size_t size = serve_one(s, c, at);

		if (c->fd < 0 || c->serial != serial || size == 0)
			break;
		at += size;
		largest = size > largest ? size : largest;
	}
	if (c->fd < 0 || c->serial != serial)
		return;
	if (c->closing) {
		c->in_len = 0;
		return;
	}
	memmove(c->in, c->in + at, c->in_len - at);
	c->in_len -= at;
	if (largest > FRAME_CHUNK_MAX && c->in_len < PAGE)
		madvise(c->in + PAGE, IN_SIZE - PAGE, MADV_DONTNEED);
	if (c->in_len == 0 || is_paused(c))
		c->deadline_ms = 0;
	else if (c->deadline_ms == 0)
		c->deadline_ms = s->now_ms + FRAME_TIMEOUT_MS;
	/* The rest of a frame will never come. */
	if (c->eof && c->in_len && !is_paused(c))
		c->in_len = 0;
}

void reply_begin(struct connection *c, struct writer *w, uint8_t kind)
{
	if (c->out_at > 0) {
		memmove(c->out, c->out + c->out_at, c->out_len);
		c->out_at = 0;
	}
	*w = (struct writer){.buf = c->out, .cap = OUT_SIZE, .len = c->out_len};
	frame_begin(w, kind);
}

void reply_end(struct connection *c, struct writer *w)
{
	/* Cannot fail: is_paused() and OUT_STREAM_MAX leave room for any reply. */
	if (frame_end(w))
		c->closing = true;
	c->out_len = w->len;
}

void reply_ok(struct connection *c)
{
	struct writer w;

	reply_begin(c, &w, REP_OK);
	reply_end(c, &w);
}

void reply_error(struct connection *c, enum error_code code, const char *format, ...)
{
	char text[256];
	struct writer w;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	reply_begin(c, &w, REP_ERROR);
	put_u16(&w, (uint16_t)code);
	put_str(&w, text, (uint32_t)strlen(text));
	reply_end(c, &w);
}
