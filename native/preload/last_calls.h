/* Calls that restored processes make at the last moment, before any of them runs. */
#pragma once

#include "inject.h"

/* To be called before CRIU lets the first process go; later calls do nothing. -1 with errno. */
int last_calls_make(ptrace_function *trace);
