#include <assert.h>
#include <inttypes.h>
#include <math.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/session/session_impl.h"

enum { METRICS_US = 1000000 };

/* The protocol accepts no NaN in these fields. */
static float finite_or_zero(double value)
{
    return isfinite(value) ? (float)value : 0.0f;
}

void step_queue_add(struct step_queue *q, const struct metrics_step *step, uint64_t done_us)
{
    if (q->end - q->first == STEP_QUEUE_MAX) {
        if (q->next == q->first) {
            q->next++;
            q->lost++;
        }
        q->first++;
    }
    q->records[q->end % STEP_QUEUE_MAX].step = *step;
    q->records[q->end++ % STEP_QUEUE_MAX].done_us = done_us;
    assert(q->first <= q->next && q->next < q->end && q->end - q->first <= STEP_QUEUE_MAX);
}

void step_queue_batch(const struct step_queue *q, struct msg_metrics *m, uint64_t now_us)
{
    m->n_steps = 0;
    for (uint64_t at = q->next; at < q->end && m->n_steps < WIRE_METRICS_MAX; at++) {
        struct metrics_step *step = &m->steps[m->n_steps++];
        uint64_t done_us = q->records[at % STEP_QUEUE_MAX].done_us;
        *step = q->records[at % STEP_QUEUE_MAX].step;
        assert(done_us <= now_us);
        step->age_us = now_us - done_us;
    }
}

void step_queue_sent(struct step_queue *q, uint32_t n, uint64_t now_us)
{
    assert(n <= q->end - q->next);
    q->next += n;
    q->sent_us = now_us;
}

void step_queue_acked(struct step_queue *q, uint64_t acked_us)
{
    if (acked_us > q->sent_us) q->first = q->next;
}

void step_queue_resend(struct step_queue *q)
{
    q->next = q->first;
}

/* Adds the times of the last round if they are not reported yet. */
static void put_times(const struct worker_session *s, struct msg_metrics *m)
{
    const struct outer_times *times = outer_loop_times(s->loop);
    m->round = times->round == s->reported_round ? UINT64_MAX : times->round;
    bool has_times = m->round != UINT64_MAX;
    m->compute_s = has_times ? finite_or_zero(times->compute_s) : 0;
    m->compress_s = has_times ? finite_or_zero(times->compress_s) : 0;
    m->send_s = has_times ? finite_or_zero(times->send_s) : 0;
    m->wait_s = has_times ? finite_or_zero(times->wait_s) : 0;
    m->apply_s = has_times ? finite_or_zero(times->apply_s) : 0;
}

/* Queues unacknowledged records again if the session or the connection changed; returns whether it did. */
static bool resend_if_changed(struct worker_session *s, uint64_t session)
{
    uint64_t acked_us = heartbeat_acked_us(outer_loop_heartbeat(s->loop));
    /* Read after acked_us: the acknowledgement came over this connection. */
    unsigned connected = link_connected(s->link);
    bool changed = session != s->steps_session || connected != s->steps_connected;
    if (changed) {
        step_queue_resend(&s->steps);
        s->reported_round = UINT64_MAX;
    }
    s->steps_session = session;
    s->steps_connected = connected;
    step_queue_acked(&s->steps, acked_us);
    if (s->steps.lost)
        log_warn("dropped %" PRIu64 " steps from metrics.jsonl: no answer from the coordinator, and the queue holds %d",
                 s->steps.lost, STEP_QUEUE_MAX);
    s->steps.lost = 0;
    return changed;
}

void worker_session_send_metrics(struct worker_session *s, bool force)
{
    struct step_queue *q = &s->steps;
    struct msg_metrics *m = &s->metrics;
    uint64_t session = outer_loop_session(s->loop);
    if (!session || !s->link) return;
    if (resend_if_changed(s, session)) force = true; /* the run may end before a second has passed */
    if (!force && q->end - q->next < WIRE_METRICS_MAX && clock_monotonic_us() < q->sent_us + METRICS_US) return;
    while (q->next < q->end) {
        step_queue_batch(q, m, clock_monotonic_us());
        put_times(s, m);
        link_bytes(s->link, &m->bytes_up, &m->bytes_down);
        if (outer_loop_metrics(s->loop, m) != STATUS_OK) return;
        step_queue_sent(q, m->n_steps, clock_monotonic_us());
        if (m->round != UINT64_MAX) s->reported_round = m->round;
    }
}

void worker_session_add_step(struct worker_session *s, const struct metrics_step *step)
{
    step_queue_add(&s->steps, step, clock_monotonic_us());
}
