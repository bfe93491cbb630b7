/*
 * The newest output of a terminal or of an isolated job, and the positions of
 * followers that vanished.
 */
#pragma once

#include "job.h"
#include "ring.h"

#define HOLDS_MAX 8

/* Keeps the position of a follower that vanished, so that it can reconnect. */
struct hold {
	uint32_t job; /* 0: free */
	uint64_t pos[STREAMS];
	uint64_t deadline_ms;
};

struct kept {
	uint32_t generation; /* which use of this slot: see struct job */
	struct ring rings[STREAMS];
	struct hold holds[HOLDS_MAX];
};
