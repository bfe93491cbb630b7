#include "../ask.h"
#include "../frame.h"
#include "../request.h"
#include "check.h"

#include <errno.h>
#include <string.h>

static struct request request;

/* Parses a copy of exactly `len` bytes, so that the sanitizer sees any byte read beyond. */
static int parse_copy(const uint8_t *data, size_t len, struct frame *frame, uint8_t **copy)
{
	*copy = malloc(len ? len : 1);
	memcpy(*copy, data, len);
	return frame_parse(*copy, len, FRAME_REQUEST_MAX, frame);
}

static size_t encode_open(uint8_t *buf, size_t cap, const char *name, const char *program)
{
	struct writer w = {.buf = buf, .cap = cap};

	frame_begin(&w, REQ_OPEN);
	put_str(&w, name, (uint32_t)strlen(name));
	put_u16(&w, 24);
	put_u16(&w, 80);
	put_u32(&w, 1000);
	put_u32(&w, 100);
	put_str(&w, "/srv", 4);
	put_str(&w, "rc\0binary", 9);
	put_str(&w, " . cmd\n", 7);
	put_u32(&w, 3);
	put_str(&w, program, (uint32_t)strlen(program));
	put_str(&w, "", 0);
	put_str(&w, "-i", 2);
	put_u32(&w, 1);
	put_str(&w, "A=b", 3);
	CHECK(frame_end(&w) == 0);
	return w.len;
}

static void numbers_survive_a_round_trip(void)
{
	uint8_t buf[64];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};
	struct frame frame;
	struct bytes text;

	frame_begin(&w, 0x42);
	put_u8(&w, 0xfe);
	put_u16(&w, 0xfedc);
	put_u32(&w, 0xfedcba98);
	put_u64(&w, 0xfedcba9876543210);
	put_str(&w, "hey", 3);
	CHECK(frame_end(&w) == 0);
	CHECK(buf[0] == w.len - 4 && buf[1] == 0 && buf[4] == 0x42 && buf[6] == 0xdc);
	CHECK(frame_parse(buf, w.len, FRAME_REPLY_MAX, &frame) == 1);
	CHECK(frame.kind == 0x42 && frame.size == w.len);
	CHECK(read_u8(&frame.body) == 0xfe);
	CHECK(read_u16(&frame.body) == 0xfedc);
	CHECK(read_u32(&frame.body) == 0xfedcba98);
	CHECK(read_u64(&frame.body) == 0xfedcba9876543210);
	text = read_str(&frame.body);
	CHECK(text.len == 3 && memcmp(text.data, "hey", 3) == 0);
	CHECK(!frame.body.bad && frame.body.left == 0);
	CHECK(read_u8(&frame.body) == 0 && frame.body.bad);
}

static void an_open_request_is_decoded_in_place(void)
{
	uint8_t buf[256];
	size_t len = encode_open(buf, sizeof(buf), "main", "/bin/sh");
	struct frame frame;
	uint8_t *copy;

	CHECK(parse_copy(buf, len, &frame, &copy) == 1);
	CHECK(request_parse(&frame, &request) == 0);
	CHECK(request.name.len == 4 && memcmp(request.name.data, "main", 4) == 0);
	CHECK(request.rows == 24 && request.cols == 80);
	CHECK(request.program.uid == 1000 && request.program.gid == 100);
	CHECK(strcmp(request.program.cwd, "/srv") == 0);
	CHECK(request.rc.len == 9 && memcmp(request.rc.data, "rc\0binary", 9) == 0);
	CHECK(strcmp(request.program.argv[0], "/bin/sh") == 0);
	CHECK(strcmp(request.program.argv[1], "") == 0);
	CHECK(strcmp(request.program.argv[2], "-i") == 0 && !request.program.argv[3]);
	CHECK(strcmp(request.program.env[0], "A=b") == 0 && !request.program.env[1]);
	free(copy);
}

static void a_frame_cut_at_any_byte_only_asks_for_more(void)
{
	uint8_t buf[256];
	size_t len = encode_open(buf, sizeof(buf), "main", "/bin/sh");
	struct frame frame;
	uint8_t *copy;

	for (size_t cut = 0; cut < len; cut++) {
		CHECK(parse_copy(buf, cut, &frame, &copy) == 0);
		free(copy);
	}
}

static void a_body_cut_at_any_byte_is_malformed(void)
{
	uint8_t buf[256];
	size_t len = encode_open(buf, sizeof(buf), "main", "/bin/sh");
	struct frame frame;
	uint8_t *copy;

	for (size_t cut = 5; cut < len; cut++) {
		buf[0] = (uint8_t)(cut - 4);
		CHECK(parse_copy(buf, cut, &frame, &copy) == 1);
		CHECK(request_parse(&frame, &request) == -EBADMSG);
		free(copy);
	}
}

