/*
 * Loaded into CRIU: lets the program that starts it replace the options of a
 * container runtime.
 *
 * runc sets every option of CRIU itself, but names a file whose lines override
 * them, one file for all containers of the host. If the environment names another
 * file, CRIU reads that instead.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUNTIME_CONFIG "/etc/criu/runc.conf"
#define CHOSEN_CONFIG "WAYPOINT_CRIU_CONFIG"

typedef FILE *open_function(const char *path, const char *mode);

FILE *fopen64(const char *path, const char *mode)
{
	static open_function *next;
	const char *chosen = getenv(CHOSEN_CONFIG);

	if (!next)
		next = (open_function *)dlsym(RTLD_NEXT, "fopen64");
	return next(chosen && strcmp(path, RUNTIME_CONFIG) == 0 ? chosen : path, mode);
}
