/* A long call runs on another thread, and the caller's thread is called back until it ends. */
#include <pthread.h>
#include <semaphore.h>

#include "coordinator/long_call.h"
#include "tests/lib/test.h"

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

TEST(test_caller_is_called_back_until_the_call_ends)
{
    int seen = 0;
    sem_init(&enough, 0, 0);
    long_call(wait_for_calls, &seen, count, &calls); /* without calls it would not end */
    assert_true(seen >= 2);
    assert_true(pthread_equal(caller, pthread_self()));
    assert_false(pthread_equal(worker, caller));
    sem_destroy(&enough);
}

TEST_MAIN(NULL, NULL)
