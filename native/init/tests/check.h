/* The smallest possible test harness: a failed check names its line and ends the program. */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#define CHECK(claim)                                                                               \
	do {                                                                                       \
		if (!(claim)) {                                                                    \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #claim);      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define RUN_TEST(test)                                                                             \
	do {                                                                                       \
		test();                                                                            \
		printf("ok %s\n", #test);                                                          \
		fflush(stdout);                                                                    \
	} while (0)
