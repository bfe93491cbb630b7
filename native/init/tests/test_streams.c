/* init as a black box: the output of isolated jobs: sent, kept, and forgotten. */
#include "isolated_client.h"

#define RING (1024 * 1024)

static struct init init;
static struct client c;

static void run_quietly(const char *script)
{
	struct result r = run_shell(&c, script);

	CHECK(r.how == 0 && r.status == 0 && r.len == 0 && r.error_len == 0);
	free_result(&r);
}

static size_t resident_kib(void)
{
	char path[64];
	char line[256];
	size_t kib = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/smaps_rollup", (int)init.pid);
	file = fopen(path, "r");
	CHECK(file);
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Anonymous: %zu", &kib) == 1)
			break;
	}
	fclose(file);
	return kib;
}

static unsigned long cpu_ticks(void)
{
	unsigned long user;
	unsigned long system;
	char path[64];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)init.pid);
	file = fopen(path, "r");
	CHECK(file &&
		fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
			&user, &system) == 2);
	fclose(file);
	return user + system;
}

static void a_slow_follower_holds_both_streams_back(void)
{
	struct client slow;
	struct listed l;
	struct result r = {0};
	unsigned long ticks;
	uint32_t job;

	connect_client(&init, &slow);
	job = start_shell(&slow, SPAWN_FOLLOW, "seq 400000 & seq 400000 >&2; wait");
	wait_until_written(&c, job, RING, RING);
	/* And init sleeps while nothing can move. */
	ticks = cpu_ticks();
	poll(NULL, 0, 300);
	CHECK(cpu_ticks() - ticks < 10);
	CHECK(find_listed(&c, job, &l) && l.state == 0);
	CHECK(l.length < 3000000 && l.error_length < 3000000);
	follow_to_the_end(&slow, &r);
	CHECK(r.lost == 0 && r.error_lost == 0 && r.len == 2688895 && r.error_len == 2688895);
	free_result(&r);
	close(slow.fd);
}

static void a_vanished_follower_can_reconnect_and_loses_nothing(void)
{
	struct result r = {0};
	struct client follower;
	struct frame frame;
	uint32_t job;

	connect_client(&init, &follower);
	job = start_shell(&follower, SPAWN_FOLLOW, "seq 400000 & seq 400000 >&2; wait");
	while (r.len < 100000 || r.error_len < 100000)
		CHECK(follow_step(&follower, &r));
	CHECK(ask(&c, REQ_QUIESCE) == REP_OK);
	close(c.fd);
	while (receive(&follower, &frame))
		CHECK(follow_frame(&frame, &r));
	close(follower.fd);
	/* Its position is kept: the program cannot end meanwhile. */
	connect_client(&init, &c);
	send_wait(&c, job);
	CHECK(is_quiet(&c, 300));
	connect_client(&init, &follower);
	send_follow_from(&follower, job, r.len, r.error_len);
	follow_to_the_end(&follower, &r);
	CHECK(r.lost == 0 && r.error_lost == 0 && r.len == 2688895 && r.error_len == 2688895);
	CHECK(receive_ended(&c, job).status == 0);
	free_result(&r);
	close(follower.fd);
}

/* Init forgets the output in the turn after it has sent the end. */
static void wait_until_forgotten(uint32_t job)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;
	struct listed l;

	do
		CHECK(find_listed(&c, job, &l) && clock_ms() < deadline);
	while (l.kept_from != l.length || l.error_kept_from != l.error_length);
}

static void without_a_follower_the_oldest_of_both_streams_is_reported_as_lost(void)
{
	uint32_t job = start_shell(&c, 0, "seq 400000; seq 300000 >&2");
	struct end end = wait_for(&c, job);
	struct result r = {0};
	struct listed l;

	CHECK(end.how == 0 && end.length == 2688895 && end.error_length == 1988895);
	CHECK(find_listed(&c, job, &l));
	CHECK(l.kept_from == 2688895 - RING && l.error_kept_from == 1988895 - RING);
	send_follow(&c, job, 0);
	follow_to_the_end(&c, &r);
	CHECK(r.lost == 2688895 - RING && r.len == RING);
	CHECK(r.error_lost == 1988895 - RING && r.error_len == RING);
	free_result(&r);
	wait_until_forgotten(job);
}

