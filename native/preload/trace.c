/*
 * Loaded into CRIU: what it does to the processes that it traces, and what we do then.
 */
#include "connect.h"
#include "inject.h"
#include "last_calls.h"
#include "poll.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>

long ptrace(enum __ptrace_request request, ...)
{
	static ptrace_function *next;
	void *address, *data;
	va_list args;
	pid_t pid;
	long err;

	va_start(args, request);
	pid = va_arg(args, pid_t);
	address = va_arg(args, void *);
	data = va_arg(args, void *);
	va_end(args);
	if (!next)
		next = (ptrace_function *)dlsym(RTLD_NEXT, "ptrace");
	if (request == PTRACE_DETACH && last_calls_make(next))
		return -1;
	err = next(request, pid, address, data);
	if (!err && request == PTRACE_GETREGSET && (long)address == NT_PRSTATUS) {
		poll_continue(data);
		connect_finish(pid, data);
	}
	return err;
}
