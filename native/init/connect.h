#pragma once

/*
 * Connects to a socket of the init that listens in dir: a descriptor or -errno;
 * flags as of socket(2).
 */
int connect_to_init(const char *dir, const char *name, int flags);