static void output_is_forgotten_unless_it_is_to_be_kept(void)
{
	size_t before = resident_kib();
	struct result r = run_shell(&c, "seq 150000; echo e >&2");
	struct listed l;
	uint32_t job = r.job;
	size_t kept;

	CHECK(r.len == 938895 && r.lost == 0 && r.error_len == 2);
	free_result(&r);
	wait_until_forgotten(job);
	CHECK(resident_kib() < before + 300);
	send_follow(&c, job, 0);
	follow_to_the_end(&c, &r);
	CHECK(r.lost == 938895 && r.error_lost == 2 && r.len == 0);
	free_result(&r);

	job = start_shell(&c, SPAWN_FOLLOW | SPAWN_KEEP, "seq 150000; echo e >&2");
	follow_to_the_end(&c, &r);
	free_result(&r);
	kept = resident_kib();
	CHECK(kept > before + 800);
	for (unsigned int i = 0; i < 2; i++) {
		send_follow_from(&c, job, i * 1000, i);
		r = (struct result){.lost = i * 1000, .error_lost = i};
		follow_to_the_end(&c, &r);
		CHECK(r.len == 938895 - i * 1000 && r.error_len == 2 - i);
		free_result(&r);
	}
	send_follow_from(&c, job, 938896, 0);
	CHECK(receive_outcome(&c) == ERR_MALFORMED);
	send_follow_from(&c, job, 0, 3);
	CHECK(receive_outcome(&c) == ERR_MALFORMED);
	/* Newer jobs replace it in the end. */
	for (unsigned int i = 0; i < 40; i++)
		wait_for(&c, start_shell(&c, 0, "exit 0"));
	CHECK(find_listed(&c, job, &l) && l.kept_from == 938895);
	CHECK(resident_kib() < before + 300);
}

static void wait_until_exists(const char *path)
{
	int64_t deadline = clock_ms() + DEADLINE_MS;

	while (access(path, F_OK) != 0) {
		CHECK(clock_ms() < deadline);
		poll(NULL, 0, 5);
	}
	CHECK(unlink(path) == 0);
}

static void what_a_program_leaves_behind_neither_holds_it_up_nor_is_blocked(void)
{
	char script[300];
	char marker[100];
	struct result r;

	snprintf(marker, sizeof(marker), "%s/marker", init.dir);
	snprintf(script, sizeof(script),
		"(while [ ! -e %s/go-on ]; do sleep 0.02; done;"
		" head -c 4000000 /dev/zero && head -c 4000000 /dev/zero >&2 && : >%s) & echo main",
		init.dir, marker);
	r = run_shell(&c, script);
	CHECK(r.how == 0 && r.status == 0 && r.len == 5 && r.error_len == 0);
	free_result(&r);
	snprintf(script, sizeof(script), ": >%s/go-on", init.dir);
	run_quietly(script);
	wait_until_exists(marker);
	/* A process that never stops writing cannot hold up the end either. */
	snprintf(script, sizeof(script),
		"(: >%s; exec yes) & echo $!; until [ -e %s ]; do sleep 0.02; done; exit 9", marker,
		marker);
	r = run_shell(&c, script);
	CHECK(r.status == 9);
	/* Its number may be anywhere among the lines of y. */
	for (size_t i = 0; i < r.len; i++) {
		if (r.output[i] >= '0' && r.output[i] <= '9') {
			snprintf(script, sizeof(script), "kill -9 %d", atoi((char *)r.output + i));
			break;
		}
	}
	free_result(&r);
	run_quietly(script);
	/* More pipes than init keeps open: the oldest are closed, init continues. */
	for (unsigned int i = 0; i < 80; i++)
		run_quietly("sleep 1 & exit 0");
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	connect_client(&init, &c);
	RUN_TEST(a_slow_follower_holds_both_streams_back);
	RUN_TEST(a_vanished_follower_can_reconnect_and_loses_nothing);
	RUN_TEST(without_a_follower_the_oldest_of_both_streams_is_reported_as_lost);
	RUN_TEST(output_is_forgotten_unless_it_is_to_be_kept);
	RUN_TEST(what_a_program_leaves_behind_neither_holds_it_up_nor_is_blocked);
	close(c.fd);
	stop_init(&init);
	return 0;
}
