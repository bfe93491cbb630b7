/* One function for each request: checks, acts, replies. */
#include "server.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct terminal *find_terminal(struct server *s, struct bytes name)
{
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		struct terminal *t = &s->terminals[i];

		if (t->used && strlen(t->name) == name.len &&
			memcmp(t->name, name.data, name.len) == 0)
			return t;
	}
	return NULL;
}

/*
 * The terminal of the request; replies and returns NULL if it does not exist or
 * its shell has ended.
 */
static struct terminal *need_live_terminal(
	struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = find_terminal(s, request->name);

	if (!t)
		reply_error(c, ERR_UNKNOWN_TERMINAL, "no such terminal");
	else if (t->state == TERM_DEAD || t->died)
		reply_error(c, ERR_SHELL_DEAD, "the shell of this terminal has ended");
	else
		return t;
	return NULL;
}

static struct terminal *take_slot(struct server *s, struct bytes name)
{
	struct terminal *slot = NULL;

	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		struct terminal *t = &s->terminals[i];

		if (t->used)
			continue;
		/* A closed terminal whose last output is still being read is the last choice. */
		if (!slot || !follow_is_held(s, &t->kept))
			slot = t;
	}
	if (!slot)
		return NULL;
	ring_forget(terminal_ring(slot));
	*slot = (struct terminal){
		.used = true,
		.kept = {.generation = slot->kept.generation + 1,
			.rings = {{.data = terminal_ring(slot)->data}}},
		.input = slot->input,
	};
	memcpy(slot->name, name.data, name.len);
	terminal_clear(slot);
	return slot;
}

static void answer_open(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = find_terminal(s, request->name);
	bool fresh = !t;
	int err;

	if (t && (t->state != TERM_DEAD || t->died)) {
		reply_error(c, ERR_BUSY, "the terminal is already open");
		return;
	}
	if (!t)
		t = take_slot(s, request->name);
	if (!t) {
		reply_error(c, ERR_LIMIT, "a branch has at most %d terminals", TERMINALS_MAX);
		return;
	}
	terminal_close(t);
	t->uid = request->program.uid;
	t->gid = request->program.gid;
	t->rows = request->rows;
	t->cols = request->cols;
	memcpy(t->run_line, request->run_line.data, request->run_line.len);
	t->run_line_len = request->run_line.len;
	t->reported = false;
	t->report_len = 0;
	t->report_token[0] = '\0';
	err = shell_start(t, (unsigned int)(t - s->terminals), s->dir, request);
	if (err) {
		terminal_close(t);
		t->state = TERM_DEAD;
		t->used = !fresh;
		reply_error(c, ERR_INTERNAL, "cannot open the terminal: %s", strerror(-err));
		return;
	}
	t->state = TERM_STARTING;
	t->opener = c->serial;
	t->open_deadline_ms = s->now_ms + OPEN_TIMEOUT_MS;
	c->opening = true;
}

static void answer_run(struct server *s, struct connection *c, struct request *request)
{
	static const uint64_t from_the_first_byte[STREAMS];
	struct terminal *t = need_live_terminal(s, c, request);
	struct job *job;
	struct writer w;
	int err;

	if (!t)
		return;
	if (t->state == TERM_STARTING) {
		reply_error(c, ERR_NOT_READY, "the shell has not shown its first prompt");
		return;
	}
	if (t->state != TERM_PROMPT) {
		reply_error(c, ERR_BUSY, "the terminal is not at its prompt");
		return;
	}
	if ((request->flags & RUN_FOLLOW) && connection_is_taken(c)) {
		reply_error(c, ERR_BUSY, "this connection already follows, waits or watches");
		return;
	}
	if (request->text.len > RUN_TEXT_MAX) {
		reply_error(c, ERR_TOO_LARGE, "a command has at most %d bytes", RUN_TEXT_MAX);
		return;
	}
	err = shell_write_command(t, s->dir, request->text);
	if (err == -ESTALE) {
		reply_error(c, ERR_SHELL, "the terminal's control files were removed");
		return;
	}
	job = job_add(&s->jobs);
	if (!job) {
		reply_error(c, ERR_LIMIT, "more than %d running jobs", JOBS_KEPT);
		return;
	}
	/* Output that is on its way now belongs to no job. */
	terminal_read(t, follow_read_limit(s, &t->kept, STREAM_OUTPUT));
	if (!err)
		err = terminal_type_run_line(t, job->id);
	if (err) {
		job_forget(job);
		reply_error(c, ERR_INTERNAL, "cannot send the command to the shell: %s",
			strerror(-err));
		return;
	}
	job->start[STREAM_OUTPUT] = terminal_ring(t)->end;
	job->slot = (unsigned int)(t - s->terminals);
	job->generation = t->kept.generation;
	memcpy(job->terminal, t->name, sizeof(job->terminal));
	t->job = job->id;
	t->state = TERM_RUNNING;
	reply_begin(c, &w, REP_STARTED);
	put_u32(&w, job->id);
	reply_end(c, &w);
	if (request->flags & RUN_FOLLOW)
		follow_start(s, c, job, from_the_first_byte);
}

static void answer_signal(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = need_live_terminal(s, c, request);
	int err;

	if (!t)
		return;
	err = request->signo ? terminal_signal(t, request->signo) : -EINVAL;
	if (err)
		reply_not_delivered(c, err);
	else
		reply_ok(c);
}

