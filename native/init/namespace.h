/* Kernel steps shared by the two host-side modes. All return 0 or -errno. */
#pragma once

int make_mounts_private(void);
int bring_loopback_up(void);
