/* init as a black box: showing a terminal, live and later. */
#include "client.h"

enum { PROMPT = 1, RUNNING = 2, TYPED = 3, DEAD = 4 };

static struct init init;
static struct client c;

struct view {
	uint64_t pos;	 /* of the next byte */
	uint64_t output; /* bytes seen */
	uint64_t lost;
	char tail[64]; /* the newest of them */
	unsigned int resized;
	uint64_t resized_at;
	uint16_t rows;
	uint16_t cols;
	/* From the last TERMINAL. */
	unsigned int reported;
	uint8_t state;
	uint16_t reported_rows;
	uint64_t stream_end;
	uint32_t job;
};

static void send_view(struct client *to, uint8_t kind, const char *name, uint64_t offset)
{
	uint8_t buf[128];
	struct writer w = request_begin(buf, sizeof(buf), kind);

	put_text(&w, name);
	put_u64(&w, offset);
	request_send(to, &w);
}

static int resize(struct client *to, const char *name, uint16_t rows, uint16_t cols)
{
	uint8_t buf[128];
	struct writer w = request_begin(buf, sizeof(buf), REQ_RESIZE);

	put_text(&w, name);
	put_u16(&w, rows);
	put_u16(&w, cols);
	request_send(to, &w);
	return receive_outcome(to);
}

static int close_terminal(struct client *to, const char *name)
{
	uint8_t buf[128];
	struct writer w = request_begin(buf, sizeof(buf), REQ_CLOSE);

	put_text(&w, name);
	request_send(to, &w);
	return receive_outcome(to);
}

static void note_output(struct view *v, struct reader *body)
{
	size_t old = strlen(v->tail);
	size_t keep;

	CHECK(read_u64(body) == v->pos && body->left > 0);
	v->pos += body->left;
	v->output += body->left;
	keep = body->left < sizeof(v->tail) - 1 ? body->left : sizeof(v->tail) - 1;
	if (old + keep > sizeof(v->tail) - 1) {
		size_t drop = old + keep - (sizeof(v->tail) - 1);

		memmove(v->tail, v->tail + drop, old - drop);
		old -= drop;
	}
	memcpy(v->tail + old, body->at + body->left - keep, keep);
	v->tail[old + keep] = 0;
}

/* Takes one frame of a view; returns its kind. */
static uint8_t look(struct client *from, struct view *v)
{
	struct frame frame;
	struct reader *body = &frame.body;
	uint8_t kind = receive_kind(from, &frame);

	if (kind == REP_OUTPUT) {
		note_output(v, body);
	} else if (kind == REP_LOST) {
		uint64_t to;

		CHECK(read_u8(body) == 0 && read_u64(body) == v->pos);
		to = read_u64(body);
		CHECK(to > v->pos);
		v->lost += to - v->pos;
		v->pos = to;
	} else if (kind == REP_RESIZED) {
		v->resized_at = read_u64(body);
		v->rows = read_u16(body);
		v->cols = read_u16(body);
		v->resized++;
		CHECK(!body->bad && body->left == 0);
	} else if (kind == REP_TERMINAL) {
		read_str(body);
		v->state = read_u8(body);
		read_u32(body);
		v->reported_rows = read_u16(body);
		read_u16(body);
		read_u64(body);
		v->stream_end = read_u64(body);
		v->job = read_u32(body);
		v->reported++;
		CHECK(!body->bad && body->left == 0);
	}
	return kind;
}

static void start_watch(struct client *watcher, const char *name, uint64_t offset, struct view *v)
{
	connect_client(&init, watcher);
	send_view(watcher, REQ_WATCH, name, offset);
	*v = (struct view){0};
	CHECK(look(watcher, v) == REP_TERMINAL);
	v->pos = offset < v->stream_end ? offset : v->stream_end;
	CHECK(look(watcher, v) == REP_RESIZED);
}

static bool is_quiet(struct client *watcher)
{
	struct pollfd pfd = {.fd = watcher->fd, .events = POLLIN};

	return watcher->used == watcher->len && poll(&pfd, 1, 100) == 0;
}

static void a_watcher_sees_output_before_the_prompt_that_follows_it(void)
{
	struct client watcher;
	struct result r;
	struct view v;

	r = run(&c, "main", "echo before");
	free_result(&r);
	start_watch(&watcher, "main", UINT64_MAX, &v);
	CHECK(v.state == PROMPT && v.rows == 24 && v.cols == 80 && v.job == 0);
	CHECK(is_quiet(&watcher));
	r = run(&c, "main", "echo watched");
	while (v.state != RUNNING)
		CHECK(look(&watcher, &v) != REP_END);
	CHECK(v.output == 0 && v.job == r.job);
	while (v.state != PROMPT)
		CHECK(look(&watcher, &v) != REP_END);
	CHECK(v.output == 9 && strcmp(v.tail, "watched\r\n") == 0 && v.job == 0);
	CHECK(is_quiet(&watcher));
	free_result(&r);
	close(watcher.fd);
}

