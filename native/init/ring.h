/*
 * The last RING_SIZE bytes of a stream. Offsets are absolute and
 * only grow; a byte lives at offset modulo RING_SIZE.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define RING_SIZE (1024 * 1024)
/* At most this much is read from one source in one turn of the loop. */
#define READ_BUDGET (256 * 1024)

struct ring {
	uint8_t *data; /* RING_SIZE bytes, page-aligned */
	uint64_t start;
	uint64_t end;
};

/* Where the next bytes go, without wrapping; *len is how many fit there. */
uint8_t *ring_space(struct ring *r, size_t *len);
/* Counts `len` bytes just written at ring_space(); the oldest are dropped. */
void ring_commit(struct ring *r, size_t len);
void ring_put(struct ring *r, const void *data, size_t len);
/* The kept bytes from `offset` (start <= offset <= end), without wrapping. */
const uint8_t *ring_peek(const struct ring *r, uint64_t offset, size_t *len);
/* Forgets all content but not the position in the stream. */
void ring_forget(struct ring *r);
