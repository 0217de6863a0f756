#include "coordinator/long_call.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/thread.h"

struct call {
    void (*work)(void *arg);
    void *arg;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool done;
};

static void *run(void *arg)
{
    struct call *call = arg;
    call->work(call->arg);
    pthread_mutex_lock(&call->lock);
    call->done = true;
    pthread_cond_signal(&call->ended);
    pthread_mutex_unlock(&call->lock);
    return NULL;
}

/* True: the call has ended; false: it is `due_us`. */
static bool ends_before(struct call *call, uint64_t due_us)
{
    struct timespec at = {.tv_sec = (time_t)(due_us / 1000000), .tv_nsec = (long)(due_us % 1000000 * 1000)};
    pthread_mutex_lock(&call->lock);
    while (!call->done && !pthread_cond_timedwait(&call->ended, &call->lock, &at)) continue;
    bool done = call->done;
    pthread_mutex_unlock(&call->lock);
    return done;
}

void long_call_passed(uint64_t *due_us, void (*meanwhile)(void *ctx), void *ctx)
{
    if (clock_monotonic_us() < *due_us) return;
    meanwhile(ctx);
    *due_us = clock_monotonic_us() + LONG_CALL_EVERY_US;
}

void long_call(void (*work)(void *arg), void *arg, uint64_t *due_us, void (*meanwhile)(void *ctx), void *ctx)
{
    struct call call = {.work = work, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&call.ended, &attr);
    pthread_condattr_destroy(&attr);
    if (thread_start(&thread, run, &call)) {
        work(arg);
    } else {
        while (!ends_before(&call, *due_us)) long_call_passed(due_us, meanwhile, ctx);
        pthread_join(thread, NULL);
    }
    pthread_cond_destroy(&call.ended);
    pthread_mutex_destroy(&call.lock);
}
