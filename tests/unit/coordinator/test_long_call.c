/* A long call runs on another thread, and the caller's thread is called back until it ends. */
#include <pthread.h>
#include <semaphore.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "coordinator/long_call.h"
#include "tests/lib/test.h"

enum { SOON_US = 100000, SHORT_US = 30000, SHORT_CALLS = 12, FAR_US = 1000000000 };

static sem_t enough;
static pthread_t caller, worker;
static int calls;

static void wait_for_calls(void *arg)
{
    worker = pthread_self();
    while (sem_wait(&enough)) continue;
    *(int *)arg = calls;
}

static void count(void *ctx)
{
    caller = pthread_self();
    assert_ptr_equal(ctx, &calls);
    if (++calls == 2) sem_post(&enough);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they need address space */
static void note_thread(void *arg)
{
    (void)arg;
    worker = pthread_self();
}

/* The first test: the C library keeps the stacks of ended threads for the next ones. */
TEST(test_without_a_thread_the_caller_works)
{
    struct rlimit usual, none;
    assert_int_equal(getrlimit(RLIMIT_AS, &usual), 0);
    none = usual;
    none.rlim_cur = 1 << 20; /* no memory for a stack */
    assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
    uint64_t due = clock_monotonic_us() + FAR_US;
    long_call(note_thread, NULL, &due, count, &calls);
    assert_int_equal(setrlimit(RLIMIT_AS, &usual), 0);
    assert_true(pthread_equal(worker, pthread_self()));
    assert_int_equal(calls, 0);
}
#endif

TEST(test_caller_is_called_back_until_the_call_ends)
{
    int seen = 0;
    sem_init(&enough, 0, 0);
    uint64_t due = clock_monotonic_us() + SOON_US;
    long_call(wait_for_calls, &seen, &due, count, &calls); /* without calls it would not end */
    assert_true(seen >= 2);
    assert_true(pthread_equal(caller, pthread_self()));
    assert_false(pthread_equal(worker, caller));
    sem_destroy(&enough);
}

static void take_a_moment(void *arg)
{
    (void)arg;
    usleep(SHORT_US);
}

/* Fragments close one after the other. Together they take long, though none of them does. */
TEST(test_short_calls_in_a_row_are_one_wait)
{
    uint64_t due = clock_monotonic_us() + SOON_US;
    calls = 0;
    sem_init(&enough, 0, 0);
    for (int i = 0; i < SHORT_CALLS; i++) long_call(take_a_moment, NULL, &due, count, &calls);
    assert_true(calls >= 1);
    calls = 0;
    due = clock_monotonic_us() + FAR_US;
    long_call_passed(&due, count, &calls);
    assert_int_equal(calls, 0);
    due = clock_monotonic_us();
    long_call_passed(&due, count, &calls);
    assert_int_equal(calls, 1);
    assert_true(due > clock_monotonic_us());
    sem_destroy(&enough);
}

TEST_MAIN(NULL, NULL)
