/* Sums of squares of floats, in double, by any number of threads: one order of additions, so one result. */
#ifndef COMMON_SUM_SQUARES_H
#define COMMON_SUM_SQUARES_H

#include <stddef.h>

struct pool;

/* Of one block: SUM_LANES sums, element i in that of i mod SUM_LANES, which vectors can do; then these, in order. */
enum { SUM_LANES = 16 };
double sum_lanes(const double lane[SUM_LANES]);

enum { SUM_BLOCK = 1 << 14, SUM_BLOCKS = 256 }; /* elements of a block; blocks whose sums are kept at a time */
/* The sum of elements at .. at + n - 1, of one block. */
typedef double (*sum_block_fn)(void *ctx, size_t at, size_t n);
/* Of n elements, in blocks that are shared out to threads and added in order. pool NULL: the caller alone. Not from
 * inside a job. */
double sum_by_blocks(struct pool *pool, size_t n, sum_block_fn of_block, void *ctx);
/* Of the squares of x[n], in the same way. */
double sum_squares(struct pool *pool, const float *x, size_t n);

#endif
