/* Host memory that this process can still allocate. */
#ifndef COMMON_HOST_MEMORY_H
#define COMMON_HOST_MEMORY_H

#include <stdint.h>

#include "common/base/status.h"

/* Environment variable that overrides the total memory in bytes, for example on virtual machines whose memory grows on
 * demand. host_memory ignores a value that is not a number; host_memory_check_env reports it. */
#define HOST_MEMORY_ENV "ATOLL_HOST_MEMORY"

/* Check HOST_MEMORY_ENV at the start of a program. INVALID, with one line, when it is not a number. */
enum status host_memory_check_env(struct err *err) MUST_CHECK;

/* Free and total bytes: the minimum over the machine and the control groups (version 2 or 1) around this process, up to
 * the visible root. A value that cannot be read is 0; both are 0 when none can. */
void host_memory(uint64_t *free_p, uint64_t *total_p);
/* The same with /proc and /sys under `root`, at most 200 bytes long (for tests). */
void host_memory_in(const char *root, uint64_t *free_p, uint64_t *total_p);

/* Format as "2.00 GiB", "61.3 MiB" or "1000 bytes". Returns out. */
enum { MEMORY_TEXT_MAX = 32 };
const char *memory_text(uint64_t bytes, char out[MEMORY_TEXT_MAX]);

#endif
