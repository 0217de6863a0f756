/* Temporary names. What becomes PATH, a file or a folder of plain files, is made as PATH.tmp-PID beside it and renamed.
 * Who is killed meanwhile leaves that behind: the next one that makes PATH removes it. */
#ifndef COMMON_TEMPORARY_H
#define COMMON_TEMPORARY_H

#include <stddef.h>

#include "common/base/status.h"

/* The name for this process, after temporary_sweep. LIMIT when it does not fit. */
enum status temporary_name(const char *path, char *out, size_t cap, struct err *err) MUST_CHECK;
/* Remove what processes that are no more left of PATH. What cannot be removed stays. */
void temporary_sweep(const char *path);

#endif
