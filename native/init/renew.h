#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/*
 * Sets the clock and seeds the random numbers of a machine that was restored
 * from a snapshot: its clock is old, and all machines restored from one
 * snapshot have the same random numbers. Returns 0 or -errno.
 */
int renew_machine(const struct timespec *now, const uint8_t *random, size_t size);
