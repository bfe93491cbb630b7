/* init: process 1 of a branch. Setting up, and the loop that never ends. */
#include "fd.h"
#include "modes.h"
#include "reap.h"
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#define TERMINAL_POLLS 3
#define POLL_MAX       (2 + CONNECTIONS_MAX + TERMINAL_POLLS * TERMINALS_MAX)

static uint64_t kernel_clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void tick(struct server *s)
{
	uint64_t kernel_ms = kernel_clock_ms();
	uint64_t passed = kernel_ms > s->kernel_ms ? kernel_ms - s->kernel_ms : 0;

	s->now_ms += passed < CLOCK_STEP_MS ? passed : CLOCK_STEP_MS;
	s->kernel_ms = kernel_ms;
}

/* A bounded wait while any deadline runs, so that a jump costs one step at most. */
static int wait_ms(const struct server *s)
{
	uint64_t first = UINT64_MAX;

#define CONSIDER(deadline)                                                                         \
	do {                                                                                       \
		if ((deadline) && (deadline) < first)                                              \
			first = (deadline);                                                        \
	} while (0)

	if (s->again)
		return 0;
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		if (s->connections[i].fd >= 0)
			CONSIDER(s->connections[i].deadline_ms);
	}
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		const struct terminal *t = &s->terminals[i];

		CONSIDER(t->open_deadline_ms);
		for (unsigned int k = 0; k < HOLDS_MAX; k++) {
			if (t->holds[k].job)
				CONSIDER(t->holds[k].deadline_ms);
		}
	}
#undef CONSIDER
	if (first == UINT64_MAX)
		return -1;
	if (first <= s->now_ms)
		return 0;
	return first - s->now_ms < CLOCK_STEP_MS ? (int)(first - s->now_ms) : CLOCK_STEP_MS;
}

static void watch(struct pollfd *pfd, int fd, short events)
{
	*pfd = (struct pollfd){.fd = fd, .events = events};
}

/* A negative descriptor is skipped by the kernel. */
static void watch_terminal(const struct server *s, const struct terminal *t, struct pollfd *pfd)
{
	bool may_read;
	short events;

	for (unsigned int i = 0; i < TERMINAL_POLLS; i++)
		watch(&pfd[i], -1, 0);
	if (!t->used || t->master < 0)
		return;
	may_read = follow_room(s, t) > 0;
	events = (may_read ? POLLIN : 0) | (t->input_len ? POLLOUT : 0);
	watch(&pfd[0], events ? t->master : -1, events);
	watch(&pfd[1], t->reported ? -1 : t->status_fifo, POLLIN);
	watch(&pfd[2], may_read ? t->output[0] : -1, POLLIN);
}

static void watch_connection(const struct connection *c, struct pollfd *pfd)
{
	short events = 0;

	if (!c->eof && !c->closing && c->in_len < IN_SIZE)
		events |= POLLIN;
	if (c->out_len)
		events |= POLLOUT;
	watch(pfd, c->fd, events);
}

static void wait_for_events(struct server *s, struct pollfd *pfds)
{
	int timeout = wait_ms(s);
	struct timespec limit = {.tv_sec = timeout / 1000, .tv_nsec = timeout % 1000 * 1000000L};

	watch(&pfds[0], s->wake, POLLIN);
	watch(&pfds[1], s->listener, POLLIN);
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++)
		watch_connection(&s->connections[i], &pfds[2 + i]);
	for (unsigned int i = 0; i < TERMINALS_MAX; i++)
		watch_terminal(
			s, &s->terminals[i], &pfds[2 + CONNECTIONS_MAX + TERMINAL_POLLS * i]);
	if (ppoll(pfds, POLL_MAX, timeout < 0 ? NULL : &limit, NULL) < 0) {
		for (unsigned int i = 0; i < POLL_MAX; i++)
			pfds[i].revents = 0;
	}
	s->again = false;
	tick(s);
}

static void reap(struct server *s)
{
	int status;
	pid_t pid;

	reap_acknowledge(s->wake);
	while ((pid = reap_next(&status)) > 0) {
		for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
			struct terminal *t = &s->terminals[i];

			if (!t->used || t->shell != pid)
				continue;
			t->died = true;
			t->wait_status = status;
			t->read_since = 0;
		}
	}
}

/* Only the host may connect: it has no pid in our namespace. */
static bool is_welcome(const struct server *s, int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (s->any_peer)
		return true;
	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == 0;
}

static void accept_all(struct server *s)
{
	int fd;

	while ((fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		if (is_welcome(s, fd))
			connection_open(s, fd);
		else
			close(fd);
	}
}

static void receive(struct server *s, const struct pollfd *pfds)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];
		uint64_t serial = c->serial;
		short events = pfds[i].revents;

		/* The place may have been given to another client since the poll. */
		if (c->fd < 0 || c->fd != pfds[i].fd || !events)
			continue;
		connection_receive(s, c);
		if (c->fd >= 0 && c->in_len)
			connection_serve(s, c);
		/* Nobody is there to read what is left. */
		if (c->fd >= 0 && c->serial == serial && (events & (POLLHUP | POLLERR)) &&
			(c->eof || c->in_len == IN_SIZE))
			connection_close(s, c);
	}
}

