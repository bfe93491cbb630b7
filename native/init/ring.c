#include "ring.h"

#include <string.h>
#include <sys/mman.h>

_Static_assert((RING_SIZE & (RING_SIZE - 1)) == 0, "offsets are reduced by a mask");

uint8_t *ring_space(struct ring *r, size_t *len)
{
	size_t at = r->end & (RING_SIZE - 1);

	*len = RING_SIZE - at;
	return r->data + at;
}

void ring_commit(struct ring *r, size_t len)
{
	r->end += len;
	if (r->end - r->start > RING_SIZE)
		r->start = r->end - RING_SIZE;
}

void ring_put(struct ring *r, const void *data, size_t len)
{
	const uint8_t *from = data;

	while (len > 0) {
		size_t space;
		uint8_t *to = ring_space(r, &space);

		if (space > len)
			space = len;
		memcpy(to, from, space);
		ring_commit(r, space);
		from += space;
		len -= space;
	}
}

const uint8_t *ring_peek(const struct ring *r, uint64_t offset, size_t *len)
{
	size_t at = offset & (RING_SIZE - 1);
	uint64_t kept = r->end - offset;

	*len = kept < RING_SIZE - at ? (size_t)kept : RING_SIZE - at;
	return r->data + at;
}

void ring_forget(struct ring *r)
{
	if (r->start == r->end)
		return;
	r->start = r->end;
	/* Resident pages are written out at every checkpoint. */
	madvise(r->data, RING_SIZE, MADV_DONTNEED);
}
