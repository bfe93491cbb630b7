/* Which POSIX locks the processes of a tree have. */
#pragma once

/* Notes those that descriptor `fd` of process `pid` has; `description` is its open /proc/PID/fdinfo/FD. */
void locks_seen_add(int pid, int fd, int description);
