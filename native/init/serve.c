/* init: process 1 of a branch. Its set-up, and the loop that never ends. */
#include "fd.h"
#include "modes.h"
#include "reap.h"
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

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
		for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
			struct isolated *p = &s->isolated[i];

			if (p->state != ISOLATED_FREE && p->pid == pid && !p->reaped)
				isolated_reaped(p, status);
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

/* A limited number in one turn: a flood from inside must not keep us here. */
static void accept_some(struct server *s)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return;
		if (is_welcome(s, fd))
			connection_open(s, fd);
		else
			close(fd);
	}
}

static void receive(struct server *s)
{
	for (unsigned int i = 0; i < CONNECTIONS_MAX; i++) {
		struct connection *c = &s->connections[i];
		uint64_t serial = c->serial;
		short events = events_of(s, c->poll);

		if (c->fd < 0 || !events)
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

static void advance_terminals(struct server *s)
{
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		struct terminal *t = &s->terminals[i];
		bool due = t->open_deadline_ms && t->open_deadline_ms <= s->now_ms;

		if (!t->used || t->master < 0) {
			if (!t->used && !follow_is_held(s, &t->kept))
				ring_forget(terminal_ring(t));
			continue;
		}
		for (unsigned int k = 0; t->poll && k < TERMINAL_POLLS; k++)
			due = due || events_of(s, t->poll + k);
		if (due || t->reported || t->died)
			terminal_advance(s, t);
	}
}

static void advance_isolated(struct server *s)
{
	for (unsigned int i = 0; i < ISOLATED_SLOTS; i++) {
		if (s->isolated[i].state != ISOLATED_FREE)
			isolated_advance(s, &s->isolated[i]);
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
		connection_pump(s, c);
		queued = c->out_len;
		connection_flush(s, c);
		/*
		 * Its full buffer held something back; no descriptor announces
		 * that it has space again.
		 */
		if (c->fd >= 0 && queued > OUT_STREAM_MAX && c->out_len < queued)
			s->again = true;
	}
}

static void serve_forever(struct server *s)
{
	for (;;) {
		wait_for_events(s);
		reap(s);
		leftovers_drain(&s->leftovers, s->polls + s->leftovers.poll, s->null_fd);
		receive(s);
		if (events_of(s, POLL_LISTENER))
			accept_some(s);
		guests_advance(s);
		if (events_of(s, POLL_GUESTS))
			guests_accept(s);
		follow_expire(s);
		advance_terminals(s);
		advance_isolated(s);
		send_output(s);
	}
}

static int listen_at(const char *dir, const char *name, mode_t mode)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	mode_t mask;
	int keep;
	int err;

	if (fd < 0)
		return -errno;
	if (snprintf(address.sun_path, sizeof(address.sun_path), "%s/%s", dir, name) >=
		(int)sizeof(address.sun_path))
		return -ENAMETOOLONG;
	unlink(address.sun_path);
	mask = umask(0777 & ~mode); /* others could connect before a chmod */
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
	size_t size = CONNECTIONS_MAX * each_connection + TERMINALS_MAX * each_terminal +
		      ISOLATED_SLOTS * (size_t)ISOLATED_MEMORY;
	uint8_t *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		return -errno;
	/* One touched byte would otherwise make 2 MiB resident, and dumped. */
	madvise(at, size, MADV_NOHUGEPAGE);
	for (unsigned int i = 0; i < TERMINALS_MAX; i++) {
		terminal_ring(&s->terminals[i])->data = at;
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
	s->isolated_memory = at;
	for (unsigned int i = 0; i < GUESTS_MAX; i++)
		s->guests.guests[i].fd = -1;
	return 0;
}

struct options {
	int ready_fd;
	bool allow_self;
};

static int parse_options(int argc, char **argv, struct server *s, struct options *chosen)
{
	static const struct option options[] = {
		{"dir", required_argument, NULL, 'd'},
		{"any-peer", no_argument, NULL, 'a'},
		{"ready", required_argument, NULL, 'r'},
		{"allow-self", no_argument, NULL, 's'},
		{"hold-prompt", no_argument, NULL, 'p'},
		{0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			s->dir = optarg;
		else if (option == 'a')
			s->any_peer = true;
		else if (option == 'r')
			chosen->ready_fd = atoi(optarg);
		else if (option == 's')
			chosen->allow_self = true;
		else if (option == 'p')
			s->hold_prompt = true;
		else
			return -EINVAL;
	}
	return optind == argc ? 0 : -EINVAL;
}

/* Reports to the process that waits for us to listen, or to standard error without one. */
static int fail(int ready_fd, const char *step, int err)
{
	dprintf(ready_fd < 0 ? 2 : ready_fd, "init: %s: %s", step, strerror(-err));
	return 1;
}

/* A socket of this name may be left from an earlier start with --allow-self. */
static int listen_for_guests(struct server *s, bool allowed)
{
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];

	s->guests.listener = -1;
	if (allowed) {
		s->guests.listener = listen_at(s->dir, "here", 0666);
		return s->guests.listener < 0 ? s->guests.listener : 0;
	}
	if (snprintf(path, sizeof(path), "%s/here", s->dir) < (int)sizeof(path))
		unlink(path);
	return 0;
}

int init_main(int argc, char **argv)
{
	static struct server server = {.dir = "/.waypoint"};
	struct server *s = &server;
	struct options chosen = {.ready_fd = -1};
	int err = parse_options(argc, argv, s, &chosen);

	if (err)
		return fail(chosen.ready_fd, "options", err);
	close_range(chosen.ready_fd < 3 ? 3 : (unsigned int)chosen.ready_fd + 1, ~0U, 0);
	/*
	 * Root inside could trace us otherwise; the host relies on our memory
	 * and our descriptors.
	 */
	if (getpid() == 1 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
		return fail(chosen.ready_fd, "protect memory", -errno);
	err = map_buffers(s);
	if (err)
		return fail(chosen.ready_fd, "map buffers", err);
	s->null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (s->null_fd < 0)
		return fail(chosen.ready_fd, "open /dev/null", -errno);
	s->wake = reap_setup();
	if (s->wake < 0)
		return fail(chosen.ready_fd, "set up signals", s->wake);
	err = listen_for_guests(s, chosen.allow_self);
	if (err)
		return fail(chosen.ready_fd, "listen for guests", err);
	s->listener = listen_at(s->dir, "sock", 0600);
	if (s->listener < 0)
		return fail(chosen.ready_fd, "listen", s->listener);
	/* Tells the process that started us that init accepts connections from now on. */
	close_fd(&chosen.ready_fd);
	clock_start(s);
	serve_forever(s);
	return 0;
}
