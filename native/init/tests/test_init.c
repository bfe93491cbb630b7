/* init as a black box with a real bash: what a command prints and how it ends. */
#include "client.h"

#define INTERRUPTS 100

static struct init init;
static struct client c;

static void expect(const char *command, uint8_t how, int32_t status, const char *output)
{
	struct result r = run(&c, "main", command);

	if (r.how != how || r.status != status || r.len != strlen(output) ||
		(r.len && memcmp(r.output, output, r.len) != 0)) {
		fprintf(stderr, "%s: how %d status %d output '%s'\n", command, r.how, r.status,
			r.output ? (char *)r.output : "");
		exit(1);
	}
	free(r.output);
}

static void commands_end_with_their_status_and_exact_output(void)
{
	expect("true", 0, 0, "");
	expect("false", 0, 1, "");
	expect("echo hello", 0, 0, "hello\r\n");
	expect("printf 'no newline'", 0, 0, "no newline");
	expect("(exit 77)", 0, 77, "");
	expect("cat <<END\nfrom a $((40 + 2))\nEND\n", 0, 0, "from a 42\r\n");
	expect("pwd", 0, 0, "/\r\n");
	expect("cd /usr; X=kept", 0, 0, "");
	expect("echo $PWD $X", 0, 0, "/usr kept\r\n");
	expect("stty size; test -t 0", 0, 0, "24 80\r\n");
	expect("", 0, 0, "");
}

static void an_unbalanced_quote_ends_only_its_own_command(void)
{
	struct result r = run(&c, "main", "echo 'open");

	CHECK(r.how == 0 && r.status != 0 && strstr((char *)r.output, "unexpected EOF"));
	free(r.output);
	expect("echo next", 0, 0, "next\r\n");
}

static void the_run_line_is_never_echoed_and_the_mode_is_restored(void)
{
	expect("stty -echo", 0, 0, "");
	expect("stty -a | grep -o -e '-echo '", 0, 0, "-echo \r\n");
	expect("stty echo echonl", 0, 0, "");
	expect("echo quiet", 0, 0, "quiet\r\n");
	expect("stty -a | grep -o -w -e 'echonl'", 0, 0, "echonl\r\n");
	expect("stty sane", 0, 0, "");
	expect("stty raw", 0, 0, "");
	expect("stty -a | grep -o -w -e '-icanon'", 0, 0, "-icanon\n");
	expect("stty sane", 0, 0, "");
	for (unsigned int i = 0; i < 300; i++)
		expect("echo a", 0, 0, "a\r\n");
}

/* A mode set by the first command of a line must not be undone by init, which typed the line. */
static void a_command_can_change_the_mode_at_once(void)
{
	for (unsigned int i = 0; i < 200; i++) {
		expect("stty -echo", 0, 0, "");
		expect("[[ $(stty -a) == *' -echo '* ]]; s=$?; stty echo; (exit $s)", 0, 0, "");
		expect("[[ $(stty -a) == *' -echo '* ]]", 0, 1, "");
	}
}

static void a_background_job_does_not_hold_up_the_end(void)
{
	struct result r = run(&c, "main", "{ sleep 1000; } & echo started");

	CHECK(r.how == 0 && r.status == 0 && strstr((char *)r.output, "started\r\n"));
	free(r.output);
	/* It would be a notice in the output of some later command. */
	r = run(&c, "main", "kill %1; wait %1; jobs");
	free(r.output);
	r = run(&c, "main", "yes & sleep 0.1");
	CHECK(r.how == 0 && r.lost == 0);
	free(r.output);
	r = run(&c, "main", "kill %1; wait %1; jobs");
	CHECK(r.how == 0);
	free(r.output);
	expect("echo calm", 0, 0, "calm\r\n");
}

static void large_binary_output_arrives_whole(void)
{
	struct result r;
	struct result sum;
	char command[128];
	FILE *file;

	snprintf(command, sizeof(command), "cd %s", init.dir);
	expect(command, 0, 0, "");
	r = run(&c, "main",
		"stty raw -opost; head -c 16777216 /dev/urandom | tee copy | cksum >sum; cat copy;"
		" stty sane");
	CHECK(r.how == 0 && r.status == 0 && r.len == 16777216 && r.lost == 0);
	snprintf(command, sizeof(command), "%s/received", init.dir);
	file = fopen(command, "w");
	CHECK(file && fwrite(r.output, 1, r.len, file) == r.len && fclose(file) == 0);
	snprintf(command, sizeof(command), "cksum <%s/received | cmp - sum; rm copy sum", init.dir);
	sum = run(&c, "main", command);
	CHECK(sum.len == 0);
	free(r.output);
	free(sum.output);
	r = run(&c, "main", "head -c 16777216 /dev/urandom");
	CHECK(r.how == 0 && r.len > 16777216 && r.lost == 0);
	free(r.output);
}

