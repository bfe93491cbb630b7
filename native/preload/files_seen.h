/* Which files the processes of a tree have open or mapped. */
#pragma once

#include <sys/stat.h>

/* Notes a file that CRIU has looked at, if the environment asks for that. */
void files_seen_add(const struct stat64 *status);
