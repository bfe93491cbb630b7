/*
 * Loaded into CRIU: a restored unix connection has the user and group that its server
 * has seen (unix_peers.h).
 */
#include "unix_peers.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int getsockopt_function(int fd, int level, int option, void *value, socklen_t *size);
typedef int socketpair_function(int domain, int type, int protocol, int fds[2]);

struct peer {
	uid_t user;
	gid_t group;
};

static FILE *output;
static struct peer *peers;
static size_t peer_count;

/* Before CRIU forks and closes the descriptor. */
__attribute__((constructor)) static void begin(void)
{
	const char *given = getenv(UNIX_PEERS);
	const char *saved = getenv(SAVED_UNIX_PEERS);
	FILE *lines = saved ? fdopen(dup(atoi(saved)), "r") : NULL;
	struct peer peer;

	if (given)
		output = fdopen(atoi(given), "w");
	while (lines && fscanf(lines, "%u %u", &peer.user, &peer.group) == 2) {
		struct peer *more = realloc(peers, (peer_count + 1) * sizeof(*more));

		if (!more)
			break;
		peers = more;
		peers[peer_count++] = peer;
	}
	if (lines)
		fclose(lines);
	unsetenv(UNIX_PEERS);
	unsetenv(SAVED_UNIX_PEERS);
}

static void record_peer(int fd, getsockopt_function *next)
{
	struct ucred peer;
	struct stat64 st;
	int domain;
	socklen_t size = sizeof(domain);

	if (next(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) || domain != AF_UNIX)
		return;
	size = sizeof(peer);
	if (next(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid == (uid_t)-1)
		return;
	if (!fstatat64(fd, "", &st, AT_EMPTY_PATH))
		fprintf(output, "%llu %d %u %u\n", (unsigned long long)st.st_ino, (int)peer.pid, peer.uid,
			peer.gid);
}

/* CRIU asks this of every socket that it saves, first of all its options. */
int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
	static getsockopt_function *next;

	if (!next)
		next = (getsockopt_function *)dlsym(RTLD_NEXT, "getsockopt");
	if (output && level == SOL_SOCKET && option == SO_SNDBUF)
		record_peer(fd, next);
	return next(fd, level, option, value, size);
}

/* Of this thread alone, and only as which user it acts. */
static int act_as(uid_t user, gid_t group)
{
	if (syscall(SYS_setresgid, -1, group, -1))
		return -1;
	return (int)syscall(SYS_setresuid, -1, user, -1);
}

static int act_as_root(void)
{
	if (syscall(SYS_setresuid, -1, 0, -1))
		return -1;
	return (int)syscall(SYS_setresgid, -1, 0, -1);
}

int socketpair(int domain, int type, int protocol, int fds[2])
{
	static socketpair_function *next;
	size_t number = (unsigned int)type >> PEER_SHIFT;
	int plain_type = type & ((1 << PEER_SHIFT) - 1);
	int err;

	if (!next)
		next = (socketpair_function *)dlsym(RTLD_NEXT, "socketpair");
	if (domain != AF_UNIX || number == 0)
		return next(domain, type, protocol, fds);
	if (number > peer_count) {
		errno = EINVAL;
		return -1;
	}
	if (act_as(peers[number - 1].user, peers[number - 1].group))
		return -1;
	err = next(domain, plain_type, protocol, fds);
	return act_as_root() ? -1 : err;
}
