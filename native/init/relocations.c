/*
 * Host side: finds where the memory of saved processes has device numbers.
 *
 * A restored branch has another device number than the one that was saved. Programs
 * that have remembered the old one take a file that they have open for another file;
 * SQLite loses data over that. So the places are found in CRIU's images, and a restore
 * writes the new number there.
 *
 * A place is beside the inode number of a file that a process has open. Other files
 * must not count: what a program knows of a directory that it has left is consistent
 * in itself. But a device number is small, and so are the inode numbers of new files:
 * two small numbers side by side prove little. So the inode number must be large; or
 * the file's mode must be where a struct stat has it, or follow at once; or an address
 * of the process's own memory must follow, as in SQLite's record of a file.
 *
 * Reads DEVICE INODE MODE of each file from standard input; writes PID DEVICE
 * ADDRESS for each place.
 */
#include "fd.h"
#include "modes.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define DEVICES_MAX 256
#define PAGE 4096UL
#define MAGIC_BYTES 8
#define LARGE_INODE (1ULL << 32)

/* Fields of CRIU's pagemap.proto, and a flag in one of them. */
enum { HEAD_PAGES = 1, ENTRY_ADDRESS = 1, ENTRY_PAGES_OLD = 2, ENTRY_FLAGS = 4, ENTRY_PAGES = 5 };
enum { IS_PRESENT = 1 << 2 };

struct file {
	uint64_t device, inode;
	uint32_t mode;
};

/* Memory of a process; `data` is NULL if it is not in these images. */
struct extent {
	uint64_t start, end;
	const uint8_t *data;
};

struct search {
	int images;
	uint64_t devices[DEVICES_MAX];
	unsigned int device_count;
	struct file *files;
	size_t file_count;
	struct extent *extents;
	size_t extent_count;
};

struct mapped {
	uint8_t *data;
	size_t size;
};

static int compare_files(const void *a, const void *b)
{
	const struct file *one = a;
	const struct file *other = b;

	if (one->device != other->device)
		return one->device < other->device ? -1 : 1;
	if (one->inode != other->inode)
		return one->inode < other->inode ? -1 : 1;
	return 0;
}

static int compare_extents(const void *a, const void *b)
{
	const struct extent *one = a;
	const struct extent *other = b;

	return one->start < other->start ? -1 : one->start > other->start;
}

