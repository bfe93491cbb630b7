/*
 * The state of init and the parts of its loop. Everything is allocated at
 * start; buffers are mapped but not touched, and their pages are returned to
 * the kernel after use, because every resident page of init is written out at
 * every checkpoint.
 */
#pragma once

#include "guest.h"
#include "isolated.h"
#include "job.h"
#include "leftover.h"
#include "request.h"
#include "terminal.h"

#include <poll.h>

#define CONNECTIONS_MAX 64
/* Parts of one mapping are returned to the kernel separately: a multiple of every page size. */
#define PAGE	 65536
#define IN_SIZE	 (FRAME_REQUEST_MAX + PAGE)
#define OUT_SIZE (256 * 1024)
/* Output is queued only below this, so that there is always space left for replies. */
#define OUT_STREAM_MAX (128 * 1024)

#define FRAME_TIMEOUT_MS 10000
#define OPEN_TIMEOUT_MS	 15000
#define HOLD_MS		 5000

/* A connection that is sent the output of a job, from some offset on, and its end. */
struct follower {
	uint32_t job; /* 0: none */
	struct kept *kept;
	uint32_t generation;
	uint64_t start[STREAMS]; /* of the job */
	uint64_t pos[STREAMS];
	bool end_queued; /* ENDED is queued; the slot is kept until it is sent */
};

enum view_kind {
	VIEW_NONE = 0,
	VIEW_STREAM, /* up to `end` */
	VIEW_WATCH,  /* until the terminal is closed */
};

/* What a watcher is sent when it changes. */
struct terminal_facts {
	enum terminal_state state;
	uint16_t rows;
	uint16_t cols;
	uint32_t job;
};

/* A connection that is sent the stream of a terminal, whatever runs in it. */
struct viewer {
	enum view_kind kind;
	unsigned int slot;
	uint32_t generation;
	uint64_t pos;
	uint64_t end;
	uint32_t size_sent; /* number of the last size sent; 0: none */
	struct terminal_facts facts_sent;
	uint64_t facts_due_at; /* where in the stream they are sent; UINT64_MAX: no change */
};

struct connection {
	int fd;		   /* -1: free */
	unsigned int poll; /* its entry in `polls` this turn; 0: none */
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
	bool opening;	     /* an OPEN waits for its first prompt */
	bool spawning;	     /* a SPAWN waits for its exec */
	bool writing;	     /* the first frame of `in` is a WRITE that waits for the job's input */
	uint64_t write_from; /* where in the input its bytes belong */
	bool attending;	     /* is sent the asks of guests */
	uint32_t asked;	     /* the last ask it was sent */
	uint32_t waits;	     /* for the end of this job; 0: none */
	struct follower follow;
	struct viewer view;
};

/*
 * The clock of init: CLOCK_MONOTONIC in steps of at most CLOCK_STEP_MS. A
 * freeze, a restore or a reboot makes the kernel's clock jump in either
 * direction; no deadline may pass because of that.
 */
#define CLOCK_STEP_MS 1000

enum { TERMINAL_POLLS = 3 };
#define POLLS_MAX                                                                                  \
	(3 + CONNECTIONS_MAX + TERMINAL_POLLS * TERMINALS_MAX + ISOLATED_POLLS * ISOLATED_SLOTS +  \
		GUESTS_MAX + LEFTOVERS_MAX)

/*
 * The kernel gives out the lowest free descriptor, and a terminal takes its
 * fixed ones without checking that they are free. So all others must stay
 * below: stdio, wake-up pipe, listeners and /dev/null; two FIFOs and the exec
 * status of each terminal; a few for the length of a call.
 */
_Static_assert(8 + CONNECTIONS_MAX + 3 * TERMINALS_MAX + GUESTS_MAX + 16 <= TERMINAL_FDS_FIRST,
	"descriptors would run into those of the terminals");
_Static_assert(TERMINAL_FDS_FIRST + TERMINAL_FDS * TERMINALS_MAX <= ISOLATED_FDS_FIRST,
	"descriptors of isolated jobs would run into those of the terminals");
_Static_assert(JOBS_KEPT > ISOLATED_MAX + TERMINALS_MAX, "a new job always finds a slot");

struct server {
	const char *dir;
	bool any_peer;
	bool hold_prompt; /* the kernel's terminals cannot take a line literally (gVisor) */
	int listener;
	int wake;
	int null_fd;
	uint64_t now_ms;
	uint64_t kernel_ms;
	uint64_t serial;
	uint64_t activity;
	bool again; /* work is left that no descriptor will announce */
	struct pollfd polls[POLLS_MAX];
	unsigned int polled;
	struct job_table jobs;
	struct terminal terminals[TERMINALS_MAX];
	/* A slot is not touched before its first use: that would make it resident. */
	struct isolated isolated[ISOLATED_SLOTS];
	uint8_t *isolated_memory; /* ISOLATED_MEMORY for each */
	struct leftovers leftovers;
	struct guests guests;
	struct connection connections[CONNECTIONS_MAX];
	struct request request;
};

