#include "../ring.h"
#include "check.h"

#include <string.h>
#include <sys/mman.h>

static struct ring new_ring(void)
{
	void *data =
		mmap(NULL, RING_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(data != MAP_FAILED);
	return (struct ring){.data = data};
}

static uint8_t byte_at(uint64_t offset)
{
	return (uint8_t)(offset * 31 + (offset >> 8));
}

static void put_stream(struct ring *r, uint64_t len)
{
	static uint8_t chunk[5003];

	while (len > 0) {
		size_t now = len < sizeof(chunk) ? (size_t)len : sizeof(chunk);

		for (size_t i = 0; i < now; i++)
			chunk[i] = byte_at(r->end + i);
		ring_put(r, chunk, now);
		len -= now;
	}
}

static void check_kept(const struct ring *r)
{
	uint64_t at = r->start;

	while (at < r->end) {
		size_t len;
		const uint8_t *data = ring_peek(r, at, &len);

		CHECK(len > 0);
		for (size_t i = 0; i < len; i++)
			CHECK(data[i] == byte_at(at + i));
		at += len;
	}
	CHECK(at == r->end);
}

static void the_last_bytes_are_kept_across_the_wrap(void)
{
	struct ring r = new_ring();

	put_stream(&r, 1000);
	CHECK(r.start == 0 && r.end == 1000);
	put_stream(&r, RING_SIZE - 1000);
	CHECK(r.start == 0 && r.end == RING_SIZE);
	check_kept(&r);
	put_stream(&r, 1);
	CHECK(r.start == 1);
	put_stream(&r, 3 * (uint64_t)RING_SIZE + 12345);
	CHECK(r.end - r.start == RING_SIZE);
	check_kept(&r);
	munmap(r.data, RING_SIZE);
}

static void space_never_wraps(void)
{
	struct ring r = new_ring();
	size_t len;

	put_stream(&r, RING_SIZE - 3);
	CHECK(ring_space(&r, &len) == r.data + RING_SIZE - 3 && len == 3);
	ring_commit(&r, 3);
	CHECK(ring_space(&r, &len) == r.data && len == RING_SIZE);
	munmap(r.data, RING_SIZE);
}

static void forgetting_keeps_the_position(void)
{
	struct ring r = new_ring();
	size_t len;

	put_stream(&r, 100000);
	ring_forget(&r);
	CHECK(r.start == 100000 && r.end == 100000 && r.data[5] == 0);
	ring_peek(&r, r.end, &len);
	CHECK(len == 0);
	put_stream(&r, 10);
	check_kept(&r);
	munmap(r.data, RING_SIZE);
}

int main(void)
{
	RUN_TEST(the_last_bytes_are_kept_across_the_wrap);
	RUN_TEST(space_never_wraps);
	RUN_TEST(forgetting_keeps_the_position);
	return 0;
}
