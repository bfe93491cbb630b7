#pragma once

#include <unistd.h>

static inline void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Closes the descriptor on every way out of the scope. */
#define auto_close __attribute__((cleanup(close_fd)))
