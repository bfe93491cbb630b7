/*
 * The life of an isolated job: from the exec of its program to the end of its
 * output. It has ended when its process is reaped and everything written before
 * has been read; while a follower lags that can take several turns of the loop.
 */
#include "server.h"

#include <errno.h>
#include <sys/wait.h>

struct isolated *job_isolated(struct server *s, const struct job *job)
{
	if (job->kind != JOB_ISOLATED || !job_kept(s, job))
		return NULL;
	return &s->isolated[job->slot];
}

struct isolated *isolated_take(struct server *s)
{
	struct isolated *slot = NULL;
	bool slot_is_held = false;
	unsigned int running = 0;

	for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
		struct isolated *p = &s->isolated[i];
		bool is_held;

		if (p->state == ISOLATED_STARTING || p->state == ISOLATED_RUNNING) {
			running++;
			continue;
		}
		/* Output that is still being read is the last choice. A free slot has job 0. */
		is_held = p->state == ISOLATED_ENDED && follow_is_held(s, &p->kept);
		if (!slot || (slot_is_held && !is_held) ||
			(slot_is_held == is_held && p->job < slot->job)) {
			slot = p;
			slot_is_held = is_held;
		}
	}
	if (running >= ISOLATED_MAX)
		return NULL;
	isolated_clear(slot, s->isolated_memory + (slot - s->isolated) * ISOLATED_MEMORY);
	return slot;
}

static void release(struct isolated *p)
{
	for (unsigned int i = 0; i < STREAMS; i++)
		ring_forget(&p->kept.rings[i]);
	p->state = ISOLATED_FREE;
	p->job = 0;
}

static void settle_exec(struct server *s, struct isolated *p)
{
	static const uint64_t from_the_first_byte[STREAMS];
	struct connection *c = connection_find(s, p->caller);
	struct job *job;
	struct writer w;
	char why[256];
	int err = spawn_result(p, why, sizeof(why));

	if (err == -EAGAIN)
		return;
	if (c)
		c->spawning = false;
	if (err) {
		isolated_close(p);
		release(p);
		if (c)
			reply_error(c, ERR_EXEC_FAILED, "%s", why);
		return;
	}
	job = job_add(&s->jobs);
	job->kind = JOB_ISOLATED;
	job->slot = (unsigned int)(p - s->isolated);
	job->generation = p->kept.generation;
	job->pid = (uint32_t)p->pid;
	p->job = job->id;
	p->state = ISOLATED_RUNNING;
	if (!c)
		return;
	reply_begin(c, &w, REP_STARTED);
	put_u32(&w, job->id);
	reply_end(c, &w);
	if (p->flags & SPAWN_FOLLOW)
		follow_start(s, c, job, from_the_first_byte);
}

static short event_of(const struct server *s, const struct isolated *p, enum isolated_poll which)
{
	return p->poll ? events_of(s, p->poll + which) : 0;
}

/* A program that waits for input of a caller that has vanished for good must get an end of file. */
static void watch_over_input(struct server *s, struct isolated *p)
{
	if (p->input < 0 || p->input_ends)
		return;
	if (connection_find(s, p->caller) || follow_is_live(s, &p->kept))
		p->input_deadline_ms = 0;
	else if (!p->input_deadline_ms)
		p->input_deadline_ms = s->now_ms + HOLD_MS;
	else if (p->input_deadline_ms <= s->now_ms)
		isolated_end_input(p);
}

static void settle_end(struct server *s, struct isolated *p)
{
	struct job *job = job_find(&s->jobs, p->job);
	bool killed = WIFSIGNALED(p->wait_status);
	uint64_t end[STREAMS];

	for (unsigned int i = 0; i < STREAMS; i++) {
		end[i] = p->kept.rings[i].end;
		if (p->output[i] >= 0)
			leftovers_add(&s->leftovers, p->output[i]);
		p->output[i] = -1;
	}
	isolated_close(p);
	job_end(job, end, killed ? END_KILLED : END_STATUS,
		killed ? WTERMSIG(p->wait_status) : WEXITSTATUS(p->wait_status));
	p->state = ISOLATED_ENDED;
}

static void advance_running(struct server *s, struct isolated *p)
{
	bool drained = true;

	watch_over_input(s, p);
	if (event_of(s, p, ISOLATED_POLL_INPUT))
		isolated_flush_input(p);
	for (unsigned int i = 0; i < STREAMS; i++) {
		if (event_of(s, p, ISOLATED_POLL_OUTPUT + i) || p->reaped)
			drained &= isolated_read(p, i, follow_read_limit(s, &p->kept, i));
	}
	if (p->reaped && drained)
		settle_end(s, p);
}

void isolated_advance(struct server *s, struct isolated *p)
{
	if (p->state == ISOLATED_STARTING && event_of(s, p, ISOLATED_POLL_EXEC))
		settle_exec(s, p);
	if (p->state == ISOLATED_RUNNING)
		advance_running(s, p);
	if (p->state == ISOLATED_ENDED && p->all_sent && !(p->flags & SPAWN_KEEP) &&
		!follow_is_held(s, &p->kept))
		release(p);
}
