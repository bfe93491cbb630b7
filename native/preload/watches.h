/*
 * Watches of inotify, saved and set again without CRIU.
 *
 * CRIU asks the file system to open a watched file by its handle, which an overlay
 * refuses; and it forgets some flags of a watch. So it never sees one: when it reads
 * the description of an inotify (/proc/PID/fdinfo/FD), it is given that of an inotify
 * without any (watches_saved.c). The watches are written to a descriptor of the program
 * that has started CRIU, as records that end with a null byte:
 *
 *   I PID FD UNREAD                   an inotify, in the order in which CRIU saves them
 *   W WD MASK PATH                    a watch of it, on a file of the checkpoint
 *   V WD MASK PATH                    on a file that is in no checkpoint
 *   H WD MASK TYPE HANDLE MOUNT       the same, by its handle, if it has no path
 *   ? WD MASK DEVICE INODE HANDLE PATH   not where its handle leads: PATH, in a layer
 *   D WD MASK PID NAME                on a file that a process holds; not set by us
 *   F PID FD                          a fanotify
 *
 * kernel/criu/watches.py finds what is lost, keeps the records with the images, and puts
 * the number of each inotify into the high bits of the flags with which CRIU makes it
 * again. Then its watches are set (watches_set.c).
 */
#pragma once

#include "descriptions.h"

/*
 * When a tree is saved: OUTPUT,ROOT,PID; then for each overlay ;DEVICE=UPPER,LOWER and
 * for each inotify :PID,FD=DESCRIPTION. All but PID, FD and DEVICE are descriptors.
 */
#define WATCHES "WAYPOINT_WATCHES"
/* When it is restored: the descriptor of the records. */
#define SAVED_WATCHES "WAYPOINT_SAVED_WATCHES"

#define NUMBER_SHIFT 20 /* of an inotify, above all flags that inotify_init1() takes */

/*
 * Opens the description of an inotify, that of descriptor `fd` of process `pid`, without
 * its watches; if `pid` is CRIU itself, this is its duplicate of the one before, and the
 * watches are recorded.
 */
int watches_describe(openat_function *next, int dir, const char *path, int flags, int pid, int fd);

void watches_note_fanotify(int pid, int fd);
