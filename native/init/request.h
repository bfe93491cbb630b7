/* Requests of a client, decoded and checked in form; no I/O. */
#pragma once

#include "frame.h"
#include "job.h"

#define ARGS_MAX     256
#define ENV_MAX	     1024
#define GROUPS_MAX   64
#define RUN_LINE_MAX 1024
#define RUN_TEXT_MAX (1024 * 1024)

/* The offset of a WRITE whose bytes go after all others. */
#define WRITE_AT_END UINT64_MAX

enum { RUN_FOLLOW = 1 };
enum { SPAWN_FOLLOW = 1, SPAWN_STDIN = 2, SPAWN_KEEP = 4 };

/* What to run and as whom. */
struct program {
	uint32_t uid;
	uint32_t gid;
	uint32_t group_count;
	uint32_t groups[GROUPS_MAX]; /* in addition to gid */
	char *cwd;
	char *argv[ARGS_MAX + 1];
	char *env[ENV_MAX + 1];
};

struct request {
	uint8_t kind;
	uint8_t flags;
	uint8_t signo;
	uint8_t status;
	uint16_t rows;
	uint16_t cols;
	uint32_t job;
	uint32_t ask;
	uint64_t offset;
	uint64_t error_offset;
	struct bytes name;
	struct bytes text;
	struct bytes rc;
	struct bytes run_line;
	struct program program;
};

/*
 * Strings of a program are terminated in place, so such a frame is decoded only
 * once. 0, -EBADMSG (not a request), or -E2BIG (too many arguments,
 * variables or groups).
 */
int request_parse(struct frame *frame, struct request *request);
bool is_terminal_name(struct bytes name);
