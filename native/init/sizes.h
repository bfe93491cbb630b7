/*
 * Which size a terminal had at which point of its stream, for whoever renders
 * it again: the last SIZES_KEPT changes.
 */
#pragma once

#include <stdint.h>

#define SIZES_KEPT 16

struct size_change {
	uint64_t offset;
	uint32_t number; /* counts from 1; shows which one a viewer was sent */
	uint16_t rows;
	uint16_t cols;
};

struct size_history {
	struct size_change changes[SIZES_KEPT]; /* offsets grow */
	unsigned int count;
	uint32_t last_number;
};

/* Does nothing if the size is the one in force. */
void sizes_note(struct size_history *h, uint64_t offset, uint16_t rows, uint16_t cols);
/*
 * The size in force at `offset`, or the oldest that is known; NULL if no size
 * was noted. *next is where the size after it begins, or UINT64_MAX.
 */
const struct size_change *sizes_at(const struct size_history *h, uint64_t offset, uint64_t *next);
