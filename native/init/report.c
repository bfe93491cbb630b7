/* What the shell reports before a prompt, and the answer for which it waits. */
#include "terminal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool parse_report(const char *line, size_t len, int32_t *status)
{
	int64_t value = 0;

	if (len == 1 && line[0] == '-') {
		*status = NOTHING_ENDED;
		return true;
	}
	if (len == 0 || len > 10)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (line[i] < '0' || line[i] > '9')
			return false;
		value = value * 10 + (line[i] - '0');
	}
	if (value > INT32_MAX)
		return false;
	*status = (int32_t)value;
	return true;
}

/* A line `#token` comes before the report itself. */
static bool parse_token(const char *line, size_t len, char *token)
{
	if (len == 0 || line[0] != '#')
		return false;
	len = len > TOKEN_MAX ? 0 : len - 1;
	memcpy(token, line + 1, len);
	token[len] = '\0';
	return true;
}

void terminal_read_report(struct terminal *t)
{
	char c;

	/* Byte by byte: what follows this report belongs to the next one. */
	while (!t->reported && t->status_fifo >= 0 && read(t->status_fifo, &c, 1) == 1) {
		if (c != '\n') {
			/* A line that is too long stays too long until its end. */
			if (t->report_len < sizeof(t->report_line))
				t->report_line[t->report_len++] = c;
			continue;
		}
		if (!parse_token(t->report_line, t->report_len, t->report_token))
			t->reported = parse_report(t->report_line, t->report_len, &t->report);
		t->report_len = 0;
		if (t->reported)
			t->read_since = 0;
	}
}

void terminal_take_report(struct terminal *t)
{
	t->reported = false;
	memcpy(t->token, t->report_token, sizeof(t->token));
	t->report_token[0] = '\0';
}

void terminal_go(struct terminal *t)
{
	char answer[16 + TOKEN_MAX];
	int held = 0;
	int len;

	if (t->token[0]) {
		len = snprintf(
			answer, sizeof(answer), "!%u\n%s\n", (unsigned int)t->ended, t->token);
	} else {
		/* A shell without a token takes any line for its answer: never keep two. */
		if (ioctl(t->go_fifo, FIONREAD, &held) == 0 && held > 0)
			return;
		len = snprintf(answer, sizeof(answer), "\n");
	}
	while (write(t->go_fifo, answer, (size_t)len) < 0 && errno == EINTR)
		;
}

void terminal_release(struct terminal *t)
{
	if (t->held)
		terminal_go(t);
	t->held = false;
}
