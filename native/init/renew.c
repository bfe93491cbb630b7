#include "renew.h"

#include "fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

#include <linux/random.h>

enum { SEED_MAX = 64, BITS = 8 };

static int reseed(const uint8_t *random, size_t size)
{
	union {
		struct rand_pool_info info;
		uint8_t bytes[sizeof(struct rand_pool_info) + SEED_MAX];
	} seed = {.info = {.entropy_count = (int)size * BITS, .buf_size = (int)size}};
	auto_close int fd = open("/dev/urandom", O_WRONLY | O_CLOEXEC);

	if (size > SEED_MAX)
		return -E2BIG;
	memcpy(seed.bytes + sizeof(seed.info), random, size);
	if (fd < 0 || ioctl(fd, RNDADDENTROPY, &seed))
		return -errno;
	/*
	 * Without this the kernel uses the new bytes only at its next reseed,
	 * up to a minute later.
	 */
	return ioctl(fd, RNDRESEEDCRNG) ? -errno : 0;
}

int renew_machine(const struct timespec *now, const uint8_t *random, size_t size)
{
	int err = reseed(random, size);

	if (!err && clock_settime(CLOCK_REALTIME, now))
		err = -errno;
	return err;
}