static int add_file(struct search *s, const struct file *file)
{
	struct file *more;

	if (s->file_count % 1024 == 0) {
		more = realloc(s->files, (s->file_count + 1024) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		s->files = more;
	}
	s->files[s->file_count++] = *file;
	return 0;
}

static bool is_wanted(const struct search *s, uint64_t device)
{
	for (unsigned int i = 0; i < s->device_count; i++) {
		if (s->devices[i] == device)
			return true;
	}
	return false;
}

static int read_files(struct search *s)
{
	unsigned long long device, inode;
	struct file file;
	int err = 0;

	while (!err && scanf("%llu %llu %u", &device, &inode, &file.mode) == 3) {
		file.device = device;
		file.inode = inode;
		if (is_wanted(s, device))
			err = add_file(s, &file);
	}
	if (s->file_count)
		qsort(s->files, s->file_count, sizeof(*s->files), compare_files);
	return err;
}

static int map_image(int images, const char *name, struct mapped *mapped)
{
	auto_close int fd = openat(images, name, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *data;

	*mapped = (struct mapped){0};
	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (st.st_size == 0)
		return 0;
	data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	*mapped = (struct mapped){data, (size_t)st.st_size};
	return 0;
}

static void unmap_image(struct mapped *mapped)
{
	if (mapped->data)
		munmap(mapped->data, mapped->size);
	mapped->data = NULL;
}

static uint64_t read_varint(const uint8_t **at, const uint8_t *end)
{
	uint64_t value = 0;

	for (unsigned int shift = 0; *at < end && shift < 64; shift += 7) {
		uint8_t byte = *(*at)++;

		value |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			break;
	}
	return value;
}

/* All fields of these messages are numbers. `fields` has those up to ENTRY_PAGES. */
static void read_message(const uint8_t *at, const uint8_t *end, uint64_t fields[ENTRY_PAGES + 1])
{
	memset(fields, 0, (ENTRY_PAGES + 1) * sizeof(*fields));
	while (at < end) {
		uint64_t field = read_varint(&at, end) >> 3;
		uint64_t value = read_varint(&at, end);

		if (field <= ENTRY_PAGES)
			fields[field] = value;
	}
}

/* The next message of an image; false at its end, or where it is cut off. */
static bool next_message(const struct mapped *image, size_t *at, uint64_t fields[ENTRY_PAGES + 1])
{
	uint32_t len;

	if (*at + sizeof(len) > image->size)
		return false;
	memcpy(&len, image->data + *at, sizeof(len));
	*at += sizeof(len);
	if (len > image->size - *at)
		return false;
	read_message(image->data + *at, image->data + *at + len, fields);
	*at += len;
	return true;
}

static int add_extent(struct search *s, const struct extent *extent)
{
	struct extent *more;

	if (s->extent_count % 1024 == 0) {
		more = realloc(s->extents, (s->extent_count + 1024) * sizeof(*more));
		if (!more)
			return -ENOMEM;
		s->extents = more;
	}
	s->extents[s->extent_count++] = *extent;
	return 0;
}

static bool is_own_address(const struct search *s, uint64_t address)
{
	size_t low = 0;
	size_t high = s->extent_count;

	if (address % sizeof(void *))
		return false;
	while (low < high) {
		size_t middle = (low + high) / 2;

		if (address < s->extents[middle].start)
			high = middle;
		else if (address >= s->extents[middle].end)
			low = middle + 1;
		else
			return true;
	}
	return false;
}

static const struct file *find_file(const struct search *s, const uint8_t *at)
{
	struct file wanted;

	memcpy(&wanted.device, at, sizeof(wanted.device));
	memcpy(&wanted.inode, at + sizeof(uint64_t), sizeof(wanted.inode));
	return bsearch(&wanted, s->files, s->file_count, sizeof(*s->files), compare_files);
}

static bool is_place(const struct search *s, const uint8_t *at, size_t left)
{
	const struct file *file = left >= 2 * sizeof(uint64_t) ? find_file(s, at) : NULL;
	uint64_t following;
	uint32_t mode;
	struct stat st;

	if (!file || file->inode >= LARGE_INODE)
		return file;
	if (left >= sizeof(st)) {
		memcpy(&st, at, sizeof(st));
		if (st.st_mode == file->mode)
			return true;
	}
	if (left < 3 * sizeof(uint64_t))
		return false;
	memcpy(&following, at + 2 * sizeof(uint64_t), sizeof(following));
	memcpy(&mode, &following, sizeof(mode));
	return mode == file->mode || is_own_address(s, following);
}

static void search_extent(const struct search *s, int pid, const struct extent *extent, uint64_t device)
{
	const uint8_t *end = extent->data + (extent->end - extent->start);

	for (const uint8_t *at = extent->data; at < end; at += sizeof(uint64_t)) {
		uint64_t value;

		memcpy(&value, at, sizeof(value)); /* aligned: the compiler makes it one load */
		if (value != device)
			continue;
		if (is_place(s, at, (size_t)(end - at)))
			printf("%d %llu %llx\n", pid, (unsigned long long)device,
				(unsigned long long)(extent->start + (uint64_t)(at - extent->data)));
	}
}

/* Reads which memory a process has, and where its content is in `pages`. */
static int read_extents(struct search *s, const struct mapped *pagemap, size_t at, const struct mapped *pages)
{
	uint64_t fields[ENTRY_PAGES + 1];
	uint64_t offset = 0;
	int err = 0;

	s->extent_count = 0;
	while (!err && next_message(pagemap, &at, fields)) {
		uint64_t count = fields[ENTRY_PAGES] ? fields[ENTRY_PAGES] : fields[ENTRY_PAGES_OLD];
		struct extent extent = {fields[ENTRY_ADDRESS], fields[ENTRY_ADDRESS] + count * PAGE, NULL};

		if (fields[ENTRY_FLAGS] & IS_PRESENT) {
			if (count > (pages->size - offset) / PAGE)
				return -EBADMSG;
			extent.data = pages->data + offset;
			offset += count * PAGE;
		}
		err = add_extent(s, &extent);
	}
	if (s->extent_count)
		qsort(s->extents, s->extent_count, sizeof(*s->extents), compare_extents);
	return err;
}

static int search_process(struct search *s, int pid, const char *name)
{
	uint64_t fields[ENTRY_PAGES + 1];
	size_t at = MAGIC_BYTES;
	struct mapped pagemap, pages = {0};
	char pages_name[64];
	int err = map_image(s->images, name, &pagemap);

	if (!err && next_message(&pagemap, &at, fields)) {
		snprintf(pages_name, sizeof(pages_name), "pages-%llu.img",
			(unsigned long long)fields[HEAD_PAGES]);
		err = map_image(s->images, pages_name, &pages);
		if (err == -ENOENT) /* all of its memory is empty */
			err = 0;
		if (!err)
			err = read_extents(s, &pagemap, at, &pages);
		for (size_t i = 0; !err && i < s->extent_count; i++) {
			for (unsigned int d = 0; s->extents[i].data && d < s->device_count; d++)
				search_extent(s, pid, &s->extents[i], s->devices[d]);
		}
	}
	unmap_image(&pages);
	unmap_image(&pagemap);
	return err;
}

static int search_images(struct search *s)
{
	DIR *directory = fdopendir(s->images);
	struct dirent *entry;
	int err = directory ? 0 : -errno;

	while (!err && (entry = readdir(directory))) {
		int pid, len = 0;

		if (sscanf(entry->d_name, "pagemap-%d.img%n", &pid, &len) == 1 && len &&
			!entry->d_name[len])
			err = search_process(s, pid, entry->d_name);
	}
	if (directory)
		closedir(directory);
	return err;
}

int relocations_main(int argc, char **argv)
{
	struct search search = {.images = -1};
	int err;

	if (argc < 3 || argc - 2 > DEVICES_MAX) {
		fputs("waypoint-init: relocations needs the directory of the images, and 1 to 256 devices\n",
			stderr);
		return 2;
	}
	for (int i = 2; i < argc; i++)
		search.devices[search.device_count++] = strtoull(argv[i], NULL, 10);
	search.images = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = search.images < 0 ? -errno : read_files(&search);
	if (!err)
		err = search_images(&search);
	if (!err && fflush(stdout))
		err = -EIO;
	if (err)
		fprintf(stderr, "waypoint-init: %s: %s\n", argv[1], strerror(-err));
	free(search.files);
	free(search.extents);
	return err ? 1 : 0;
}
