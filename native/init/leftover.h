/*
 * Pipes of isolated jobs that have ended while processes they left behind can
 * still write to them. What arrives is thrown away, so that these processes
 * neither block nor are killed by SIGPIPE.
 */
#pragma once

#include <poll.h>

/* When there are more, the oldest is closed. */
#define LEFTOVERS_MAX 128

struct leftovers {
	int fds[LEFTOVERS_MAX]; /* oldest first */
	unsigned int count;
	unsigned int poll; /* the first of the entries in `polls` this turn */
};

/* Takes the descriptor over. */
void leftovers_add(struct leftovers *l, int fd);
/* `polls` has an entry for each descriptor: none may have been added since the poll. */
void leftovers_drain(struct leftovers *l, const struct pollfd *polls, int null_fd);
