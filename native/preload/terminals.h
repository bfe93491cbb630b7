/* Forks for CRIU: before init's first fork it opens init's terminals. */
#pragma once

#include <linux/sched.h>
#include <stddef.h>

typedef long syscall_function(long number, ...);

long terminals_fork(syscall_function *next, const struct clone_args *args, size_t size);
