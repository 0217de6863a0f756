/* Sums of squares of floats, in double, by any number of threads: one order of additions, so one result. */
#ifndef COMMON_SUM_SQUARES_H
#define COMMON_SUM_SQUARES_H

#include <stddef.h>

struct pool;

/* Of one block: SUM_LANES sums, element i in that of i mod SUM_LANES, which vectors can do; then these, in order. */
enum { SUM_LANES = 16 };
double sum_lanes(const double lane[SUM_LANES]);

/* x[n], in blocks of SUM_BLOCK that are shared out to threads and added in order. pool NULL: the caller alone. Not from
 * inside a job. */
enum { SUM_BLOCK = 1 << 14, SUM_BLOCKS = 256 }; /* floats of a block; blocks whose sums are kept at a time */
double sum_squares(struct pool *pool, const float *x, size_t n);

#endif
