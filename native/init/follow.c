/*
 * Output on its way from a ring to a connection. A follower holds its terminal
 * back: the PTY is not read further than the ring reaches beyond what the
 * slowest follower was sent, so the command waits as on a slow terminal.
 */
#include "server.h"

#include <string.h>

struct terminal *job_terminal(struct server *s, const struct job *job)
{
	struct terminal *t = &s->terminals[job->slot];

	return t->generation == job->generation ? t : NULL;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/*
 * What the client surely has, in whole frames: it drops the half of one at the
 * end of a connection and asks for that part again. May be too low, never too
 * high.
 */
static uint64_t sent_position(const struct connection *c, const struct job *job)
{
	uint64_t unsure = c->out_len ? c->out_len + FRAME_CHUNK_MAX : 0;

	return c->pos - min_u64(unsure, c->pos - job->start);
}

void follow_start(struct server *s, struct connection *c, struct job *job, uint64_t offset)
{
	struct terminal *t = job_terminal(s, job);
	struct hold *mine = NULL;

	c->job = job->id;
	c->pos = job->start + offset;
	c->job_told = false;
	if (!t)
		return;
	/* Of several vanished followers this is the one that was furthest, but not further. */
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &t->holds[i];

		if (hold->job == job->id && hold->pos <= c->pos && (!mine || hold->pos > mine->pos))
			mine = hold;
	}
	if (mine)
		mine->job = 0;
}

void follow_hold(struct server *s, struct connection *c)
{
	struct job *job = job_find(&s->jobs, c->job);
	struct terminal *t = job ? job_terminal(s, job) : NULL;
	struct hold *hold = NULL;

	c->job = 0;
	if (!t)
		return;
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		struct hold *other = &t->holds[i];

		if (!other->job) {
			hold = other;
			break;
		}
		if (!hold || other->deadline_ms < hold->deadline_ms)
			hold = other;
	}
	*hold = (struct hold){
		.job = job->id,
		.pos = sent_position(c, job),
		.deadline_ms = s->now_ms + HOLD_MS,
	};
}

void follow_expire(struct server *s)
{
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		for (unsigned int k = 0; k < HOLDS_MAX; k++) {
			struct hold *hold = &s->terminals[i].holds[k];

			if (hold->job && hold->deadline_ms <= s->now_ms)
				hold->job = 0;
		}
	}
}

static uint64_t slowest_position(const struct server *s, const struct terminal *t)
{
	uint64_t slowest = t->ring.end;

	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		const struct connection *c = &s->connections[i];
		const struct job *job;

		if (c->fd < 0 || !c->job)
			continue;
		job = job_find((struct job_table *)&s->jobs, c->job);
		if (job && &s->terminals[job->slot] == t && job->generation == t->generation)
			slowest = min_u64(slowest, sent_position(c, job));
	}
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		if (t->holds[i].job)
			slowest = min_u64(slowest, t->holds[i].pos);
	}
	/* One who came too late for its first bytes must not stop the command for them. */
	return slowest < t->ring.start ? t->ring.start : slowest;
}

bool follow_is_held(const struct server *s, const struct terminal *t)
{
	return slowest_position(s, t) < t->ring.end;
}

uint64_t follow_room(const struct server *s, const struct terminal *t)
{
	uint64_t slowest = slowest_position(s, t);
	uint64_t ahead = t->ring.end - slowest;

	/* Nobody waits for what the ring holds: all of it may be overwritten. */
	if (ahead == 0)
		return RING_SIZE;
	return ahead < RING_SIZE ? RING_SIZE - ahead : 0;
}

static void send_lost(struct connection *c, uint64_t from, uint64_t to)
{
	struct writer w;

	reply_begin(c, &w, REP_LOST);
	put_u64(&w, from);
	put_u64(&w, to);
	reply_end(c, &w);
}

/*
 * Queues what lies between *pos and `end` of the stream; offsets are told
 * relative to `base`. Without a terminal nothing is kept any more.
 */
static void send_range(
	struct connection *c, struct terminal *t, uint64_t base, uint64_t *pos, uint64_t end)
{
	uint64_t kept = t ? t->ring.start : end;

	while (*pos < end && c->out_len <= OUT_STREAM_MAX) {
		const uint8_t *data;
		struct writer w;
		size_t len;

		if (*pos < kept) {
			uint64_t to = min_u64(kept, end);

			send_lost(c, *pos - base, to - base);
			*pos = to;
			continue;
		}
		data = ring_peek(&t->ring, *pos, &len);
		len = (size_t)min_u64(min_u64(len, end - *pos), FRAME_CHUNK_MAX);
		reply_begin(c, &w, REP_OUTPUT);
		put_u64(&w, *pos - base);
		put_bytes(&w, data, len);
		reply_end(c, &w);
		*pos += len;
	}
}

static void pump_job(struct server *s, struct connection *c)
{
	struct job *job = job_find(&s->jobs, c->job);
	struct terminal *t;
	struct writer w;
	uint64_t end;

	if (!job) {
		c->job = 0;
		reply_error(c, ERR_UNKNOWN_JOB, "the job is no longer kept");
		return;
	}
	t = job_terminal(s, job);
	end = job->ended ? job->end : t->ring.end;
	send_range(c, t, job->start, &c->pos, end);
	if (!job->ended || c->pos < end || c->out_len > OUT_STREAM_MAX)
		return;
	reply_begin(c, &w, REP_ENDED);
	put_u32(&w, job->id);
	put_u8(&w, job->how);
	put_u32(&w, (uint32_t)job->status);
	put_u64(&w, job->end - job->start);
	reply_end(c, &w);
	c->job_told = true;
}

static void pump_stream(struct server *s, struct connection *c)
{
	struct terminal *t = &s->terminals[c->stream_slot];
	struct writer w;

	if (t->generation != c->stream_generation)
		t = NULL;
	send_range(c, t, 0, &c->stream_pos, c->stream_end);
	if (c->stream_pos < c->stream_end || c->out_len > OUT_STREAM_MAX)
		return;
	reply_begin(c, &w, REP_END);
	reply_end(c, &w);
	c->streaming = false;
}

void follow_pump(struct server *s, struct connection *c)
{
	if (c->closing)
		return;
	if (c->streaming)
		pump_stream(s, c);
	if (c->job && !c->job_told)
		pump_job(s, c);
}
