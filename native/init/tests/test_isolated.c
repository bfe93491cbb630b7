/* init as a black box: isolated jobs, how they start and how they end. */
#include "isolated_client.h"

#define MIB (1024 * 1024)

static struct init init;
static struct client c;

static void expect(
	const char *script, uint8_t how, int32_t status, const char *output, const char *error)
{
	struct result r = run_shell(&c, script);

	if (r.how != how || r.status != status || r.len != strlen(output) ||
		r.error_len != strlen(error) || (r.len && memcmp(r.output, output, r.len) != 0) ||
		(r.error_len && memcmp(r.error, error, r.error_len) != 0)) {
		fprintf(stderr, "%s: how %d status %d output '%s' error '%s'\n", script, r.how,
			r.status, r.output ? (char *)r.output : "", r.error ? (char *)r.error : "");
		exit(1);
	}
	free_result(&r);
}

static void output_and_error_output_are_apart_and_exact(void)
{
	expect("echo out; echo err >&2; exit 3", 0, 3, "out\n", "err\n");
	expect("printf 'a\\0b' | od -An -c", 0, 0, "   a  \\0   b\n", "");
	expect(":", 0, 0, "", "");
	expect("kill -TERM $$", 4, SIGTERM, "", "");
	expect("kill -9 $$", 4, SIGKILL, "", "");
	expect("cat", 0, 0, "", "");
	for (unsigned int i = 0; i < 200; i++)
		expect("echo 1; echo 2 >&2; echo 3", 0, 0, "1\n3\n", "2\n");
}

static void a_program_finds_a_fresh_session(void)
{
	expect("pwd; echo $GIVEN; umask", 0, 0, "/\nby the caller\n0022\n", "");
	expect("read -r pid name state parent group session tty rest </proc/$$/stat;"
	       "[ $pid = $group ] && [ $pid = $session ] && [ $tty = 0 ] && echo apart",
		0, 0, "apart\n", "");
	expect("grep -E '^Sig(Blk|Ign)' /proc/self/status", 0, 0,
		"SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n", "");
	expect("[ $(cat /proc/self/oom_score_adj) -gt $(cat /proc/$PPID/oom_score_adj) ] && echo "
	       "first",
		0, 0, "first\n", "");
	/* The shell reads the directory itself: 3 is the one it does that with. */
	expect("cd /proc/$$/fd; echo *", 0, 0, "0 1 2 3\n", "");
	expect("echo >/dev/tty", 0, 2, "",
		"sh: 1: cannot create /dev/tty: No such device or address\n");
}

