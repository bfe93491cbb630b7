/* init as a black box: what is written to the standard input of isolated jobs. */
#include "isolated_client.h"

#define MIB (1024 * 1024)

static struct init init;
static struct client c;

static uint8_t byte_at(uint64_t offset)
{
	return (uint8_t)(offset * 31 + (offset >> 8) + (offset >> 16));
}

static void fill(uint8_t *data, uint64_t offset, size_t len)
{
	for (size_t i = 0; i < len; i++)
		data[i] = byte_at(offset + i);
}

static bool is_pattern(const uint8_t *data, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (data[i] != byte_at(i))
			return false;
	}
	return true;
}

/* One connection for both directions: it reads output while it waits for an answer. */
static void ten_megabytes_pass_both_ways_on_one_connection(void)
{
	static uint8_t piece[MIB];
	size_t total = 10 * 1000 * 1000;
	struct result r = {0};
	struct frame frame;
	uint32_t job = start_shell(&c, SPAWN_FOLLOW | SPAWN_STDIN, "exec cat");

	for (size_t at = 0; at <= total; at += sizeof(piece)) {
		size_t len = total - at < sizeof(piece) ? total - at : sizeof(piece);

		fill(piece, at, len);
		send_write(&c, job, piece, len);
		while (receive(&c, &frame) && frame.kind != REP_OK)
			CHECK(follow_frame(&frame, &r));
	}
	send_write(&c, job, NULL, 0);
	while (receive(&c, &frame)) {
		if (frame.kind != REP_OK && !follow_frame(&frame, &r))
			break;
	}
	CHECK(r.how == 0 && r.status == 0 && r.lost == 0 && r.len == total);
	CHECK(is_pattern(r.output, r.len));
	free_result(&r);
}

/* The writer never looks at the output, the follower never writes. */
static void ten_megabytes_pass_both_ways_on_two_connections(void)
{
	static uint8_t piece[50000];
	size_t total = 10 * 1000 * 1000;
	struct result r = {0};
	uint32_t job = start_shell(&c, SPAWN_FOLLOW | SPAWN_STDIN, "tee /dev/stderr");
	pid_t writer = fork();
	int status;

	CHECK(writer >= 0);
	if (writer == 0) {
		struct client w;

		connect_client(&init, &w);
		for (size_t at = 0; at < total; at += sizeof(piece)) {
			fill(piece, at, sizeof(piece));
			CHECK(write_input(&w, job, piece, sizeof(piece)) == 0);
		}
		CHECK(write_input(&w, job, NULL, 0) == 0);
		_exit(0);
	}
	follow_to_the_end(&c, &r);
	CHECK(waitpid(writer, &status, 0) == writer && status == 0);
	CHECK(r.status == 0 && r.lost == 0 && r.error_lost == 0);
	CHECK(r.len == total && is_pattern(r.output, r.len));
	CHECK(r.error_len == total && is_pattern(r.error, r.error_len));
	free_result(&r);
}

static void input_is_refused_where_nobody_can_read_it(void)
{
	uint32_t job = start_shell(&c, 0, "exec sleep 100");
	struct result r = {0};

	CHECK(write_input(&c, 999999, "x", 1) == ERR_UNKNOWN_JOB);
	CHECK(write_input(&c, job, "x", 1) == ERR_STDIN_CLOSED);
	CHECK(kill_job(&c, job, SIGKILL) == 0);
	CHECK(wait_for(&c, job).status == SIGKILL);
	CHECK(write_input(&c, job, "x", 1) == ERR_STDIN_CLOSED);

	job = start_shell(&c, SPAWN_STDIN, "exec cat");
	CHECK(write_input(&c, job, NULL, 0) == 0);
	CHECK(write_input(&c, job, "x", 1) == ERR_STDIN_CLOSED);
	CHECK(wait_for(&c, job).status == 0);

	job = start_shell(&c, SPAWN_STDIN | SPAWN_FOLLOW, "exec 0<&-; echo closed; exec sleep 100");
	while (r.len == 0)
		CHECK(follow_step(&c, &r));
	CHECK(write_input(&c, job, "x", 1) == ERR_STDIN_CLOSED);
	CHECK(kill_job(&c, job, SIGKILL) == 0);
	follow_to_the_end(&c, &r);
	CHECK(r.how == 4 && r.status == SIGKILL);
	free_result(&r);
}

