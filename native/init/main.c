/*
 * waypoint-init: one static program, seven modes.
 *   branch  host side: namespaces, mounts, pivot; ends as process 1 of a new branch
 *   enter   host side: runs a program (CRIU) in a branch's network namespace
 *   relocations  host side: finds device numbers in the saved memory of processes
 *   init    process 1 of a branch: terminals and jobs behind a socket
 *   relay   inside a sandbox: carries init's socket over a pipe or a device
 *   machine process 1 of a virtual machine: from the initramfs to init
 *   here    inside a branch: asks the host for a checkpoint; also under the name waypoint-here
 */
#include "modes.h"
#include "version.h"

#include <stdio.h>
#include <string.h>

static int usage(void)
{
	fputs("usage: waypoint-init branch --root DIR --cgroup DIR --hostname NAME --report FD\n"
	      "                            [--allow-self] [--privileged] [--no-new-privs]\n"
	      "                            [--net FD] [--read-only MOUNT]... [--writable DIR]...\n"
	      "       waypoint-init enter [--net new|PATH] [--cgroup DIR] [--kdat FILE]\n"
	      "                           [--save-kdat FILE] [--bind DIR --to DIR]... -- CMD "
	      "ARGS...\n"
	      "       waypoint-init relocations IMAGES DEVICE... <FILES\n"
	      "       waypoint-init init [--dir DIR] [--any-peer] [--allow-self] [--hold-prompt]\n"
	      "       waypoint-init relay [--dir DIR] [--port DEVICE | --vsock PORT]\n"
	      "       waypoint-init machine --port DEVICE | --vsock PORT [--root DEVICE]\n"
	      "       waypoint-init here [--dir DIR] snapshot [NAME]\n"
	      "       waypoint-init --version\n",
		stderr);
	return 2;
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int main(int argc, char **argv)
{
	if (argc > 0 && strcmp(argv[0], "init") == 0)
		return init_main(argc, argv);
	if (argc > 0 && strcmp(base_name(argv[0]), "waypoint-here") == 0)
		return here_main(argc, argv);
	if (argc < 2)
		return usage();
	if (strcmp(argv[1], "init") == 0)
		return init_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "branch") == 0)
		return branch_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "enter") == 0)
		return enter_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "relocations") == 0)
		return relocations_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "relay") == 0)
		return relay_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "machine") == 0)
		return machine_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "here") == 0)
		return here_main(argc - 1, argv + 1);
	if (strcmp(argv[1], "--version") == 0) {
		printf("waypoint-init %s protocol %d\n", PROGRAM_VERSION, PROTOCOL_VERSION);
		return 0;
	}
	return usage();
}