static void hostile_lengths_are_refused(void)
{
	uint8_t zero[] = {0, 0, 0, 0};
	uint8_t huge[] = {0xff, 0xff, 0xff, 0xff};
	uint8_t over[] = {1, 0, 0x11, 0};
	uint8_t most[] = {0, 0, 0x11, 0};
	uint8_t inner[] = {9, 0, 0, 0, REQ_CLOSE, 0xff, 0xff, 0xff, 0xff, 'm', 'a', 'i', 'n'};
	struct frame frame;

	CHECK(frame_parse(zero, 4, FRAME_REQUEST_MAX, &frame) == -EBADMSG);
	CHECK(frame_parse(huge, 4, FRAME_REQUEST_MAX, &frame) == -EMSGSIZE);
	CHECK(frame_parse(over, 4, FRAME_REQUEST_MAX, &frame) == -EMSGSIZE);
	CHECK(frame_parse(most, 4, FRAME_REQUEST_MAX, &frame) == 0);
	CHECK(frame_parse(inner, sizeof(inner), FRAME_REQUEST_MAX, &frame) == 1);
	CHECK(request_parse(&frame, &request) == -EBADMSG);
}

static void list_counts_beyond_the_limit_have_their_own_error(void)
{
	uint8_t buf[256];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};
	struct frame frame;

	frame_begin(&w, REQ_OPEN);
	put_str(&w, "main", 4);
	put_u32(&w, 0);
	put_u64(&w, 0);
	put_str(&w, "/", 1);
	put_str(&w, "", 0);
	put_str(&w, "x\n", 2);
	put_u32(&w, 0xffffffff);
	CHECK(frame_end(&w) == 0);
	CHECK(frame_parse(buf, w.len, FRAME_REQUEST_MAX, &frame) == 1);
	CHECK(request_parse(&frame, &request) == -E2BIG);
}

static int parse_open_of(const char *name, const char *program)
{
	uint8_t buf[512];
	size_t len = encode_open(buf, sizeof(buf), name, program);
	struct frame frame;

	CHECK(frame_parse(buf, len, FRAME_REQUEST_MAX, &frame) == 1);
	return request_parse(&frame, &request);
}

static void invalid_terminal_names_are_refused(void)
{
	static const char *const bad[] = {"", ".", "..", "-x", "a/b", "_a", "init", "sock", "here",
		"a b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(parse_open_of(bad[i], "/bin/sh") == -EBADMSG);
	CHECK(parse_open_of("9.a_b-C", "/bin/sh") == 0);
	CHECK(parse_open_of("main", "sh") == -EBADMSG);
}

static void trailing_bytes_and_unknown_kinds_are_malformed(void)
{
	uint8_t ping[] = {2, 0, 0, 0, REQ_PING, 0};
	uint8_t unknown[] = {1, 0, 0, 0, 0x7f};
	struct frame frame;

	CHECK(frame_parse(ping, sizeof(ping), FRAME_REQUEST_MAX, &frame) == 1);
	CHECK(request_parse(&frame, &request) == -EBADMSG);
	CHECK(frame_parse(unknown, sizeof(unknown), FRAME_REQUEST_MAX, &frame) == 1);
	CHECK(request_parse(&frame, &request) == -EBADMSG);
}

static size_t encode_spawn(uint8_t *buf, size_t cap, uint32_t argc)
{
	struct writer w = {.buf = buf, .cap = cap};

	frame_begin(&w, REQ_SPAWN);
	put_u8(&w, SPAWN_FOLLOW | SPAWN_KEEP);
	put_u32(&w, 1000);
	put_u32(&w, 100);
	put_str(&w, "/srv", 4);
	put_u32(&w, argc);
	for (uint32_t i = 0; i < argc; i++)
		put_str(&w, "ls", 2);
	put_u32(&w, 1);
	put_str(&w, "A=b", 3);
	CHECK(frame_end(&w) == 0);
	return w.len;
}

static int parse_spawn_of(uint8_t *buf, size_t len)
{
	struct frame frame;

	CHECK(frame_parse(buf, len, FRAME_REQUEST_MAX, &frame) == 1);
	return request_parse(&frame, &request);
}

/* Appends the groups to the frame, and updates its length. */
static size_t add_groups(uint8_t *buf, size_t len, uint32_t count, uint32_t sent)
{
	struct writer w = {.buf = buf + len, .cap = 4 + 4 * (size_t)sent};

	put_u32(&w, count);
	for (uint32_t i = 0; i < sent; i++)
		put_u32(&w, 1000 + i);
	len += w.len;
	buf[0] = (uint8_t)(len - 4);
	buf[1] = (uint8_t)((len - 4) >> 8);
	return len;
}

static void groups_come_last_and_may_be_missing(void)
{
	static uint8_t buf[8192];
	size_t len = encode_spawn(buf, sizeof(buf), 1);

	CHECK(parse_spawn_of(buf, len) == 0 && request.program.group_count == 0);
	encode_spawn(buf, sizeof(buf), 1);
	CHECK(parse_spawn_of(buf, add_groups(buf, len, 3, 3)) == 0);
	CHECK(request.program.group_count == 3 && request.program.groups[2] == 1002);
	encode_spawn(buf, sizeof(buf), 1);
	CHECK(parse_spawn_of(buf, add_groups(buf, len, GROUPS_MAX, GROUPS_MAX)) == 0);
	encode_spawn(buf, sizeof(buf), 1);
	CHECK(parse_spawn_of(buf, add_groups(buf, len, GROUPS_MAX + 1, GROUPS_MAX + 1)) == -E2BIG);
	encode_spawn(buf, sizeof(buf), 1);
	CHECK(parse_spawn_of(buf, add_groups(buf, len, 3, 2)) == -EBADMSG);
	encode_spawn(buf, sizeof(buf), 1);
	CHECK(parse_spawn_of(buf, add_groups(buf, len, 2, 3)) == -EBADMSG);
}

static void a_spawn_request_needs_a_program_but_no_absolute_path(void)
{
	static uint8_t buf[8192];
	size_t len = encode_spawn(buf, sizeof(buf), 2);

	CHECK(parse_spawn_of(buf, len) == 0);
	CHECK(request.flags == (SPAWN_FOLLOW | SPAWN_KEEP));
	CHECK(request.program.uid == 1000 && request.program.gid == 100);
	CHECK(strcmp(request.program.cwd, "/srv") == 0);
	CHECK(strcmp(request.program.argv[1], "ls") == 0 && !request.program.argv[2]);
	CHECK(strcmp(request.program.env[0], "A=b") == 0 && !request.program.env[1]);
	len = encode_spawn(buf, sizeof(buf), 0);
	CHECK(parse_spawn_of(buf, len) == -EBADMSG);
	len = encode_spawn(buf, sizeof(buf), ARGS_MAX);
	CHECK(parse_spawn_of(buf, len) == 0);
	len = encode_spawn(buf, sizeof(buf), ARGS_MAX + 1);
	CHECK(parse_spawn_of(buf, len) == -E2BIG);
	for (size_t cut = 5; cut < 40; cut++) {
		encode_spawn(buf, sizeof(buf), 2);
		buf[0] = (uint8_t)(cut - 4);
		CHECK(parse_spawn_of(buf, cut) == -EBADMSG);
	}
}

static const char *refusal_of(const char *verb, const void *argument, uint32_t len)
{
	uint8_t buf[256];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};
	struct frame frame;
	struct ask ask;

	frame_begin(&w, ASK_REQUEST);
	put_str(&w, verb, (uint32_t)strlen(verb));
	put_str(&w, argument, len);
	CHECK(frame_end(&w) == 0);
	CHECK(frame_parse(buf, w.len, 200, &frame) == 1);
	CHECK(ask_parse(&frame, &ask) == 0);
	return ask_refusal(&ask);
}