static void answer_input(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = need_live_terminal(s, c, request);
	struct bytes text = request->text;

	if (!t)
		return;
	if (terminal_queue_input(t, text)) {
		reply_error(c, ERR_TOO_LARGE, "at most %d bytes of input can wait", INPUT_MAX);
		return;
	}
	terminal_release(t);
	if (t->state == TERM_PROMPT && text.len &&
		(memchr(text.data, '\n', text.len) || memchr(text.data, '\r', text.len)))
		t->state = TERM_TYPED;
	reply_ok(c);
}

static void answer_resize(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = need_live_terminal(s, c, request);
	int err;

	if (!t)
		return;
	/* Output that is on its way now was written at the old size. */
	terminal_read(t, follow_read_limit(s, &t->kept, STREAM_OUTPUT));
	err = terminal_resize(t, request->rows, request->cols);
	if (err)
		reply_error(c, ERR_INTERNAL, "cannot resize: %s", strerror(-err));
	else
		reply_ok(c);
}

static void answer_terminals(struct server *s, struct connection *c)
{
	struct writer w;

	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		if (s->terminals[i].used)
			reply_terminal(c, &s->terminals[i]);
	}
	reply_begin(c, &w, REP_END);
	reply_end(c, &w);
}

static void answer_view(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = find_terminal(s, request->name);

	if (!t)
		reply_error(c, ERR_UNKNOWN_TERMINAL, "no such terminal");
	else if (c->view.kind || (request->kind == REQ_WATCH && connection_is_taken(c)))
		reply_error(c, ERR_BUSY, "this connection already follows, waits or watches");
	else if (request->kind == REQ_WATCH)
		view_watch(s, c, t, request->offset);
	else
		view_stream(s, c, t, request->offset);
}

static void answer_close(struct server *s, struct connection *c, struct request *request)
{
	struct terminal *t = find_terminal(s, request->name);
	struct connection *opener;

	if (!t) {
		reply_error(c, ERR_UNKNOWN_TERMINAL, "no such terminal");
		return;
	}
	terminal_kill(t);
	if (t->master >= 0)
		terminal_read(t, follow_read_limit(s, &t->kept, STREAM_OUTPUT));
	terminal_end_job(s, t, END_CLOSED, 0);
	opener = connection_find(s, t->opener);
	if (opener && opener->opening) {
		opener->opening = false;
		reply_error(opener, ERR_SHELL, "the terminal was closed");
	}
	terminal_close(t);
	/* Before the ring is emptied: viewers do not keep it from that. */
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		if (s->connections[i].fd >= 0)
			connection_pump(s, &s->connections[i]);
	}
	t->used = false;
	t->state = TERM_DEAD;
	t->shell = 0;
	t->opener = 0;
	t->open_deadline_ms = 0;
	reply_ok(c);
}

static void answer_quiesce(struct server *s, struct connection *c)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			break;
		close(fd);
	}
	/* Guests are saved with us, but better not in the middle of a connect. */
	guests_accept(s);
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *other = &s->connections[i];

		if (other != c && other->fd >= 0)
			connection_close(s, other);
	}
	reply_ok(c);
	c->closing = true;
	c->deadline_ms = s->now_ms + FRAME_TIMEOUT_MS;
}

static void answer_attend(struct connection *c)
{
	c->attending = true;
	c->asked = 0;
	reply_ok(c);
}

static void answer_answer(struct server *s, struct connection *c, struct request *request)
{
	if (request->text.len > ANSWER_TEXT_MAX)
		reply_error(c, ERR_TOO_LARGE, "an answer has at most %d bytes", ANSWER_TEXT_MAX);
	else if (guests_answer(s, request->ask, request->status, request->text))
		reply_error(c, ERR_UNKNOWN_ASK, "no guest waits for this answer");
	else
		reply_ok(c);
}

static void answer_at_once(struct server *s, struct connection *c, struct request *request)
{
	switch (request->kind) {
	case REQ_OPEN:
		return answer_open(s, c, request);
	case REQ_RUN:
		return answer_run(s, c, request);
	case REQ_FOLLOW:
		return answer_follow(s, c, request);
	case REQ_SIGNAL:
		return answer_signal(s, c, request);
	case REQ_INPUT:
		return answer_input(s, c, request);
	case REQ_RESIZE:
		return answer_resize(s, c, request);
	case REQ_JOBS:
		return answer_jobs(s, c);
	case REQ_TERMINALS:
		return answer_terminals(s, c);
	case REQ_STREAM:
	case REQ_WATCH:
		return answer_view(s, c, request);
	case REQ_CLOSE:
		return answer_close(s, c, request);
	case REQ_QUIESCE:
		return answer_quiesce(s, c);
	case REQ_SPAWN:
		return answer_spawn(s, c, request);
	case REQ_WAIT:
		return answer_wait(s, c, request);
	case REQ_KILL:
		return answer_kill(s, c, request);
	case REQ_ATTEND:
		return answer_attend(c);
	case REQ_ANSWER:
		return answer_answer(s, c, request);
	default:
		return reply_ok(c);
	}
}

bool answer(struct server *s, struct connection *c, struct request *request)
{
	if (request->kind == REQ_WRITE)
		return answer_write(s, c, request);
	answer_at_once(s, c, request);
	return true;
}