/* Without a reader the answer waits, and requests behind it; other connections do not. */
static void a_write_without_space_waits_and_holds_up_only_its_connection(void)
{
	static uint8_t piece[MIB];
	struct client writer;
	struct frame frame;
	uint32_t job = start_shell(&c, SPAWN_STDIN,
		"trap 'trap : USR1; cat; exit 7' USR1; echo ready >&2;"
		"while :; do sleep 0.02; done");

	connect_client(&init, &writer);
	send_write(&writer, job, piece, sizeof(piece));
	send_bytes(&writer, "\1\0\0\0\x0c", 5); /* PING */
	CHECK(is_quiet(&writer, 200));
	CHECK(ask(&c, REQ_PING) == REP_OK);
	wait_until_written(&c, job, 0, 6);
	CHECK(kill_job(&c, job, SIGUSR1) == 0);
	CHECK(receive_outcome(&writer) == 0);
	CHECK(receive_outcome(&writer) == 0);
	/* A caller that has shut down its side is still served. */
	send_write(&writer, job, piece, sizeof(piece));
	CHECK(shutdown(writer.fd, SHUT_WR) == 0);
	CHECK(receive_outcome(&writer) == 0);
	CHECK(!receive(&writer, &frame));
	close(writer.fd);
	CHECK(write_input(&c, job, NULL, 0) == 0);
	CHECK(wait_for(&c, job).length == 2 * sizeof(piece));
}

static void the_bytes_of_one_write_stay_together(void)
{
	static uint8_t piece[300000];
	struct client writers[3];
	struct result r = {0};
	unsigned int changes = 0;
	uint32_t job = start_shell(&c, SPAWN_STDIN | SPAWN_FOLLOW, "exec cat");

	for (unsigned int i = 0; i < 3; i++) {
		connect_client(&init, &writers[i]);
		memset(piece, 'a' + (int)i, sizeof(piece));
		send_write(&writers[i], job, piece, sizeof(piece));
	}
	while (r.len < 3 * sizeof(piece))
		CHECK(follow_step(&c, &r));
	for (unsigned int i = 0; i < 3; i++) {
		CHECK(receive_outcome(&writers[i]) == 0);
		close(writers[i].fd);
	}
	for (size_t i = 1; i < r.len; i++)
		changes += r.output[i] != r.output[i - 1];
	CHECK(changes == 2);
	CHECK(write_input(&c, job, NULL, 0) == 0);
	follow_to_the_end(&c, &r);
	free_result(&r);
}

static void the_input_of_a_vanished_caller_ends(void)
{
	struct client gone;
	struct client follower;
	int64_t begin;
	uint32_t lonely;
	uint32_t followed;
	uint32_t owned = start_shell(&c, SPAWN_STDIN, "cat; exit 4");

	connect_client(&init, &gone);
	connect_client(&init, &follower);
	lonely = start_shell(&gone, SPAWN_STDIN, "cat; exit 4");
	followed = start_shell(&gone, SPAWN_STDIN, "cat; exit 4");
	CHECK(write_input(&gone, lonely, "half", 4) == 0);
	send_follow(&follower, followed, 0);
	begin = clock_ms();
	close(gone.fd);
	CHECK(wait_for(&c, lonely).status == 4);
	CHECK(clock_ms() - begin > 4000);
	/* Jobs with a caller or a follower continue. */
	CHECK(is_quiet(&follower, 200));
	CHECK(write_input(&c, owned, "x", 1) == 0 && write_input(&c, owned, NULL, 0) == 0);
	CHECK(wait_for(&c, owned).length == 1);
	CHECK(write_input(&c, followed, NULL, 0) == 0);
	CHECK(receive_ended(&follower, followed).status == 4);
	close(follower.fd);
}

static void what_is_sent_again_after_a_cut_is_taken_once(void)
{
	struct result r = {0};
	struct client writer;
	uint32_t job = start_shell(&c, SPAWN_STDIN | SPAWN_FOLLOW, "cat");

	connect_client(&init, &writer);
	send_write_at(&writer, job, 0, "abcdef", 6);
	CHECK(receive_outcome(&writer) == 0);
	send_write_at(&writer, job, 0, "abcdef", 6);
	CHECK(receive_outcome(&writer) == 0);
	send_write_at(&writer, job, 4, "efgh", 4);
	CHECK(receive_outcome(&writer) == 0);
	send_write_at(&writer, job, 9, "j", 1);
	CHECK(receive_outcome(&writer) == ERR_MALFORMED);
	send_write_at(&writer, job, 8, NULL, 0);
	CHECK(receive_outcome(&writer) == 0);
	while (follow_step(&c, &r))
		;
	CHECK(r.len == 8 && memcmp(r.output, "abcdefgh", 8) == 0);
	free(r.output);
	close(writer.fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	connect_client(&init, &c);
	RUN_TEST(ten_megabytes_pass_both_ways_on_one_connection);
	RUN_TEST(ten_megabytes_pass_both_ways_on_two_connections);
	RUN_TEST(input_is_refused_where_nobody_can_read_it);
	RUN_TEST(a_write_without_space_waits_and_holds_up_only_its_connection);
	RUN_TEST(the_bytes_of_one_write_stay_together);
	RUN_TEST(what_is_sent_again_after_a_cut_is_taken_once);
	RUN_TEST(the_input_of_a_vanished_caller_ends);
	close(c.fd);
	stop_init(&init);
	return 0;
}
