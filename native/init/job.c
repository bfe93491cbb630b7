#include "job.h"

#include <stddef.h>

struct job *job_add(struct job_table *table)
{
	struct job *oldest = NULL;

	for (unsigned int i = 0; i < JOBS_KEPT; i++) {
		struct job *job = &table->jobs[i];

		if (job->id == 0) {
			oldest = job;
			break;
		}
		if (job->ended && (!oldest || job->id < oldest->id))
			oldest = job;
	}
	if (!oldest)
		return NULL;
	*oldest = (struct job){.id = ++table->last_id};
	return oldest;
}

void job_forget(struct job *job)
{
	*job = (struct job){.id = 0};
}

struct job *job_find(struct job_table *table, uint32_t id)
{
	for (unsigned int i = 0; id != 0 && i < JOBS_KEPT; i++) {
		if (table->jobs[i].id == id)
			return &table->jobs[i];
	}
	return NULL;
}

struct job *job_after(struct job_table *table, uint32_t id)
{
	struct job *next = NULL;

	for (unsigned int i = 0; i < JOBS_KEPT; i++) {
		struct job *job = &table->jobs[i];

		if (job->id > id && (!next || job->id < next->id))
			next = job;
	}
	return next;
}

void job_end(struct job *job, const uint64_t end[STREAMS], enum end_how how, int32_t status)
{
	job->ended = true;
	for (unsigned int i = 0; i < STREAMS; i++)
		job->end[i] = end[i];
	job->how = (uint8_t)how;
	job->status = status;
}
