/* Frames on their way to a client: each is queued whole in its connection's buffer. */
#include "server.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void reply_begin(struct connection *c, struct writer *w, uint8_t kind)
{
	if (c->out_at > 0) {
		memmove(c->out, c->out + c->out_at, c->out_len);
		c->out_at = 0;
	}
	*w = (struct writer){.buf = c->out, .cap = OUT_SIZE, .len = c->out_len};
	frame_begin(w, kind);
}

void reply_end(struct connection *c, struct writer *w)
{
	/* Cannot fail: is_paused() and OUT_STREAM_MAX leave space for any reply. */
	if (frame_end(w))
		c->closing = true;
	c->out_len = w->len;
}

void reply_ok(struct connection *c)
{
	struct writer w;

	reply_begin(c, &w, REP_OK);
	reply_end(c, &w);
}

void reply_error(struct connection *c, enum error_code code, const char *format, ...)
{
	char text[256];
	struct writer w;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	reply_begin(c, &w, REP_ERROR);
	put_u16(&w, (uint16_t)code);
	put_str(&w, text, (uint32_t)strlen(text));
	reply_end(c, &w);
}

void reply_not_delivered(struct connection *c, int err)
{
	const char *why = strerror(-err);

	if (err == -EPERM)
		why = "only the shell itself is in the foreground";
	if (err == -ESRCH)
		why = "there is no process left to signal";
	reply_error(c, ERR_NOT_DELIVERED, "%s", why);
}

void reply_job_ended(struct connection *c, const struct job *job)
{
	struct writer w;

	reply_begin(c, &w, REP_ENDED);
	put_u32(&w, job->id);
	put_u8(&w, job->how);
	put_u32(&w, (uint32_t)job->status);
	for (unsigned int i = 0; i < STREAMS; i++)
		put_u64(&w, job->end[i] - job->start[i]);
	reply_end(c, &w);
}

void reply_terminal(struct connection *c, struct terminal *t)
{
	struct writer w;

	reply_begin(c, &w, REP_TERMINAL);
	put_str(&w, t->name, (uint32_t)strlen(t->name));
	put_u8(&w, (uint8_t)t->state);
	put_u32(&w, (uint32_t)t->shell);
	put_u16(&w, t->rows);
	put_u16(&w, t->cols);
	put_u64(&w, terminal_ring(t)->start);
	put_u64(&w, terminal_ring(t)->end);
	put_u32(&w, t->job);
	reply_end(c, &w);
}

static void reply_lost(struct connection *c, enum stream which, uint64_t from, uint64_t to)
{
	struct writer w;

	reply_begin(c, &w, REP_LOST);
	put_u8(&w, (uint8_t)which);
	put_u64(&w, from);
	put_u64(&w, to);
	reply_end(c, &w);
}

bool reply_piece(struct connection *c, const struct ring *ring, enum stream which, uint64_t base,
	uint64_t *pos, uint64_t end)
{
	uint64_t kept = ring ? ring->start : end;
	const uint8_t *data;
	struct writer w;
	size_t len;

	if (*pos >= end || c->out_len > OUT_STREAM_MAX)
		return false;
	if (*pos < kept) {
		uint64_t to = kept < end ? kept : end;

		reply_lost(c, which, *pos - base, to - base);
		*pos = to;
		return true;
	}
	data = ring_peek(ring, *pos, &len);
	if (len > end - *pos)
		len = (size_t)(end - *pos);
	if (len > FRAME_CHUNK_MAX)
		len = FRAME_CHUNK_MAX;
	reply_begin(c, &w, which == STREAM_ERROR ? REP_ERROR_OUTPUT : REP_OUTPUT);
	put_u64(&w, *pos - base);
	put_bytes(&w, data, len);
	reply_end(c, &w);
	*pos += len;
	return true;
}
