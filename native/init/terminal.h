/*
 * A terminal: a PTY with a shell on it, the FIFOs of the prompt handshake and
 * the ring with the last output. init holds both ends of the PTY, so that a
 * checkpoint finds it whole and the master never reports a hangup.
 */
#pragma once

#include "kept.h"
#include "request.h"
#include "sizes.h"

#include <sys/types.h>

#define TERMINALS_MAX 8
#define INPUT_MAX     (64 * 1024)

enum terminal_state {
	TERM_STARTING = 0,
	TERM_PROMPT,
	TERM_RUNNING,
	TERM_TYPED, /* busy with a line that came by INPUT */
	TERM_DEAD,
};

/*
 * While everything is stopped for a dump, the host reaches into each terminal:
 * CRIU would send what it finds unread in a PTY through the line discipline
 * once more. Terminal `slot` has its descriptors at these places, which are
 * part of the protocol (docs/shell-protocol.md).
 */
#define TERMINAL_FDS_FIRST 128
#define TERMINAL_FDS	   8
enum terminal_fd {
	FD_MASTER = 0,
	FD_SLAVE,
	FD_OUTPUT_READ, /* all output passes this pipe, so that the host can add to it in order */
	FD_OUTPUT_WRITE,
	FD_INPUT_READ, /* keeps unread input for the host; we never look at it */
	FD_INPUT_WRITE,
};

struct terminal {
	bool used;
	unsigned int poll; /* the first of its entries in this turn; 0: none */
	char name[NAME_MAX_LEN + 1];
	enum terminal_state state;
	pid_t shell;
	int master;
	int slave;
	int output[2];
	int input_kept[2];
	int status_fifo;
	int go_fifo;
	int exec_status; /* the errno of a failed exec arrives here */
	uint32_t uid;
	uint32_t gid;
	uint16_t rows;
	uint16_t cols;
	uint32_t job;

	char run_line[RUN_LINE_MAX];
	size_t run_line_len;
	bool input_since_run;

	/* A report or the shell's death waits until the PTY has been read empty. */
	bool reported;
	int32_t report;
	bool died;
	int wait_status;
	size_t read_since;
	char report_line[12];
	size_t report_len;

	uint64_t open_deadline_ms;
	uint64_t opener; /* serial of the connection that waits for the first prompt; 0: none */

	struct kept kept;
	struct size_history sizes;
	uint8_t *input; /* INPUT_MAX bytes not yet taken by the PTY */
	size_t input_len;
};

void terminal_clear(struct terminal *t);
/* Closes PTY and FIFOs; the ring stays. */
void terminal_close(struct terminal *t);
int terminal_open_pty(struct terminal *t, unsigned int slot, char *path, size_t size);

static inline struct ring *terminal_ring(struct terminal *t)
{
	return &t->kept.rings[STREAM_OUTPUT];
}

/*
 * Moves PTY output into the ring, at most `room` bytes. Returns 1 when all that
 * was written before the call has been read, 0 when there may be more.
 */
int terminal_read(struct terminal *t, uint64_t room);
/* Types the run line without its echo. */
int terminal_type_run_line(struct terminal *t);
int terminal_queue_input(struct terminal *t, struct bytes text);
void terminal_flush_input(struct terminal *t);
/* Is there a whole line which the shell will read by itself? */
bool terminal_has_typed_line(const struct terminal *t);
/* Has the shell not yet read the line of the current job? */
bool terminal_run_line_unread(const struct terminal *t);
int terminal_signal(struct terminal *t, int signo);
int terminal_resize(struct terminal *t, uint16_t rows, uint16_t cols);
void terminal_kill(struct terminal *t);
/* Looks for a report of the shell in the status FIFO; sets `reported`. */
void terminal_read_report(struct terminal *t);
/* Lets the shell print its prompt. */
void terminal_go(struct terminal *t);

/* Host of the control files: `dir`/`name`/{rc,status,go,cmd}. shell.c */
int shell_start(struct terminal *t, unsigned int slot, const char *dir, struct request *request);
int shell_write_command(const struct terminal *t, const char *dir, struct bytes text);
