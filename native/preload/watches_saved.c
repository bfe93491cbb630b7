/*
 * Loaded into CRIU: records the watches of inotify when a tree is saved (watches.h).
 *
 * While the tree is stopped each watch should cost little. So before, when CRIU starts,
 * the descriptions of all inotifies are read, which also lets the kernel make its buffers
 * large enough, and the paths of their watches are found. What has not changed when
 * the tree is stopped needs only a look whether the file is still at its path.
 */
#include "watch_record.h"
#include "watches.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WATCH_LINE "inotify wd:"

/* A line of a description with its record. */
struct known {
	char *line, *record;
	struct watch watch;
};

/* The description of an inotify: of descriptor `fd` of process `pid`. */
struct description {
	int pid, fd;
	int file; /* to read it from */
	struct known *known;
	size_t known_count;
};

static FILE *output;
static struct tree tree;
static struct description *descriptions;
static size_t description_count;

/* All of a file of /proc, with a null byte at its end; NULL if it cannot be read. */
static char *read_all(int file)
{
	size_t size = 1 << 16, len = 0;
	char *text = malloc(size);

	while (text) {
		ssize_t got = pread(file, text + len, size - 1 - len, (off_t)len);

		if (got <= 0) {
			text[len] = 0;
			if (got == 0)
				return text;
			free(text);
			return NULL;
		}
		len += (size_t)got;
		if (size - len < 1 << 15) {
			char *larger = realloc(text, size *= 2);

			if (!larger)
				free(text);
			text = larger;
		}
	}
	return NULL;
}

/* The first line of a watch at or after `at`; NULL if there is none. */
static char *next_watch(char *at)
{
	return strncmp(at, WATCH_LINE, strlen(WATCH_LINE)) == 0 ? at : strstr(at, "\n" WATCH_LINE);
}

/* Cuts the line of a watch off and returns what follows. */
static char *cut_line(char *line)
{
	char *end = strchr(line, '\n');

	if (!end)
		return line + strlen(line);
	*end = 0;
	return end + 1;
}

static void learn(struct description *d)
{
	char *text = read_all(d->file);
	char *at = text;

	while (at && (at = next_watch(at))) {
		struct known *more = realloc(d->known, (d->known_count + 1) * sizeof(*more));
		struct known *k;
		size_t size;
		FILE *record;

		if (!more)
			return;
		d->known = more;
		k = &d->known[d->known_count];
		k->line = at + (*at == '\n');
		k->record = NULL;
		at = cut_line(k->line);
		record = open_memstream(&k->record, &size);
		if (!record || !watch_parse(k->line, &k->watch))
			return;
		watch_record(&tree, &k->watch, record);
		fclose(record);
		d->known_count++;
	}
	/* `text` is kept: the lines are in it. */
}

static const char *read_overlays(const char *at)
{
	for (int len = 0; *at == ';' && tree.overlay_count < OVERLAYS_MAX; at += len) {
		struct overlay *o = &tree.overlays[tree.overlay_count++];
		unsigned long device;

		if (sscanf(at, ";%lu=%d,%d%n", &device, &o->upper, &o->lower, &len) != 3)
			return "";
		o->device = device;
	}
	return at;
}

static void read_descriptions(const char *at)
{
	for (int len = 0; *at == ':'; at += len) {
		struct description *more =
			realloc(descriptions, (description_count + 1) * sizeof(*more));
		struct description *d;

		if (!more)
			return;
		descriptions = more;
		d = &descriptions[description_count];
		*d = (struct description){0};
		if (sscanf(at, ":%d,%d=%d%n", &d->pid, &d->fd, &d->file, &len) != 3)
			return;
		description_count++;
		learn(d);
	}
}

__attribute__((constructor)) static void begin(void)
{
	const char *at = getenv(WATCHES);
	int fd = -1, len = 0;

	if (!at || sscanf(at, "%d,%d,%d%n", &fd, &tree.root, &tree.pid, &len) != 3)
		return;
	output = fdopen(fd, "w");
	read_descriptions(read_overlays(at + len));
	unsetenv(WATCHES); /* programs that CRIU starts need not do this again */
}

static void record_line(const struct description *d, size_t number, const char *line, const struct watch *w)
{
	const struct known *k = d && number < d->known_count ? &d->known[number] : NULL;

	if (k && strcmp(k->line, line) == 0 && watch_is_still(&tree, w, k->record)) {
		fputs(k->record, output);
		fputc(0, output);
	} else {
		watch_record(&tree, w, output);
	}
}

/* Records the inotify behind CRIU's own descriptor `fd`; `text` describes it, and is cut up. */
static bool record(const struct description *d, int pid, int pid_fd, int fd, char *text)
{
	int unread = 0;
	size_t number = 0;

	ioctl(fd, FIONREAD, &unread);
	fprintf(output, "I %d %d %d", pid, pid_fd, unread);
	fputc(0, output);
	for (char *at = text; (at = next_watch(at)); number++) {
		char *line = at + (*at == '\n');
		struct watch w;

		at = cut_line(line);
		if (!watch_parse(line, &w))
			return false;
		record_line(d, number, line, &w);
	}
	return fflush(output) == 0;
}

void watches_note_fanotify(int pid, int fd)
{
	if (!output)
		return;
	fprintf(output, "F %d %d", pid, fd);
	fputc(0, output);
	fflush(output);
}

/* A descriptor to read the part of a description from that does not tell of watches. */
static int without_watches(char *text)
{
	const char *watches = next_watch(text);
	size_t len = watches ? (size_t)(watches - text) + 1 : strlen(text);
	bool is_written;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	is_written = write(ends[1], text, len) == (ssize_t)len;
	close(ends[1]);
	if (is_written)
		return ends[0];
	close(ends[0]);
	errno = EIO;
	return -1;
}

static const struct description *find_description(int pid, int fd)
{
	for (size_t i = 0; i < description_count; i++) {
		if (descriptions[i].pid == pid && descriptions[i].fd == fd)
			return &descriptions[i];
	}
	return NULL;
}

/* CRIU looks at the descriptor of a process, then perhaps at its own duplicate of it: read only once. */
int watches_describe(openat_function *next, int dir, const char *path, int flags, int pid, int fd)
{
	static int owner, owners_fd;
	static char *text;
	const struct description *d;
	bool is_whole = true;
	int given, file;

	if (!output)
		return next(dir, path, flags, 0);
	if (pid != getpid()) {
		owner = pid;
		owners_fd = fd;
		free(text);
		d = find_description(pid, fd);
		file = d ? d->file : next(dir, path, flags, 0);
		text = file < 0 ? NULL : read_all(file);
		if (!d && file >= 0)
			close(file);
	}
	given = text ? without_watches(text) : -1;
	if (given >= 0 && pid == getpid())
		is_whole = record(find_description(owner, owners_fd), owner, owners_fd, fd, text);
	if (is_whole && given >= 0)
		return given;
	if (given >= 0)
		close(given);
	errno = EIO;
	return -1;
}
