#include "inject.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __x86_64__
#include <elf.h>
#include <sys/uio.h>
#include <sys/user.h>

#ifndef PTRACE_GETSIGMASK
#define PTRACE_GETSIGMASK 0x420a
#define PTRACE_SETSIGMASK 0x420b
#endif

#define KERNEL_MASK_SIZE 8
#define DATA_MAX 128
#define VDSO_MAX (4 << 12)

static const unsigned char call_instruction[] = {0x0f, 0x05};

static unsigned long find_call(int memory, unsigned long start, unsigned long end)
{
	static unsigned char code[VDSO_MAX];
	ssize_t len = pread(memory, code, end - start < VDSO_MAX ? end - start : VDSO_MAX, (off_t)start);
	const unsigned char *found =
		len > 0 ? memmem(code, (size_t)len, call_instruction, sizeof(call_instruction)) : NULL;

	return found ? start + (unsigned long)(found - code) : 0;
}

static int find_addresses(struct injection *i, pid_t pid)
{
	char path[64], line[512];
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	maps = fopen(path, "re");
	while (maps && fgets(line, sizeof(line), maps)) {
		unsigned long start, end;
		char rights[5];

		if (sscanf(line, "%lx-%lx %4s", &start, &end, rights) != 3)
			continue;
		if (!i->buffer && strcmp(rights, "rw-p") == 0)
			i->buffer = start;
		if (strstr(line, "[vdso]"))
			i->call = find_call(i->memory, start, end);
	}
	if (maps)
		fclose(maps);
	return i->buffer && i->call ? 0 : -1;
}

/* The first thread can have ended before the others. */
static pid_t find_thread(ptrace_function *trace, pid_t pid)
{
	char path[64];
	struct dirent *entry;
	pid_t found = -1;
	DIR *threads;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	threads = opendir(path);
	while (threads && found < 0 && (entry = readdir(threads))) {
		struct user_regs_struct registers;
		struct iovec out = {&registers, sizeof(registers)};
		pid_t thread = atoi(entry->d_name);

		if (thread > 0 && !trace(PTRACE_GETREGSET, thread, NT_PRSTATUS, &out))
			found = thread;
	}
	if (threads)
		closedir(threads);
	return found;
}

int injection_begin(struct injection *i, ptrace_function *trace, pid_t pid)
{
	char path[64];

	*i = (struct injection){.trace = trace, .thread = find_thread(trace, pid)};
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	i->memory = open(path, O_RDWR | O_CLOEXEC);
	if (i->thread > 0 && i->memory >= 0 && !find_addresses(i, pid))
		return 0;
	injection_end(i);
	errno = ESRCH;
	return -1;
}

void injection_end(struct injection *i)
{
	if (i->memory >= 0)
		close(i->memory);
	i->memory = -1;
}

/* Signals that are pending would be delivered instead. */
static int step(struct injection *i)
{
	unsigned long long mask, all = ~0ULL;
	int status;
	int err;

	if (i->trace(PTRACE_GETSIGMASK, i->thread, KERNEL_MASK_SIZE, &mask) ||
		i->trace(PTRACE_SETSIGMASK, i->thread, KERNEL_MASK_SIZE, &all))
		return -errno;
	err = i->trace(PTRACE_SINGLESTEP, i->thread, NULL, NULL) ? -errno : 0;
	if (!err && waitpid(i->thread, &status, __WALL) != i->thread)
		err = -errno;
	else if (!err && (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP))
		err = -EINTR;
	if (i->trace(PTRACE_SETSIGMASK, i->thread, KERNEL_MASK_SIZE, &mask) && !err)
		err = -errno;
	return err;
}

static long make_call(struct injection *i, long number, const long arguments[3])
{
	unsigned long words[3];
	struct user_regs_struct before, now;
	struct iovec out = {&before, sizeof(before)};
	struct iovec in = {&now, sizeof(now)};
	int err;

	for (unsigned int n = 0; n < 3; n++)
		words[n] = arguments[n] == INJECTED_DATA ? i->buffer : (unsigned long)arguments[n];
	if (i->trace(PTRACE_GETREGSET, i->thread, NT_PRSTATUS, &out))
		return -errno;
	now = before;
	now.rip = i->call;
	now.rax = (unsigned long)number;
	now.orig_rax = ~0UL; /* or the kernel could take it for a call to make again */
	now.rdi = words[0];
	now.rsi = words[1];
	now.rdx = words[2];
	if (i->trace(PTRACE_SETREGSET, i->thread, NT_PRSTATUS, &in))
		return -errno;
	err = step(i);
	if (!err && i->trace(PTRACE_GETREGSET, i->thread, NT_PRSTATUS, &in))
		err = -errno;
	if (i->trace(PTRACE_SETREGSET, i->thread, NT_PRSTATUS, &out) && !err)
		err = -errno;
	return err ? err : (long)now.rax;
}

long injection_call(
	struct injection *i, long number, const long arguments[3], const void *data, size_t size)
{
	char kept[DATA_MAX];
	long result;

	if (size > sizeof(kept) || pread(i->memory, kept, size, (off_t)i->buffer) != (ssize_t)size ||
		pwrite(i->memory, data, size, (off_t)i->buffer) != (ssize_t)size)
		return -EFAULT;
	result = make_call(i, number, arguments);
	if (pwrite(i->memory, kept, size, (off_t)i->buffer) != (ssize_t)size && result >= 0)
		result = -EFAULT;
	return result;
}
#else
int injection_begin(struct injection *i, ptrace_function *trace, pid_t pid)
{
	(void)i, (void)trace, (void)pid;
	errno = ENOSYS;
	return -1;
}

void injection_end(struct injection *i)
{
	(void)v;
}

long injection_call(
	struct injection *i, long number, const long arguments[3], const void *data, size_t size)
{
	(void)i, (void)number, (void)arguments, (void)data, (void)size;
	return -ENOSYS;
}
#endif