static void a_guest_may_only_ask_for_a_snapshot(void)
{
	char longest[65];

	memset(longest, 'x', sizeof(longest));
	CHECK(!refusal_of("snapshot", "", 0));
	CHECK(!refusal_of("snapshot", "a.B_c-9", 7));
	CHECK(!refusal_of("snapshot", longest, 64));
	CHECK(refusal_of("snapshot", longest, 65));
	CHECK(refusal_of("snapshot", "a/b", 3) && refusal_of("snapshot", "a\0b", 3));
	CHECK(refusal_of("", "", 0) && refusal_of("snapshots", "", 0) && refusal_of("snap", "", 0));
}

static void a_full_writer_drops_the_whole_frame(void)
{
	uint8_t buf[16];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};

	frame_begin(&w, REP_OK);
	CHECK(frame_end(&w) == 0 && w.len == 5);
	frame_begin(&w, REP_OUTPUT);
	put_bytes(&w, "0123456789", 10);
	CHECK(frame_end(&w) == -ENOBUFS && w.len == 5);
	frame_begin(&w, REP_OK);
	CHECK(frame_end(&w) == 0 && w.len == 10);
}

int main(void)
{
	RUN_TEST(numbers_survive_a_round_trip);
	RUN_TEST(an_open_request_is_decoded_in_place);
	RUN_TEST(a_frame_cut_at_any_byte_only_asks_for_more);
	RUN_TEST(a_body_cut_at_any_byte_is_malformed);
	RUN_TEST(hostile_lengths_are_refused);
	RUN_TEST(list_counts_beyond_the_limit_have_their_own_error);
	RUN_TEST(invalid_terminal_names_are_refused);
	RUN_TEST(trailing_bytes_and_unknown_kinds_are_malformed);
	RUN_TEST(a_spawn_request_needs_a_program_but_no_absolute_path);
	RUN_TEST(groups_come_last_and_may_be_missing);
	RUN_TEST(a_guest_may_only_ask_for_a_snapshot);
	RUN_TEST(a_full_writer_drops_the_whole_frame);
	return 0;
}
