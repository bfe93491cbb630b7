#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/*
 * A machine that was brought back from a snapshot, perhaps the same one many
 * times, has an old clock and the random numbers of all the others: sets the
 * one and seeds the other. Returns 0 or -errno.
 */
int renew_machine(const struct timespec *now, const uint8_t *random, size_t size);
