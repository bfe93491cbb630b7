/*
 * Feeds bytes to the frame and request parsers as a connection would: frame
 * after frame from one buffer, each decoded once and in place. And as a guest
 * would: one frame.
 */
#include "ask.h"
#include "frame.h"
#include "request.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch(const char *text)
{
	volatile size_t length = strlen(text);

	(void)length;
}

static void check_program(const struct program *program)
{
	touch(program->cwd);
	for (unsigned int i = 0; program->argv[i]; i++)
		touch(program->argv[i]);
	for (unsigned int i = 0; program->env[i]; i++)
		touch(program->env[i]);
}

/* Exactly as long as the input, so that one byte too far is caught. */
static uint8_t *copy_of(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);

	memcpy(copy, data, size);
	return copy;
}

static void feed_connection(const uint8_t *data, size_t size)
{
	static struct request request;
	uint8_t *copy = copy_of(data, size);
	struct frame frame;
	size_t at = 0;

	while (frame_parse(copy + at, size - at, FRAME_REQUEST_MAX, &frame) == 1) {
		if (request_parse(&frame, &request) == 0 &&
			(request.kind == REQ_OPEN || request.kind == REQ_SPAWN))
			check_program(&request.program);
		at += frame.size;
	}
	free(copy);
}

static void feed_guest(const uint8_t *data, size_t size)
{
	uint8_t *copy = copy_of(data, size);
	struct frame frame;
	struct ask ask;

	if (frame_parse(copy, size, ASK_FRAME_MAX, &frame) == 1 && ask_parse(&frame, &ask) == 0 &&
		!ask_refusal(&ask) &&
		(ask.verb.len > ASK_VERB_MAX || ask.argument.len > ASK_ARGUMENT_MAX))
		abort(); /* it would not fit where init keeps it */
	free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	feed_connection(data, size);
	feed_guest(data, size);
	return 0;
}
