/*
 * Loaded into CRIU: keeps the directory in which it puts mounts together for a
 * restore away from the host.
 *
 * CRIU makes it in /tmp, empty for everyone else, and removes it at its end; one
 * that is killed leaves it there. Where the environment says that /run is CRIU's
 * own, as in the mount namespace that our launcher makes for it, it is made there
 * and goes with that.
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
