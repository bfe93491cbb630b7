#include "report.h"

#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOG "/criu.log"

static bool is_log(int directory, const char *name)
{
	char path[PATH_MAX];
	ssize_t len = readlinkat(directory, name, path, sizeof(path));

	return len > (ssize_t)strlen(LOG) && strncmp(path + len - strlen(LOG), LOG, strlen(LOG)) == 0;
}

void report_error(const char *format, ...)
{
	DIR *descriptors = opendir("/proc/self/fd");
	struct dirent *entry;
	char text[PATH_MAX];
	va_list args;
	int log = -1;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	while (descriptors && log < 0 && (entry = readdir(descriptors))) {
		if (is_log(dirfd(descriptors), entry->d_name))
			log = atoi(entry->d_name);
	}
	if (log >= 0)
		dprintf(log, "Error (waypoint): %s\n", text);
	if (descriptors)
		closedir(descriptors);
}
