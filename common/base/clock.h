/* Clocks. The state machines take `now_us` as an argument; only shells read the clock. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

/* Microseconds since an arbitrary start, monotonic: for intervals and deadlines. */
uint64_t clock_monotonic_us(void);
/* Seconds since the epoch: for metrics and logs only, never for decisions. */
double clock_epoch_s(void);

#endif
