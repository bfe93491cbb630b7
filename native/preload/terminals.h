/* Terminals: init has them before CRIU opens them, and all processes of a session have theirs. */
#pragma once

#include "descriptions.h"

#include <linux/sched.h>
#include <stddef.h>
#include <sys/types.h>

typedef long syscall_function(long number, ...);

/* Forks for CRIU: before init's first fork it opens init's terminals. */
long terminals_fork(syscall_function *next, const struct clone_args *args, size_t size);

/* Opens for CRIU: what init has open already is not opened again. */
int terminals_open(openat_function *next, int dir, const char *path, int flags, mode_t mode);