static void expect_failure(const struct spawn *how, const char *const *argv, const char *text)
{
	char message[300];

	send_spawn(&c, how, argv);
	CHECK(receive_started(&c, message, sizeof(message)) == -ERR_EXEC_FAILED);
	if (strcmp(message, text) != 0) {
		fprintf(stderr, "'%s' instead of '%s'\n", message, text);
		exit(1);
	}
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

static void what_cannot_be_started_is_reported(void)
{
	struct spawn how = {.uid = geteuid(), .gid = getegid(), .flags = 3};
	const char *missing[] = {"no-such-program", "x", NULL};
	const char *absolute[] = {"/no/such/program", NULL};
	const char *relative[] = {"./passwd", NULL};
	const char *sh[] = {"sh", "-c", "exit 0", NULL};
	const char *no_path = "PATH=/no/such";

	expect_failure(&how, missing, "no-such-program: No such file or directory");
	expect_failure(&how, absolute, "/no/such/program: No such file or directory");
	how.cwd = "/etc";
	expect_failure(&how, relative, "./passwd: Permission denied");
	how.cwd = "/no/where";
	expect_failure(&how, sh, "cwd /no/where: No such file or directory");
	how.cwd = "/";
	how.path = no_path;
	expect_failure(&how, sh, "sh: No such file or directory");
}

static void another_user_can_be_chosen(void)
{
	const struct spawn how = {
		.flags = SPAWN_FOLLOW | SPAWN_STDIN, .uid = 65534, .gid = 65534, .group = 4321};
	const char *argv[] = {"sh", "-c",
		"id -u; id -g; id -G; echo again >/dev/stdout; read -r x </dev/stdin; echo $x "
		">/dev/stderr",
		NULL};
	struct result r = {0};
	char message[300];
	struct frame frame;
	int64_t job;

	if (geteuid() != 0)
		return;
	send_spawn(&c, &how, argv);
	job = receive_started(&c, message, sizeof(message));
	CHECK(job > 0);
	send_write(&c, (uint32_t)job, "typed\n", 6);
	while (receive(&c, &frame)) {
		if (frame.kind != REP_OK && !follow_frame(&frame, &r))
			break;
	}
	CHECK(r.status == 0 && strcmp((char *)r.output, "65534\n65534\n65534 4321\nagain\n") == 0);
	CHECK(strcmp((char *)r.error, "typed\n") == 0);
	free_result(&r);
}

/* The kernel takes no single argument of 128 KiB or more, but many of them. */
static void a_mebibyte_of_arguments_is_passed_on(void)
{
	struct spawn how = {.flags = SPAWN_FOLLOW, .uid = geteuid(), .gid = getegid()};
	const char *argv[16] = {"sh", "-c", "printf %s \"$@\" | wc -c", "sh"};
	size_t each = 128 * 1024 - 1;
	char *large = malloc(MIB + 1);
	struct result r = {0};
	char message[300];

	memset(large, 'x', each);
	large[each] = 0;
	for (unsigned int i = 4; i < 12; i++)
		argv[i] = large;
	argv[12] = "12345678";
	argv[13] = NULL;
	send_spawn(&c, &how, argv);
	CHECK(receive_started(&c, message, sizeof(message)) > 0);
	follow_to_the_end(&c, &r);
	CHECK(r.status == 0 && strcmp((char *)r.output, "1048576\n") == 0);
	free_result(&r);
	memset(large, 'x', MIB);
	large[MIB] = 0;
	argv[4] = large;
	argv[5] = NULL;
	expect_failure(&how, argv, "sh: Argument list too long");
	free(large);
}

static void thirty_two_run_at_once_and_no_more(void)
{
	uint32_t jobs[32];

	for (unsigned int i = 0; i < 32; i++)
		jobs[i] = start_shell(&c, SPAWN_STDIN, "cat; exit 5");
	CHECK(spawn_shell(&c, 0, "exit 0") == -ERR_LIMIT);
	CHECK(write_input(&c, jobs[7], NULL, 0) == 0);
	CHECK(wait_for(&c, jobs[7]).status == 5);
	jobs[7] = start_shell(&c, SPAWN_STDIN, "cat; exit 5");
	CHECK(spawn_shell(&c, 0, "exit 0") == -ERR_LIMIT);
	for (unsigned int i = 0; i < 32; i++) {
		CHECK(write_input(&c, jobs[i], "some", 4) == 0);
		CHECK(write_input(&c, jobs[i], NULL, 0) == 0);
	}
	for (unsigned int i = 0; i < 32; i++) {
		struct end end = wait_for(&c, jobs[i]);

		CHECK(end.how == 0 && end.status == 5 && end.length == 4);
	}
}

static void a_job_can_be_waited_for(void)
{
	uint32_t job = start_shell(&c, SPAWN_STDIN, "cat; exit 6");
	struct result r = {0};
	struct client other;
	struct end end;

	send_wait(&c, 999999);
	CHECK(receive_outcome(&c) == ERR_UNKNOWN_JOB);
	connect_client(&init, &other);
	send_wait(&other, job);
	send_wait(&other, job);
	CHECK(receive_outcome(&other) == ERR_BUSY);
	send_follow(&other, job, 0);
	CHECK(receive_outcome(&other) == ERR_BUSY);
	CHECK(write_input(&c, job, "text", 4) == 0 && write_input(&c, job, NULL, 0) == 0);
	end = receive_ended(&other, job);
	CHECK(end.how == 0 && end.status == 6 && end.length == 4 && end.error_length == 0);
	CHECK(wait_for(&other, job).status == 6);
	send_follow(&other, job, 0);
	follow_to_the_end(&other, &r);
	CHECK(r.len == 4 && r.status == 6);
	free_result(&r);
	close(other.fd);
}

static void a_job_is_killed_with_its_group(void)
{
	uint32_t job = start_shell(&c, SPAWN_FOLLOW, "sleep 100 & echo up; wait; echo never");
	struct result r = {0};

	while (r.len == 0)
		CHECK(follow_step(&c, &r));
	CHECK(kill_job(&c, job, 0) == ERR_NOT_DELIVERED);
	CHECK(kill_job(&c, job, 200) == ERR_NOT_DELIVERED);
	CHECK(kill_job(&c, 999999, SIGTERM) == ERR_UNKNOWN_JOB);
	CHECK(kill_job(&c, job, SIGTERM) == 0);
	follow_to_the_end(&c, &r);
	CHECK(r.how == 4 && r.status == SIGTERM && r.len == 3);
	CHECK(kill_job(&c, job, SIGTERM) == ERR_NOT_DELIVERED);
	free_result(&r);
}

static void terminals_and_isolated_jobs_run_side_by_side(void)
{
	struct client other;
	struct result r = {0};
	struct listed l;
	uint32_t typed;
	uint32_t isolated;

	connect_client(&init, &other);
	CHECK(open_terminal(&init, &other, "main", "/bin/bash") == 0);
	typed = (uint32_t)start_run(&other, "main", 1, "sh -c 'echo up; exec sleep 100'");
	while (r.len == 0)
		CHECK(follow_step(&other, &r));
	expect("echo beside", 0, 0, "beside\n", "");
	isolated = start_shell(&c, SPAWN_STDIN, "exec cat");
	CHECK(find_listed(&c, typed, &l));
	CHECK(l.kind == 0 && strcmp(l.terminal, "main") == 0 && l.state == 0 && l.pid == 0);
	CHECK(find_listed(&c, isolated, &l));
	CHECK(l.kind == 1 && l.terminal[0] == 0 && l.state == 0 && kill((pid_t)l.pid, 0) == 0);
	CHECK(write_input(&c, typed, "x", 1) == ERR_STDIN_CLOSED);
	CHECK(kill_job(&c, typed, SIGINT) == 0);
	follow_to_the_end(&other, &r);
	CHECK(r.how == 0 && r.status == 130);
	CHECK(kill_job(&c, typed, SIGINT) == ERR_NOT_DELIVERED);
	CHECK(wait_for(&c, typed).status == 130);
	CHECK(kill_job(&c, isolated, SIGKILL) == 0);
	CHECK(wait_for(&c, isolated).how == 4);
	free_result(&r);
	close(other.fd);
}

static void malformed_requests_cost_only_their_connection(void)
{
	static const struct {
		const char *bytes;
		size_t len;
	} bad[] = {
		{"\2\0\0\0\x0d\0", 6},
		{"\x16\0\0\0\x0d\0\0\0\0\0\0\0\0\0\1\0\0\0/\0\0\0\0\0\0\0", 26}, /* no program */
		{"\5\0\0\0\x0e\1\0\0\0", 9},
		{"\6\0\0\0\x0f\1\0\0\0!", 10},
		{"\5\0\0\0\x10\1\0\0\0", 9},
		{"\5\0\0\0\x03\1\0\0\0", 9},
	};

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct client rude;
		struct frame frame;

		connect_client(&init, &rude);
		send_bytes(&rude, bad[i].bytes, bad[i].len);
		CHECK(receive_outcome(&rude) == ERR_MALFORMED);
		CHECK(!receive(&rude, &frame));
		close(rude.fd);
	}
	CHECK(ask(&c, REQ_PING) == REP_OK);
}