static void advance_terminals(struct server *s, const struct pollfd *pfds)
{
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		struct terminal *t = &s->terminals[i];
		const struct pollfd *pfd = &pfds[TERMINAL_POLLS * i];
		bool due = t->open_deadline_ms && t->open_deadline_ms <= s->now_ms;

		if (!t->used || t->master < 0) {
			if (!t->used && !follow_is_held(s, t))
				ring_forget(&t->ring);
			continue;
		}
		for (unsigned int k = 0; k < TERMINAL_POLLS; k++)
			due = due || pfd[k].revents;
		if (due || t->reported || t->died)
			terminal_advance(s, t);
	}
}

static void send_output(struct server *s)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];
		size_t queued;

		if (c->fd >= 0 && c->deadline_ms && c->deadline_ms <= s->now_ms)
			connection_close(s, c);
		if (c->fd >= 0 && c->in_len)
			connection_serve(s, c);
		if (c->fd < 0)
			continue;
		follow_pump(s, c);
		queued = c->out_len;
		connection_flush(s, c);
		/* There is room again for output that no descriptor will announce. */
		if (c->fd >= 0 && c->out_len < queued && (c->job || c->streaming))
			s->again = true;
	}
}

static void serve_forever(struct server *s)
{
	struct pollfd pfds[POLL_MAX];

	for (;;) {
		wait_for_events(s, pfds);
		reap(s);
		receive(s, pfds + 2);
		if (pfds[1].revents)
			accept_all(s);
		follow_expire(s);
		advance_terminals(s, pfds + 2 + CONNECTIONS_MAX);
		send_output(s);
	}
}

static int listen_at(const char *dir)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask;
	int keep;
	int err;

	if (fd < 0)
		return -errno;
	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock", dir) >=
		(int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	unlink(address.sun_path);
	mask = umask(0177); /* a chmod afterwards would leave a moment for others */
	err = bind(fd, (struct sockaddr *)&address, sizeof(address)) ? -errno : 0;
	umask(mask);
	if (err)
		return err;
	if (listen(fd, 16))
		return -errno;
	keep = fd;
	fd = -1;
	return keep;
}

static int map_buffers(struct server *s)
{
	size_t each_connection = IN_SIZE + OUT_SIZE;
	size_t each_terminal = RING_SIZE + INPUT_MAX;
	size_t size = CONNECTIONS_MAX * each_connection + TERMINALS_MAX * each_terminal;
	uint8_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return -errno;
	/* One touched byte would otherwise make 2 MiB resident, and dumped. */
	madvise(at, size, MADV_NOHUGEPAGE);
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		s->terminals[i].ring.data = at;
		s->terminals[i].input = at + RING_SIZE;
		terminal_clear(&s->terminals[i]);
		at += each_terminal;
	}
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		s->connections[i].fd = -1;
		s->connections[i].in = at;
		s->connections[i].out = at + IN_SIZE;
		at += each_connection;
	}
	return 0;
}

static int parse_options(int argc, char **argv, struct server *s, int *ready_fd)
{
	static const struct option options[] = {
		{"dir", required_argument, NULL, 'd'},
		{"any-peer", no_argument, NULL, 'a'},
		{"ready", required_argument, NULL, 'r'},
		{0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			s->dir = optarg;
		else if (option == 'a')
			s->any_peer = true;
		else if (option == 'r')
			*ready_fd = atoi(optarg);
		else
			return -EINVAL;
	}
	return optind == argc ? 0 : -EINVAL;
}

/* Tells whoever waits for us to listen, or the terminal of whoever tries us out. */
static int fail(int ready_fd, const char *step, int err)
{
	dprintf(ready_fd < 0 ? 2 : ready_fd, "init: %s: %s", step, strerror(-err));
	return 1;
}

int init_main(int argc, char **argv)
{
	static struct server server = {.dir = "/.waypoint"};
	struct server *s = &server;
	int ready_fd = -1;
	int err = parse_options(argc, argv, s, &ready_fd);

	if (err)
		return fail(ready_fd, "options", err);
	close_range(ready_fd < 3 ? 3 : (unsigned int)ready_fd + 1, ~0U, 0);
	err = map_buffers(s);
	if (err)
		return fail(ready_fd, "map buffers", err);
	s->wake = reap_setup();
	if (s->wake < 0)
		return fail(ready_fd, "set up signals", s->wake);
	s->listener = listen_at(s->dir);
	if (s->listener < 0)
		return fail(ready_fd, "listen", s->listener);
	/* Whoever started us may connect from now on. */
	close_fd(&ready_fd);
	s->kernel_ms = kernel_clock_ms();
	serve_forever(s);
	return 0;
}
