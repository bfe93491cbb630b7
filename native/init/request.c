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
	/* A terminal's directory is next to these files of ours. */
	return !equals(name, "init") && !equals(name, "sock") && !equals(name, "here");
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

/* The groups come last and may be missing: a host that does not know them sends none. */
static int read_groups(struct reader *body, struct program *program)
{
	program->group_count = body->left ? read_u32(body) : 0;
	if (program->group_count > GROUPS_MAX)
		return -E2BIG;
	for (uint32_t i = 0; i < program->group_count; i++)
		program->groups[i] = read_u32(body);
	return body->bad ? -EBADMSG : 0;
}

static int read_program(struct reader *body, struct program *program)
{
	int err = read_list(body, program->argv, ARGS_MAX);

	if (!err)
		err = read_list(body, program->env, ENV_MAX);
	if (!err && !program->argv[0])
		err = -EBADMSG;
	if (!err)
		err = read_groups(body, program);
	return err;
}

static int parse_open(struct reader *body, struct request *request)
{
	struct program *program = &request->program;
	int err;

	request->name = read_str(body);
	request->rows = read_u16(body);
	request->cols = read_u16(body);
	program->uid = read_u32(body);
	program->gid = read_u32(body);
	program->cwd = read_cstr(body);
	request->rc = read_str(body);
	request->run_line = read_str(body);
	err = read_program(body, program);
	if (err)
		return err;
	if (!is_terminal_name(request->name) || program->argv[0][0] != '/' ||
		request->run_line.len == 0 || request->run_line.len > RUN_LINE_MAX)
		return -EBADMSG;
	return 0;
}

static int parse_spawn(struct reader *body, struct request *request)
{
	struct program *program = &request->program;

	request->flags = read_u8(body);
	program->uid = read_u32(body);
	program->gid = read_u32(body);
	program->cwd = read_cstr(body);
	return read_program(body, program);
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
		request->error_offset = read_u64(body);
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
	case REQ_WATCH:
		request->name = read_str(body);
		request->offset = read_u64(body);
		break;
	case REQ_CLOSE:
		request->name = read_str(body);
		break;
	case REQ_SPAWN:
		err = parse_spawn(body, request);
		break;
	case REQ_WRITE:
		request->job = read_u32(body);
		request->offset = read_u64(body);
		request->text = read_str(body);
		break;
	case REQ_WAIT:
		request->job = read_u32(body);
		break;
	case REQ_KILL:
		request->job = read_u32(body);
		request->signo = read_u8(body);
		break;
	case REQ_ANSWER:
		request->ask = read_u32(body);
		request->status = read_u8(body);
		request->text = read_str(body);
		break;
	case REQ_JOBS:
	case REQ_TERMINALS:
	case REQ_QUIESCE:
	case REQ_ATTEND:
	case REQ_PING:
		break;
	default:
		return -EBADMSG;
	}
	if (err)
		return err;
	return body->bad || body->left ? -EBADMSG : 0;
}
