#include "../sizes.h"
#include "check.h"

#include <stddef.h>

static struct size_history history;
static uint64_t next;

static void the_size_in_force_is_found_at_every_offset(void)
{
	history = (struct size_history){0};
	CHECK(!sizes_at(&history, 0, &next) && next == UINT64_MAX);
	sizes_note(&history, 0, 24, 80);
	sizes_note(&history, 100, 30, 90);
	sizes_note(&history, 200, 40, 100);
	CHECK(sizes_at(&history, 0, &next)->rows == 24 && next == 100);
	CHECK(sizes_at(&history, 99, &next)->rows == 24 && next == 100);
	CHECK(sizes_at(&history, 100, &next)->rows == 30 && next == 200);
	CHECK(sizes_at(&history, 5000, &next)->rows == 40 && next == UINT64_MAX);
	CHECK(sizes_at(&history, 5000, &next)->number == 3);
}

static void the_same_size_again_is_no_change(void)
{
	history = (struct size_history){0};
	sizes_note(&history, 0, 24, 80);
	sizes_note(&history, 50, 24, 80);
	CHECK(history.count == 1 && history.last_number == 1);
}

/* A viewer that was sent the first must still notice the second. */
static void a_change_without_output_in_between_replaces_the_last(void)
{
	history = (struct size_history){0};
	sizes_note(&history, 0, 24, 80);
	sizes_note(&history, 7, 25, 80);
	sizes_note(&history, 7, 26, 80);
	CHECK(history.count == 2);
	CHECK(sizes_at(&history, 7, &next)->rows == 26);
	CHECK(sizes_at(&history, 7, &next)->number == 3);
}

static void the_oldest_is_dropped_and_the_next_one_stands_for_it(void)
{
	history = (struct size_history){0};
	for (unsigned int i = 0; i < SIZES_KEPT + 3; i++)
		sizes_note(&history, i * 10, (uint16_t)(i + 1), 80);
	CHECK(history.count == SIZES_KEPT);
	CHECK(sizes_at(&history, 0, &next)->rows == 4 && next == 40);
	CHECK(sizes_at(&history, 0, &next)->offset == 30);
	CHECK(sizes_at(&history, 180, &next)->rows == SIZES_KEPT + 3 && next == UINT64_MAX);
}

int main(void)
{
	RUN_TEST(the_size_in_force_is_found_at_every_offset);
	RUN_TEST(the_same_size_again_is_no_change);
	RUN_TEST(a_change_without_output_in_between_replaces_the_last);
	RUN_TEST(the_oldest_is_dropped_and_the_next_one_stands_for_it);
	return 0;
}
