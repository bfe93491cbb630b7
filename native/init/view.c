/*
 * Sends the stream of a terminal to its viewers, for rendering: with every
 * change of its size at the right offset. Viewers hold nothing back; one that
 * lags is sent LOST for what it missed.
 */
#include "server.h"

static struct terminal_facts facts_of(const struct terminal *t)
{
	return (struct terminal_facts){
		.state = t->state,
		.rows = t->rows,
		.cols = t->cols,
		.job = t->job,
	};
}

static bool is_same(struct terminal_facts a, struct terminal_facts b)
{
	return a.state == b.state && a.rows == b.rows && a.cols == b.cols && a.job == b.job;
}

static void begin(struct server *s, struct connection *c, struct terminal *t, enum view_kind kind)
{
	c->view = (struct viewer){
		.kind = kind,
		.slot = (unsigned int)(t - s->terminals),
		.generation = t->kept.generation,
		.facts_due_at = UINT64_MAX,
	};
}

void view_stream(struct server *s, struct connection *c, struct terminal *t, uint64_t offset)
{
	begin(s, c, t, VIEW_STREAM);
	c->view.pos = offset;
	c->view.end = terminal_ring(t)->end;
}

void view_watch(struct server *s, struct connection *c, struct terminal *t, uint64_t offset)
{
	uint64_t now = terminal_ring(t)->end;

	begin(s, c, t, VIEW_WATCH);
	c->view.pos = offset < now ? offset : now;
	c->view.facts_sent = facts_of(t);
	reply_terminal(c, t);
}

/*
 * Sends the size in force at the first byte that is sent next, unless that was
 * sent before; returns where the next size begins.
 */
static uint64_t send_size(struct connection *c, struct terminal *t)
{
	struct viewer *v = &c->view;
	uint64_t first_kept = terminal_ring(t)->start;
	uint64_t next;
	const struct size_change *size =
		sizes_at(&t->sizes, v->pos > first_kept ? v->pos : first_kept, &next);
	struct writer w;

	if (!size || size->number == v->size_sent)
		return next;
	reply_begin(c, &w, REP_RESIZED);
	put_u64(&w, size->offset);
	put_u16(&w, size->rows);
	put_u16(&w, size->cols);
	reply_end(c, &w);
	v->size_sent = size->number;
	return next;
}

static void send_until(struct connection *c, struct terminal *t, uint64_t end)
{
	struct viewer *v = &c->view;
	bool more = true;

	while (more && c->out_len <= OUT_STREAM_MAX) {
		uint64_t next = t ? send_size(c, t) : UINT64_MAX;

		more = reply_piece(c, t ? terminal_ring(t) : NULL, STREAM_OUTPUT, 0, &v->pos,
			next < end ? next : end);
	}
}

static void finish(struct server *s, struct connection *c)
{
	struct writer w;

	reply_begin(c, &w, REP_END);
	reply_end(c, &w);
	c->view.kind = VIEW_NONE;
	s->again = true; /* requests behind a STREAM have waited for this */
}

static void pump_stream(struct server *s, struct connection *c, struct terminal *t)
{
	send_until(c, t, c->view.end);
	if (c->view.pos >= c->view.end && c->out_len <= OUT_STREAM_MAX)
		finish(s, c);
}

static void pump_watch(struct server *s, struct connection *c, struct terminal *t)
{
	struct viewer *v = &c->view;
	uint64_t end = t ? terminal_ring(t)->end : v->pos;

	if (t && v->facts_due_at == UINT64_MAX && !is_same(facts_of(t), v->facts_sent))
		v->facts_due_at = end;
	send_until(c, t, v->facts_due_at < end ? v->facts_due_at : end);
	if (c->out_len > OUT_STREAM_MAX)
		return;
	if (t && v->pos >= v->facts_due_at) {
		v->facts_sent = facts_of(t);
		v->facts_due_at = UINT64_MAX;
		reply_terminal(c, t);
		send_until(c, t, end);
	}
	if ((!t || !t->used) && v->pos >= end && c->out_len <= OUT_STREAM_MAX)
		finish(s, c);
}

void view_pump(struct server *s, struct connection *c)
{
	struct terminal *t = &s->terminals[c->view.slot];

	if (t->kept.generation != c->view.generation)
		t = NULL;
	if (c->view.kind == VIEW_STREAM)
		pump_stream(s, c, t);
	else if (c->view.kind == VIEW_WATCH)
		pump_watch(s, c, t);
}
