/* The init under test: started in a directory of its own, and always ended afterwards. */
#pragma once

#include "check.h"

#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEADLINE_MS 30000

struct init {
	pid_t pid;
	char dir[64];
};

static inline int64_t clock_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static inline int try_connect(const struct init *init)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(fd >= 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/sock", init->dir);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

static inline pid_t any_child(void)
{
	char path[64];
	FILE *children;
	int pid = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
	children = fopen(path, "re");
	if (children && fscanf(children, "%d", &pid) != 1)
		pid = 0;
	if (children)
		fclose(children);
	return pid;
}

/*
 * In a branch all processes end with init. Here a shell that waits for init
 * misses the hangup; it becomes our child once init has ended.
 */
static inline void end_children(void)
{
	for (pid_t pid = any_child(); pid; pid = any_child()) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

static inline struct init start_init_with(const char *binary, const char *option)
{
	struct init init = {.dir = "/tmp/waypoint-init-test.XXXXXX"};
	int64_t deadline = clock_ms() + DEADLINE_MS;
	int fd;

	/* Also after a failed check. */
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0 && atexit(end_children) == 0);
	CHECK(mkdtemp(init.dir));
	init.pid = fork();
	CHECK(init.pid >= 0);
	if (init.pid == 0) {
		/* It must not outlive a test that is killed. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		execl(binary, binary, "init", "--dir", init.dir, "--any-peer", option, NULL);
		_exit(127);
	}
	while ((fd = try_connect(&init)) < 0) {
		CHECK(clock_ms() < deadline && waitpid(init.pid, NULL, WNOHANG) == 0);
		poll(NULL, 0, 5);
	}
	close(fd);
	return init;
}

static inline struct init start_init(const char *binary)
{
	return start_init_with(binary, NULL);
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* Also fails if init has ended before: a crash must not pass for a clean stop. */
static inline void stop_init(struct init *init)
{
	int status;

	CHECK(waitpid(init->pid, &status, WNOHANG) == 0);
	kill(init->pid, SIGKILL);
	CHECK(waitpid(init->pid, &status, 0) == init->pid);
	nftw(init->dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
