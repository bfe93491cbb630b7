/* Init's side of the requests that programs inside make: see guest.h. */
#include "server.h"

#include "fd.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* Exit codes of waypoint itself; waypoint-here exits with them. */
enum { STATUS_USAGE = 2, STATUS_BUSY = 5 };

static void close_guest(struct guest *g)
{
	close_fd(&g->fd);
	g->ask = 0;
	g->in_len = 0;
}

/* Nothing was written to its socket before: one frame always fits, or the guest has closed it. */
static int send_answer(struct guest *g, uint8_t status, struct bytes text)
{
	uint8_t buf[FRAME_HEADER + ANSWER_FRAME_MAX];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};
	ssize_t put;

	frame_begin(&w, ASK_ANSWER);
	put_u8(&w, status);
	put_str(&w, text.data, text.len);
	if (frame_end(&w))
		return -EMSGSIZE;
	put = send(g->fd, w.buf, w.len, MSG_DONTWAIT | MSG_NOSIGNAL);
	close_guest(g);
	return put == (ssize_t)w.len ? 0 : -ENOENT;
}

static void refuse(struct guest *g, uint8_t status, const char *why)
{
	char text[128];
	int len = snprintf(text, sizeof(text), "waypoint-here: %s", why);

	send_answer(g, status, (struct bytes){(uint8_t *)text, (uint32_t)len});
}

static unsigned int count_asks(const struct server *s)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < GUESTS_MAX; i++)
		count += s->guests.guests[i].ask != 0;
	return count;
}

static void take_ask(struct server *s, struct guest *g, const struct ask *ask)
{
	const char *why = ask_refusal(ask);

	if (why) {
		refuse(g, STATUS_USAGE, why);
		return;
	}
	if (count_asks(s) >= ASKS_MAX) {
		refuse(g, STATUS_BUSY, "too many requests are waiting already");
		return;
	}
	memcpy(g->verb, ask->verb.data, ask->verb.len);
	g->verb_len = ask->verb.len;
	memcpy(g->argument, ask->argument.data, ask->argument.len);
	g->argument_len = ask->argument.len;
	g->ask = ++s->guests.last_ask;
	g->deadline_ms = 0;
}

static void receive(struct server *s, struct guest *g)
{
	struct frame frame;
	struct ask ask;
	ssize_t got = recv(g->fd, g->in + g->in_len, sizeof(g->in) - g->in_len, MSG_DONTWAIT);
	int ready;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* It may have shut down only its sending side: then it still waits. */
	g->eof = got == 0;
	if (got < 0 || (got == 0 && !g->ask) || (got > 0 && g->ask)) {
		close_guest(g);
		return;
	}
	if (got == 0)
		return;
	g->in_len += (size_t)got;
	ready = frame_parse(g->in, g->in_len, ASK_FRAME_MAX, &frame);
	if (ready == 0)
		return;
	if (ready < 0 || frame.size != g->in_len || ask_parse(&frame, &ask))
		refuse(g, STATUS_USAGE, "not a request of this protocol");
	else
		take_ask(s, g, &ask);
}

/* A guest that has asked is never closed to accept a new one. */
static struct guest *take_guest(struct server *s)
{
	struct guest *oldest = NULL;

	for (unsigned int i = 0; i < GUESTS_MAX; i++) {
		struct guest *g = &s->guests.guests[i];

		if (g->fd < 0)
			return g;
		if (!g->ask && (!oldest || g->serial < oldest->serial))
			oldest = g;
	}
	close_guest(oldest);
	return oldest;
}

_Static_assert(ASKS_MAX < GUESTS_MAX, "there is always a guest that may be closed");

/* A limited number in one turn: others must not wait for a flood of guests. */
void guests_accept(struct server *s)
{
	for (unsigned int i = 0; i < 2 * GUESTS_MAX; i++) {
		int fd = accept4(s->guests.listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		struct guest *g;

		if (fd < 0)
			return;
		g = take_guest(s);
		*g = (struct guest){
			.fd = fd,
			.serial = ++s->serial,
			.deadline_ms = s->now_ms + FRAME_TIMEOUT_MS,
		};
		/*
		 * Its request has usually arrived, and protects it from being
		 * closed for a newer guest.
		 */
		receive(s, g);
	}
}

void guests_advance(struct server *s)
{
	for (unsigned int i = 0; i < GUESTS_MAX; i++) {
		struct guest *g = &s->guests.guests[i];
		short events = events_of(s, g->poll);

		if (g->fd < 0)
			continue;
		if (events & POLLIN)
			receive(s, g);
		if (g->fd >= 0 && ((events & (POLLHUP | POLLERR)) ||
					  (g->deadline_ms && g->deadline_ms <= s->now_ms)))
			close_guest(g);
	}
}

static const struct guest *next_ask(const struct server *s, uint32_t after)
{
	const struct guest *next = NULL;

	for (unsigned int i = 0; i < GUESTS_MAX; i++) {
		const struct guest *g = &s->guests.guests[i];

		if (g->ask > after && (!next || g->ask < next->ask))
			next = g;
	}
	return next;
}

void guests_pump(struct server *s, struct connection *c)
{
	const struct guest *g;
	struct writer w;

	while (c->attending && c->out_len <= OUT_STREAM_MAX && (g = next_ask(s, c->asked))) {
		reply_begin(c, &w, REP_ASK);
		put_u32(&w, g->ask);
		put_str(&w, g->verb, g->verb_len);
		put_str(&w, g->argument, g->argument_len);
		reply_end(c, &w);
		c->asked = g->ask;
	}
}

int guests_answer(struct server *s, uint32_t ask, uint8_t status, struct bytes text)
{
	for (unsigned int i = 0; ask && i < GUESTS_MAX; i++) {
		if (s->guests.guests[i].ask == ask)
			return send_answer(&s->guests.guests[i], status, text);
	}
	return -ENOENT;
}
