/*
 * Loaded into CRIU: makes the directory in which it assembles mounts for a restore
 * in its private /run, not in the host's /tmp.
 *
 * CRIU makes it in /tmp, empty for everyone else, and removes it at its end; if
 * CRIU is killed, it stays there. If the environment says that /run is CRIU's own,
 * as in the mount namespace that our launcher makes for it, the directory is made
 * there and disappears with the namespace.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ROOTS "/tmp/.criu.mntns."
#define PRIVATE_RUN "WAYPOINT_PRIVATE_RUN"

typedef char *make_function(char *template);

char *mkdtemp(char *template)
{
	static make_function *next;

	if (!next)
		next = (make_function *)dlsym(RTLD_NEXT, "mkdtemp");
	if (getenv(PRIVATE_RUN) && strncmp(template, ROOTS, strlen(ROOTS)) == 0)
		memcpy(template, "/run", 4);
	return next(template);
}
