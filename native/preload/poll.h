/* A process that waits in poll() without a timeout continues to wait. */
#pragma once

#include <sys/uio.h>

/* Changes the registers of an interrupted process, as CRIU has just read them. */
void poll_continue(struct iovec *registers);
