/* Sums of squares of floats in double precision, with one fixed order of additions: the result is the same for any
 * number of threads. */
#ifndef COMMON_SUM_SQUARES_H
#define COMMON_SUM_SQUARES_H

#include <stddef.h>

struct pool;

/* Order inside a block: element i is added to lane[i mod SUM_LANES], which compilers vectorize; sum_lanes then adds the
 * lanes in order. */
enum { SUM_LANES = 16 };
double sum_lanes(const double lane[SUM_LANES]);

enum { SUM_BLOCK = 1 << 14, SUM_BLOCKS = 256 }; /* elements per block; block sums kept at a time */
/* The sum over one block: elements [at, at + n). */
typedef double (*sum_block_fn)(void *ctx, size_t at, size_t n);
/* Sum of n elements: threads compute the sums of blocks, which are added in order. pool NULL: only the calling thread
 * works. Do not call it inside a job of the pool. */
double sum_by_blocks(struct pool *pool, size_t n, sum_block_fn sum_block, void *ctx);
/* Sum of the squares of x[n], in the same way. */
double sum_squares(struct pool *pool, const float *x, size_t n);

#endif
