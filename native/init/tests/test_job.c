#include "../job.h"
#include "check.h"

#include <stddef.h>

static struct job_table table;
static const uint64_t nothing[STREAMS];

static void ids_grow_from_one(void)
{
	table = (struct job_table){0};
	CHECK(job_add(&table)->id == 1);
	CHECK(job_add(&table)->id == 2);
	CHECK(job_find(&table, 2)->id == 2);
	CHECK(!job_find(&table, 3) && !job_find(&table, 0));
}

static void the_oldest_ended_job_is_replaced(void)
{
	table = (struct job_table){0};
	for (unsigned int i = 1; i <= JOBS_KEPT; i++) {
		struct job *job = job_add(&table);

		if (i != 1)
			job_end(job, nothing, END_STATUS, 0);
	}
	CHECK(job_add(&table)->id == JOBS_KEPT + 1);
	CHECK(job_find(&table, 1) && !job_find(&table, 2) && job_find(&table, 3));
}

static void a_table_of_running_jobs_takes_no_more(void)
{
	table = (struct job_table){0};
	for (unsigned int i = 0; i < JOBS_KEPT; i++)
		CHECK(job_add(&table));
	CHECK(!job_add(&table));
	job_end(job_find(&table, 77), nothing, END_SHELL_KILLED, 9);
	CHECK(job_add(&table)->id == JOBS_KEPT + 1 && !job_find(&table, 77));
}

static void jobs_are_listed_in_order_of_id(void)
{
	uint32_t expected = 45;

	table = (struct job_table){0};
	for (unsigned int i = 0; i < JOBS_KEPT + 44; i++)
		job_end(job_add(&table), nothing, END_STATUS, 0);
	for (struct job *job = job_after(&table, 0); job; job = job_after(&table, job->id))
		CHECK(job->id == expected++);
	CHECK(expected == JOBS_KEPT + 45);
}

int main(void)
{
	RUN_TEST(ids_grow_from_one);
	RUN_TEST(the_oldest_ended_job_is_replaced);
	RUN_TEST(a_table_of_running_jobs_takes_no_more);
	RUN_TEST(jobs_are_listed_in_order_of_id);
	return 0;
}
