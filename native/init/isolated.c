#include "isolated.h"

#include "fd.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

void isolated_clear(struct isolated *p, uint8_t *memory)
{
	for (unsigned int i = 0; i < STREAMS; i++)
		ring_forget(&p->kept.rings[i]);
	*p = (struct isolated){
		.exec_status = -1,
		.input = -1,
		.output = {-1, -1},
		.queue = memory + STREAMS * RING_SIZE,
		.kept = {.generation = p->kept.generation + 1},
	};
	for (unsigned int i = 0; i < STREAMS; i++)
		p->kept.rings[i].data = memory + i * RING_SIZE;
}

static void drop_queue(struct isolated *p)
{
	p->queue_len = 0;
	madvise(p->queue, ISOLATED_INPUT_MAX, MADV_DONTNEED);
}

static void close_input(struct isolated *p)
{
	close_fd(&p->input);
	p->input_deadline_ms = 0;
	drop_queue(p);
}

void isolated_close(struct isolated *p)
{
	close_fd(&p->exec_status);
	close_input(p);
	for (unsigned int i = 0; i < STREAMS; i++)
		close_fd(&p->output[i]);
}

int isolated_read(struct isolated *p, enum stream which, uint64_t limit)
{
	struct ring *ring = &p->kept.rings[which];
	size_t budget = READ_BUDGET;

	while (p->output[which] >= 0 && limit > 0 && budget > 0) {
		size_t space;
		uint8_t *to = ring_space(ring, &space);
		ssize_t got;

		if (space > limit)
			space = (size_t)limit;
		got = read(p->output[which], to, space);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN)
			return 1;
		if (got <= 0) {
			close_fd(&p->output[which]);
			break;
		}
		ring_commit(ring, (size_t)got);
		limit -= (uint64_t)got;
		budget -= (size_t)got < budget ? (size_t)got : budget;
		p->unread[which] -= (size_t)got < p->unread[which] ? (size_t)got : p->unread[which];
	}
	return p->output[which] < 0 || p->unread[which] == 0;
}

/*
 * Processes it has left behind may keep writing for ever: only what is in the
 * pipes by now counts.
 */
void isolated_reaped(struct isolated *p, int wait_status)
{
	p->reaped = true;
	p->wait_status = wait_status;
	for (unsigned int i = 0; i < STREAMS; i++) {
		int count = 0;

		if (p->output[i] >= 0 && ioctl(p->output[i], FIONREAD, &count) == 0)
			p->unread[i] = (size_t)count;
	}
}

/* Writes what the pipe takes now and returns how much. Closes it if nobody will ever read. */
static size_t write_input(struct isolated *p, const uint8_t *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t put = write(p->input, data + done, len - done);

		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0 && errno != EAGAIN)
			close_input(p);
		if (put <= 0)
			break;
		done += (size_t)put;
	}
	return done;
}

void isolated_flush_input(struct isolated *p)
{
	size_t done = p->queue_len ? write_input(p, p->queue, p->queue_len) : 0;

	if (p->input < 0)
		return;
	if (done > 0 && done == p->queue_len) {
		drop_queue(p);
	} else if (done > 0) {
		p->queue_len -= done;
		memmove(p->queue, p->queue + done, p->queue_len);
	}
	if (p->queue_len == 0 && p->input_ends)
		close_input(p);
}

size_t isolated_write(struct isolated *p, const uint8_t *data, size_t len)
{
	size_t taken = 0;
	size_t queued;

	isolated_flush_input(p);
	if (p->input >= 0 && p->queue_len == 0)
		taken = write_input(p, data, len);
	if (p->input < 0)
		return 0;
	queued = len - taken;
	if (queued > ISOLATED_INPUT_MAX - p->queue_len)
		queued = ISOLATED_INPUT_MAX - p->queue_len;
	memcpy(p->queue + p->queue_len, data + taken, queued);
	p->queue_len += queued;
	p->input_taken += taken + queued;
	return taken + queued;
}

void isolated_end_input(struct isolated *p)
{
	p->input_ends = true;
	isolated_flush_input(p);
}
