/* Let a process make a system call for us. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/types.h>

typedef long ptrace_function(enum __ptrace_request request, ...);

/* A process of which every thread is stopped, and traced by us. */
struct injection {
	ptrace_function *trace;
	pid_t thread;
	int memory;
	unsigned long call;   /* the address of an instruction that makes a system call */
	unsigned long buffer; /* of memory that it may write to */
};

/* -1 with errno, ENOSYS on machines for which this is not written. */
int injection_begin(struct injection *i, ptrace_function *trace, pid_t pid);
void injection_end(struct injection *i);

/* As an argument: the address, in the process, of a copy of `data`. */
#define INJECTED_DATA (-0x7fffffffffffL)

/*
 * The process makes the call `number`; its memory and registers are as before when this
 * returns. Returns what the call returned, -errno if it could not be made.
 */
long injection_call(
	struct injection *i, long number, const long arguments[3], const void *data, size_t size);
