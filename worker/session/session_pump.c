/* The exchange while the host computes: between two inner steps alone, an upload would move one outbox of bytes a step.
 *
 * The pump has the session whenever the host computes. It waits for messages without it, so the host gets it back after
 * at most one message. Whatever ends the segment, or needs the host's functions, waits for the host. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/thread.h"
#include "worker/session/session_impl.h"

enum { WAIT_MAX_US = 10000 }; /* longest sleep: the host may have moved the deadline since */

/* They change settings, start an upload of the program's parameters, or drop the round. */
static bool needs_host(const struct msg *m)
{
    return m->type == MSG_CONFIG || m->type == MSG_UPLOAD || m->type == MSG_WELCOME;
}

/* Handles what has arrived, sends what is due. False: nothing more happens before the host has the session. */
static bool exchange(struct worker_session *s)
{
    while (atomic_load(&s->pump.computing) && outer_loop_exchanges(s->loop)) {
        enum status status = link_recv(s->link, 0, &s->held_lane, &s->in);
        if (status == STATUS_AGAIN) break;
        if (status != STATUS_OK) continue;
        s->held = needs_host(&s->in);
        if (s->held) return false;
        outer_loop_on_message(s->loop, s->held_lane, &s->in, clock_monotonic_us());
    }
    session_tick(s);
    return outer_loop_exchanges(s->loop);
}

static uint64_t wait_us(const struct worker_session *s)
{
    uint64_t now = clock_monotonic_us(), due = outer_loop_deadline_us(s->loop);
    uint64_t wait = due > now ? due - now : 0;
    return wait < WAIT_MAX_US ? wait : WAIT_MAX_US;
}

static void *run(void *arg)
{
    struct worker_session *s = arg;
    struct session_pump *p = &s->pump;
    pthread_mutex_lock(&p->lock);
    while (!p->stop) {
        if (!atomic_load(&p->computing)) {
            pthread_cond_wait(&p->changed, &p->lock);
            continue;
        }
        p->busy = true;
        pthread_mutex_unlock(&p->lock);
        bool more = exchange(s);
        uint64_t wait = wait_us(s);
        struct link *link = s->link;
        pthread_mutex_lock(&p->lock);
        p->busy = false;
        if (!more) atomic_store(&p->computing, false);
        pthread_cond_broadcast(&p->changed);
        if (!atomic_load(&p->computing)) continue;
        pthread_mutex_unlock(&p->lock);
        link_wait(link, wait); /* session_pump_stop comes before its end */
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static bool start(struct worker_session *s)
{
    struct session_pump *p = &s->pump;
    if (p->started || p->failed) return p->started;
    p->stop = false;
    p->started = thread_start(&p->thread, run, s) == 0;
    p->failed = !p->started;
    if (p->failed) log_warn("cannot start a thread: deltas and updates travel only between two steps");
    return p->started;
}

void session_pump_stop(struct worker_session *s)
{
    struct session_pump *p = &s->pump;
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    p->started = false;
}

void worker_session_compute(struct worker_session *s)
{
    struct session_pump *p = &s->pump;
    if (!s->link || s->held || !outer_loop_exchanges(s->loop) || !start(s)) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->computing, true);
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

void worker_session_computed(struct worker_session *s)
{
    struct session_pump *p = &s->pump;
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->computing, false);
    while (p->busy) pthread_cond_wait(&p->changed, &p->lock);
    pthread_mutex_unlock(&p->lock);
}
