/* init as a black box under guests that are misbehaving, silent, vanished, or too many. */
#include "guest_client.h"

static struct init init;
static struct client c;

static void a_guest_that_vanishes_withdraws_its_ask(void)
{
	struct client host;
	struct client late;
	int fd = connect_guest(&init);
	int half = connect_guest(&init);
	uint32_t id;

	attend(&init, &host);
	send_ask(fd, "gone");
	id = receive_ask(&host, "gone");
	close(fd);
	attend(&init, &late);
	CHECK(ask(&late, REQ_PING) == REP_OK);
	close(late.fd);
	CHECK(answer(&host, id, 0, "") == ERR_UNKNOWN_ASK);
	/* Only its sending side is shut down: it still waits. */
	send_ask(half, "half");
	CHECK(shutdown(half, SHUT_WR) == 0);
	id = receive_ask(&host, "half");
	CHECK(ask(&c, REQ_PING) == REP_OK);
	CHECK(answer(&c, id, 3, "") == 0);
	CHECK(receive_answer(half) == 3 && receive_answer(half) == -1);
	close(half);
	/* A guest that sends more breaks the protocol. */
	fd = connect_guest(&init);
	send_ask(fd, "talks");
	id = receive_ask(&host, "talks");
	send_ask(fd, "more");
	CHECK(receive_answer(fd) == -1);
	CHECK(answer(&host, id, 0, "") == ERR_UNKNOWN_ASK);
	close(fd);
	close(host.fd);
}

static void the_ninth_request_is_refused_at_once(void)
{
	struct client host;
	int guests[9];
	char name[8];

	attend(&init, &host);
	for (unsigned int i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "g%u", i);
		guests[i] = connect_guest(&init);
		send_ask(guests[i], name);
		receive_ask(&host, name);
	}
	guests[8] = connect_guest(&init);
	send_ask(guests[8], "g8");
	CHECK(receive_answer(guests[8]) == 5);
	for (unsigned int i = 0; i < 9; i++)
		close(guests[i]);
	close(host.fd);
}

static void expect_refusal(const void *data, size_t len, int status)
{
	int fd = connect_guest(&init);

	CHECK(send(fd, data, len, MSG_NOSIGNAL) == (ssize_t)len);
	CHECK(receive_answer(fd) == status);
	CHECK(receive_answer(fd) == -1);
	close(fd);
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

static void what_is_not_a_request_is_refused(void)
{
	static const char *const names[] = {"a b", "a/b", "\n", "\xc3\xa9", "a'b"};
	char longest[65];
	struct client host;
	uint8_t buf[256];
	size_t len;
	int fd;

	for (unsigned int i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		len = encode_ask(buf, sizeof(buf), "snapshot", names[i], strlen(names[i]));
		expect_refusal(buf, len, 2);
	}
	len = encode_ask(buf, sizeof(buf), "snapshot", "a\0b", 3);
	expect_refusal(buf, len, 2);
	len = encode_ask(buf, sizeof(buf), "restore", "a", 1);
	expect_refusal(buf, len, 2);
	memset(longest, 'x', 65);
	len = encode_ask(buf, sizeof(buf), "snapshot", longest, 65);
	expect_refusal(buf, len, 2);
	expect_refusal("\0\0\0\0", 4, 2);
	expect_refusal("\1\0\0\0\x0c", 5, 2); /* QUIESCE: only hosts may send it */
	expect_refusal("\1\0\0\0\x0b", 5, 2);
	expect_refusal("\xff\xff\xff\xff\1", 5, 2);
	expect_refusal("\5\0\0\0\1\xff\xff\xff\xff", 9, 2);
	attend(&init, &host);
	fd = connect_guest(&init);
	len = encode_ask(buf, sizeof(buf), "snapshot", longest, 64);
	for (size_t i = 0; i < len; i++)
		CHECK(send(fd, buf + i, 1, MSG_NOSIGNAL) == 1);
	longest[64] = 0;
	CHECK(answer(&host, receive_ask(&host, longest), 0, "") == 0);
	CHECK(receive_answer(fd) == 0);
	close(fd);
	close(host.fd);
}

/* Thousands that send nothing, half a request, or far too much; one waits all the time. */
static void a_crowd_of_misbehaving_guests_disturbs_nobody(void)
{
	struct client host;
	static uint8_t flood[64 * 1024];
	int polite = connect_guest(&init);
	uint32_t id;

	attend(&init, &host);
	send_ask(polite, "polite");
	id = receive_ask(&host, "polite");
	for (unsigned int i = 0; i < 3000; i++) {
		int fd = connect_guest(&init);

		if (i % 3 == 1)
			send(fd, "\x40\0\0", 3, MSG_NOSIGNAL);
		if (i % 300 == 2)
			send(fd, flood, sizeof(flood), MSG_NOSIGNAL | MSG_DONTWAIT);
		close(fd);
		if (i % 500 == 0)
			CHECK(ask(&c, REQ_PING) == REP_OK);
	}
	CHECK(answer(&host, id, 0, "served") == 0);
	CHECK(receive_answer(polite) == 0);
	close(polite);
	close(host.fd);
}

static void silent_guests_are_closed_for_new_ones_and_after_a_while(void)
{
	struct client host;
	int silent[40];
	int64_t begin = clock_ms();
	int fd;

	attend(&init, &host);
	for (unsigned int i = 0; i < 40; i++)
		silent[i] = connect_guest(&init);
	fd = connect_guest(&init);
	send_ask(fd, "late");
	CHECK(answer(&host, receive_ask(&host, "late"), 0, "") == 0);
	CHECK(receive_answer(fd) == 0);
	close(fd);
	for (unsigned int i = 0; i < 40; i++) {
		CHECK(receive_answer(silent[i]) == -1);
		close(silent[i]);
	}
	CHECK(clock_ms() - begin >= 9000);
	close(host.fd);
}

static void an_answer_has_a_limit(void)
{
	static char large[ANSWER_TEXT_MAX + 2];
	struct client host;
	int fd = connect_guest(&init);
	uint32_t id;

	attend(&init, &host);
	send_ask(fd, "");
	id = receive_ask(&host, "");
	memset(large, 'x', ANSWER_TEXT_MAX + 1);
	CHECK(answer(&host, id, 0, large) == ERR_TOO_LARGE);
	large[ANSWER_TEXT_MAX] = 0;
	CHECK(answer(&host, id, 1, large) == 0);
	CHECK(receive_answer(fd) == 1);
	close(fd);
	close(host.fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init_with(argv[1], "--allow-self");
	connect_client(&init, &c);
	RUN_TEST(a_guest_that_vanishes_withdraws_its_ask);
	RUN_TEST(the_ninth_request_is_refused_at_once);
	RUN_TEST(what_is_not_a_request_is_refused);
	RUN_TEST(a_crowd_of_misbehaving_guests_disturbs_nobody);
	RUN_TEST(silent_guests_are_closed_for_new_ones_and_after_a_while);
	RUN_TEST(an_answer_has_a_limit);
	close(c.fd);
	stop_init(&init);
	return 0;
}
