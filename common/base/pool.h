/* A pool of threads that run one job at a time.
 *
 * The caller is thread 0; `threads - 1` worker threads wait for jobs. After a job they spin for some microseconds,
 * because the next job usually follows at once, and yield their core in between. Then they sleep. */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { POOL_THREADS_MAX = 256 };

struct pool;

/* A job: called once on each thread, with its index `thread` of `threads`. */
typedef void (*pool_fn)(void *ctx, int thread, int threads);

/* Treatment of subnormal floats (below 1.2e-38) in jobs: arithmetic on them is a hundred times slower. */
enum pool_floats {
    POOL_FLOATS_FLUSHED, /* flushed to zero: training */
    POOL_FLOATS_EXACT,   /* IEEE 754: results that must be equal on every machine */
};

/* threads 1 to POOL_THREADS_MAX, else INVALID; NOMEM when memory or threads run out. */
enum status pool_create(int threads, enum pool_floats floats, struct pool **out) MUST_CHECK;
/* Ends and joins the threads. NULL is allowed. */
void pool_destroy(struct pool *pool);
int pool_threads(const struct pool *pool);
/* Number of cores that this process may use, between 1 and `most`. */
int pool_cores(int most);
/* Run fn on every thread and wait for all. Callers take turns; do not call it inside a job. */
void pool_run(struct pool *pool, pool_fn fn, void *ctx);
/* pool_run if there is a pool and `worth` is true; otherwise the calling thread runs fn(ctx, 0, 1). */
void pool_run_if(struct pool *pool, bool worth, pool_fn fn, void *ctx);

/* Range [*begin, *end) of thread `thread` when `count` items are cut into `threads` contiguous shares that start at
 * multiples of `grain`. */
void pool_share(size_t count, size_t grain, int thread, int threads, size_t *begin, size_t *end);

/* Minimum bytes that a thread copies: waking it takes some microseconds, in which one core copies 50 to 100 KB. */
enum { POOL_COPY_BYTES = 256 << 10 };

/* memcpy on all threads if `bytes` is large enough; pool NULL: only the calling thread copies. One core copies 6 to 12
 * GB/s, a small part of a large machine's memory bandwidth. */
void pool_copy(struct pool *pool, void *dst, const void *src, size_t bytes);

#endif
