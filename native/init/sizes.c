#include "sizes.h"

#include <string.h>

void sizes_note(struct size_history *h, uint64_t offset, uint16_t rows, uint16_t cols)
{
	struct size_change *last = h->count ? &h->changes[h->count - 1] : NULL;

	if (last && last->rows == rows && last->cols == cols)
		return;
	/* No byte was written at the size that is replaced here. */
	if (!last || last->offset != offset) {
		if (h->count == SIZES_KEPT)
			memmove(h->changes, h->changes + 1, sizeof(h->changes[0]) * --h->count);
		last = &h->changes[h->count++];
	}
	*last = (struct size_change){
		.offset = offset,
		.number = ++h->last_number,
		.rows = rows,
		.cols = cols,
	};
}

const struct size_change *sizes_at(const struct size_history *h, uint64_t offset, uint64_t *next)
{
	unsigned int at = 0;

	*next = UINT64_MAX;
	if (h->count == 0)
		return NULL;
	while (at + 1 < h->count && h->changes[at + 1].offset <= offset)
		at++;
	if (at + 1 < h->count)
		*next = h->changes[at + 1].offset;
	return &h->changes[at];
}
