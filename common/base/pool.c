#include "common/base/pool.h"

#include "common/base/mem.h"
#include "common/base/thread.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* With a core for every thread the word changes within the first spins. With fewer cores, the awaited thread may need
 * this thread's core: then a yield helps and pauses only cost time. */
enum {
    SPINS = 50,
    YIELDS = 80
}; /* a spin is one pause, 10 to 40 ns; a yield without another runnable thread takes about 0.3 us */

struct worker {
    struct pool *pool;
    int index;
    pthread_t thread;
};

struct pool {
    int threads;
    enum pool_floats floats;
    pool_fn fn;
    void *ctx;
    atomic_uint job;     /* number of jobs so far; workers wait for it to change */
    atomic_uint pending; /* workers that have not finished the current job */
    atomic_bool stop;
    pthread_mutex_t turn; /* held by the caller whose job runs */
    struct worker workers[];
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    _mm_pause();
#endif
}

/* Makes the streaming stores of a job visible before the job counts as done. */
static void store_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

static bool changes_soon(const atomic_uint *word, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != seen) return true;
        cpu_relax();
    }
    return false;
}

/* Wait until *word differs from `seen`: spin with yields, then sleep. */
static void wait_change(atomic_uint *word, unsigned seen)
{
    for (int i = 0; i < YIELDS; i++) {
        if (changes_soon(word, seen)) return;
        sched_yield();
    }
    while (atomic_load_explicit(word, memory_order_acquire) == seen) {
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
    }
}

static void wake_all(atomic_uint *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static unsigned set_floats(const struct pool *pool)
{
#if defined(__x86_64__)
    unsigned old = _mm_getcsr(), flush = 0x8040; /* FTZ, DAZ */
    _mm_setcsr(pool->floats == POOL_FLOATS_FLUSHED ? old | flush : old & ~flush);
    return old;
#else
    (void)pool;
    return 0;
#endif
}

static void restore_floats(unsigned old)
{
#if defined(__x86_64__)
    _mm_setcsr(old);
#else
    (void)old;
#endif
}

static void *worker_main(void *arg)
{
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    unsigned seen = 0;
    set_floats(pool);
    for (;;) {
        wait_change(&pool->job, seen);
        seen++;
        assert(atomic_load(&pool->job) ==
               seen); /* pool_run starts a job only after all threads finished the previous one */
        if (atomic_load(&pool->stop)) return NULL;
        pool->fn(pool->ctx, worker->index, pool->threads);
        store_fence();
        unsigned left = atomic_fetch_sub_explicit(&pool->pending, 1, memory_order_acq_rel);
        assert(left >= 1 && left < (unsigned)pool->threads);
        if (left == 1) wake_all(&pool->pending);
    }
}

static void pool_stop(struct pool *pool, int started)
{
    assert(!atomic_load(&pool->pending));
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->job, 1);
    wake_all(&pool->job);
    for (int i = 1; i < started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_mutex_destroy(&pool->turn);
    mem_free(pool);
}

enum status pool_create(int threads, enum pool_floats floats, struct pool **out)
{
    if (threads < 1 || threads > POOL_THREADS_MAX) return STATUS_INVALID;
    struct pool *pool = mem_alloc(1, sizeof *pool + (size_t)threads * sizeof pool->workers[0]);
    if (!pool) return STATUS_NOMEM;
    pool->threads = threads;
    pool->floats = floats;
    pthread_mutex_init(&pool->turn, NULL);
    for (int i = 1; i < threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .index = i};
        if (thread_start(&pool->workers[i].thread, worker_main, &pool->workers[i]) != 0) {
            pool_stop(pool, i);
            return STATUS_NOMEM;
        }
    }
    *out = pool;
    return STATUS_OK;
}

void pool_destroy(struct pool *pool)
{
    if (pool) pool_stop(pool, pool->threads);
}

int pool_threads(const struct pool *pool)
{
    return pool->threads;
}

int pool_cores(int most)
{
    assert(most >= 1);
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n < 1 ? 1 : n > most ? most : n;
}

void pool_run(struct pool *pool, pool_fn fn, void *ctx)
{
    pthread_mutex_lock(&pool->turn);
    assert(!atomic_load(&pool->pending));
    unsigned csr = set_floats(pool);
    if (pool->threads > 1) {
        pool->fn = fn;
        pool->ctx = ctx;
        atomic_store_explicit(&pool->pending, (unsigned)pool->threads - 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&pool->job, 1, memory_order_release);
        wake_all(&pool->job);
    }
    fn(ctx, 0, pool->threads);
    store_fence();
    for (unsigned left; (left = atomic_load_explicit(&pool->pending, memory_order_acquire)) != 0;) {
        wait_change(&pool->pending, left);
    }
    restore_floats(csr);
    pthread_mutex_unlock(&pool->turn);
}

void pool_run_if(struct pool *pool, bool worth, pool_fn fn, void *ctx)
{
    if (pool && worth)
        pool_run(pool, fn, ctx);
    else
        fn(ctx, 0, 1);
}

void pool_share(size_t count, size_t grain, int thread, int threads, size_t *begin, size_t *end)
{
    assert(grain && thread >= 0 && thread < threads);
    size_t grains = (count + grain - 1) / grain, t = (size_t)thread, n = (size_t)threads;
    size_t first = grains * t / n * grain, last = grains * (t + 1) / n * grain;
    *begin = first < count ? first : count;
    *end = last < count ? last : count;
    assert(*begin <= *end);
}

struct copy {
    char *dst;
    const char *src;
    size_t bytes;
};

static void copy_share(void *ctx, int thread, int threads)
{
    const struct copy *c = ctx;
    size_t begin, end;
    pool_share(c->bytes, POOL_COPY_BYTES, thread, threads, &begin, &end);
    if (begin < end) memcpy(c->dst + begin, c->src + begin, end - begin);
}

void pool_copy(struct pool *pool, void *dst, const void *src, size_t bytes)
{
    struct copy job = {.dst = dst, .src = src, .bytes = bytes};
    if (pool && bytes > POOL_COPY_BYTES)
        pool_run(pool, copy_share, &job);
    else if (bytes)
        memcpy(dst, src, bytes);
}
