/* Errors of this library, among those of CRIU. */
#pragma once

/* A line in CRIU's log, which every process that CRIU makes has open, unlike its standard error. */
__attribute__((format(printf, 1, 2))) void report_error(const char *format, ...);
