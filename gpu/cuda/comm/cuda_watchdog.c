#include "gpu/cuda/comm/cuda_watchdog.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/os/environment.h"

enum { POLLS_A_SECOND = 10, ANSWER_SECONDS = 5, TIMEOUT = 600, GRACE = 60, SECONDS_MAX = 10000000 };

struct cuda_watchdog {
    struct cuda_watch watch;
    unsigned timeout, grace; /* seconds */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_bool failed; /* set after `why` is complete */
    struct err why, answer;
    bool answered, aborted, closing;
    unsigned idle;    /* consecutive polls without progress */
    unsigned turns;   /* number of calls of cuda_watchdog_turn */
    int helpers;      /* running helper threads, which may block */
    bool left, ended; /* stop has returned; the polling thread has ended */
};

/* --- waiting, with the lock held ---------------------------------------------------------------------------------- */

/* Waits for the next poll (true), or until the state changes (false). */
static bool poll_due(struct cuda_watchdog *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += 1000000000L / POLLS_A_SECOND;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    return pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT;
}

static void note_failure(struct cuda_watchdog *w, const struct err *why)
{
    if (atomic_load(&w->failed)) return;
    assert(why->code != STATUS_OK);
    w->why = *why;
    atomic_store(&w->failed, true);
    pthread_cond_broadcast(&w->changed);
}

/* --- helper threads, which may block ------------------------------------------------------------------------------ */

static void *abort_main(void *arg)
{
    struct cuda_watchdog *w = arg;
    if (w->watch.abort) w->watch.abort(w->watch.ctx);
    pthread_mutex_lock(&w->lock);
    w->aborted = true;
    w->helpers--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void *blame_main(void *arg)
{
    struct cuda_watchdog *w = arg;
    struct err answer = {0};
    w->watch.blame(w->watch.ctx, w->timeout, true, &answer);
    pthread_mutex_lock(&w->lock);
    w->answer = answer;
    w->answered = true;
    w->helpers--;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Runs body in a helper thread, or in the calling thread if no thread starts. The caller holds the lock. */
static void start_helper(struct cuda_watchdog *w, void *(*body)(void *arg))
{
    pthread_t thread;
    w->helpers++;
    pthread_mutex_unlock(&w->lock);
    if (thread_start(&thread, body, w) == 0)
        pthread_detach(thread);
    else
        body(w);
    pthread_mutex_lock(&w->lock);
}

/* --- polling ------------------------------------------------------------------------------------------------------ */

/* No rank makes progress. A helper queries the GPUs for the reason; if the driver does not respond in time, the message
 * without the query is used. */
static void stalled(struct cuda_watchdog *w)
{
    struct err why = {0};
    unsigned turn = w->turns, polls = 0;
    w->answered = false;
    w->watch.blame(w->watch.ctx, w->timeout, false, &why);
    start_helper(w, blame_main);
    while (!w->answered && !w->closing && turn == w->turns && polls < ANSWER_SECONDS * POLLS_A_SECOND)
        polls += poll_due(w);
    if (!w->closing && turn == w->turns) note_failure(w, w->answered ? &w->answer : &why);
}

static void poll_loop(struct cuda_watchdog *w)
{
    uint64_t moves = 0;
    while (!w->closing && !atomic_load(&w->failed)) {
        struct err why = {0};
        if (!poll_due(w) || w->closing) continue;
        uint64_t now = w->watch.moves(w->watch.ctx);
        bool busy = !w->watch.busy || w->watch.busy(w->watch.ctx);
        w->idle = now == moves && busy ? w->idle + 1 : 0;
        moves = now;
        if (w->watch.failed && w->watch.failed(w->watch.ctx, &why))
            note_failure(w, &why);
        else if (w->timeout && w->idle >= w->timeout * POLLS_A_SECOND)
            stalled(w);
    }
}

static void last_resort(struct cuda_watchdog *w)
{
    char line[sizeof w->why.msg + 160];
    for (unsigned polls = 0; polls < w->grace * POLLS_A_SECOND;) polls += poll_due(w);
    assert(w->why.code != STATUS_OK);
    snprintf(line, sizeof line, "%s; the worker did not exit within %u s", w->why.msg, w->grace);
    void (*end)(const char *line) = w->watch.end;
    pthread_mutex_unlock(&w->lock);
    end(line);
    pthread_mutex_lock(&w->lock);
}

static void watchdog_free(struct cuda_watchdog *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
}

static void *watch_main(void *arg)
{
    struct cuda_watchdog *w = arg;
    pthread_mutex_lock(&w->lock);
    poll_loop(w);
    if (atomic_load(&w->failed)) {
        start_helper(w, abort_main);
        if (w->watch.end) last_resort(w);
    }
    w->ended = true;
    bool left = w->left;
    pthread_mutex_unlock(&w->lock);
    if (left) watchdog_free(w);
    return NULL;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

enum status cuda_watchdog_start(const struct cuda_watch *watch, struct cuda_watchdog **out, struct err *err)
{
    uint64_t timeout, grace;
    pthread_condattr_t attr;
    assert(watch->moves && watch->blame);
    TRY(environment_number("ATOLL_GPU_TIMEOUT", "seconds", TIMEOUT, SECONDS_MAX, &timeout, err));
    TRY(environment_number("ATOLL_GPU_GRACE", "seconds", GRACE, SECONDS_MAX, &grace, err));
    struct cuda_watchdog *w = mem_alloc(1, sizeof *w);
    if (!w) return err_set(err, STATUS_NOMEM, "watchdog: out of memory");
    w->watch = *watch;
    w->timeout = (unsigned)timeout;
    w->grace = (unsigned)grace;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (thread_start(&w->thread, watch_main, w) != 0) {
        watchdog_free(w);
        return err_set(err, STATUS_LIMIT, "watchdog: cannot start a thread");
    }
    *out = w;
    return STATUS_OK;
}

/* Waits until no helper runs and, after a failure, until the abort has ended. The caller holds the lock. */
static void helpers_wait(struct cuda_watchdog *w)
{
    while (w->helpers || (atomic_load(&w->failed) && !w->aborted)) pthread_cond_wait(&w->changed, &w->lock);
    assert(w->helpers == 0);
}

void cuda_watchdog_turn(struct cuda_watchdog *w, const struct cuda_watch *watch)
{
    if (!w) return;
    assert(watch->moves && watch->blame);
    pthread_mutex_lock(&w->lock);
    assert(!w->closing);
    w->turns++; /* a stall of the old watch no longer counts */
    pthread_cond_broadcast(&w->changed);
    helpers_wait(w);
    w->watch = *watch;
    w->idle = 0;
    pthread_mutex_unlock(&w->lock);
}

void cuda_watchdog_stop(struct cuda_watchdog *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    assert(!w->closing);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    helpers_wait(w);
    pthread_t thread = w->thread;
    bool stays = atomic_load(&w->failed) && w->watch.end && !w->ended;
    w->left = stays;
    pthread_mutex_unlock(&w->lock);
    if (stays) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    watchdog_free(w);
}

void cuda_watchdog_fail(struct cuda_watchdog *w, const struct err *why)
{
    static const struct err unknown = {STATUS_CLOSED, "a rank of this worker failed"};
    pthread_mutex_lock(&w->lock);
    note_failure(w, why && why->code != STATUS_OK && why->code != STATUS_CLOSED ? why : &unknown);
    pthread_mutex_unlock(&w->lock);
}

const struct err *cuda_watchdog_failure(const struct cuda_watchdog *w)
{
    return atomic_load(&w->failed) ? &w->why : NULL;
}
