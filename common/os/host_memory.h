/* How much memory this process can still get. */
#ifndef COMMON_HOST_MEMORY_H
#define COMMON_HOST_MEMORY_H

#include <stdint.h>

#include "common/base/status.h"

/* Says how many bytes there are where the system tells of others: some virtual machines get more as they use what they
 * have. What is no number is taken for nothing: host_memory_check_env refuses it. */
#define HOST_MEMORY_ENV "ATOLL_HOST_MEMORY"

/* INVALID, with one line, where HOST_MEMORY_ENV holds no number: programs ask when they start. */
enum status host_memory_check_env(struct err *err) MUST_CHECK;

/* *free_p of *total_p bytes: of the machine, or of the control groups (version 2, or 1) that this process is in, from
 * its own up to the root of what it sees: whichever has least left, and the least limit. What cannot be read is 0, both
 * of them when nothing can. */
void host_memory(uint64_t *free_p, uint64_t *total_p);
/* The same with /proc and /sys under `root` (tests): at most 200 bytes. */
void host_memory_in(const char *root, uint64_t *free_p, uint64_t *total_p);

/* "2.00 GiB", "61.3 MiB", "1000 bytes" */
enum { MEMORY_TEXT_MAX = 32 };
const char *memory_text(uint64_t bytes, char out[MEMORY_TEXT_MAX]);

#endif
