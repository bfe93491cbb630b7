/*
 * A line to the host that one caller uses after the other, and on which any may
 * be cut off without notice: a port of a virtual machine.
 *
 * FLAG never occurs in data: ESCAPE and another byte stand for a FLAG or an
 * ESCAPE. It begins a word, which a newline ends, whatever was cut off before:
 *   O<nonce>            host: I am a new caller; answered by the same before init's first byte
 *   R<seconds> <hex>    host, after O: the time, and random bytes; answered by R<nonce> <errno>
 *   E<nonce>            relay: init has closed that caller's connection
 * Everything else, both ways, is the data of the connection to init.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum {
	LINE_FLAG = 0xc0,
	LINE_WORD_END = '\n',
	LINE_ESCAPE = 0xdb,
	LINE_ESCAPED_FLAG = 0xdc,
	LINE_ESCAPED_ESCAPE = 0xdd,
};

/* Sets the clock and the random numbers of a restored machine. Returns 0 or -errno. */
typedef int (*renewal)(const struct timespec *now, const uint8_t *random, size_t size);

struct line_service {
	const char *dir; /* of init's socket */
	renewal renew;	 /* NULL: this kernel has the host's own clock */
};

/*
 * Serves the callers on fd, which is set non-blocking: a device for ever, a
 * connection until its other side has closed it. Returns 0 or -errno.
 */
int line_serve(const struct line_service *service, int fd, bool is_device);
/* Opens the device and serves it; returns only if that fails, with -errno. */
int line_serve_device(const struct line_service *service, const char *path);
/* Listens on a port of the virtual machine's socket family and serves one connection after the
 * other. */
int line_serve_vsock(const struct line_service *service, unsigned int port);
