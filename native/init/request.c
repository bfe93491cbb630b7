#include "request.h"

#include <errno.h>
#include <string.h>

static bool is_alnum(uint8_t c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool equals(struct bytes name, const char *word)
{
	return name.len == strlen(word) && memcmp(name.data, word, name.len) == 0;
}

bool is_terminal_name(struct bytes name)
{
	if (name.len == 0 || name.len > NAME_MAX_LEN || !is_alnum(name.data[0]))
		return false;
	for (uint32_t i = 1; i < name.len; i++) {
		uint8_t c = name.data[i];

		if (!is_alnum(c) && c != '.' && c != '_' && c != '-')
			return false;
	}
	/* A terminal's directory stands beside these two files of ours. */
	return !equals(name, "init") && !equals(name, "sock");
}

static int read_list(struct reader *body, char **list, uint32_t max)
{
	uint32_t count = read_u32(body);

	if (body->bad)
		return -EBADMSG;
	if (count > max)
		return -E2BIG;
	for (uint32_t i = 0; i < count; i++) {
		list[i] = read_cstr(body);
		if (!list[i])
			return -EBADMSG;
	}
	list[count] = NULL;
	return 0;
}

static int parse_open(struct reader *body, struct request *request)
{
	struct open_request *open = &request->open;
	int err;

	request->name = read_str(body);
	request->rows = read_u16(body);
	request->cols = read_u16(body);
	open->uid = read_u32(body);
	open->gid = read_u32(body);
	open->cwd = read_cstr(body);
	open->rc = read_str(body);
	open->run_line = read_str(body);
	err = read_list(body, open->argv, ARGS_MAX);
	if (!err)
		err = read_list(body, open->env, ENV_MAX);
	if (err)
		return err;
	if (!is_terminal_name(request->name) || !open->argv[0] || open->argv[0][0] != '/' ||
		open->run_line.len == 0 || open->run_line.len > RUN_LINE_MAX)
		return -EBADMSG;
	return 0;
}

int request_parse(struct frame *frame, struct request *request)
{
	struct reader *body = &frame->body;
	int err = 0;

	request->kind = frame->kind;
	switch (frame->kind) {
	case REQ_OPEN:
		err = parse_open(body, request);
		break;
	case REQ_RUN:
		request->name = read_str(body);
		request->flags = read_u8(body);
		request->text = read_str(body);
		break;
	case REQ_FOLLOW:
		request->job = read_u32(body);
		request->offset = read_u64(body);
		break;
	case REQ_SIGNAL:
		request->name = read_str(body);
		request->signo = read_u8(body);
		break;
	case REQ_INPUT:
		request->name = read_str(body);
		request->text = read_str(body);
		break;
	case REQ_RESIZE:
		request->name = read_str(body);
		request->rows = read_u16(body);
		request->cols = read_u16(body);
		break;
	case REQ_STREAM:
		request->name = read_str(body);
		request->offset = read_u64(body);
		break;
	case REQ_CLOSE:
		request->name = read_str(body);
		break;
	case REQ_JOBS:
	case REQ_TERMINALS:
	case REQ_QUIESCE:
	case REQ_PING:
		break;
	default:
		return -EBADMSG;
	}
	if (err)
		return err;
	return body->bad || body->left ? -EBADMSG : 0;
}
