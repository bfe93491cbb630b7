/*
 * CRIU lets an interrupted process make its call of connect() again. If the connection
 * was made meanwhile, the restored socket is connected already, and the call would fail.
 */
#include "connect.h"

#ifdef __x86_64__
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#define ERESTARTSYS 512 /* internal to the kernel: no program ever sees it */

/* The process that a thread belongs to. */
static pid_t process_of(pid_t thread)
{
	char path[64], line[128];
	pid_t process = -1;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)thread);
	status = fopen(path, "re");
	while (status && process < 0 && fgets(line, sizeof(line), status))
		sscanf(line, "Tgid: %d", &process);
	if (status)
		fclose(status);
	return process;
}

static int is_connected(pid_t thread, int fd)
{
	struct tcp_info info = {0};
	socklen_t size = sizeof(info);
	int pidfd = (int)syscall(SYS_pidfd_open, process_of(thread), 0);
	int socket = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, fd, 0);
	int err = socket < 0 ? -1 : getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size);

	if (socket >= 0)
		close(socket);
	if (pidfd >= 0)
		close(pidfd);
	return !err && info.tcpi_state == TCP_ESTABLISHED;
}

void connect_finish(pid_t thread, struct iovec *registers)
{
	struct user_regs_struct *r = registers->iov_base;

	if (registers->iov_len == sizeof(*r) && r->orig_rax == SYS_connect && (long)r->rax == -ERESTARTSYS &&
		is_connected(thread, (int)r->rdi)) {
		r->rax = 0;
		r->orig_rax = ~0UL;
	}
}
#else
void connect_finish(pid_t thread, struct iovec *registers)
{
	(void)thread, (void)registers;
}
#endif
