/* The search for device numbers, in hand-made images of one process. */
#include "check.h"

#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE 53ULL
#define OTHER_DEVICE 54ULL
#define INODE 300ULL
#define LARGE_INODE (1ULL << 40)
#define MODE 0100644U
#define START 0x10000ULL
#define PAGES 2

static uint64_t memory[PAGES * 512];
static char program[PATH_MAX];

static void write_file(const char *name, const void *data, size_t size)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	CHECK(fd >= 0 && write(fd, data, size) == (ssize_t)size);
	close(fd);
}

/* Two messages: pages-7.img, and PAGES pages from START on that are in it. */
static void write_images(void)
{
	static const uint8_t pagemap[] = {0, 0, 0, 0, 0, 0, 0, 0, /* magic */
		2, 0, 0, 0, 0x08, 7,                              /* pages_id */
		8, 0, 0, 0, 0x08, 0x80, 0x80, 0x04, 0x10, PAGES, 0x20, 4};

	write_file("pagemap-12.img", pagemap, sizeof(pagemap));
	write_file("pagemap-shmem-12.img", "not this", 8);
	write_file("pages-7.img", memory, sizeof(memory));
}

static void search(char *found, size_t size)
{
	char files[200];
	int in[2], out[2];
	size_t len = 0;
	ssize_t got;
	int status;

	write_images();
	CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
	len = (size_t)snprintf(files, sizeof(files), "%llu %llu %u\n%llu %llu %u\n%llu %llu %u\n", DEVICE,
		INODE, MODE, DEVICE, LARGE_INODE, MODE, OTHER_DEVICE, INODE, MODE);
	CHECK(write(in[1], files, len) == (ssize_t)len);
	close(in[1]);
	if (fork() == 0) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		execl(program, "waypoint-init", "relocations", ".", "53", NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	for (len = 0; (got = read(out[0], found + len, size - 1 - len)) > 0;)
		len += (size_t)got;
	found[len] = 0;
	close(out[0]);
	CHECK(wait(&status) > 0 && status == 0);
}

static void check_found(const char *expected)
{
	char found[1000];

	search(found, sizeof(found));
	CHECK(strcmp(found, expected) == 0);
	memset(memory, 0, sizeof(memory));
}

static void two_numbers_side_by_side_are_not_enough(void)
{
	memory[8] = DEVICE, memory[9] = INODE, memory[10] = 12345;
	memory[16] = OTHER_DEVICE, memory[17] = INODE, memory[18] = MODE;
	memory[24] = DEVICE, memory[25] = INODE + 1, memory[26] = START;
	memory[1023] = DEVICE;
	check_found("");
}

static void the_mode_or_an_address_follows_or_the_inode_is_large(void)
{
	memory[8] = DEVICE, memory[9] = INODE, memory[10] = MODE | 7ULL << 32;
	memory[16] = DEVICE, memory[17] = INODE, memory[18] = START + 4096 + 16;
	memory[24] = DEVICE, memory[25] = INODE, memory[26] = START + PAGES * 4096;
	memory[600] = DEVICE, memory[601] = LARGE_INODE;
	check_found("12 53 10040\n12 53 10080\n12 53 112c0\n");
}

static void a_struct_stat_has_the_mode_of_the_file(void)
{
	struct stat st = {.st_dev = DEVICE, .st_ino = INODE, .st_mode = MODE, .st_nlink = 1};

	memcpy(&memory[32], &st, sizeof(st));
	st.st_mode = 0100600;
	memcpy(&memory[64], &st, sizeof(st));
	st.st_mode = MODE;
	st.st_ino = 77; /* not open */
	memcpy(&memory[96], &st, sizeof(st));
	check_found("12 53 10100\n");
}

int main(int argc, char **argv)
{
	char directory[] = "/tmp/relocations-XXXXXX";

	CHECK(argc == 2 && realpath(argv[1], program) && mkdtemp(directory) && chdir(directory) == 0);
	RUN_TEST(two_numbers_side_by_side_are_not_enough);
	RUN_TEST(the_mode_or_an_address_follows_or_the_inode_is_large);
	RUN_TEST(a_struct_stat_has_the_mode_of_the_file);
	CHECK(unlink("pagemap-12.img") == 0 && unlink("pagemap-shmem-12.img") == 0 &&
		unlink("pages-7.img") == 0 && chdir("/") == 0 && rmdir(directory) == 0);
	return 0;
}