static void a_large_command_is_taken_and_a_larger_one_refused(void)
{
	size_t size = 1024 * 1024;
	char *text = malloc(size + 2);
	struct result r;

	memset(text, '#', size + 1);
	memcpy(text, "echo big\n", 9);
	text[size] = 0;
	r = run(&c, "main", text);
	CHECK(r.status == 0 && r.len == 5);
	free(r.output);
	text[size] = '#';
	text[size + 1] = 0;
	CHECK(start_run(&c, "main", 0, text) == -ERR_TOO_LARGE);
	CHECK(ask(&c, REQ_PING) == REP_OK);
	free(text);
}

/*
 * Interrupts a job until it ends: a shell that is just busy with its prompt may
 * ignore one interrupt. One that comes after the end could meet the next
 * command, so it waits between them. The replies come on a connection of their
 * own, apart from the output.
 */
static void interrupt_and_read(struct result *r)
{
	struct client control;
	bool running = true;

	connect_client(&init, &control);
	while (running) {
		struct pollfd pfd = {.fd = c.fd, .events = POLLIN};

		CHECK(send_signal(&control, "main", SIGINT) == 0);
		while (running && (c.used < c.len || poll(&pfd, 1, DEADLINE_MS / 3) == 1))
			running = follow_step(&c, r);
	}
	close(control.fd);
}

static void interrupt(const char *command)
{
	struct result r = {0};

	CHECK(start_run(&c, "main", 1, command) > 0);
	while (r.len == 0)
		CHECK(follow_step(&c, &r));
	interrupt_and_read(&r);
	CHECK(r.how == 0 && r.status == 130);
	free(r.output);
}

static void an_interrupt_ends_a_program_and_a_loop(void)
{
	/*
	 * The program itself reports that it runs. bash forgets a child if the
	 * interrupt comes while it forks; that is so on any terminal.
	 */
	interrupt("sh -c 'echo up; exec sleep 100'");
	interrupt("echo up; while :; do :; done");
	expect("echo after", 0, 0, "after\r\n");
}

static void expect_interrupted(const struct result *r, int64_t job)
{
	bool interrupted = r->how == 0 && r->job == job && r->status == 130;

	if (!interrupted)
		fprintf(stderr, "job %lld: how %d, job %lld, status %d, output %.*s\n",
			(long long)job, (int)r->how, (long long)r->job, (int)r->status, (int)r->len,
			r->output ? (const char *)r->output : "");
	CHECK(interrupted);
}

/* Whatever the moment, the command either ran in its job or not at all. */
static void an_interrupt_right_after_the_start_ends_the_same_job(void)
{
	for (unsigned int i = 0; i < 50; i++) {
		struct result r = {0};
		int64_t job = start_run(&c, "main", 1, "while :; do :; done");

		interrupt_and_read(&r);
		expect_interrupted(&r, job);
		free(r.output);
	}
	expect("echo after", 0, 0, "after\r\n");
}

/*
 * The shell may answer the interrupt with a line break, or meet signal and line
 * at once and drop both, or the signal may meet the command: then its status is
 * 130.
 */
static void a_command_right_after_an_interrupt_runs_once_or_is_interrupted(void)
{
	bool interrupted[INTERRUPTS];
	unsigned int expected = 0;
	char command[512];
	struct result r;

	for (unsigned int i = 0; i < INTERRUPTS; i++) {
		snprintf(command, sizeof(command), "echo %u >>%s/ran; echo own", i, init.dir);
		CHECK(send_signal(&c, "main", SIGINT) == 0);
		r = run(&c, "main", command);
		interrupted[i] = r.status == 130;
		CHECK(r.how == 0 && (interrupted[i] || r.status == 0));
		CHECK(interrupted[i] || strstr((char *)r.output, "own\r\n"));
		free_result(&r);
	}
	snprintf(command, sizeof(command), "cat %s/ran; rm %s/ran", init.dir, init.dir);
	r = run(&c, "main", command);
	for (char *at = strtok((char *)r.output, "\r\n"); at; at = strtok(NULL, "\r\n")) {
		while (expected < strtoul(at, NULL, 10) && expected < INTERRUPTS &&
			interrupted[expected])
			expected++;
		CHECK(strtoul(at, NULL, 10) == expected++);
	}
	while (expected < INTERRUPTS && interrupted[expected])
		expected++;
	CHECK(expected == INTERRUPTS);
	free_result(&r);
}

