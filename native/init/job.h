/* What init was asked to run, in a terminal or isolated: the last JOBS_KEPT of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define JOBS_KEPT    256
#define NAME_MAX_LEN 64

enum job_kind {
	JOB_TERMINAL = 0,
	JOB_ISOLATED,
};

/* A terminal has only the first. */
enum stream {
	STREAM_OUTPUT = 0,
	STREAM_ERROR,
	STREAMS,
};

enum end_how {
	END_STATUS = 0,
	END_SHELL_EXITED,
	END_SHELL_KILLED,
	END_CLOSED,
	END_KILLED,
};

struct job {
	uint32_t id; /* 0: free */
	uint8_t kind;
	bool ended;
	uint8_t how;
	int32_t status;
	/* The output is [start, end) of each stream; `end` counts only once ended. */
	uint64_t start[STREAMS];
	uint64_t end[STREAMS];
	/* Index of the terminal or of the isolated job. */
	unsigned int slot;
	/* Which use of that slot: a reused slot holds other streams. */
	uint32_t generation;
	uint32_t pid; /* isolated */
	char terminal[NAME_MAX_LEN + 1];
};

struct job_table {
	struct job jobs[JOBS_KEPT];
	uint32_t last_id;
};

/* A new job; in a full table it replaces the oldest ended one. NULL only if all are running. */
struct job *job_add(struct job_table *table);
struct job *job_find(struct job_table *table, uint32_t id);
/* In order of id: the first job after `id`, or NULL. */
struct job *job_after(struct job_table *table, uint32_t id);
/* For a job that never began. Its number is not used again. */
void job_forget(struct job *job);
void job_end(struct job *job, const uint64_t end[STREAMS], enum end_how how, int32_t status);
