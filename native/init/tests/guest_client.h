/* Both sides of an ask: a guest without waypoint-here, and the host that answers. */
#pragma once

#include "../ask.h"
#include "client.h"

static inline void attend(const struct init *init, struct client *host)
{
	connect_client(init, host);
	CHECK(ask(host, REQ_ATTEND) == REP_OK);
}

static inline uint32_t receive_ask(struct client *host, const char *name)
{
	struct frame frame;
	struct bytes verb;
	struct bytes argument;
	uint32_t id;

	CHECK(receive_kind(host, &frame) == REP_ASK);
	id = read_u32(&frame.body);
	verb = read_str(&frame.body);
	argument = read_str(&frame.body);
	CHECK(id > 0 && !frame.body.bad && frame.body.left == 0);
	CHECK(verb.len == 8 && memcmp(verb.data, "snapshot", 8) == 0);
	CHECK(argument.len == strlen(name) && memcmp(argument.data, name, argument.len) == 0);
	return id;
}

static inline int answer(struct client *host, uint32_t id, uint8_t status, const char *text)
{
	uint8_t buf[ANSWER_TEXT_MAX + 64];
	struct writer w = request_begin(buf, sizeof(buf), REQ_ANSWER);

	put_u32(&w, id);
	put_u8(&w, status);
	put_text(&w, text);
	request_send(host, &w);
	return receive_outcome(host);
}

/* A guest without waypoint-here. */
static inline int connect_guest(const struct init *init)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/here", init->dir);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	return fd;
}

static inline size_t encode_ask(
	uint8_t *buf, size_t cap, const char *verb, const void *name, size_t len)
{
	struct writer w = request_begin(buf, cap, ASK_REQUEST);

	put_text(&w, verb);
	put_str(&w, name, (uint32_t)len);
	CHECK(frame_end(&w) == 0);
	return w.len;
}

static inline void send_ask(int fd, const char *name)
{
	uint8_t buf[256];
	size_t len = encode_ask(buf, sizeof(buf), "snapshot", name, strlen(name));

	CHECK(send(fd, buf, len, MSG_NOSIGNAL) == (ssize_t)len);
}

/* The status of the answer, or -1 if the connection was closed without one. */
static inline int receive_answer(int fd)
{
	static struct client guest;
	struct frame frame;
	int status;

	guest = (struct client){.fd = fd};
	if (!receive(&guest, &frame))
		return -1;
	CHECK(frame.kind == ASK_ANSWER);
	status = read_u8(&frame.body);
	read_str(&frame.body);
	CHECK(!frame.body.bad && frame.body.left == 0);
	return status;
}
