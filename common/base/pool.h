/* A pool of threads: the caller is thread 0, `threads - 1` workers wait for jobs. They wait actively for some
 * microseconds after a job, because the next one usually follows at once, giving their core to whoever needs it, then
 * sleep. */
#ifndef COMMON_POOL_H
#define COMMON_POOL_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { POOL_THREADS_MAX = 256 };

struct pool;

/* What runs on each thread: `thread` of `threads`. */
typedef void (*pool_fn)(void *ctx, int thread, int threads);

/* What jobs do with numbers below 1.2e-38: arithmetic on them is a hundred times slower. */
enum pool_floats {
    POOL_FLOATS_FLUSHED, /* they count as zero: training */
    POOL_FLOATS_EXACT,   /* IEEE 754: what must come out the same everywhere */
};

enum status pool_create(int threads, enum pool_floats floats, struct pool **out) MUST_CHECK;
void pool_destroy(struct pool *pool);
int pool_threads(const struct pool *pool);
/* Cores that this process may use, 1 to `most`. */
int pool_cores(int most);
/* Run fn on every thread and wait for all. One caller at a time; not from inside a job. */
void pool_run(struct pool *pool, pool_fn fn, void *ctx);
/* pool_run where there is a pool and the job is worth it, else fn by the caller alone: fn(ctx, 0, 1). */
void pool_run_if(struct pool *pool, bool worth, pool_fn fn, void *ctx);

/* Share `thread` of `count` items cut into `threads` contiguous shares that start at multiples of `grain`. */
void pool_share(size_t count, size_t grain, int thread, int threads, size_t *begin, size_t *end);

/* A thread copies at least so many bytes: waking it takes some microseconds, in which one copies 50 to 100 KB. */
enum { POOL_COPY_BYTES = 256 << 10 };

/* memcpy, by all threads where it is long enough; pool NULL: by the caller alone. One core copies 6 to 12 GB/s,
 * which is a small part of what a large machine's memory can. */
void pool_copy(struct pool *pool, void *dst, const void *src, size_t bytes);

#endif
