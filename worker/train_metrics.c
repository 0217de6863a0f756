#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/config/model_flops.h"
#include "worker/train_impl.h"

enum { METRICS_US = 1000000, SKIP_LINE_US = 30000000 };

/* Returns 0 for a time above the protocol's range: a missing time is better than a wrong one. */
static uint32_t microseconds(double s)
{
    return s * 1e6 <= UINT32_MAX ? (uint32_t)(s * 1e6) : 0;
}

/* The protocol accepts no NaN in these fields. */
static float finite_or_zero(double value)
{
    return isfinite(value) ? (float)value : 0.0f;
}

void train_note_skip(struct skip_log *log, const struct config *config, double position, uint64_t now_us)
{
    log->count++;
    log->position = position;
    if (!log->logged_us) {
        log->count = 0;
        log_warn("skipped step %.0f: the gradient is not finite; if this continues, %s", position + 1,
                 config_divergence_advice(config));
    } else if (now_us - log->logged_us >= SKIP_LINE_US) {
        train_end_skips(log);
    } else {
        return;
    }
    log->logged_us = now_us;
}

void train_end_skips(struct skip_log *log)
{
    if (log->count)
        log_warn("skipped %" PRIu64 " more step%s up to step %.0f: the gradient is not finite", log->count,
                 log->count > 1 ? "s" : "", log->position + 1);
    log->count = 0;
}

void train_speed_text(char out[SPEED_MAX], double tokens_per_s, double flops_per_token, double peak_flops)
{
    double flops = tokens_per_s * flops_per_token;
    bool small = flops < 1e12;
    int n = snprintf(out, SPEED_MAX, "%8.0f tok/s  %.4g %cFLOP/s", tokens_per_s, flops * (small ? 1e-9 : 1e-12),
                     small ? 'G' : 'T');
    if (peak_flops > 0 && n < SPEED_MAX)
        snprintf(out + n, SPEED_MAX - (size_t)n, "  MFU %.1f %%", 100 * flops / peak_flops);
}

void train_note_step(struct trainer *t, const struct step_note *note, const struct step_result *result)
{
    double loss = result->tokens ? result->loss_sum / (double)result->tokens : NAN;
    step_queue_add(&t->steps,
                   &(struct metrics_step){
                       .round = note->round,
                       .step = note->step,
                       .position = note->position,
                       .loss = (float)loss,
                       .lr = finite_or_zero(note->lr),
                       .grad_norm = (float)result->grad_norm,
                       .tokens = result->tokens,
                       .step_us = microseconds(result->compute_s),
                   },
                   clock_monotonic_us());
    t->steps_done++;
    if (result->skipped) train_note_skip(&t->skips, &t->config, note->position, clock_monotonic_us());
    if (t->steps_done % t->config.log.every_steps) return;
    char speed[SPEED_MAX];
    double rate = result->compute_s > 0 ? (double)result->tokens / result->compute_s : 0.0;
    train_speed_text(speed, rate, model_flops_per_token(&t->config), replica_peak_flops(t->replica));
    log_info("step %6.0f  round %4" PRIu64 "  loss %7.4f  lr %.3e  norm %7.3f  %s", note->position + 1, note->round + 1,
             loss, note->lr, result->grad_norm, speed);
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
static void put_times(const struct trainer *t, struct msg_metrics *m)
{
    const struct outer_times *times = outer_loop_times(t->loop);
    m->round = times->round == t->reported_round ? UINT64_MAX : times->round;
    bool has_times = m->round != UINT64_MAX;
    m->compute_s = has_times ? finite_or_zero(times->compute_s) : 0;
    m->compress_s = has_times ? finite_or_zero(times->compress_s) : 0;
    m->send_s = has_times ? finite_or_zero(times->send_s) : 0;
    m->wait_s = has_times ? finite_or_zero(times->wait_s) : 0;
    m->apply_s = has_times ? finite_or_zero(times->apply_s) : 0;
}

/* Queues unacknowledged records again if the session or the connection changed; returns whether it did. */
static bool resend_if_changed(struct trainer *t, uint64_t session)
{
    uint64_t acked_us = heartbeat_acked_us(outer_loop_heartbeat(t->loop));
    /* Read after acked_us: the acknowledgement came over this connection. */
    unsigned connected = link_connected(t->link);
    bool changed = session != t->steps_session || connected != t->steps_connected;
    if (changed) {
        step_queue_resend(&t->steps);
        t->reported_round = UINT64_MAX;
    }
    t->steps_session = session;
    t->steps_connected = connected;
    step_queue_acked(&t->steps, acked_us);
    if (t->steps.lost)
        log_warn("dropped %" PRIu64 " steps from metrics.jsonl: no answer from the coordinator, and the queue holds %d",
                 t->steps.lost, STEP_QUEUE_MAX);
    t->steps.lost = 0;
    return changed;
}

void train_send_metrics(struct trainer *t, bool force, uint64_t now_us)
{
    struct step_queue *q = &t->steps;
    struct msg_metrics *m = &t->metrics;
    uint64_t session = outer_loop_session(t->loop);
    if (!session) return;
    if (resend_if_changed(t, session)) force = true; /* the run may end before a second has passed */
    if (!force && q->end - q->next < WIRE_METRICS_MAX && now_us < q->sent_us + METRICS_US) return;
    while (q->next < q->end) {
        step_queue_batch(q, m, clock_monotonic_us());
        put_times(t, m);
        link_bytes(t->link, &m->bytes_up, &m->bytes_down);
        if (outer_loop_metrics(t->loop, m) != STATUS_OK) return;
        step_queue_sent(q, m->n_steps, clock_monotonic_us());
        if (m->round != UINT64_MAX) t->reported_round = m->round;
    }
}
