/*
 * Sends output from a ring to the connections that follow a job. A follower
 * holds the program back: init reads the terminal or pipe no further than the
 * ring reaches beyond what the slowest follower was sent, so the program waits
 * as on a slow terminal.
 */
#include "server.h"

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

struct kept *job_kept(struct server *s, const struct job *job)
{
	struct kept *kept = job->kind == JOB_ISOLATED ? &s->isolated[job->slot].kept
						      : &s->terminals[job->slot].kept;

	return kept->generation == job->generation ? kept : NULL;
}

static uint64_t job_end_of(struct server *s, const struct job *job, enum stream which)
{
	return job->ended ? job->end[which] : job_kept(s, job)->rings[which].end;
}

uint64_t job_length(struct server *s, const struct job *job, enum stream which)
{
	return job_end_of(s, job, which) - job->start[which];
}

/*
 * What the client surely has, in whole frames: when its connection ends it
 * drops an incomplete frame and asks for that part again. May be too low, never
 * too high.
 */
static uint64_t sent_position(const struct connection *c, enum stream which)
{
	uint64_t pos = c->follow.pos[which];
	uint64_t unsure = c->out_len ? c->out_len + FRAME_CHUNK_MAX : 0;

	return pos - min_u64(unsure, pos - c->follow.start[which]);
}

static bool follows(const struct connection *c, const struct kept *kept)
{
	return c->fd >= 0 && c->follow.job && c->follow.kept == kept &&
	       c->follow.generation == kept->generation;
}

void follow_start(struct server *s, struct connection *c, const struct job *job,
	const uint64_t offset[STREAMS])
{
	struct follower *f = &c->follow;
	struct hold *mine = NULL;

	if (f->end_queued)
		follow_finish(s, c);
	*f = (struct follower){.job = job->id, .kept = job_kept(s, job)};
	for (unsigned int i = 0; i < STREAMS; i++) {
		f->start[i] = job->start[i];
		f->pos[i] = job->start[i] + offset[i];
	}
	if (!f->kept)
		return;
	f->generation = f->kept->generation;
	/* Takes over one hold: of those not beyond this follower's offsets, the furthest. */
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		struct hold *hold = &f->kept->holds[i];

		if (hold->job != job->id || hold->pos[STREAM_OUTPUT] > f->pos[STREAM_OUTPUT] ||
			hold->pos[STREAM_ERROR] > f->pos[STREAM_ERROR])
			continue;
		if (!mine || hold->pos[STREAM_OUTPUT] > mine->pos[STREAM_OUTPUT] ||
			(hold->pos[STREAM_OUTPUT] == mine->pos[STREAM_OUTPUT] &&
				hold->pos[STREAM_ERROR] > mine->pos[STREAM_ERROR]))
			mine = hold;
	}
	if (mine)
		mine->job = 0;
}

void follow_hold(struct server *s, struct connection *c)
{
	struct follower *f = &c->follow;
	struct hold *hold = NULL;
	uint32_t job = f->job;

	f->job = 0;
	if (!job || !f->kept || f->kept->generation != f->generation)
		return;
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		struct hold *other = &f->kept->holds[i];

		if (!other->job) {
			hold = other;
			break;
		}
		if (!hold || other->deadline_ms < hold->deadline_ms)
			hold = other;
	}
	*hold = (struct hold){.job = job, .deadline_ms = s->now_ms + HOLD_MS};
	for (unsigned int i = 0; i < STREAMS; i++)
		hold->pos[i] = sent_position(c, i);
}

static void expire_holds(struct server *s, struct kept *kept)
{
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		if (kept->holds[i].job && kept->holds[i].deadline_ms <= s->now_ms)
			kept->holds[i].job = 0;
	}
}

void follow_expire(struct server *s)
{
	for (unsigned int i = 0; i < TERMINALS_MAX; i++)
		expire_holds(s, &s->terminals[i].kept);
	for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
		if (s->isolated[i].state != ISOLATED_FREE)
			expire_holds(s, &s->isolated[i].kept);
	}
}

static uint64_t slowest_position(const struct server *s, const struct kept *kept, enum stream which)
{
	const struct ring *ring = &kept->rings[which];
	uint64_t slowest = ring->end;

	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		const struct connection *c = &s->connections[i];

		if (follows(c, kept))
			slowest = min_u64(slowest, sent_position(c, which));
	}
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		if (kept->holds[i].job)
			slowest = min_u64(slowest, kept->holds[i].pos[which]);
	}
	/* A follower that came too late for its first bytes must not stop the program for them. */
	return slowest < ring->start ? ring->start : slowest;
}

bool follow_is_held(const struct server *s, const struct kept *kept)
{
	for (unsigned int i = 0; i < STREAMS; i++) {
		if (slowest_position(s, kept, i) < kept->rings[i].end)
			return true;
	}
	return false;
}

bool follow_is_live(const struct server *s, const struct kept *kept)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		if (follows(&s->connections[i], kept))
			return true;
	}
	return false;
}

uint64_t follow_read_limit(const struct server *s, const struct kept *kept, enum stream which)
{
	uint64_t slowest = slowest_position(s, kept, which);
	uint64_t ahead = kept->rings[which].end - slowest;

	/* No follower needs what the ring holds: all of it may be overwritten. */
	if (ahead == 0)
		return RING_SIZE;
	return ahead < RING_SIZE ? RING_SIZE - ahead : 0;
}

static void pump_followed(struct server *s, struct connection *c)
{
	struct follower *f = &c->follow;
	struct job *job = job_find(&s->jobs, f->job);
	struct kept *kept;
	bool more;

	if (!job) {
		f->job = 0;
		reply_error(c, ERR_UNKNOWN_JOB, "the job is no longer kept");
		return;
	}
	kept = job_kept(s, job);
	/* In turns: a flood of one stream must not keep the other from being read. */
	do {
		more = false;
		for (unsigned int i = 0; i < STREAMS; i++)
			more |= reply_piece(c, kept ? &kept->rings[i] : NULL, i, f->start[i],
				&f->pos[i], job_end_of(s, job, i));
	} while (more);
	if (!job->ended || c->out_len > OUT_STREAM_MAX)
		return;
	reply_job_ended(c, job);
	f->end_queued = true;
}

static void pump_waited(struct server *s, struct connection *c)
{
	struct job *job = job_find(&s->jobs, c->waits);

	if (c->out_len > OUT_STREAM_MAX || (job && !job->ended))
		return;
	c->waits = 0;
	if (job)
		reply_job_ended(c, job);
	else
		reply_error(c, ERR_UNKNOWN_JOB, "the job is no longer kept");
}

void follow_pump(struct server *s, struct connection *c)
{
	if (c->follow.job && !c->follow.end_queued)
		pump_followed(s, c);
	if (c->waits)
		pump_waited(s, c);
}

void follow_finish(struct server *s, struct connection *c)
{
	struct job *job = job_find(&s->jobs, c->follow.job);
	struct isolated *p = job ? job_isolated(s, job) : NULL;

	c->follow.job = 0;
	c->follow.end_queued = false;
	if (!p)
		return;
	p->all_sent = true;
	s->again = true;
}
