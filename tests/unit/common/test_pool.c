/* ctest: labels=threads
 * The pool: every thread runs every job once, shares cover everything, and more threads than cores cost little. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "tests/lib/test.h"

enum { THREADS = 4, JOBS = 2000 };

static atomic_uint runs[THREADS];

static void count(void *ctx, int thread, int threads)
{
    assert_int_equal(threads, THREADS);
    assert_ptr_equal(ctx, runs);
    atomic_fetch_add(&runs[thread], 1);
}

TEST(test_every_thread_runs_every_job)
{
    struct pool *pool;
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (unsigned job = 1; job <= JOBS; job++) {
        pool_run(pool, count, runs);
        for (int t = 0; t < THREADS; t++)
            if (atomic_load(&runs[t]) != job) fail_msg("job %u: thread %d ran %u times", job, t, atomic_load(&runs[t]));
    }
    pool_destroy(pool);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_shares_cover_everything)
{
    for (size_t items = 0; items < 70; items++)
        for (int threads = 1; threads < 9; threads++)
            for (size_t grain = 1; grain < 20; grain += 3) {
                size_t next = 0, begin, end;
                for (int t = 0; t < threads; t++) {
                    pool_share(items, grain, t, threads, &begin, &end);
                    assert_int_equal(begin, next);
                    assert_true(begin <= end && (begin % grain == 0 || begin == items));
                    next = end;
                }
                assert_int_equal(next, items);
            }
}

/* Sizes around the limits for one more thread: every byte is copied once, none past the end. */
TEST(test_copy_copies_every_byte_once)
{
    struct pool *pool;
    size_t most = (size_t)(THREADS + 2) * POOL_COPY_BYTES;
    uint8_t *from = mem_alloc(1, most + 1), *to = mem_alloc(1, most + 1);
    assert_non_null(from);
    assert_non_null(to);
    for (size_t i = 0; i <= most; i++) from[i] = (uint8_t)(1 + i % 251);
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (int parts = 0; parts <= THREADS + 1; parts++)
        for (int more = -1; more <= 1; more++) {
            if (!parts && more < 0) continue;
            size_t n = (size_t)parts * POOL_COPY_BYTES + (size_t)(more + 1) - 1;
            for (int alone = 0; alone < 2; alone++) {
                memset(to, 0, most + 1);
                pool_copy(alone ? NULL : pool, to, from, n);
                assert_memory_equal(to, from, n);
                assert_int_equal(to[n], 0);
            }
        }
    pool_destroy(pool);
    mem_free(from);
    mem_free(to);
    assert_int_equal(mem_live_bytes(), 0);
    assert_true(pool_cores(2) >= 1 && pool_cores(2) <= 2);
}

static void halve(void *ctx, int thread, int threads)
{
    (void)threads;
    volatile float *x = ctx;
    x[thread] = x[thread] * 0.5f;
}

struct nested {
    struct pool *pool;
    float x[THREADS + 1]; /* the last one is the caller's */
};

static void halve_both(void *ctx, int thread, int threads)
{
    (void)thread, (void)threads;
    struct nested *nested = ctx;
    pool_run(nested->pool, halve, nested->x);
    halve(nested->x, THREADS, THREADS + 1);
}

/* The pool's floating-point mode applies to its jobs, independent of the caller's mode, which stays as it was. */
TEST(test_jobs_use_floating_point_mode_of_pool)
{
    for (int outer = POOL_FLOATS_FLUSHED; outer <= POOL_FLOATS_EXACT; outer++)
        for (int inner = POOL_FLOATS_FLUSHED; inner <= POOL_FLOATS_EXACT; inner++) {
            struct pool *around, *pool;
            assert_int_equal(pool_create(1, (enum pool_floats)outer, &around), STATUS_OK);
            assert_int_equal(pool_create(THREADS, (enum pool_floats)inner, &pool), STATUS_OK);
            struct nested nested = {.pool = pool};
            for (int i = 0; i <= THREADS; i++) nested.x[i] = 1e-39f;
            pool_run(around, halve_both, &nested);
            for (int i = 0; i <= THREADS; i++) {
                bool flushed = i < THREADS ? inner == POOL_FLOATS_FLUSHED : outer == POOL_FLOATS_FLUSHED;
#if !defined(__x86_64__)
                flushed = false;
#endif
                assert_int_equal(nested.x[i] == 0, flushed);
            }
            pool_destroy(pool);
            pool_destroy(around);
        }
}

static void nothing(void *ctx, int thread, int threads)
{
    (void)ctx, (void)thread, (void)threads;
}

static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* All threads share one core: waiting threads must not take time from working threads. The test measures CPU time,
 * which other programs do not change. */
TEST(test_more_threads_than_cores_cost_little)
{
    cpu_set_t before, one;
    struct pool *pool;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* new threads inherit the affinity */
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    double best = 1e9;
    for (int again = 0; again < 5; again++) {
        double start = cpu_us();
        for (int job = 0; job < JOBS / 10; job++) pool_run(pool, nothing, NULL);
        double each = (cpu_us() - start) / (JOBS / 10);
        if (each < best) best = each;
    }
    pool_destroy(pool);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    print_message("an empty job of %d threads on one core: %.1f us of processor time\n", THREADS, best);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(best < 40); /* four switches, a few microseconds each */
#endif
}

static void check_signals(void *ctx, int thread, int threads)
{
    sigset_t blocked;
    (void)threads;
    (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    atomic_bool *as_it_should_be = ctx;
    bool other = thread != 0;
    if (sigismember(&blocked, SIGTERM) != other || sigismember(&blocked, SIGINT) != other)
        atomic_store(as_it_should_be, false);
}

/* Signals interrupt the main thread's waits: no other thread receives them. */
TEST(test_signals_reach_only_main_thread)
{
    struct pool *pool;
    atomic_bool as_it_should_be = true;
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    pool_run(pool, check_signals, &as_it_should_be);
    pool_destroy(pool);
    assert_true(atomic_load(&as_it_should_be));
}

TEST_MAIN(NULL, NULL)
