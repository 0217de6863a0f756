/* Opens the CPU back end: the only header of this folder that gpu/device.c includes. */
#ifndef GPU_CPU_H
#define GPU_CPU_H

#include "common/base/status.h"

struct device;

/* Opens "cpu" with `threads` >= 1 compute threads. INVALID: unknown ATOLL_CPU or bad number of threads. UNSUPPORTED:
 * this CPU lacks the level ATOLL_CPU. NOMEM. */
enum status cpu_open(int threads, struct device **out, struct err *err) MUST_CHECK;

#endif
