/* The watches of an inotify, and the records that say where they are; see watches.h. */
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define HANDLE_MAX 128
#define OVERLAYS_MAX 256

struct handle {
	unsigned int bytes;
	int type;
	unsigned char data[HANDLE_MAX];
};

struct watch {
	int wd;
	unsigned int mask;
	unsigned long inode;
	dev_t device;
	struct handle handle;
};

/* An overlay of the tree; `upper` and `lower` are descriptors of the directories that it is made of. */
struct overlay {
	dev_t device;
	int upper, lower;
};

/* The tree whose watches are recorded; `root` is a descriptor of its root. */
struct tree {
	int pid, root;
	struct overlay overlays[OVERLAYS_MAX];
	unsigned int overlay_count;
};

/* One line of the description of an inotify. */
bool watch_parse(const char *line, struct watch *w);

void watch_record(const struct tree *tree, const struct watch *w, FILE *output);

/* Whether a record, made earlier, is still true. */
bool watch_is_still(const struct tree *tree, const struct watch *w, const char *record);

/* The path of an open file, as the kernel prints it; `path` has space for PATH_MAX bytes. */
bool path_of_descriptor(int fd, char *path);

/* A handle from hexadecimal digits; returns how many bytes it has, -1 if they are too many. */
int handle_parse(const char *hex, struct handle *h);

/* O_PATH; -1 if the file no longer exists. */
int handle_open(int mount, const struct handle *h);
