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
#define TOKEN_MAX     24   /* with its final zero */
#define NOTHING_ENDED (-1) /* of a report: the shell is at its prompt, but not after a command */

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
 * once more. Terminal `slot` has its descriptors at these numbers, which are
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
	unsigned int poll; /* the first of its entries in `polls` this turn; 0: none */
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
	uint32_t ended; /* the last job that has ended here: its line is void from then on */

	char run_line[RUN_LINE_MAX];
	size_t run_line_len;
	bool input_since_run;
	bool held; /* the shell waits at its prompt until there is something to read */

	/* A report or the shell's death waits until the PTY has been read empty. */
	bool reported;
	int32_t report; /* or NOTHING_ENDED */
	bool died;
	int wait_status;
	size_t read_since;
	char report_line[TOKEN_MAX + 1];
	size_t report_len;
	/*
	 * The token of the report that is being read, and the one that is
	 * answered. A prompt that is interrupted never reads its answer; the
	 * next prompt must not take that answer for its own and read input too
	 * early.
	 */
	char report_token[TOKEN_MAX];
	char token[TOKEN_MAX];

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
 * Moves PTY output into the ring, at most `limit` bytes. Returns 1 when all that
 * was written before the call has been read, 0 when there may be more.
 */
int terminal_read(struct terminal *t, uint64_t limit);
/* 0, or -errno if not all of it was taken. */
int terminal_type(const struct terminal *t, const void *data, size_t len);
/* Moves all that was typed to the buffer that the shell reads from. */
void terminal_settle_input(const struct terminal *t);
/* Throws away what was typed and not read. */
void terminal_discard_input(const struct terminal *t);
/* In canonical mode only those of whole lines. */
int terminal_unread_bytes(const struct terminal *t);
int terminal_queue_input(struct terminal *t, struct bytes text);
void terminal_flush_input(struct terminal *t);
/* Is there a whole line that the shell will read by itself? */
bool terminal_has_typed_line(const struct terminal *t);
int terminal_signal(struct terminal *t, int signo);
int terminal_resize(struct terminal *t, uint16_t rows, uint16_t cols);
void terminal_kill(struct terminal *t);

/* Types the line that runs `job`, without its echo. run_line.c */
int terminal_type_run_line(struct terminal *t, uint32_t job);
/* Has the shell not yet read the line of the current job? */
bool terminal_run_line_unread(const struct terminal *t);

/* Looks for a report of the shell in the status FIFO; sets `reported`. report.c */
void terminal_read_report(struct terminal *t);
/* Marks the report as handled: its token is the one to be answered from now on. */
void terminal_take_report(struct terminal *t);
/* Lets the shell print its prompt, and reports to it which lines are void. */
void terminal_go(struct terminal *t);
/* As terminal_go() for a shell that is held; else does nothing. */
void terminal_release(struct terminal *t);

/*
 * The group that is most likely in the foreground of the shell's terminal: that
 * of its youngest child, or its own. foreground.c
 */
pid_t foreground_guess(pid_t shell);

/* With the control files `dir`/`name`/{rc,status,go,cmd}. shell.c */
int shell_start(struct terminal *t, unsigned int slot, const char *dir, struct request *request);
int shell_write_command(const struct terminal *t, const char *dir, struct bytes text);
