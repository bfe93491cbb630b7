/*
 * Finds the path of a watched file, and writes it as a record (watches.h).
 *
 * The kernel describes a watched file by its handle. A file of an overlay cannot be
 * opened by its handle; but that contains the handle of the file below, in one of the
 * directories of which the overlay is made, and the file systems of those can.
 */
#include "watch_record.h"

#include "terminals.h"

#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* A mount of the tree, as in its mountinfo. */
struct mounted {
	dev_t device;
	char path[PATH_MAX];
	int fd; /* -1 until it is needed */
};

static struct mounted *mounts;
static unsigned int mount_count;

static int digit(char c)
{
	return c <= '9' ? c - '0' : c - 'a' + 10;
}

int handle_parse(const char *hex, struct handle *h)
{
	unsigned int count = 0;

	while (isxdigit((unsigned char)hex[2 * count]) && isxdigit((unsigned char)hex[2 * count + 1])) {
		if (count == HANDLE_MAX)
			return -1;
		h->data[count] = (unsigned char)(digit(hex[2 * count]) << 4 | digit(hex[2 * count + 1]));
		count++;
	}
	return (int)count;
}

bool watch_parse(const char *line, struct watch *w)
{
	unsigned int device;
	int len = 0;

	if (sscanf(line,
		    "inotify wd:%x ino:%lx sdev:%x mask:%x ignored_mask:%*x fhandle-bytes:%x "
		    "fhandle-type:%x f_handle:%n",
		    (unsigned int *)&w->wd, &w->inode, &device, &w->mask, &w->handle.bytes,
		    (unsigned int *)&w->handle.type, &len) != 6 ||
		!len)
		return false;
	w->device = makedev(device >> 20, device & 0xfffff);
	return handle_parse(line + len, &w->handle) == (int)w->handle.bytes;
}

int handle_open(int mount, const struct handle *h)
{
	static syscall_function *next;
	struct {
		struct file_handle head;
		unsigned char data[HANDLE_MAX];
	} request = {.head = {.handle_bytes = h->bytes, .handle_type = h->type}};

	if (!next)
		next = (syscall_function *)dlsym(RTLD_NEXT, "syscall");
	memcpy(request.head.f_handle, h->data, h->bytes);
	return (int)next(SYS_open_by_handle_at, (long)mount, (long)&request, (long)O_PATH, 0L, 0L, 0L);
}

bool path_of_descriptor(int fd, char *path)
{
	char link[40];
	ssize_t len;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	len = readlink(link, path, PATH_MAX - 1);
	if (len < 0)
		return false;
	path[len] = 0;
	return true;
}

static bool path_by_handle(int mount, const struct handle *h, char path[PATH_MAX], bool *is_open)
{
	int fd = handle_open(mount, h);
	bool found = fd >= 0 && path_of_descriptor(fd, path);

	*is_open = fd >= 0;
	if (fd >= 0)
		close(fd);
	return found;
}

/* Whether a path, which begins with a slash, leads to the watched file in the tree. */
static bool leads_to(const struct tree *tree, const char *path, unsigned long inode)
{
	struct stat64 st;

	path += path[0] == '/';
	return !fstatat64(tree->root, *path ? path : ".", &st, AT_SYMLINK_NOFOLLOW) && st.st_ino == inode;
}

/* The handle of the file below that the handle of a file of an overlay contains. */
static bool handle_below(const struct handle *h, struct handle *below, bool *is_upper)
{
	enum { PADDING = 3, HEADER = 21, MAGIC = 0xfb, PATH_UPPER = 4 };
	const unsigned char *fb = h->data + PADDING;

	if (h->bytes < PADDING + HEADER || fb[1] != MAGIC || fb[2] < HEADER ||
		(unsigned int)fb[2] + PADDING > h->bytes)
		return false;
	*is_upper = fb[3] & PATH_UPPER;
	below->bytes = fb[2] - HEADER;
	below->type = fb[4];
	memcpy(below->data, fb + HEADER, below->bytes);
	return true;
}

/* The path of a watched file in the layer of the overlay that it is from. */
static bool path_in_layer(const struct overlay *o, const struct watch *w, char path[PATH_MAX])
{
	char whole[PATH_MAX], layer_path[PATH_MAX];
	struct handle below;
	bool is_upper, is_open;
	size_t len;
	int layer;

	if (!handle_below(&w->handle, &below, &is_upper))
		return false;
	layer = is_upper ? o->upper : o->lower;
	if (!path_of_descriptor(layer, layer_path) || !path_by_handle(layer, &below, whole, &is_open))
		return false;
	len = strcmp(layer_path, "/") == 0 ? 0 : strlen(layer_path);
	if (strncmp(whole, layer_path, len) != 0 || (whole[len] && whole[len] != '/'))
		return false;
	strcpy(path, whole + len);
	return true;
}