static void typing_resizing_and_signals_go_through_the_same_connection(void)
{
	struct client watcher;
	struct view v;

	start_watch(&watcher, "main", UINT64_MAX, &v);
	{
		uint8_t buf[128];
		struct writer w = request_begin(buf, sizeof(buf), REQ_INPUT);

		put_text(&w, "main");
		put_text(&w, "sh -c 'echo ready; exec sleep 100'\n");
		request_send(&watcher, &w);
	}
	while (!strstr(v.tail, "ready\r\n"))
		CHECK(look(&watcher, &v) != REP_END);
	CHECK(v.state == TYPED);
	{
		uint8_t buf[128];
		struct writer w = request_begin(buf, sizeof(buf), REQ_RESIZE);

		put_text(&w, "main");
		put_u16(&w, 50);
		put_u16(&w, 132);
		request_send(&watcher, &w);
	}
	while (v.rows != 50 || v.reported_rows != 50)
		CHECK(look(&watcher, &v) != REP_END);
	{
		uint8_t buf[128];
		struct writer w = request_begin(buf, sizeof(buf), REQ_SIGNAL);

		put_text(&w, "main");
		put_u8(&w, SIGINT);
		request_send(&watcher, &w);
	}
	while (v.state != PROMPT)
		CHECK(look(&watcher, &v) != REP_END);
	close(watcher.fd);
	CHECK(resize(&c, "main", 24, 80) == 0);
}

static void one_connection_watches_once_and_does_nothing_else_that_sends_output(void)
{
	struct client watcher;
	struct frame frame;
	struct result r;
	struct view v;

	connect_client(&init, &watcher);
	send_view(&watcher, REQ_WATCH, "none", 0);
	CHECK(receive_outcome(&watcher) == ERR_UNKNOWN_TERMINAL);
	close(watcher.fd);
	r = run(&c, "main", "true");
	start_watch(&watcher, "main", UINT64_MAX, &v);
	send_view(&watcher, REQ_WATCH, "main", 0);
	CHECK(receive_outcome(&watcher) == ERR_BUSY);
	send_view(&watcher, REQ_STREAM, "main", 0);
	CHECK(receive_outcome(&watcher) == ERR_BUSY);
	send_follow(&watcher, r.job, 0);
	CHECK(receive_outcome(&watcher) == ERR_BUSY);
	CHECK(start_run(&watcher, "main", 1, "true") == -ERR_BUSY);
	CHECK(ask(&watcher, REQ_PING) == REP_OK);
	/* A watcher that has shut down its sending side still watches. */
	CHECK(shutdown(watcher.fd, SHUT_WR) == 0);
	free_result(&r);
	r = run(&c, "main", "echo to the half-closed");
	while (!strstr(v.tail, "half-closed"))
		CHECK(look(&watcher, &v) != REP_END);
	free_result(&r);
	close(watcher.fd);
	/* A checkpoint disconnects watchers. */
	start_watch(&watcher, "main", UINT64_MAX, &v);
	CHECK(ask(&c, REQ_QUIESCE) == REP_OK);
	CHECK(!receive(&watcher, &frame));
	close(watcher.fd);
	close(c.fd);
	connect_client(&init, &c);
}

static void expect_replay(uint8_t kind, const uint64_t *at, unsigned int changes)
{
	struct client viewer;
	struct view v = {0};

	connect_client(&init, &viewer);
	send_view(&viewer, kind, "sized", 0);
	if (kind == REQ_WATCH)
		CHECK(look(&viewer, &v) == REP_TERMINAL);
	for (unsigned int i = 0; i < changes; i++) {
		while (v.resized == i)
			CHECK(look(&viewer, &v) != REP_END);
		/* Not a byte too early or too late. */
		CHECK(v.pos == at[i] && v.resized_at == at[i] && v.rows == 30 + i);
	}
	if (kind == REQ_STREAM)
		while (look(&viewer, &v) != REP_END)
			CHECK(v.resized == changes);
	close(viewer.fd);
}

static uint64_t stream_end(const char *name)
{
	struct client viewer;
	struct view v;

	start_watch(&viewer, name, UINT64_MAX, &v);
	close(viewer.fd);
	return v.stream_end;
}

static void sizes_are_sent_where_they_changed(void)
{
	struct client viewer;
	struct view v = {0};
	uint64_t at[10];

	CHECK(open_terminal(&init, &c, "sized", "/bin/bash") == 0);
	CHECK(stream_end("sized") == 0);
	for (unsigned int i = 0; i < 10; i++) {
		struct result r;

		at[i] = stream_end("sized");
		/* Of changes without output in between only the last one counts. */
		CHECK(resize(&c, "sized", 99, 99) == 0);
		CHECK(resize(&c, "sized", (uint16_t)(30 + i), 80) == 0);
		r = run(&c, "sized", "stty size; seq 1000");
		free_result(&r);
	}
	expect_replay(REQ_STREAM, at, 10);
	expect_replay(REQ_WATCH, at, 10);
	/* From the middle: the size in force comes first. */
	connect_client(&init, &viewer);
	send_view(&viewer, REQ_STREAM, "sized", at[4] + 10);
	v.pos = at[4] + 10;
	CHECK(look(&viewer, &v) == REP_RESIZED && v.rows == 34 && v.resized_at == at[4]);
	close(viewer.fd);
}