/* A caller may spawn and vanish at any moment without harm to init. */
static void callers_that_vanish_at_any_moment_do_no_harm(void)
{
	for (unsigned int i = 0; i < 60; i++) {
		const struct spawn how = {
			.flags = SPAWN_FOLLOW | SPAWN_STDIN, .uid = geteuid(), .gid = getegid()};
		const char *argv[] = {i % 3 ? "true" : "no-such-program", NULL};
		struct client hasty;
		char message[300];

		connect_client(&init, &hasty);
		send_spawn(&hasty, &how, argv);
		if (i % 2)
			receive_started(&hasty, message, sizeof(message));
		close(hasty.fd);
	}
	expect("echo well", 0, 0, "well\n", "");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	connect_client(&init, &c);
	RUN_TEST(output_and_error_output_are_apart_and_exact);
	RUN_TEST(a_program_finds_a_fresh_session);
	RUN_TEST(what_cannot_be_started_is_reported);
	RUN_TEST(another_user_can_be_chosen);
	RUN_TEST(a_mebibyte_of_arguments_is_passed_on);
	RUN_TEST(thirty_two_run_at_once_and_no_more);
	RUN_TEST(a_job_can_be_waited_for);
	RUN_TEST(a_job_is_killed_with_its_group);
	RUN_TEST(terminals_and_isolated_jobs_run_side_by_side);
	RUN_TEST(malformed_requests_cost_only_their_connection);
	RUN_TEST(callers_that_vanish_at_any_moment_do_no_harm);
	close(c.fd);
	stop_init(&init);
	return 0;
}