/* Undoes the octal escapes of mountinfo. */
static void unescape(char *text)
{
	char *to = text;

	for (const char *from = text; *from; to++) {
		unsigned int byte;

		if (from[0] == '\\' && sscanf(from + 1, "%3o", &byte) == 1) {
			*to = (char)byte;
			from += 4;
		} else {
			*to = *from++;
		}
	}
	*to = 0;
}

static void read_mounts(const struct tree *tree)
{
	char path[64];
	char *line = NULL;
	size_t size = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/mountinfo", tree->pid);
	file = fopen(path, "re");
	while (file && getline(&line, &size, file) > 0) {
		struct mounted *more = realloc(mounts, (mount_count + 1) * sizeof(*mounts));
		unsigned int major, minor;

		if (!more)
			break;
		mounts = more;
		if (sscanf(line, "%*d %*d %u:%u %*s %4095s", &major, &minor, mounts[mount_count].path) != 3)
			continue;
		unescape(mounts[mount_count].path);
		mounts[mount_count].device = makedev(major, minor);
		mounts[mount_count++].fd = -1;
	}
	free(line);
	if (file)
		fclose(file);
}

static const struct overlay *overlay_of(const struct tree *tree, dev_t device)
{
	for (unsigned int i = 0; i < tree->overlay_count; i++) {
		if (tree->overlays[i].device == device)
			return &tree->overlays[i];
	}
	return NULL;
}

static int open_mount(const struct tree *tree, struct mounted *m)
{
	if (m->fd < 0)
		m->fd = openat64(tree->root, m->path[1] ? m->path + 1 : ".",
			O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	return m->fd;
}

static void write_handle(const struct handle *h, FILE *output)
{
	for (unsigned int i = 0; i < h->bytes; i++)
		fprintf(output, "%02x", h->data[i]);
}

static void write_found(char kind, const struct watch *w, const char *path, FILE *output)
{
	fprintf(output, "%c %d %x %s", kind, w->wd, w->mask, path);
	fputc(0, output);
}

static void write_lost(const struct watch *w, const char *path_below, FILE *output)
{
	fprintf(output, "? %d %x %lu %lu ", w->wd, w->mask, (unsigned long)w->device, w->inode);
	write_handle(&w->handle, output);
	fprintf(output, " %s", path_below);
	fputc(0, output);
}

static void record_in_overlay(
	const struct tree *tree, const struct overlay *o, const struct watch *w, FILE *output)
{
	char below[PATH_MAX], path[2 * PATH_MAX];
	bool is_below = path_in_layer(o, w, below);

	for (unsigned int i = 0; is_below && i < mount_count; i++) {
		if (mounts[i].device != w->device)
			continue;
		snprintf(path, sizeof(path), "%s%s", mounts[i].path[1] ? mounts[i].path : "", below);
		if (leads_to(tree, path, w->inode)) {
			write_found('W', w, *path ? path : "/", output);
			return;
		}
	}
	write_lost(w, is_below ? below : "", output);
}

static void record_elsewhere(const struct tree *tree, const struct watch *w, FILE *output)
{
	const struct mounted *by_handle = NULL;
	char path[PATH_MAX];

	for (unsigned int i = 0; i < mount_count; i++) {
		struct mounted *m = &mounts[i];
		bool is_open = false;

		if (m->device != w->device || open_mount(tree, m) < 0)
			continue;
		if (path_by_handle(m->fd, &w->handle, path, &is_open) && leads_to(tree, path, w->inode)) {
			write_found('V', w, path, output);
			return;
		}
		/* The root of a mount, whatever its file system can do. */
		if (leads_to(tree, m->path, w->inode)) {
			write_found('V', w, m->path, output);
			return;
		}
		if (is_open && !by_handle)
			by_handle = m;
	}
	if (!by_handle) {
		write_lost(w, "", output);
		return;
	}
	fprintf(output, "H %d %x %d ", w->wd, w->mask, w->handle.type);
	write_handle(&w->handle, output);
	fprintf(output, " %s", by_handle->path);
	fputc(0, output);
}

void watch_record(const struct tree *tree, const struct watch *w, FILE *output)
{
	const struct overlay *o = overlay_of(tree, w->device);

	if (!mounts)
		read_mounts(tree);
	if (o)
		record_in_overlay(tree, o, w, output);
	else
		record_elsewhere(tree, w, output);
}

bool watch_is_still(const struct tree *tree, const struct watch *w, const char *record)
{
	int path = 0;

	if (record[0] != 'W' && record[0] != 'V')
		return false;
	sscanf(record, "%*c %*d %*x %n", &path);
	return path && leads_to(tree, record + path, w->inode);
}
