/* Numbers of system calls that may be newer than the headers we are built with. */
#pragma once

#include <sys/syscall.h>

/*
 * From 424 on a number means the same call on every architecture. Raise the last
 * one together with the list in syscall_wall.c.
 */
#define FIRST_COMMON_NUMBER 424
#define LAST_KNOWN_NUMBER   466

#ifdef __x86_64__
#ifndef SYS_uretprobe
#define SYS_uretprobe 335
#endif
#define LAST_OLD_NUMBER 335
#else
#define LAST_OLD_NUMBER 294
#endif

#ifndef SYS_clone3
#define SYS_clone3 435
#endif
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif
#ifndef SYS_map_shadow_stack
#define SYS_map_shadow_stack 453
#endif
#ifndef SYS_futex_wake
#define SYS_futex_wake	  454
#define SYS_futex_wait	  455
#define SYS_futex_requeue 456
#endif
#ifndef SYS_statmount
#define SYS_statmount 457
#define SYS_listmount 458
#endif
#ifndef SYS_mseal
#define SYS_mseal 462
#endif
#ifndef SYS_setxattrat
#define SYS_setxattrat	  463
#define SYS_getxattrat	  464
#define SYS_listxattrat	  465
#define SYS_removexattrat 466
#endif
