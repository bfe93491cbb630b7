/*
 * waypoint-here: a program inside a branch runs it to ask the host for a
 * checkpoint. It may be saved and restored while it waits: every copy then gets
 * an answer of its own.
 */
#include "ask.h"
#include "connect.h"
#include "fd.h"
#include "modes.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { EXIT_LOST = 1, EXIT_USAGE = 2, EXIT_NOT_ALLOWED = 4 };

static const char usage[] =
	"usage: waypoint-here snapshot [NAME]\n"
	"\n"
	"Saves this session from inside, as it is now: files, memory and running\n"
	"programs, including this one. Exits with code 0 once that is done, also in every\n"
	"branch that is restored or forked from the checkpoint later.\n"
	"\n"
	"NAME has up to 64 letters, digits, '.', '_' and '-'; without it one is chosen.\n"
	"The session must have been created with: waypoint init --allow-self\n";

static int fail(int status, const char *why)
{
	fprintf(stderr, "waypoint-here: %s\n", why);
	return status;
}

static int send_ask(int fd, const char *verb, const char *argument)
{
	uint8_t buf[FRAME_HEADER + ASK_FRAME_MAX];
	struct writer w = {.buf = buf, .cap = sizeof(buf)};

	frame_begin(&w, ASK_REQUEST);
	put_str(&w, verb, (uint32_t)strlen(verb));
	put_str(&w, argument, (uint32_t)strlen(argument));
	if (frame_end(&w))
		return -EMSGSIZE;
	/* init may have refused already: then receive_answer() reads why. */
	return send(fd, w.buf, w.len, MSG_NOSIGNAL) < 0 && errno != EPIPE ? -errno : 0;
}

/* Returns the exit status. */
static int print_answer(struct reader *body)
{
	uint8_t status = read_u8(body);
	struct bytes text = read_str(body);
	FILE *to = status == 0 ? stdout : stderr;

	if (text.len > 0)
		fwrite(text.data, 1, text.len, to);
	if (text.len > 0 && text.data[text.len - 1] != '\n')
		fputc('\n', to);
	return fflush(to) && status == 0 ? EXIT_LOST : status;
}

/* The exit status, or -errno. */
static int receive_answer(int fd)
{
	uint8_t buf[FRAME_HEADER + ANSWER_FRAME_MAX];
	struct frame frame;
	size_t len = 0;
	int ready;

	while ((ready = frame_parse(buf, len, ANSWER_FRAME_MAX, &frame)) == 0) {
		ssize_t got = recv(fd, buf + len, sizeof(buf) - len, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got < 0 ? -errno : -ECONNRESET;
		len += (size_t)got;
	}
	if (ready < 0 || frame.kind != ASK_ANSWER)
		return -EBADMSG;
	return print_answer(&frame.body);
}

static int ask_and_wait(const char *dir, const char *verb, const char *argument)
{
	auto_close int fd = connect_to_init(dir, "here", 0);
	int status;

	if (fd == -ENOENT || fd == -ECONNREFUSED)
		return fail(EXIT_NOT_ALLOWED,
			"this session cannot be saved from inside; create one that can with: "
			"waypoint init --allow-self");
	if (fd < 0)
		return fail(EXIT_LOST, strerror(-fd));
	status = send_ask(fd, verb, argument);
	if (status == 0)
		status = receive_answer(fd);
	if (status == -EMSGSIZE)
		return fail(EXIT_USAGE, "a name has at most 64 characters");
	return status < 0 ? fail(EXIT_LOST, "the session closed the connection") : status;
}

int here_main(int argc, char **argv)
{
	const char *dir = "/.waypoint";

	if (argc > 2 && strcmp(argv[1], "--dir") == 0) {
		dir = argv[2];
		argc -= 2;
		argv += 2;
	}
	if (argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0))
		return fputs(usage, stdout) < 0;
	if (argc < 2 || argc > 3 || strcmp(argv[1], "snapshot") != 0 ||
		(argc == 3 && argv[2][0] == '-')) {
		fputs(usage, stderr);
		return EXIT_USAGE;
	}
	return ask_and_wait(dir, argv[1], argc == 3 ? argv[2] : "");
}