/* When bash is interrupted, it may keep such a line and read it at its next prompt. */
static void the_line_of_a_job_that_has_ended_runs_nothing(void)
{
	char text[512];
	struct result r;

	snprintf(text, sizeof(text), "echo ran >>%s/ran; (exit 7)", init.dir);
	r = run(&c, "main", text);
	CHECK(r.status == 7);
	snprintf(text, sizeof(text),
		"{ case $((%u > over)) in 1) . %s/main/cmd;; esac; end %u; }\n", r.job, init.dir,
		r.job);
	CHECK(send_input(&c, "main", text) == 0);
	wait_until_state(&c, "main", 1);
	free_result(&r);
	snprintf(text, sizeof(text), "cat %s/ran; rm %s/ran", init.dir, init.dir);
	expect(text, 0, 0, "ran\r\n");
}

static void a_prompt_before_which_nothing_has_ended_ends_no_job(void)
{
	char command[512];

	snprintf(command, sizeof(command), "echo - >%s/main/status; echo on; (exit 3)", init.dir);
	expect(command, 0, 3, "on\r\n");
	/* What bash keeps of a run line when it is interrupted while it reads it, and reports. */
	expect("(exit 130)", 0, 130, "");
	CHECK(send_input(&c, "main", "main/cmd;; esac; end 1; }\n") == 0);
	wait_until_state(&c, "main", 1);
	expect("(exit 4)", 0, 4, "");
}

static void signals_that_would_end_the_shell_are_not_delivered(void)
{
	CHECK(send_signal(&c, "main", SIGKILL) == ERR_NOT_DELIVERED);
	CHECK(send_signal(&c, "main", SIGHUP) == ERR_NOT_DELIVERED);
	CHECK(send_signal(&c, "main", 0) == ERR_NOT_DELIVERED);
	CHECK(send_signal(&c, "main", SIGWINCH) == 0);
	CHECK(send_signal(&c, "other", SIGINT) == ERR_UNKNOWN_TERMINAL);
}

static void input_reaches_the_command_and_the_prompt(void)
{
	static char large[64 * 1024 + 2];
	struct result r = {0};

	CHECK(start_run(&c, "main", 1, "stty -echo; echo ask; read -r x; echo got $x; stty echo") >
		0);
	while (r.len < 5) /* "ask\r\n": a terminal may write the end of a line apart */
		CHECK(follow_step(&c, &r));
	CHECK(start_run(&c, "main", 0, "true") == -ERR_BUSY);
	CHECK(send_input(&c, "main", "an answer\n") == 0);
	while (follow_step(&c, &r))
		;
	CHECK(strcmp((char *)r.output, "ask\r\ngot an answer\r\n") == 0);
	free(r.output);
	CHECK(send_input(&c, "main", "half a line") == 0);
	expect("echo whole", 0, 0, "whole\r\n");
	CHECK(send_input(&c, "main", "TYPED=yes\n") == 0);
	wait_until_state(&c, "main", 1);
	expect("echo $TYPED", 0, 0, "yes\r\n");
	memset(large, 'x', sizeof(large) - 1);
	CHECK(send_input(&c, "main", large) == ERR_TOO_LARGE);
}

static void output_of_a_job_can_be_followed_again(void)
{
	struct result r = run(&c, "main", "echo 0123456789");
	struct result again = {.len = 0, .lost = 0};
	uint8_t buf[64];
	struct writer w = request_begin(buf, sizeof(buf), REQ_STREAM);
	struct frame frame;
	size_t total = 0;

	send_follow(&c, r.job, 0);
	while (follow_step(&c, &again))
		;
	CHECK(again.len == 12 && again.job == r.job && again.status == 0);
	free(again.output);
	free(r.output);
	send_follow(&c, 999999, 0);
	CHECK(receive_outcome(&c) == ERR_UNKNOWN_JOB);
	put_text(&w, "main");
	put_u64(&w, 0);
	request_send(&c, &w);
	CHECK(receive_kind(&c, &frame) == REP_RESIZED);
	while (receive_kind(&c, &frame) == REP_OUTPUT || frame.kind == REP_LOST)
		total += frame.kind == REP_OUTPUT ? frame.body.left - 8 : 0;
	CHECK(frame.kind == REP_END && total > 12 && total <= 1024 * 1024);
}

