/*
 * Types the line by which the shell runs a command, without its echo. The line
 * names its job: bash can be interrupted when it has read one character of the
 * line; it forgets that one and keeps the others. If the one was a blank, the
 * others are a whole line again, which must not run, least of all with the text
 * of the next job.
 */
#include "terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#define LITERAL_NEXT 0x16
#define JOB_MARK     "__waypoint_job" /* replaced by the job's number; never longer than this */
#define JOB_MARK_LEN (sizeof(JOB_MARK) - 1)

struct line {
	char text[RUN_LINE_MAX];
	size_t len;
};

static struct line line_for(const struct terminal *t, uint32_t job)
{
	struct line line = {.len = 0};

	for (size_t i = 0; i < t->run_line_len;) {
		if (t->run_line_len - i < JOB_MARK_LEN ||
			memcmp(t->run_line + i, JOB_MARK, JOB_MARK_LEN)) {
			line.text[line.len++] = t->run_line[i++];
			continue;
		}
		line.len += (size_t)snprintf(
			line.text + line.len, JOB_MARK_LEN, "%u", (unsigned int)job);
		i += JOB_MARK_LEN;
	}
	return line;
}

/* Canonical, no echo, and no special character but "take the next one literally". */
static struct termios literal_mode(struct termios mode)
{
	mode.c_iflag &= IUTF8;
	mode.c_lflag &= ~(tcflag_t)(ECHO | ECHONL | ISIG);
	mode.c_lflag |= ICANON | IEXTEN;
	memset(mode.c_cc, _POSIX_VDISABLE, sizeof(mode.c_cc));
	mode.c_cc[VLNEXT] = LITERAL_NEXT;
	return mode;
}

/*
 * With echo off and the newline typed as a literal character, the line is not
 * complete and the shell cannot read it yet. So the shell's own mode is
 * restored before the command can look at it or change it. What then makes the
 * line readable is not echoed: the end-of-file character, or, if the terminal
 * is not canonical, the restored mode itself.
 */
static int type_unseen(struct terminal *t, const struct line *line, const struct termios *mode)
{
	struct termios literal = literal_mode(*mode);
	char typed[2 * RUN_LINE_MAX];
	size_t len = 0;
	int err;

	for (size_t i = 0; i < line->len; i++) {
		if (line->text[i] == '\n' || line->text[i] == LITERAL_NEXT)
			typed[len++] = LITERAL_NEXT;
		typed[len++] = line->text[i];
	}
	if (tcsetattr(t->slave, TCSANOW, &literal))
		return -errno;
	err = terminal_type(t, typed, len);
	terminal_settle_input(t);
	if (err)
		terminal_discard_input(t);
	if (tcsetattr(t->slave, TCSANOW, mode) && !err)
		err = -errno;
	if (!err && (mode->c_lflag & ICANON))
		err = terminal_type(t, &mode->c_cc[VEOF], 1);
	return err;
}

/* A shell that is held reads nothing yet, so the echo can be off for the whole line. */
static int type_to_held_shell(
	struct terminal *t, const struct line *line, const struct termios *mode)
{
	struct termios silent = *mode;
	int err;

	silent.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
	if (tcsetattr(t->slave, TCSANOW, &silent))
		return -errno;
	err = terminal_type(t, line->text, line->len);
	terminal_settle_input(t);
	if (tcsetattr(t->slave, TCSANOW, mode) && !err)
		err = -errno;
	terminal_release(t);
	return err;
}

/*
 * A shell with such a line edits lines itself and is about to change the mode,
 * or has done so: an end-of-file character that came late would end it.
 */
static bool reads_as_at_a_keyboard(const struct line *line)
{
	return line->text[line->len - 1] == '\r';
}

int terminal_type_run_line(struct terminal *t, uint32_t job)
{
	struct line line = line_for(t, job);
	struct termios mode;
	int err;

	if (tcgetattr(t->slave, &mode))
		return -errno;
	/* Half a line left at the prompt would become part of the command. */
	terminal_discard_input(t);
	t->input_len = 0;
	t->input_since_run = false;
	if (t->held)
		err = type_to_held_shell(t, &line, &mode);
	else if (!(mode.c_lflag & (ECHO | ECHONL)) || mode.c_cc[VEOF] == _POSIX_VDISABLE ||
		 reads_as_at_a_keyboard(&line))
		err = terminal_type(t, line.text, line.len);
	else
		err = type_unseen(t, &line, &mode);
	terminal_settle_input(t);
	return err;
}

bool terminal_run_line_unread(const struct terminal *t)
{
	return !t->input_since_run && terminal_unread_bytes(t) > 0;
}
