/* init as a black box under clients that are misbehaving, slow, silent, vanished, or too many. */
#include "client.h"

static struct init init;
static struct client c;

static void expect_error_and_close(const void *data, size_t len, int code)
{
	struct client rude;
	struct frame frame;

	connect_client(&init, &rude);
	send_bytes(&rude, data, len);
	CHECK(receive_outcome(&rude) == code);
	CHECK(!receive(&rude, &frame));
	close(rude.fd);
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

static void malformed_and_oversized_frames_cost_only_their_connection(void)
{
	expect_error_and_close("\0\0\0\0", 4, ERR_MALFORMED);
	expect_error_and_close("\1\0\0\0\x7f", 5, ERR_MALFORMED);
	expect_error_and_close("\2\0\0\0\x0c!", 6, ERR_MALFORMED);
	expect_error_and_close("\5\0\0\0\x0a\xff\xff\xff\xff", 9, ERR_MALFORMED);
	expect_error_and_close("\xff\xff\xff\xff\1", 5, ERR_TOO_LARGE);
	expect_error_and_close("\1\0\x11\0\1", 5, ERR_TOO_LARGE);
}

static void half_a_frame_stalls_nobody_and_is_closed_in_time(void)
{
	struct client slow;
	struct frame frame;
	int64_t begin = clock_ms();

	connect_client(&init, &slow);
	send_bytes(&slow, "\x40\0\0", 3);
	CHECK(ask(&c, REQ_PING) == REP_OK);
	CHECK(!receive(&slow, &frame));
	CHECK(clock_ms() - begin >= 9000);
	close(slow.fd);
}

static void a_half_closed_client_still_gets_its_output(void)
{
	struct client half;
	struct result r = {0};
	struct frame frame;

	connect_client(&init, &half);
	CHECK(start_run(&half, "main", 1, "sleep 0.2; echo late") > 0);
	CHECK(shutdown(half.fd, SHUT_WR) == 0);
	while (follow_step(&half, &r))
		;
	CHECK(r.len == 6 && r.status == 0);
	CHECK(!receive(&half, &frame));
	close(half.fd);
	free(r.output);
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

static void requests_may_be_sent_in_one_piece_or_byte_by_byte(void)
{
	static const uint8_t pings[] = "\1\0\0\0\x0c\1\0\0\0\x0c\1\0\0\0\x0c";

	send_bytes(&c, pings, 15);
	for (unsigned int i = 0; i < 3; i++)
		CHECK(receive_outcome(&c) == 0);
	for (unsigned int i = 0; i < 15; i++)
		send_bytes(&c, pings + i, 1);
	for (unsigned int i = 0; i < 3; i++)
		CHECK(receive_outcome(&c) == 0);
}

static void requests_behind_a_slow_answer_are_served_after_it(void)
{
	static const uint8_t requests[] = "\x11\0\0\0\x09\4\0\0\0main\0\0\0\0\0\0\0\0\1\0\0\0\x0c";
	struct frame frame;

	send_bytes(&c, requests, sizeof(requests) - 1);
	while (receive_kind(&c, &frame) != REP_END)
		CHECK(frame.kind == REP_OUTPUT || frame.kind == REP_RESIZED);
	CHECK(receive_outcome(&c) == 0);
}

/* 3 MB are more than ring and socket hold: without a reader the command must wait. */
static void a_slow_follower_holds_the_command_back_and_loses_nothing(void)
{
	struct client slow;
	struct result r = {0};

	connect_client(&init, &slow);
	CHECK(start_run(&slow, "main", 1, "seq 400000") > 0);
	poll(NULL, 0, 300);
	CHECK(terminal_state(&c, "main") == 2);
	CHECK(ask(&c, REQ_PING) == REP_OK);
	while (follow_step(&slow, &r))
		;
	CHECK(r.lost == 0 && r.len == 3088895);
	free(r.output);
	close(slow.fd);
}

static void a_vanished_follower_can_reconnect_and_loses_nothing(void)
{
	struct result r = {0};
	struct client follower;
	uint32_t job;

	connect_client(&init, &follower);
	job = (uint32_t)start_run(&follower, "main", 1, "seq 400000");
	while (r.len < 100000)
		CHECK(follow_step(&follower, &r));
	/* What the socket still holds is read before the new connection asks. */
	CHECK(ask(&c, REQ_QUIESCE) == REP_OK);
	close(c.fd);
	for (;;) {
		struct frame frame;

		if (!receive(&follower, &frame))
			break;
		CHECK(frame.kind == REP_OUTPUT && read_u64(&frame.body) == r.len);
		r.output = realloc(r.output, r.len + frame.body.left + 1);
		memcpy(r.output + r.len, frame.body.at, frame.body.left);
		r.len += frame.body.left;
	}
	close(follower.fd);
	connect_client(&init, &follower);
	send_follow(&follower, job, r.len);
	while (follow_step(&follower, &r))
		;
	CHECK(r.lost == 0 && r.job == job && r.len == 3088895);
	free(r.output);
	close(follower.fd);
	connect_client(&init, &c);
}

static void without_a_follower_the_oldest_output_is_reported_as_lost(void)
{
	struct result r = {0};
	uint32_t job = (uint32_t)start_run(&c, "main", 0, "seq 400000");

	wait_until_state(&c, "main", 1);
	send_follow(&c, job, 0);
	while (follow_step(&c, &r))
		;
	CHECK(r.lost == 3088895 - 1024 * 1024 && r.len == 1024 * 1024);
	free(r.output);
}

static void quiesce_closes_every_connection(void)
{
	struct client others[5];
	struct frame frame;

	for (unsigned int i = 0; i < 5; i++)
		connect_client(&init, &others[i]);
	CHECK(ask(&c, REQ_QUIESCE) == REP_OK);
	CHECK(!receive(&c, &frame));
	close(c.fd);
	for (unsigned int i = 0; i < 5; i++) {
		CHECK(!receive(&others[i], &frame));
		close(others[i].fd);
	}
	connect_client(&init, &c);
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

static void idle_connections_are_closed_for_new_ones_but_a_follower_is_not(void)
{
	static struct client idle[70];
	struct result r = {0};

	CHECK(start_run(&c, "main", 1, "read -r x; echo $x") > 0);
	for (unsigned int i = 0; i < 70; i++)
		connect_client(&init, &idle[i]);
	CHECK(ask(&idle[69], REQ_PING) == REP_OK);
	CHECK(send_input(&idle[69], "main", "on\n") == 0);
	while (follow_step(&c, &r))
		;
	CHECK(r.status == 0 && strstr((char *)r.output, "on\r\n"));
	free(r.output);
	for (unsigned int i = 0; i < 70; i++)
		close(idle[i].fd);
}

static void more_terminals_than_allowed_are_refused(void)
{
	char name[8];

	for (unsigned int i = 1; i < 8; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		CHECK(open_terminal(&init, &c, name, "/bin/bash") == 0);
	}
	CHECK(open_terminal(&init, &c, "t8", "/bin/bash") == ERR_LIMIT);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	connect_client(&init, &c);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == 0);
	RUN_TEST(malformed_and_oversized_frames_cost_only_their_connection);
	RUN_TEST(half_a_frame_stalls_nobody_and_is_closed_in_time);
	RUN_TEST(a_half_closed_client_still_gets_its_output);
	RUN_TEST(requests_may_be_sent_in_one_piece_or_byte_by_byte);
	RUN_TEST(requests_behind_a_slow_answer_are_served_after_it);
	RUN_TEST(a_slow_follower_holds_the_command_back_and_loses_nothing);
	RUN_TEST(a_vanished_follower_can_reconnect_and_loses_nothing);
	RUN_TEST(without_a_follower_the_oldest_output_is_reported_as_lost);
	RUN_TEST(quiesce_closes_every_connection);
	RUN_TEST(idle_connections_are_closed_for_new_ones_but_a_follower_is_not);
	RUN_TEST(more_terminals_than_allowed_are_refused);
	close(c.fd);
	stop_init(&init);
	return 0;
}
