/*
 * The state of init and the parts of its loop. Everything is allocated at
 * start; buffers are mapped untouched and given back after use, because every
 * resident page of init is written out at every checkpoint.
 */
#pragma once

#include "job.h"
#include "request.h"
#include "terminal.h"

#define CONNECTIONS_MAX 64
/* Parts of one mapping are given back alone: a multiple of every page size there is. */
#define PAGE	 65536
#define IN_SIZE	 (FRAME_REQUEST_MAX + PAGE)
#define OUT_SIZE (256 * 1024)
/* Output is queued only below this, so that replies always find room. */
#define OUT_STREAM_MAX (128 * 1024)

#define FRAME_TIMEOUT_MS 10000
#define OPEN_TIMEOUT_MS	 15000
#define HOLD_MS		 5000

struct connection {
	int fd; /* -1: free */
	uint64_t serial;
	uint64_t last_active;
	uint8_t *in;
	size_t in_len;
	uint8_t *out;
	size_t out_at;
	size_t out_len;
	uint64_t deadline_ms; /* of an incomplete frame or a last flush; 0: none */
	bool eof;
	bool closing;
	bool opening; /* an OPEN waits for its first prompt */

	uint32_t job; /* followed; 0: none */
	uint64_t pos;
	bool job_told; /* ENDED is queued; the place is kept until it is sent */

	bool streaming;
	unsigned int stream_slot;
	uint32_t stream_generation;
	uint64_t stream_pos;
	uint64_t stream_end;
};

/*
 * Time as init has lived it: CLOCK_MONOTONIC in steps of at most CLOCK_STEP_MS.
 * A freeze, a restore or a reboot makes the kernel's clock jump in either
 * direction; no deadline may pass because of that.
 */
#define CLOCK_STEP_MS 1000

struct server {
	const char *dir;
	bool any_peer;
	int listener;
	int wake;
	uint64_t now_ms;
	uint64_t kernel_ms;
	uint64_t serial;
	uint64_t activity;
	bool again; /* work is left that no descriptor will announce */
	struct job_table jobs;
	struct terminal terminals[TERMINALS_MAX];
	struct connection connections[CONNECTIONS_MAX];
	struct request request;
};

/* connection.c */
void connection_open(struct server *s, int fd);
void connection_close(struct server *s, struct connection *c);
void connection_receive(struct server *s, struct connection *c);
void connection_flush(struct server *s, struct connection *c);
void connection_serve(struct server *s, struct connection *c);
void reply_begin(struct connection *c, struct writer *w, uint8_t kind);
void reply_end(struct connection *c, struct writer *w);
void reply_ok(struct connection *c);
void reply_error(struct connection *c, enum error_code code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
struct connection *connection_find(struct server *s, uint64_t serial);

/* follow.c */
struct terminal *job_terminal(struct server *s, const struct job *job);
void follow_start(struct server *s, struct connection *c, struct job *job, uint64_t offset);
/* Queues output for the connection as far as its buffer allows. */
void follow_pump(struct server *s, struct connection *c);
void follow_hold(struct server *s, struct connection *c);
void follow_expire(struct server *s);
/* How many bytes of the terminal may be read without loss for any follower. */
uint64_t follow_room(const struct server *s, const struct terminal *t);
bool follow_is_held(const struct server *s, const struct terminal *t);

/* answer.c */
void answer(struct server *s, struct connection *c, struct request *request);

/* prompt.c */
void terminal_advance(struct server *s, struct terminal *t);
void terminal_end_job(struct server *s, struct terminal *t, enum end_how how, int32_t status);
