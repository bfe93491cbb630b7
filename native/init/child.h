/* Steps of a forked child on its way to another program. All return 0 or -errno. */
#pragma once

#include "request.h"

/* As a program expects: no signal is ignored or blocked. */
int reset_signals(void);
/* When memory runs out, the kernel ends this process and what it starts before the caller. */
int offer_to_oom_killer(void);
/* Changes to the user of the program, if that is another. */
int drop_to_user(const struct program *program);
