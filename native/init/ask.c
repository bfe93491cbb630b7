#include "ask.h"

#include <errno.h>
#include <string.h>

static bool is_name_byte(uint8_t c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
	       c == '.' || c == '_' || c == '-';
}

int ask_parse(struct frame *frame, struct ask *ask)
{
	if (frame->kind != ASK_REQUEST)
		return -EBADMSG;
	ask->verb = read_str(&frame->body);
	ask->argument = read_str(&frame->body);
	return frame->body.bad || frame->body.left ? -EBADMSG : 0;
}

const char *ask_refusal(const struct ask *ask)
{
	static const char verb[] = "snapshot";

	if (ask->verb.len != sizeof(verb) - 1 || memcmp(ask->verb.data, verb, ask->verb.len) != 0)
		return "the only request is snapshot";
	if (ask->argument.len > ASK_ARGUMENT_MAX)
		return "a name has at most 64 characters";
	for (uint32_t i = 0; i < ask->argument.len; i++) {
		if (!is_name_byte(ask->argument.data[i]))
			return "a name consists of letters, digits, '.', '_' and '-'";
	}
	return NULL;
}
