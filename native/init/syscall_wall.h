/*
 * Which system calls a branch may make: a seccomp filter. It is inherited by
 * every process and cannot be taken off; CRIU saves and restores it.
 */
#pragma once

#include <linux/filter.h>

/* The most instructions of the filter; it is an error if it has more. */
#define FILTER_MAX 512

/* Writes the filter into `code`; returns how many instructions it has, or -errno. */
int syscall_filter(struct sock_filter code[FILTER_MAX]);

/* Installs it. Without CAP_SYS_ADMIN that needs no_new_privs. Returns 0 or -errno. */
int wall_off_syscalls(void);
