/* Requests about jobs by number, and isolated jobs: checks, acts, replies. */
#include "server.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static struct job *need_job(struct server *s, struct connection *c, struct request *request)
{
	struct job *job = job_find(&s->jobs, request->job);

	if (!job)
		reply_error(c, ERR_UNKNOWN_JOB, "no such job");
	return job;
}

static bool refuse_if_taken(struct connection *c)
{
	if (!connection_is_taken(c))
		return false;
	reply_error(c, ERR_BUSY, "this connection already follows, waits or watches");
	return true;
}

void answer_follow(struct server *s, struct connection *c, struct request *request)
{
	uint64_t offset[STREAMS] = {request->offset, request->error_offset};
	struct job *job = need_job(s, c, request);

	if (!job || refuse_if_taken(c))
		return;
	for (unsigned int i = 0; i < STREAMS; i++) {
		if (offset[i] > job_length(s, job, i)) {
			reply_error(c, ERR_MALFORMED, "the offset is behind the end of the output");
			return;
		}
	}
	follow_start(s, c, job, offset);
}

void answer_wait(struct server *s, struct connection *c, struct request *request)
{
	struct job *job = need_job(s, c, request);

	if (job && !refuse_if_taken(c))
		c->waits = job->id;
}

static uint64_t first_kept(struct server *s, const struct job *job, enum stream which)
{
	const struct kept *kept = job_kept(s, job);
	uint64_t length = job_length(s, job, which);
	uint64_t start = kept ? kept->rings[which].start : UINT64_MAX;

	if (start <= job->start[which])
		return 0;
	return start - job->start[which] < length ? start - job->start[which] : length;
}

void answer_jobs(struct server *s, struct connection *c)
{
	struct writer w;

	for (struct job *job = job_after(&s->jobs, 0); job; job = job_after(&s->jobs, job->id)) {
		reply_begin(c, &w, REP_JOB);
		put_u32(&w, job->id);
		put_u8(&w, job->kind);
		put_str(&w, job->terminal, (uint32_t)strlen(job->terminal));
		put_u8(&w, job->ended);
		put_u8(&w, job->how);
		put_u32(&w, (uint32_t)job->status);
		for (unsigned int i = 0; i < STREAMS; i++) {
			put_u64(&w, job_length(s, job, i));
			put_u64(&w, first_kept(s, job, i));
		}
		put_u32(&w, job->pid);
		reply_end(c, &w);
	}
	reply_begin(c, &w, REP_END);
	reply_end(c, &w);
}

void answer_spawn(struct server *s, struct connection *c, struct request *request)
{
	struct isolated *p;
	int err;

	if ((request->flags & SPAWN_FOLLOW) && refuse_if_taken(c))
		return;
	p = isolated_take(s);
	if (!p) {
		reply_error(c, ERR_LIMIT, "at most %d isolated jobs run at once", ISOLATED_MAX);
		return;
	}
	p->flags = request->flags;
	p->caller = c->serial;
	err = spawn_start(p, &request->program, s->null_fd);
	if (err) {
		isolated_close(p);
		reply_error(c, ERR_INTERNAL, "cannot start a process: %s", strerror(-err));
		return;
	}
	p->state = ISOLATED_STARTING;
	c->spawning = true;
}

/* Always true: the request has been served. */
static bool end_write(struct connection *c, struct isolated *p)
{
	if (p && p->writing == c->serial)
		p->writing = 0;
	c->writing = false;
	return true;
}

static bool refuse_write(struct connection *c, struct isolated *p)
{
	reply_error(c, ERR_STDIN_CLOSED, "the job takes no input");
	return end_write(c, p);
}

/*
 * The request stays the first of the connection until all of its bytes are
 * taken. A client whose connection was cut sends it again: the offset tells us
 * what we have already.
 */
bool answer_write(struct server *s, struct connection *c, struct request *request)
{
	struct job *job = need_job(s, c, request);
	struct isolated *p = job ? job_isolated(s, job) : NULL;
	struct bytes text = request->text;
	size_t done;

	if (!job)
		return end_write(c, NULL);
	if (!p || p->state != ISOLATED_RUNNING || p->input < 0 || p->input_ends)
		return refuse_write(c, p);
	/* The bytes of one request stay together. */
	if (p->writing && p->writing != c->serial && connection_find(s, p->writing)) {
		c->writing = true;
		return false;
	}
	p->caller = c->serial;
	if (p->writing != c->serial)
		c->write_from = request->offset == WRITE_AT_END ? p->input_taken : request->offset;
	if (c->write_from > p->input_taken) {
		reply_error(c, ERR_MALFORMED, "the input before this offset is missing");
		return end_write(c, p);
	}
	done = p->input_taken - c->write_from < text.len ? (size_t)(p->input_taken - c->write_from)
							 : text.len;
	if (text.len == 0)
		isolated_end_input(p);
	else
		done += isolated_write(p, text.data + done, text.len - done);
	if (p->input < 0 && text.len > 0)
		return refuse_write(c, p);
	if (done < text.len) {
		c->writing = true;
		p->writing = c->serial;
		return false;
	}
	s->again = s->again || c->writing; /* another WRITE may wait for its turn */
	reply_ok(c);
	return end_write(c, p);
}

static int kill_isolated(const struct isolated *p, int signo)
{
	/* Once it is reaped, another process may have its pid. */
	if (p->reaped)
		return -ESRCH;
	return kill(-p->pid, signo) ? -errno : 0;
}

static int kill_in_terminal(struct terminal *t, int signo)
{
	return t->died ? -ESRCH : terminal_signal(t, signo);
}

void answer_kill(struct server *s, struct connection *c, struct request *request)
{
	struct job *job = need_job(s, c, request);
	int err;

	if (!job)
		return;
	if (job->ended)
		err = -ESRCH;
	else if (request->signo == 0)
		err = -EINVAL;
	else if (job->kind == JOB_ISOLATED)
		err = kill_isolated(&s->isolated[job->slot], request->signo);
	else
		err = kill_in_terminal(&s->terminals[job->slot], request->signo);
	if (err)
		reply_not_delivered(c, err);
	else
		reply_ok(c);
}
