#include "server.h"

#include "fd.h"
#include "version.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Does it wait for something that may come at any time? */
static bool is_engaged(const struct connection *c)
{
	return c->follow.job || c->waits || c->view.kind || c->opening || c->spawning ||
	       c->writing || c->attending;
}

bool connection_is_taken(const struct connection *c)
{
	return (c->follow.job && !c->follow.end_queued) || c->waits || c->view.kind == VIEW_WATCH;
}

static struct connection *take_connection(struct server *s)
{
	struct connection *idle = NULL;

	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];

		if (c->fd < 0)
			return c;
		if (!is_engaged(c) && (!idle || c->last_active < idle->last_active))
			idle = c;
	}
	if (idle)
		connection_close(s, idle);
	return idle;
}

void connection_open(struct server *s, int fd)
{
	struct connection *c = take_connection(s);
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
	s->again = true; /* others may have waited for this */
	/* `out` lies right behind `in`: one call returns the pages of both. */
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
	if (c->follow.end_queued)
		follow_finish(s, c);
	if (c->closing || (c->eof && !c->in_len && !is_engaged(c)))
		connection_close(s, c);
}

static void refuse(struct server *s, struct connection *c, enum error_code code, const char *why)
{
	reply_error(c, code, "%s", why);
	c->closing = true;
	c->in_len = 0;
	c->deadline_ms = s->now_ms + FRAME_TIMEOUT_MS;
}

/* Later requests wait for the answer to an earlier one. */
static bool is_paused(const struct connection *c)
{
	return c->closing || c->opening || c->spawning || c->view.kind == VIEW_STREAM ||
	       c->out_len > OUT_STREAM_MAX + FRAME_REPLY_MAX;
}

/* Serves the frame at `at`. Returns its size, or 0 if no frame can be served now. */
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
		reply_error(c, ERR_LIMIT, "at most %d arguments, %d variables and %d groups",
			ARGS_MAX, ENV_MAX, GROUPS_MAX);
	else if (err)
		refuse(s, c, ERR_MALFORMED, "malformed request");
	else if (!answer(s, c, request))
		return 0;
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
	if (at > 0)
		memmove(c->in, c->in + at, c->in_len - at);
	c->in_len -= at;
	if (largest > FRAME_CHUNK_MAX && c->in_len < PAGE)
		madvise(c->in + PAGE, IN_SIZE - PAGE, MADV_DONTNEED);
	if (c->in_len == 0 || is_paused(c) || c->writing)
		c->deadline_ms = 0;
	else if (c->deadline_ms == 0)
		c->deadline_ms = s->now_ms + FRAME_TIMEOUT_MS;
	/* The rest of a frame will never come. */
	if (c->eof && c->in_len && !is_paused(c) && !c->writing)
		c->in_len = 0;
}

void connection_pump(struct server *s, struct connection *c)
{
	if (c->closing)
		return;
	view_pump(s, c);
	follow_pump(s, c);
	guests_pump(s, c);
}
