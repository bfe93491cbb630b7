/*
 * Programs inside the branch that ask the host for something, through a second
 * socket that only a session started with --allow-self has. They are not
 * trusted: all that one can do is send a request and wait for the answer.
 */
#pragma once

#include "ask.h"

#define ASKS_MAX   8
#define GUESTS_MAX 16 /* some of them have not sent their request yet */

struct guest {
	int fd;		   /* -1: free */
	unsigned int poll; /* its entry in `polls` this turn; 0: none */
	uint64_t serial;
	uint64_t deadline_ms; /* of an incomplete request; 0: it is complete */
	bool eof;
	uint32_t ask; /* its number; 0: not asked yet */
	char verb[ASK_VERB_MAX];
	uint32_t verb_len;
	char argument[ASK_ARGUMENT_MAX];
	uint32_t argument_len;
	uint8_t in[FRAME_HEADER + ASK_FRAME_MAX];
	size_t in_len;
};

struct guests {
	int listener; /* -1: they are not allowed to ask */
	uint32_t last_ask;
	struct guest guests[GUESTS_MAX];
};
