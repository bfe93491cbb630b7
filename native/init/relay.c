/*
 * relay: carries bytes between init's socket and its own input and output, for
 * a host that cannot reach the socket itself (a sandbox that has a kernel of
 * its own). With --port or --vsock it serves one caller after the other on a
 * device or a socket of a virtual machine.
 */
#include "connect.h"
#include "fd.h"
#include "line.h"
#include "modes.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { EXIT_FAILED = 1, EXIT_USAGE = 2 };

/* One direction: what was read and is not written yet. */
struct flow {
	int from;
	int to;
	size_t begin;
	size_t end;
	char buffer[65536];
};

static bool is_for_later(int error)
{
	return error == EAGAIN || error == EINTR;
}

/* Moves what can be moved now. Returns 0, or -1 when this direction has ended. */
static int move(struct flow *flow, bool can_read)
{
	ssize_t done;

	if (flow->begin == flow->end && can_read) {
		done = read(flow->from, flow->buffer, sizeof(flow->buffer));
		if (done == 0 || (done < 0 && !is_for_later(errno)))
			return -1;
		flow->begin = 0;
		flow->end = done > 0 ? (size_t)done : 0;
	}
	if (flow->begin < flow->end) {
		done = write(flow->to, flow->buffer + flow->begin, flow->end - flow->begin);
		if (done < 0 && !is_for_later(errno))
			return -1;
		flow->begin += done > 0 ? (size_t)done : 0;
	}
	return 0;
}

/* Carries both ways until one side has ended. */
static int carry(int in, int out, int sock)
{
	static struct flow up;
	static struct flow down;

	up = (struct flow){.from = in, .to = sock};
	down = (struct flow){.from = sock, .to = out};
	for (;;) {
		bool up_full = up.begin < up.end;
		bool down_full = down.begin < down.end;
		struct pollfd fds[3] = {
			{.fd = in, .events = up_full ? 0 : POLLIN},
			{.fd = sock,
				.events = (short)((down_full ? 0 : POLLIN) |
						  (up_full ? POLLOUT : 0))},
			{.fd = down_full ? out : -1, .events = POLLOUT},
		};

		if (poll(fds, 3, -1) < 0 && errno != EINTR)
			return -errno;
		if (move(&up, fds[0].revents & (POLLIN | POLLHUP | POLLERR)))
			return 0;
		if (move(&down, fds[1].revents & (POLLIN | POLLHUP | POLLERR)))
			return 0;
	}
}

static int set_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? -errno : 0;
}

static int carry_once(const char *dir, int in, int out)
{
	auto_close int sock = connect_to_init(dir, "sock", SOCK_NONBLOCK);

	return sock < 0 ? sock : carry(in, out, sock);
}

int relay_main(int argc, char **argv)
{
	static const struct option options[] = {
		{"dir", required_argument, NULL, 'd'},
		{"port", required_argument, NULL, 'p'},
		{"vsock", required_argument, NULL, 'v'},
		{0},
	};
	const char *dir = "/.waypoint";
	struct line_service service = {0};
	const char *port = NULL;
	unsigned int vsock = 0;
	int option;
	int err;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == 'd')
			dir = optarg;
		else if (option == 'p')
			port = optarg;
		else if (option == 'v')
			vsock = (unsigned int)strtoul(optarg, NULL, 10);
		else
			return EXIT_USAGE;
	}
	service.dir = dir;
	if (port) {
		err = line_serve_device(&service, port);
	} else if (vsock) {
		err = line_serve_vsock(&service, vsock);
	} else {
		err = set_nonblocking(0);
		if (!err)
			err = set_nonblocking(1);
		if (!err)
			err = carry_once(dir, 0, 1);
	}
	if (!err)
		return 0;
	fprintf(stderr, "waypoint-init: relay: %s\n", strerror(-err));
	return EXIT_FAILED;
}
