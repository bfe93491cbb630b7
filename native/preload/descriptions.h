/* What CRIU reads of the descriptors of a process: /proc/PID/fdinfo/FD. */
#pragma once

typedef int openat_function(int dir, const char *path, int flags, ...);

/* -1 with errno 0 if `path`, below the directory of a process, is none of these. */
int description_open(openat_function *next, int dir, const char *path, int flags);
