/* The line of a machine without sockets, on a terminal in raw mode instead of a virtual port. */
#include "../line.h"
#include "client.h"

#include <termios.h>

static struct init init;
static int host; /* our end of the line */
static pid_t relay;

static void start_relay(const char *binary)
{
	struct termios raw;

	host = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
	CHECK(host >= 0 && grantpt(host) == 0 && unlockpt(host) == 0);
	CHECK(tcgetattr(host, &raw) == 0);
	cfmakeraw(&raw);
	CHECK(tcsetattr(host, TCSANOW, &raw) == 0);
	relay = fork();
	CHECK(relay >= 0);
	if (relay == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(binary, binary, "relay", "--dir", init.dir, "--port", ptsname(host), NULL);
		_exit(127);
	}
}

static void write_line(const void *data, size_t len)
{
	const uint8_t *at = data;

	while (len > 0) {
		ssize_t put = write(host, at, len);

		CHECK(put > 0);
		at += put;
		len -= (size_t)put;
	}
}

static void write_word(const char *word)
{
	write_line("\xc0", 1);
	write_line(word, strlen(word));
	write_line("\n", 1);
}

static uint8_t read_line_byte(void)
{
	struct pollfd fd = {.fd = host, .events = POLLIN};
	uint8_t byte;

	CHECK(poll(&fd, 1, DEADLINE_MS) == 1);
	CHECK(read(host, &byte, 1) == 1);
	return byte;
}

/* Skips everything up to that word. */
static void expect_word(const char *expected)
{
	char word[256];
	size_t len;

	do {
		while (read_line_byte() != LINE_FLAG)
			;
		for (len = 0; len < sizeof(word) - 1; len++) {
			word[len] = (char)read_line_byte();
			if (word[len] == '\n')
				break;
		}
		word[len] = 0;
	} while (strcmp(word, expected) != 0);
}

static uint8_t read_data(void)
{
	uint8_t byte = read_line_byte();

	CHECK(byte != LINE_FLAG);
	if (byte != LINE_ESCAPE)
		return byte;
	byte = read_line_byte();
	CHECK(byte == LINE_ESCAPED_FLAG || byte == LINE_ESCAPED_ESCAPE);
	return byte == LINE_ESCAPED_FLAG ? LINE_FLAG : LINE_ESCAPE;
}

static uint8_t read_line_frame(uint8_t *payload, size_t size)
{
	uint32_t len = 0;
	uint8_t kind;

	for (unsigned int i = 0; i < 4; i++)
		len |= (uint32_t)read_data() << (8 * i);
	CHECK(len >= 1 && len - 1 <= size);
	kind = read_data();
	for (uint32_t i = 1; i < len; i++)
		payload[i - 1] = read_data();
	return kind;
}

static void expect_hello(const char *nonce)
{
	uint8_t payload[64];
	char word[64];

	snprintf(word, sizeof(word), "O%s", nonce);
	write_word(word);
	expect_word(word);
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_HELLO);
}

static void ping(void)
{
	uint8_t payload[64];

	write_line("\1\0\0\0\x0c", 5);
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_OK);
}

static void a_caller_gets_its_nonce_and_then_hello(void)
{
	expect_hello("first");
	ping();
}

static void a_new_caller_is_served_without_a_hang_up_of_the_one_before(void)
{
	expect_hello("second");
	expect_hello("third");
	ping();
}

static void whatever_was_cut_off_does_not_hide_the_next_caller(void)
{
	static const char *const leftovers[] = {"\xc0", "\xc0O", "\xc0Ohalf", "\xdb", "\x40",
		"\x05\x01", "\xc0\xc0\xc0", "\xc0Zwhat is this\n", "\xc0\n"};

	for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++) {
		write_line(leftovers[i], strlen(leftovers[i]));
		expect_hello("next");
		ping();
	}
	for (unsigned int i = 0; i < 1000; i++)
		write_line("\xc0too long for a word, and without its end", 40);
	expect_hello("last");
	ping();
}

static void data_without_a_caller_is_dropped(void)
{
	uint8_t payload[64];

	write_line("\xff\xff\xff\xff", 4); /* too large a frame: init closes */
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_ERROR);
	expect_word("Elast");
	write_line("\1\0\0\0\x0c", 5);
	expect_hello("after");
	ping();
}

static void bytes_that_mean_something_to_the_line_arrive_as_they_are(void)
{
	static const char text[] = "printf '\\300\\333\\334\\335\\n'; exit 0";
	uint8_t spawn[512];
	uint8_t payload[512];
	struct writer w = request_begin(spawn, sizeof(spawn), REQ_SPAWN);

	put_u8(&w, 1);
	put_u32(&w, geteuid());
	put_u32(&w, getegid());
	put_text(&w, "/");
	put_u32(&w, 5);
	put_text(&w, "/bin/sh");
	put_text(&w, "-c");
	put_text(&w, text);
	put_text(&w, "an argument with \xdb\xdc and \xdb\xdd: \xc0, escaped as \xdb");
	put_text(&w, "-");
	put_u32(&w, 0);
	CHECK(frame_end(&w) == 0);
	for (size_t i = 0; i < w.len; i++) {
		uint8_t byte = w.buf[i];

		if (byte == LINE_FLAG)
			write_line("\xdb\xdc", 2);
		else if (byte == LINE_ESCAPE)
			write_line("\xdb\xdd", 2);
		else
			write_line(&byte, 1);
	}
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_STARTED);
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_OUTPUT);
	CHECK(memcmp(payload + 8, "\xc0\xdb\xdc\xdd\n", 5) == 0);
	CHECK(read_line_frame(payload, sizeof(payload)) == REP_ENDED);
}

static void the_time_is_answered_with_the_nonce_of_its_caller(void)
{
	write_word("Osixth");
	write_word("R1700000000.5 00ff"); /* a relay outside a machine does not set the clock */
	expect_word("Rsixth 0");
	CHECK(time(NULL) > 1700000001);
}

static long relay_switches(void)
{
	long switches = -1;
	char path[64];
	char line[128];
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)relay);
	status = fopen(path, "re");
	CHECK(status);
	while (fgets(line, sizeof(line), status))
		sscanf(line, "voluntary_ctxt_switches: %ld", &switches);
	fclose(status);
	CHECK(switches >= 0);
	return switches;
}

/* The line is idle: a relay that wakes up meanwhile burns the time of every idle machine. */
static void a_relay_with_nothing_to_do_sleeps(void)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;
	long before;

	expect_hello("quiet");
	/* It may not be done yet; one that never sleeps wakes up within each 300 ms. */
	do {
		CHECK(clock_ms() < deadline);
		before = relay_switches();
		poll(NULL, 0, 300);
	} while (relay_switches() != before);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	start_relay(argv[1]);
	RUN_TEST(a_caller_gets_its_nonce_and_then_hello);
	RUN_TEST(a_new_caller_is_served_without_a_hang_up_of_the_one_before);
	RUN_TEST(whatever_was_cut_off_does_not_hide_the_next_caller);
	RUN_TEST(data_without_a_caller_is_dropped);
	RUN_TEST(bytes_that_mean_something_to_the_line_arrive_as_they_are);
	RUN_TEST(the_time_is_answered_with_the_nonce_of_its_caller);
	RUN_TEST(a_relay_with_nothing_to_do_sleeps);
	kill(relay, SIGKILL);
	waitpid(relay, NULL, 0);
	stop_init(&init);
	return 0;
}
