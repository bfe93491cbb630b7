/*
 * Feeds bytes to the frame and request parsers as a connection would: frame
 * after frame from one buffer, each decoded once and in place.
 */
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

static void check_open(const struct open_request *open)
{
	touch(open->cwd);
	for (unsigned int i = 0; open->argv[i]; i++)
		touch(open->argv[i]);
	for (unsigned int i = 0; open->env[i]; i++)
		touch(open->env[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct request request;
	/* Exactly as long as the input, so that one byte too far is caught. */
	uint8_t *copy = malloc(size ? size : 1);
	struct frame frame;
	size_t at = 0;

	memcpy(copy, data, size);
	while (frame_parse(copy + at, size - at, FRAME_REQUEST_MAX, &frame) == 1) {
		if (request_parse(&frame, &request) == 0 && request.kind == REQ_OPEN)
			check_open(&request.open);
		at += frame.size;
	}
	free(copy);
	return 0;
}
