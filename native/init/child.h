/* Steps of a forked child on its way to another program. Both return 0 or -errno. */
#pragma once

#include <sys/types.h>

/* As a program expects to find them: nothing ignored, nothing blocked. */
int reset_signals(void);
int drop_to_user(uid_t uid, gid_t gid);
