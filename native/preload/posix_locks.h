/* After a restore, processes have the POSIX locks on files that they have also mapped. */
#pragma once

#include "inject.h"

/* To be called before CRIU lets the first process go; later calls do nothing. -1 with errno. */
int posix_locks_set(ptrace_function *trace);
