/* init as a black box: waypoint-here inside, a host that attends outside. */
#include "guest_client.h"

static struct init init;
static struct client c;
static const char *program;

/* A running waypoint-here. */
struct asker {
	pid_t pid;
	int out;
	int err;
};

struct outcome {
	int status;
	char out[512];
	char err[2048];
};

static struct asker start_asker(const char *dir, const char *verb, const char *name)
{
	struct asker a;
	int out[2];
	int err[2];

	CHECK(pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0);
	a.pid = fork();
	CHECK(a.pid >= 0);
	if (a.pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(out[1], 1);
		dup2(err[1], 2);
		execl(program, "/usr/bin/waypoint-here", "--dir", dir, verb, name, NULL);
		_exit(127);
	}
	close(out[1]);
	close(err[1]);
	a.out = out[0];
	a.err = err[0];
	return a;
}

static void read_all(int fd, char *text, size_t size)
{
	size_t len = 0;
	ssize_t got;

	while ((got = read(fd, text + len, size - 1 - len)) > 0)
		len += (size_t)got;
	text[len] = 0;
	close(fd);
}

static struct outcome finish(struct asker *a)
{
	struct outcome o;
	int status;

	read_all(a->out, o.out, sizeof(o.out));
	read_all(a->err, o.err, sizeof(o.err));
	CHECK(waitpid(a->pid, &status, 0) == a->pid && WIFEXITED(status));
	o.status = WEXITSTATUS(status);
	return o;
}

static void without_the_socket_the_program_says_why(void)
{
	struct asker a = start_asker("/nowhere", "snapshot", "x");
	struct outcome o = finish(&a);

	CHECK(o.status == 4 && o.out[0] == 0);
	CHECK(strcmp(o.err, "waypoint-here: this session cannot be saved from inside;"
			    " create one that can with: waypoint init --allow-self\n") == 0);
}

static void the_program_prints_its_usage(void)
{
	struct asker a = start_asker(init.dir, "--help", NULL);
	struct outcome o = finish(&a);

	CHECK(o.status == 0 && strstr(o.out, "waypoint-here snapshot [NAME]") && o.err[0] == 0);
	a = start_asker(init.dir, "restore", "x");
	o = finish(&a);
	CHECK(o.status == 2 && strstr(o.err, "usage") && o.out[0] == 0);
	a = start_asker(init.dir, NULL, NULL);
	CHECK(finish(&a).status == 2);
	a = start_asker(init.dir, "snapshot", "--name");
	CHECK(finish(&a).status == 2);
}

static void a_request_is_passed_on_and_answered(void)
{
	struct client host;
	struct asker a;
	struct outcome o;
	uint32_t id;

	attend(&init, &host);
	a = start_asker(init.dir, "snapshot", "my.name-1_2");
	id = receive_ask(&host, "my.name-1_2");
	CHECK(answer(&host, id + 1, 0, "") == ERR_UNKNOWN_ASK);
	CHECK(answer(&host, id, 0, "saved as my.name-1_2") == 0);
	o = finish(&a);
	CHECK(o.status == 0 && strcmp(o.out, "saved as my.name-1_2\n") == 0 && o.err[0] == 0);
	CHECK(answer(&host, id, 0, "") == ERR_UNKNOWN_ASK);

	a = start_asker(init.dir, "snapshot", NULL);
	CHECK(answer(&host, receive_ask(&host, ""), 6, "no room\n") == 0);
	o = finish(&a);
	CHECK(o.status == 6 && strcmp(o.err, "no room\n") == 0 && o.out[0] == 0);
	close(host.fd);
}

static void every_attending_host_gets_what_is_pending_again(void)
{
	struct client host;
	struct client second;
	struct frame frame;
	struct asker a = start_asker(init.dir, "snapshot", "first");
	struct asker b;
	uint32_t id;

	attend(&init, &host);
	id = receive_ask(&host, "first");
	attend(&init, &second);
	CHECK(receive_ask(&second, "first") == id);
	b = start_asker(init.dir, "snapshot", "second");
	CHECK(receive_ask(&host, "second") == id + 1);
	CHECK(receive_ask(&second, "second") == id + 1);
	/* A checkpoint disconnects hosts; guests that ask stay connected. */
	CHECK(ask(&c, REQ_QUIESCE) == REP_OK);
	CHECK(!receive(&host, &frame) && !receive(&second, &frame));
	close(host.fd);
	close(second.fd);
	close(c.fd);
	connect_client(&init, &c);
	attend(&init, &host);
	CHECK(receive_ask(&host, "first") == id && receive_ask(&host, "second") == id + 1);
	CHECK(ask(&host, REQ_ATTEND) == REP_OK);
	CHECK(receive_ask(&host, "first") == id && receive_ask(&host, "second") == id + 1);
	CHECK(answer(&host, id + 1, 0, "two") == 0 && answer(&host, id, 0, "one") == 0);
	CHECK(strcmp(finish(&a).out, "one\n") == 0 && strcmp(finish(&b).out, "two\n") == 0);
	close(host.fd);
}

static void the_socket_is_open_to_all_and_only_where_it_is_allowed(void)
{
	struct init strict = start_init(program);
	char path[128];
	struct stat st;

	snprintf(path, sizeof(path), "%s/here", strict.dir);
	CHECK(lstat(path, &st) < 0 && errno == ENOENT);
	stop_init(&strict);
	snprintf(path, sizeof(path), "%s/here", init.dir);
	CHECK(lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & 0777) == 0666);
	snprintf(path, sizeof(path), "%s/sock", init.dir);
	CHECK(lstat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	program = argv[1];
	init = start_init_with(argv[1], "--allow-self");
	connect_client(&init, &c);
	RUN_TEST(without_the_socket_the_program_says_why);
	RUN_TEST(the_program_prints_its_usage);
	RUN_TEST(a_request_is_passed_on_and_answered);
	RUN_TEST(every_attending_host_gets_what_is_pending_again);
	RUN_TEST(the_socket_is_open_to_all_and_only_where_it_is_allowed);
	close(c.fd);
	stop_init(&init);
	return 0;
}
