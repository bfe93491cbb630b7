/*
 * An isolated job: a program outside the terminals, in a session of its own,
 * with pipes as standard input, output and error output.
 */
#pragma once

#include "kept.h"
#include "request.h"

#include <sys/types.h>

#define ISOLATED_MAX 32
/* More than may run, so that a new job rarely displaces output that is still wanted. */
#define ISOLATED_SLOTS	   40
#define ISOLATED_INPUT_MAX (64 * 1024)
/* Below it are the terminals' fixed descriptors, and below those all others. */
#define ISOLATED_FDS_FIRST 192

enum isolated_state {
	ISOLATED_FREE = 0,
	ISOLATED_STARTING, /* the program has not been executed yet; there is no job yet */
	ISOLATED_RUNNING,
	ISOLATED_ENDED, /* its output is kept */
};

/* Its entries in `polls`, in this order. */
enum isolated_poll {
	ISOLATED_POLL_EXEC = 0,
	ISOLATED_POLL_INPUT,
	ISOLATED_POLL_OUTPUT,
	ISOLATED_POLLS = ISOLATED_POLL_OUTPUT + STREAMS,
};

struct isolated {
	enum isolated_state state;
	unsigned int poll; /* the first of its entries in `polls` this turn; 0: none */
	uint8_t flags;
	uint32_t job;
	pid_t pid;
	int exec_status; /* the error of a failed exec arrives here */
	int input;
	int output[STREAMS];

	bool reaped;
	int wait_status;
	size_t unread[STREAMS]; /* bytes in the pipes that were written before that */

	uint64_t caller;  /* serial of the connection that spawned it or last wrote to it */
	uint64_t writing; /* serial of the one whose WRITE is incomplete; 0: none */
	uint64_t input_deadline_ms; /* when the input of a vanished caller ends; 0: not vanished */
	bool input_ends;	    /* input ends after what is queued */
	uint8_t *queue;		    /* ISOLATED_INPUT_MAX bytes not yet taken by the pipe */
	size_t queue_len;
	uint64_t input_taken; /* how many bytes of its input we have received */

	struct kept kept;
	bool all_sent; /* all of the output was sent to some follower */
};

/* Two rings and the queue for input. */
#define ISOLATED_MEMORY (STREAMS * RING_SIZE + ISOLATED_INPUT_MAX)

/* Prepares the slot for a new program, as its next generation, with its own `memory`. */
void isolated_clear(struct isolated *p, uint8_t *memory);
/* Closes every descriptor; the output stays. */
void isolated_close(struct isolated *p);

/* Forks. The result of the exec arrives through `exec_status`: see spawn_result(). */
int spawn_start(struct isolated *p, struct program *program, int null_fd);
/*
 * 0 when the program runs, -EAGAIN when that is not known yet, or else the
 * -errno with which it could not be started, and the reason in `text`.
 */
int spawn_result(struct isolated *p, char *text, size_t size);

/*
 * Moves output into the ring, at most `limit` bytes. Returns 1 when all that was
 * written before the process was reaped has been read, 0 when there may be more.
 */
int isolated_read(struct isolated *p, enum stream which, uint64_t limit);
void isolated_reaped(struct isolated *p, int wait_status);

/*
 * Returns how many of the bytes were taken. `input` is -1 afterwards if nobody
 * reads it any more.
 */
size_t isolated_write(struct isolated *p, const uint8_t *data, size_t len);
void isolated_flush_input(struct isolated *p);
void isolated_end_input(struct isolated *p);
