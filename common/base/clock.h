/* Time in microseconds. The pure machines take `now_us` as an argument; shells read it here. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

/* Monotonic, since an arbitrary start: for intervals and deadlines. */
uint64_t clock_monotonic_us(void);
/* Seconds since the epoch: for metrics and logs only, never for decisions. */
double clock_epoch_s(void);

#endif
