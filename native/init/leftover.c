#include "leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#define DRAIN_SIZE (1024 * 1024)

void leftovers_add(struct leftovers *l, int fd)
{
	if (l->count == LEFTOVERS_MAX) {
		close(l->fds[0]);
		memmove(l->fds, l->fds + 1, sizeof(l->fds[0]) * --l->count);
	}
	l->fds[l->count++] = fd;
}

/* Uses no buffer of ours, which would become resident. False: nobody can write any more. */
static bool drain(int fd, int null_fd)
{
	ssize_t got = splice(fd, NULL, null_fd, NULL, DRAIN_SIZE, SPLICE_F_NONBLOCK);

	return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

void leftovers_drain(struct leftovers *l, const struct pollfd *polls, int null_fd)
{
	unsigned int kept = 0;

	for (unsigned int i = 0; i < l->count; i++) {
		if (!polls[i].revents || drain(l->fds[i], null_fd))
			l->fds[kept++] = l->fds[i];
		else
			close(l->fds[i]);
	}
	l->count = kept;
}
