/*
 * Loaded into CRIU: sets the watches of inotify again when a tree is restored (watches.h).
 */
#include "report.h"
#include "watch_record.h"
#include "watches.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef INOTIFY_IOC_SETNEXTWD
#define INOTIFY_IOC_SETNEXTWD _IOW('I', 0, int32_t)
#endif

static char *saved;
static size_t saved_len;

/* Before CRIU forks and the descriptor is closed. */
__attribute__((constructor)) static void read_saved(void)
{
	const char *given = getenv(SAVED_WATCHES);
	struct stat64 st;
	int fd;

	if (!given)
		return;
	fd = atoi(given);
	if (fstatat64(fd, "", &st, AT_EMPTY_PATH))
		return;
	saved = malloc((size_t)st.st_size + 1);
	if (saved && pread(fd, saved, (size_t)st.st_size, 0) == st.st_size)
		saved_len = (size_t)st.st_size;
	if (saved)
		saved[saved_len] = 0;
}

static const char *after(const char *at)
{
	return at + strlen(at) + 1;
}

/* A file to watch that is about to end: its watch ends with it, as that of a deleted file does. */
static int open_ending_file(void)
{
	return memfd_create("ended", MFD_CLOEXEC);
}

static int open_saved_handle(const char *text)
{
	struct handle h;
	int hex = 0, path = 0;
	int mount, fd, bytes;

	if (sscanf(text, "%d %n%*s %n", &h.type, &hex, &path) != 1 || !path)
		return -1;
	bytes = handle_parse(text + hex, &h);
	mount = open(text + path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (mount < 0 || bytes < 0)
		return -1;
	h.bytes = (unsigned int)bytes;
	fd = handle_open(mount, &h);
	close(mount);
	return fd;
}

/* Sets one watch again; a file that is in no checkpoint may be gone, and then the reader is told. */
static int set_watch(int inotify, const char *saved_watch)
{
	char kind, path[40];
	unsigned int mask;
	int wd, set;
	int len = 0;
	int fd = -1;

	if (sscanf(saved_watch, "%c %d %x%n", &kind, &wd, &mask, &len) != 3)
		return -1;
	saved_watch += len + 1;
	if (kind == 'H')
		fd = open_saved_handle(saved_watch);
	else
		fd = open(saved_watch, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && kind != 'W')
		fd = open_ending_file();
	if (fd < 0) {
		report_error("cannot watch %s: %m", saved_watch);
		return -1;
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	set = ioctl(inotify, INOTIFY_IOC_SETNEXTWD, (long)wd);
	if (!set)
		set = inotify_add_watch(inotify, path, mask);
	if (set != wd)
		report_error("cannot watch %s: %s", saved_watch,
			set < 0 ? strerror(errno) : "its number is taken");
	close(fd);
	return set == wd ? 0 : -1;
}

static int set_watches(int inotify, int number)
{
	const char *at = saved;
	const char *end = saved + saved_len;

	for (; at < end && number; at = after(at))
		number -= *at == 'I';
	for (; at < end && *at != 'I'; at = after(at)) {
		if (*at != 'D' && set_watch(inotify, at))
			return -1;
	}
	return 0;
}

int inotify_init1(int flags)
{
	static int (*next)(int);
	int number = (int)((unsigned int)flags >> NUMBER_SHIFT);
	int fd;

	if (!next)
		next = (int (*)(int))dlsym(RTLD_NEXT, "inotify_init1");
	fd = next(flags & ((1 << NUMBER_SHIFT) - 1));
	if (fd < 0 || !number || !set_watches(fd, number))
		return fd;
	close(fd);
	errno = ENOENT;
	return -1;
}
