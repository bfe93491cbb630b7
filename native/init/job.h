/* The commands init was asked to run: the last JOBS_KEPT of them. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define JOBS_KEPT    256
#define NAME_MAX_LEN 64

enum end_how {
	END_STATUS = 0,
	END_SHELL_EXITED,
	END_SHELL_KILLED,
	END_CLOSED,
};

struct job {
	uint32_t id; /* 0: free */
	bool ended;
	uint8_t how;
	int32_t status;
	/* The output is [start, end) of the stream; `end` counts only once ended. */
	uint64_t start;
	uint64_t end;
	unsigned int slot;
	/* Which use of that terminal slot: a reused slot holds another stream. */
	uint32_t generation;
	char terminal[NAME_MAX_LEN + 1];
};

struct job_table {
	struct job jobs[JOBS_KEPT];
	uint32_t last_id;
};

/* A fresh job; the oldest ended one gives way. NULL only if all are running. */
struct job *job_add(struct job_table *table);
struct job *job_find(struct job_table *table, uint32_t id);
/* In order of id: the first job after `id`, or NULL. */
struct job *job_after(struct job_table *table, uint32_t id);
void job_end(struct job *job, uint64_t end, enum end_how how, int32_t status);
