/*
 * Frames of the shell protocol (docs/shell-protocol.md): pure parsing and
 * encoding, no I/O. The reader is sticky: after one short read every further
 * read yields zero and `bad` stays set, so callers check once at the end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER	  4
#define FRAME_REQUEST_MAX (1024 * 1024 + 64 * 1024)
#define FRAME_CHUNK_MAX	  (64 * 1024)
#define FRAME_REPLY_MAX	  (FRAME_CHUNK_MAX + 64)

enum request_kind {
	REQ_OPEN = 0x01,
	REQ_RUN,
	REQ_FOLLOW,
	REQ_SIGNAL,
	REQ_INPUT,
	REQ_RESIZE,
	REQ_JOBS,
	REQ_TERMINALS,
	REQ_STREAM,
	REQ_CLOSE,
	REQ_QUIESCE,
	REQ_PING,
	REQ_SPAWN,
	REQ_WRITE,
	REQ_WAIT,
	REQ_KILL,
	REQ_WATCH,
	REQ_ATTEND,
	REQ_ANSWER,
};

enum reply_kind {
	REP_HELLO = 0x81,
	REP_OK,
	REP_ERROR,
	REP_STARTED,
	REP_OUTPUT,
	REP_ENDED,
	REP_LOST,
	REP_JOB,
	REP_TERMINAL,
	REP_END,
	REP_ERROR_OUTPUT,
	REP_RESIZED,
	REP_ASK,
};

enum error_code {
	ERR_MALFORMED = 1,
	ERR_UNKNOWN_TERMINAL,
	ERR_BUSY,
	ERR_SHELL_DEAD,
	ERR_UNKNOWN_JOB,
	ERR_TOO_LARGE,
	ERR_EXEC_FAILED,
	ERR_LIMIT,
	ERR_NOT_READY,
	ERR_SHELL,
	ERR_NOT_DELIVERED,
	ERR_INTERNAL,
	ERR_STDIN_CLOSED,
	ERR_UNKNOWN_ASK,
};

struct bytes {
	uint8_t *data;
	uint32_t len;
};

struct reader {
	uint8_t *at;
	size_t left;
	bool bad;
};

struct frame {
	uint8_t kind;
	size_t size; /* header included */
	struct reader body;
};

struct writer {
	uint8_t *buf;
	size_t cap;
	size_t len;
	size_t frame_at;
	bool full;
};

/* 1: a frame is complete; 0: more bytes are needed; -EBADMSG or -EMSGSIZE: not a frame. */
int frame_parse(uint8_t *buf, size_t len, uint32_t max, struct frame *frame);

uint8_t read_u8(struct reader *r);
uint16_t read_u16(struct reader *r);
uint32_t read_u32(struct reader *r);
uint64_t read_u64(struct reader *r);
struct bytes read_str(struct reader *r);
/*
 * As read_str, but a C string: the bytes are moved over their own length field
 * to make space for the terminator. NULL if they hold a NUL themselves.
 */
char *read_cstr(struct reader *r);

void frame_begin(struct writer *w, uint8_t kind);
void put_u8(struct writer *w, uint8_t v);
void put_u16(struct writer *w, uint16_t v);
void put_u32(struct writer *w, uint32_t v);
void put_u64(struct writer *w, uint64_t v);
void put_bytes(struct writer *w, const void *data, size_t len);
void put_str(struct writer *w, const void *data, uint32_t len);
/* 0, or -ENOBUFS with the writer as it was before frame_begin(). */
int frame_end(struct writer *w);