/* wait.c */
enum { POLL_WAKE = 0, POLL_LISTENER, POLL_GUESTS };
void clock_start(struct server *s);
/* Sleeps until a descriptor or a deadline is due, and sets the clock. */
void wait_for_events(struct server *s);
/* The events that the last wait found for an entry of `polls`; 0 if there were none. */
short events_of(const struct server *s, unsigned int poll);

/* connection.c */
void connection_open(struct server *s, int fd);
void connection_close(struct server *s, struct connection *c);
void connection_receive(struct server *s, struct connection *c);
void connection_flush(struct server *s, struct connection *c);
void connection_serve(struct server *s, struct connection *c);
/* Queues whatever the connection is to be sent, as far as its buffer allows. */
void connection_pump(struct server *s, struct connection *c);
struct connection *connection_find(struct server *s, uint64_t serial);
/* Does it follow, wait or watch already? Output of two sources could not be distinguished. */
bool connection_is_taken(const struct connection *c);

/* reply.c */
void reply_begin(struct connection *c, struct writer *w, uint8_t kind);
void reply_end(struct connection *c, struct writer *w);
void reply_ok(struct connection *c);
void reply_error(struct connection *c, enum error_code code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* `err` is that of terminal_signal() or kill(). */
void reply_not_delivered(struct connection *c, int err);
void reply_job_ended(struct connection *c, const struct job *job);
void reply_terminal(struct connection *c, struct terminal *t);
/*
 * Queues one frame, OUTPUT or LOST, of what lies between *pos and `end`; false
 * if it queued nothing. Offsets are sent relative to `base`. Without a ring
 * nothing is kept any more.
 */
bool reply_piece(struct connection *c, const struct ring *ring, enum stream which, uint64_t base,
	uint64_t *pos, uint64_t end);

/* follow.c */
/* Where the job's output is kept, or NULL if that slot has been reused. */
struct kept *job_kept(struct server *s, const struct job *job);
uint64_t job_length(struct server *s, const struct job *job, enum stream which);
void follow_start(struct server *s, struct connection *c, const struct job *job,
	const uint64_t offset[STREAMS]);
void follow_pump(struct server *s, struct connection *c);
/* Call it once ENDED has been sent. */
void follow_finish(struct server *s, struct connection *c);
void follow_hold(struct server *s, struct connection *c);
void follow_expire(struct server *s);
/* How many bytes of the stream may be read without loss for any follower. */
uint64_t follow_read_limit(const struct server *s, const struct kept *kept, enum stream which);
/* Does a follower, connected or vanished, still need what is kept? */
bool follow_is_held(const struct server *s, const struct kept *kept);
/* Is a follower connected? */
bool follow_is_live(const struct server *s, const struct kept *kept);

/* view.c */
void view_stream(struct server *s, struct connection *c, struct terminal *t, uint64_t offset);
void view_watch(struct server *s, struct connection *c, struct terminal *t, uint64_t offset);
void view_pump(struct server *s, struct connection *c);

/* lifecycle.c */
/* A slot for a new job, or NULL if ISOLATED_MAX jobs run. */
struct isolated *isolated_take(struct server *s);
/* Where the job runs or its output is kept; NULL if it is not isolated or no longer there. */
struct isolated *job_isolated(struct server *s, const struct job *job);
void isolated_advance(struct server *s, struct isolated *p);

/* guest.c */
void guests_accept(struct server *s);
void guests_advance(struct server *s);
/* Sends the connection the asks that it was not sent yet. */
void guests_pump(struct server *s, struct connection *c);
/* 0, or -ENOENT if no guest waits for this answer. */
int guests_answer(struct server *s, uint32_t ask, uint8_t status, struct bytes text);

/* answer.c; false if the request must wait and is to be served again. */
bool answer(struct server *s, struct connection *c, struct request *request);

/* answer_job.c */
void answer_follow(struct server *s, struct connection *c, struct request *request);
void answer_jobs(struct server *s, struct connection *c);
void answer_spawn(struct server *s, struct connection *c, struct request *request);
bool answer_write(struct server *s, struct connection *c, struct request *request);
void answer_wait(struct server *s, struct connection *c, struct request *request);
void answer_kill(struct server *s, struct connection *c, struct request *request);

/* prompt.c */
void terminal_advance(struct server *s, struct terminal *t);
void terminal_end_job(struct server *s, struct terminal *t, enum end_how how, int32_t status);