static void the_end_of_the_shell_ends_its_job(void)
{
	expect("exit 3", 1, 3, "");
	CHECK(start_run(&c, "main", 0, "true") == -ERR_SHELL_DEAD);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == 0);
	expect("echo $X", 0, 0, "\r\n");
	expect("kill -9 $$", 2, 9, "");
	CHECK(terminal_state(&c, "main") == 4);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == 0);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == ERR_BUSY);
}

static void a_shell_that_cannot_start_is_reported(void)
{
	CHECK(open_terminal(&init, &c, "bad", "/nowhere/bash") == ERR_EXEC_FAILED);
	CHECK(open_terminal(&init, &c, "bad", "/bin/true") == ERR_SHELL);
	CHECK(open_terminal(&init, &c, "bad", "/bin/bash") == 0);
}

static void removed_control_files_are_noticed(void)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/bad/go", init.dir);
	CHECK(unlink(path) == 0);
	CHECK(start_run(&c, "bad", 0, "true") == -ERR_SHELL);
}

static void a_closed_terminal_ends_its_job_and_frees_its_name(void)
{
	struct client other;
	struct result r = {0};
	uint8_t buf[64];
	struct writer w = request_begin(buf, sizeof(buf), REQ_CLOSE);

	connect_client(&init, &other);
	CHECK(open_terminal(&init, &other, "second", "/bin/bash") == 0);
	CHECK(start_run(&other, "second", 1, "echo here; sleep 100") > 0);
	while (r.len < 6)
		CHECK(follow_step(&other, &r));
	put_text(&w, "second");
	request_send(&c, &w);
	CHECK(receive_outcome(&c) == 0);
	while (follow_step(&other, &r))
		;
	/* The shell may have had the time to print which signal ended it. */
	CHECK(r.how == 3 && strncmp((char *)r.output, "here\r\n", 6) == 0);
	free(r.output);
	CHECK(terminal_state(&c, "second") == -1);
	CHECK(open_terminal(&init, &c, "second", "/bin/bash") == 0);
	close(other.fd);
}

static void try_all(const char *binary, const char *option)
{
	init = start_init_with(binary, option);
	connect_client(&init, &c);
	CHECK(start_run(&c, "main", 0, "true") == -ERR_UNKNOWN_TERMINAL);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == 0);
	RUN_TEST(commands_end_with_their_status_and_exact_output);
	RUN_TEST(an_unbalanced_quote_ends_only_its_own_command);
	RUN_TEST(the_run_line_is_never_echoed_and_the_mode_is_restored);
	RUN_TEST(a_command_can_change_the_mode_at_once);
	RUN_TEST(a_background_job_does_not_hold_up_the_end);
	RUN_TEST(large_binary_output_arrives_whole);
	RUN_TEST(a_large_command_is_taken_and_a_larger_one_refused);
	RUN_TEST(an_interrupt_ends_a_program_and_a_loop);
	RUN_TEST(an_interrupt_right_after_the_start_ends_the_same_job);
	RUN_TEST(a_command_right_after_an_interrupt_runs_once_or_is_interrupted);
	RUN_TEST(the_line_of_a_job_that_has_ended_runs_nothing);
	RUN_TEST(a_prompt_before_which_nothing_has_ended_ends_no_job);
	RUN_TEST(signals_that_would_end_the_shell_are_not_delivered);
	RUN_TEST(input_reaches_the_command_and_the_prompt);
	RUN_TEST(output_of_a_job_can_be_followed_again);
	RUN_TEST(the_end_of_the_shell_ends_its_job);
	RUN_TEST(a_shell_that_cannot_start_is_reported);
	RUN_TEST(removed_control_files_are_noticed);
	RUN_TEST(a_closed_terminal_ends_its_job_and_frees_its_name);
	close(c.fd);
	stop_init(&init);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	try_all(argv[1], NULL);
	try_all(argv[1], "--hold-prompt");
	return 0;
}
