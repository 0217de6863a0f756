/* Opens the CPU back end: the one name that gpu/device.c takes from this folder. */
#ifndef GPU_CPU_H
#define GPU_CPU_H

#include "common/base/status.h"

struct device;

/* `threads` >= 1 compute threads. INVALID or UNSUPPORTED for another ATOLL_CPU or number of threads; NOMEM. */
enum status cpu_open(int threads, struct device **out, struct err *err) MUST_CHECK;

#endif
