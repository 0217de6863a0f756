#include "coordinator/long_call.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "common/base/thread.h"

enum { FIRST_MS = 100, NEXT_MS = 500 };

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

static struct timespec after_ms(long ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += ms * 1000000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    return at;
}

/* True: the call has ended; false: it runs longer than `ms`. */
static bool ends_within(struct call *call, long ms)
{
    struct timespec at = after_ms(ms);
    pthread_mutex_lock(&call->lock);
    while (!call->done && !pthread_cond_timedwait(&call->ended, &call->lock, &at)) continue;
    bool done = call->done;
    pthread_mutex_unlock(&call->lock);
    return done;
}

void long_call(void (*work)(void *arg), void *arg, void (*meanwhile)(void *ctx), void *ctx)
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
        for (long ms = FIRST_MS; !ends_within(&call, ms); ms = NEXT_MS) meanwhile(ctx);
        pthread_join(thread, NULL);
    }
    pthread_cond_destroy(&call.ended);
    pthread_mutex_destroy(&call.lock);
}
