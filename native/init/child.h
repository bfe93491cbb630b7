/* Steps of a forked child on its way to another program. All return 0 or -errno. */
#pragma once

#include "request.h"

/* As a program expects to find them: nothing ignored, nothing blocked. */
int reset_signals(void);
/* Where memory runs out, this process and what it starts are ended before the caller. */
int offer_to_oom_killer(void);
/* Becomes the user of the program, if that is another. */
int drop_to_user(const struct program *program);
