/* What init waits for, and its clock. */
#include "server.h"

#include <time.h>

static uint64_t kernel_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void clock_start(struct server *s)
{
	s->kernel_ms = kernel_clock_ms();
}

static void tick(struct server *s)
{
	uint64_t kernel_ms = kernel_clock_ms();
	uint64_t passed = kernel_ms > s->kernel_ms ? kernel_ms - s->kernel_ms : 0;

	s->now_ms += passed < CLOCK_STEP_MS ? passed : CLOCK_STEP_MS;
	s->kernel_ms = kernel_ms;
}

/* Lowers *first to an earlier deadline; a deadline of 0 does not count. */
static void note_deadline(uint64_t *first, uint64_t deadline_ms)
{
	if (deadline_ms && deadline_ms < *first)
		*first = deadline_ms;
}

static void note_hold_deadlines(uint64_t *first, const struct kept *kept)
{
	for (unsigned int i = 0; i < HOLDS_MAX; i++) {
		if (kept->holds[i].job)
			note_deadline(first, kept->holds[i].deadline_ms);
	}
}

static uint64_t first_deadline(const struct server *s)
{
	uint64_t first = UINT64_MAX;

	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		if (s->connections[i].fd >= 0)
			note_deadline(&first, s->connections[i].deadline_ms);
	}
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		note_deadline(&first, s->terminals[i].open_deadline_ms);
		note_hold_deadlines(&first, &s->terminals[i].kept);
	}
	for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
		if (s->isolated[i].state == ISOLATED_FREE)
			continue;
		note_deadline(&first, s->isolated[i].input_deadline_ms);
		note_hold_deadlines(&first, &s->isolated[i].kept);
	}
	for (unsigned int i = 0; i < GUESTS_MAX; i++) {
		if (s->guests.guests[i].fd >= 0)
			note_deadline(&first, s->guests.guests[i].deadline_ms);
	}
	return first;
}

/* At most one step while any deadline runs, so that a jump of the clock costs no more. */
static int wait_ms(const struct server *s)
{
	uint64_t first;

	if (s->again)
		return 0;
	first = first_deadline(s);
	if (first == UINT64_MAX)
		return -1;
	if (first <= s->now_ms)
		return 0;
	return first - s->now_ms < CLOCK_STEP_MS ? (int)(first - s->now_ms) : CLOCK_STEP_MS;
}

/* A negative descriptor is skipped by the kernel. */
static unsigned int watch(struct server *s, int fd, short events)
{
	s->polls[s->polled] = (struct pollfd){.fd = fd, .events = events};
	return s->polled++;
}

static void watch_connection(struct server *s, struct connection *c)
{
	short events = 0;

	c->poll = 0;
	if (c->fd < 0)
		return;
	if (!c->eof && !c->closing && c->in_len < IN_SIZE)
		events |= POLLIN;
	if (c->out_len)
		events |= POLLOUT;
	c->poll = watch(s, c->fd, events);
}

static void watch_terminal(struct server *s, struct terminal *t)
{
	bool may_read;
	short events;

	t->poll = 0;
	if (!t->used || t->master < 0)
		return;
	may_read = follow_read_limit(s, &t->kept, STREAM_OUTPUT) > 0;
	events = (may_read ? POLLIN : 0) | (t->input_len ? POLLOUT : 0);
	t->poll = watch(s, events ? t->master : -1, events);
	watch(s, t->reported ? -1 : t->status_fifo, POLLIN);
	watch(s, may_read ? t->output[0] : -1, POLLIN);
}

static void watch_isolated(struct server *s, struct isolated *p)
{
	p->poll = 0;
	if (p->state != ISOLATED_STARTING && p->state != ISOLATED_RUNNING)
		return;
	p->poll = watch(s, p->exec_status, POLLIN);
	watch(s, p->queue_len ? p->input : -1, POLLOUT);
	for (unsigned int i = 0; i < STREAMS; i++) {
		bool may_read = p->state == ISOLATED_RUNNING && p->output[i] >= 0 &&
				follow_read_limit(s, &p->kept, i) > 0;

		watch(s, may_read ? p->output[i] : -1, POLLIN);
	}
}

static void watch_guest(struct server *s, struct guest *g)
{
	g->poll = g->fd < 0 ? 0 : watch(s, g->fd, g->eof ? 0 : POLLIN);
}

static void watch_leftovers(struct server *s)
{
	s->leftovers.poll = s->polled;
	for (unsigned int i = 0; i < s->leftovers.count; i++)
		watch(s, s->leftovers.fds[i], POLLIN);
}

void wait_for_events(struct server *s)
{
	int timeout = wait_ms(s);
	struct timespec limit = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};

	s->polled = 0;
	watch(s, s->wake, POLLIN); /* POLL_WAKE and so on: in this order */
	watch(s, s->listener, POLLIN);
	watch(s, s->guests.listener, POLLIN);
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++)
		watch_connection(s, &s->connections[i]);
	for (unsigned int i = 0; i < TERMINALS_MAX; i++)
		watch_terminal(s, &s->terminals[i]);
	for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
		if (s->isolated[i].state != ISOLATED_FREE)
			watch_isolated(s, &s->isolated[i]);
	}
	for (unsigned int i = 0; i < GUESTS_MAX; i++)
		watch_guest(s, &s->guests.guests[i]);
	watch_leftovers(s);
	if (ppoll(s->polls, s->polled, timeout < 0 ? NULL : &limit, NULL) < 0) {
		for (unsigned int i = 0; i < s->polled; i++)
			s->polls[i].revents = 0;
	}
	s->again = false;
	tick(s);
}

short events_of(const struct server *s, unsigned int poll)
{
	return poll ? s->polls[poll].revents : 0;
}
