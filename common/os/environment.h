/* Numbers that programs take from the environment (docs/gpu.md lists the variables). */
#ifndef COMMON_ENVIRONMENT_H
#define COMMON_ENVIRONMENT_H

#include <stdint.h>

#include "common/base/status.h"

/* *value = the whole number that the variable holds, `normal` where it is empty or not there. INVALID for anything but
 * digits, or more than `most`: "NAME=text: want WHAT, 0 to MOST", and *value stays. */
enum status environment_number(const char *name, const char *what, uint64_t normal, uint64_t most, uint64_t *value,
                               struct err *err) MUST_CHECK;

#endif