static void the_last_sixteen_sizes_are_known(void)
{
	struct client viewer;
	struct view v = {0};

	for (unsigned int i = 0; i < 20; i++) {
		struct result r;

		CHECK(resize(&c, "sized", (uint16_t)(100 + i), 80) == 0);
		r = run(&c, "sized", "echo");
		free_result(&r);
	}
	connect_client(&init, &viewer);
	send_view(&viewer, REQ_STREAM, "sized", 0);
	CHECK(look(&viewer, &v) == REP_RESIZED && v.rows == 104);
	while (look(&viewer, &v) != REP_END)
		;
	CHECK(v.resized == 16 && v.rows == 119);
	close(viewer.fd);
}

/* 6 MB are more than ring and sockets hold. */
static void a_watcher_that_lags_slows_nobody_and_gets_lost_for_what_it_missed(void)
{
	struct client lazy;
	struct view v;
	struct result r;

	start_watch(&lazy, "main", UINT64_MAX, &v);
	CHECK(start_run(&c, "main", 0, "seq 800000") > 0);
	wait_until_state(&c, "main", PROMPT);
	CHECK(resize(&c, "main", 31, 81) == 0);
	r = run(&c, "main", "echo the end");
	free_result(&r);
	while (!strstr(v.tail, "the end\r\n"))
		CHECK(look(&lazy, &v) != REP_END);
	CHECK(v.lost > 3000000 && v.output + v.lost == 6288895 + 9 && v.rows == 31);
	while (v.state != PROMPT || v.reported_rows != 31)
		CHECK(look(&lazy, &v) != REP_END);
	CHECK(is_quiet(&lazy));
	close(lazy.fd);
	CHECK(resize(&c, "main", 24, 80) == 0);
}

/* The test before has left three sizes in output that is lost by now. */
static void a_gap_is_reported_once_behind_the_size_that_follows_it(void)
{
	struct client viewer;
	struct view v = {0};

	connect_client(&init, &viewer);
	send_view(&viewer, REQ_STREAM, "main", 0);
	CHECK(look(&viewer, &v) == REP_RESIZED && v.rows == 24 && v.resized_at > 0);
	CHECK(look(&viewer, &v) == REP_LOST && v.pos > v.resized_at);
	while (look(&viewer, &v) == REP_OUTPUT)
		CHECK(v.resized == 1);
	CHECK(v.resized == 2 && v.rows == 31);
	close(viewer.fd);
}

static void a_watcher_stays_when_the_shell_ends_and_leaves_when_the_terminal_is_closed(void)
{
	struct client watcher;
	struct result r;
	struct view v;

	CHECK(open_terminal(&init, &c, "brief", "/bin/bash") == 0);
	start_watch(&watcher, "brief", 0, &v);
	r = run(&c, "brief", "exit 3");
	free_result(&r);
	while (v.state != DEAD)
		CHECK(look(&watcher, &v) != REP_END);
	CHECK(open_terminal(&init, &c, "brief", "/bin/bash") == 0);
	r = run(&c, "brief", "echo again");
	free_result(&r);
	while (!strstr(v.tail, "again\r\n"))
		CHECK(look(&watcher, &v) != REP_END);
	CHECK(close_terminal(&c, "brief") == 0);
	while (look(&watcher, &v) != REP_END)
		;
	CHECK(v.lost == 0 && v.state == DEAD);
	/* The connection is free for something else. */
	send_view(&watcher, REQ_WATCH, "main", UINT64_MAX);
	v = (struct view){0};
	CHECK(look(&watcher, &v) == REP_TERMINAL && v.state == PROMPT);
	close(watcher.fd);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	init = start_init(argv[1]);
	connect_client(&init, &c);
	CHECK(open_terminal(&init, &c, "main", "/bin/bash") == 0);
	RUN_TEST(a_watcher_sees_output_before_the_prompt_that_follows_it);
	RUN_TEST(typing_resizing_and_signals_go_through_the_same_connection);
	RUN_TEST(one_connection_watches_once_and_does_nothing_else_that_sends_output);
	RUN_TEST(sizes_are_sent_where_they_changed);
	RUN_TEST(the_last_sixteen_sizes_are_known);
	RUN_TEST(a_watcher_that_lags_slows_nobody_and_gets_lost_for_what_it_missed);
	RUN_TEST(a_gap_is_reported_once_behind_the_size_that_follows_it);
	RUN_TEST(a_watcher_stays_when_the_shell_ends_and_leaves_when_the_terminal_is_closed);
	close(c.fd);
	stop_init(&init);
	return 0;
}
