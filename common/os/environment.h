/* Numbers from environment variables (docs/gpu.md lists the variables). */
#ifndef COMMON_ENVIRONMENT_H
#define COMMON_ENVIRONMENT_H

#include <stdint.h>

#include "common/base/status.h"

/* *value = the whole number in the variable `name`, or `normal` if it is empty or not set. INVALID for other text or a
 * number above `most`: "NAME=text: expected WHAT, 0 to MOST"; *value is then unchanged. */
enum status environment_number(const char *name, const char *what, uint64_t normal, uint64_t most, uint64_t *value,
                               struct err *err) MUST_CHECK;

#endif
