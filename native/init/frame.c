#include "frame.h"

#include <errno.h>
#include <string.h>

static uint64_t load_le(const uint8_t *p, unsigned int width)
{
	uint64_t v = 0;

	for (unsigned int i = 0; i < width; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static void store_le(uint8_t *p, uint64_t v, unsigned int width)
{
	for (unsigned int i = 0; i < width; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

int frame_parse(uint8_t *buf, size_t len, uint32_t max, struct frame *frame)
{
	uint32_t size;

	if (len < FRAME_HEADER)
		return 0;
	size = (uint32_t)load_le(buf, 4);
	if (size == 0)
		return -EBADMSG;
	if (size > max)
		return -EMSGSIZE;
	if (len - FRAME_HEADER < size)
		return 0;
	frame->kind = buf[FRAME_HEADER];
	frame->size = FRAME_HEADER + (size_t)size;
	frame->body = (struct reader){.at = buf + FRAME_HEADER + 1, .left = size - 1};
	return 1;
}

static uint8_t *take(struct reader *r, size_t len)
{
	uint8_t *at = r->at;

	if (r->bad || r->left < len) {
		r->bad = true;
		return NULL;
	}
	r->at += len;
	r->left -= len;
	return at;
}

static uint64_t read_le(struct reader *r, unsigned int width)
{
	const uint8_t *p = take(r, width);

	return p ? load_le(p, width) : 0;
}

uint8_t read_u8(struct reader *r)
{
	return (uint8_t)read_le(r, 1);
}

uint16_t read_u16(struct reader *r)
{
	return (uint16_t)read_le(r, 2);
}

uint32_t read_u32(struct reader *r)
{
	return (uint32_t)read_le(r, 4);
}

uint64_t read_u64(struct reader *r)
{
	return read_le(r, 8);
}

struct bytes read_str(struct reader *r)
{
	uint32_t len = read_u32(r);
	uint8_t *data = take(r, len);

	return (struct bytes){.data = data, .len = data ? len : 0};
}

char *read_cstr(struct reader *r)
{
	struct bytes s = read_str(r);

	if (r->bad || (s.len && memchr(s.data, 0, s.len))) {
		r->bad = true;
		return NULL;
	}
	memmove(s.data - 1, s.data, s.len);
	s.data[(ptrdiff_t)s.len - 1] = 0;
	return (char *)s.data - 1;
}

static uint8_t *grow(struct writer *w, size_t len)
{
	uint8_t *at = w->buf + w->len;

	if (w->full || w->cap - w->len < len) {
		w->full = true;
		return NULL;
	}
	w->len += len;
	return at;
}

static void put_le(struct writer *w, uint64_t v, unsigned int width)
{
	uint8_t *at = grow(w, width);

	if (at)
		store_le(at, v, width);
}

void frame_begin(struct writer *w, uint8_t kind)
{
	w->frame_at = w->len;
	put_u32(w, 0);
	put_u8(w, kind);
}

void put_u8(struct writer *w, uint8_t v)
{
	put_le(w, v, 1);
}

void put_u16(struct writer *w, uint16_t v)
{
	put_le(w, v, 2);
}

void put_u32(struct writer *w, uint32_t v)
{
	put_le(w, v, 4);
}

void put_u64(struct writer *w, uint64_t v)
{
	put_le(w, v, 8);
}

void put_bytes(struct writer *w, const void *data, size_t len)
{
	uint8_t *at = grow(w, len);

	if (at && len)
		memcpy(at, data, len);
}

void put_str(struct writer *w, const void *data, uint32_t len)
{
	put_u32(w, len);
	put_bytes(w, data, len);
}

int frame_end(struct writer *w)
{
	if (w->full) {
		w->len = w->frame_at;
		w->full = false;
		return -ENOBUFS;
	}
	store_le(w->buf + w->frame_at, w->len - w->frame_at - FRAME_HEADER, 4);
	return 0;
}
