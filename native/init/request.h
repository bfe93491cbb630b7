/* Requests of a client, decoded and checked in form; no I/O. */
#pragma once

#include "frame.h"
#include "job.h"

#define ARGS_MAX     256
#define ENV_MAX	     1024
#define RUN_LINE_MAX 1024
#define RUN_TEXT_MAX (1024 * 1024)

enum { RUN_FOLLOW = 1 };

struct open_request {
	uint32_t uid;
	uint32_t gid;
	char *cwd;
	struct bytes rc;
	struct bytes run_line;
	char *argv[ARGS_MAX + 1];
	char *env[ENV_MAX + 1];
};

struct request {
	uint8_t kind;
	uint8_t flags;
	uint8_t signo;
	uint16_t rows;
	uint16_t cols;
	uint32_t job;
	uint64_t offset;
	struct bytes name;
	struct bytes text;
	struct open_request open;
};

/*
 * Strings of an OPEN are terminated in place, so a frame is decoded only once.
 * 0, -EBADMSG (not a request), or -E2BIG (too many arguments or variables).
 */
int request_parse(struct frame *frame, struct request *request);
bool is_terminal_name(struct bytes name);
