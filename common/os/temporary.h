/* Temporary names: a new PATH, a file or a folder of plain files, is created as PATH.tmp-PID beside its place and
 * renamed.
 *
 * A killed process leaves its temporary behind; the next process that creates PATH removes it. */
#ifndef COMMON_TEMPORARY_H
#define COMMON_TEMPORARY_H

#include <stddef.h>

#include "common/base/status.h"

/* Write the temporary name of this process to out[cap], after temporary_sweep. LIMIT when it does not fit. */
enum status temporary_name(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Remove the temporaries of PATH whose processes have ended. Failures to remove one are ignored. */
void temporary_sweep(const char *path);

#endif
