/* Signals of process 1: it survives them, and SIGCHLD wakes the loop through a pipe. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Returns the descriptor to poll, or -errno. */
int reap_setup(void);
/* The next child that has died, or 0. */
pid_t reap_next(int *status);
/* Forgets pending wake-ups; call before reap_next(), or a death may be missed. */
void reap_acknowledge(int fd);
