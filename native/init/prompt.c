/*
 * Ends a job when the shell reports or dies. Both count only when everything
 * written to the PTY before them has been read; while a follower lags that can
 * take several turns of the loop.
 */
#include "server.h"

#include "fd.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>

void terminal_end_job(struct server *s, struct terminal *t, enum end_how how, int32_t status)
{
	struct job *job = job_find(&s->jobs, t->job);
	uint64_t end[STREAMS] = {terminal_ring(t)->end};

	if (t->job)
		t->ended = t->job;
	t->job = 0;
	if (job)
		job_end(job, end, how, status);
}

static void answer_opener(struct server *s, struct terminal *t)
{
	struct connection *c = connection_find(s, t->opener);
	int exec_error = 0;
	ssize_t got = read(t->exec_status, &exec_error, sizeof(exec_error));

	close_fd(&t->exec_status);
	t->opener = 0;
	t->open_deadline_ms = 0;
	if (!c || !c->opening)
		return;
	c->opening = false;
	if (!t->died || t->reported)
		reply_ok(c);
	else if (got == sizeof(exec_error))
		reply_error(c, ERR_EXEC_FAILED, "cannot start the shell: %s", strerror(exec_error));
	else
		reply_error(c, ERR_SHELL, "the shell ended before its first prompt");
}

static void settle_report(struct server *s, struct terminal *t)
{
	if (t->state == TERM_STARTING)
		answer_opener(s, t);
	terminal_take_report(t);
	/*
	 * While the shell waits for us it reads no input. If the line of the
	 * job is still unread, this report came from an older prompt (an
	 * interrupt at the prompt makes the shell report once more) and ends
	 * nothing. Nor does a report from a prompt before which no command has
	 * ended.
	 */
	if (t->state == TERM_RUNNING &&
		(t->report == NOTHING_ENDED || (!t->died && terminal_run_line_unread(t)))) {
		if (!t->died)
			terminal_go(t);
		return;
	}
	terminal_end_job(s, t, END_STATUS, t->report);
	t->state = terminal_has_typed_line(t) ? TERM_TYPED : TERM_PROMPT;
	t->held = s->hold_prompt && t->state == TERM_PROMPT;
	if (!t->died && !t->held)
		terminal_go(t);
}

static void settle_death(struct server *s, struct terminal *t)
{
	bool killed = WIFSIGNALED(t->wait_status);

	if (t->state == TERM_STARTING)
		answer_opener(s, t);
	terminal_end_job(s, t, killed ? END_SHELL_KILLED : END_SHELL_EXITED,
		killed ? WTERMSIG(t->wait_status) : WEXITSTATUS(t->wait_status));
	t->died = false;
	t->state = TERM_DEAD;
	t->shell = 0;
}

static void give_up_opening(struct server *s, struct terminal *t)
{
	struct connection *c = connection_find(s, t->opener);

	t->opener = 0;
	t->open_deadline_ms = 0;
	terminal_kill(t);
	if (!c || !c->opening)
		return;
	c->opening = false;
	reply_error(c, ERR_SHELL, "the shell showed no prompt within %d s", OPEN_TIMEOUT_MS / 1000);
}

void terminal_advance(struct server *s, struct terminal *t)
{
	int drained;

	if (t->input_len)
		terminal_flush_input(t);
	/* The report first: then the PTY is read after the report was written. */
	terminal_read_report(t);
	drained = terminal_read(t, follow_read_limit(s, &t->kept, STREAM_OUTPUT));
	if (drained && t->reported)
		settle_report(s, t);
	else if (drained && t->died)
		settle_death(s, t);
	if (t->open_deadline_ms && t->open_deadline_ms <= s->now_ms)
		give_up_opening(s, t);
	/* A report and a death in one turn: no descriptor announces the second one. */
	if (t->died && !t->reported && drained)
		s->again = true;
}
