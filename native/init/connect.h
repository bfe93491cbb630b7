#pragma once

/* A connection to a socket of the init that listens in dir, or -errno; flags as of socket(2). */
int connect_to_init(const char *dir, const char *name, int flags);
