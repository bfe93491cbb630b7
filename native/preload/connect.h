/* A call of connect() that was interrupted although the connection exists has succeeded. */
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

/* Changes the registers of an interrupted thread, as CRIU has just read them. */
void connect_finish(pid_t thread, struct iovec *registers);
