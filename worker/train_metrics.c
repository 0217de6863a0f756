#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/model_flops.h"
#include "worker/train_impl.h"

enum { METRICS_US = 1000000, SKIP_LINE_US = 30000000 };

/* Of a step that took longer than the protocol can say: 0, no time is better than a wrong one. */
static uint32_t microseconds(double s)
{
    return s * 1e6 <= UINT32_MAX ? (uint32_t)(s * 1e6) : 0;
}

/* METRICS crosses the protocol, which takes no NaN where a number is needed. */
static float number(double value)
{
    return isfinite(value) ? (float)value : 0.0f;
}

void train_note_skip(struct skip_log *log, double position, uint64_t now_us)
{
    log->count++;
    log->position = position;
    if (!log->said_us) {
        log->count = 0;
        log_warn("step %.0f: the gradient is not finite, step skipped; if this goes on lower inner.learning_rate or "
                 "set inner.grad_clip",
                 position + 1);
    } else if (now_us - log->said_us >= SKIP_LINE_US) {
        train_end_skips(log);
    } else {
        return;
    }
    log->said_us = now_us;
}

void train_end_skips(struct skip_log *log)
{
    if (log->count)
        log_warn("%" PRIu64 " more step%s up to step %.0f %s skipped: the gradient is not finite", log->count,
                 log->count > 1 ? "s" : "", log->position + 1, log->count > 1 ? "were" : "was");
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
    struct msg_metrics *m = &t->metrics;
    double loss = result->tokens ? result->loss_sum / (double)result->tokens : NAN;
    if (m->n_steps < WIRE_METRICS_MAX)
        m->steps[m->n_steps++] = (struct metrics_step){
            .round = note->round,
            .step = note->step,
            .position = note->position,
            .loss = (float)loss,
            .lr = number(note->lr),
            .grad_norm = (float)result->grad_norm,
            .tokens = result->tokens,
            .step_us = microseconds(result->compute_s),
        };
    t->steps_done++;
    if (result->skipped) train_note_skip(&t->skips, note->position, clock_monotonic_us());
    if (t->steps_done % t->config.log.every_steps) return;
    char speed[SPEED_MAX];
    double rate = result->compute_s > 0 ? (double)result->tokens / result->compute_s : 0.0;
    train_speed_text(speed, rate, model_flops_per_token(&t->config), replica_peak_flops(t->replica));
    log_info("step %6.0f  round %4" PRIu64 "  loss %7.4f  lr %.3e  norm %7.3f  %s", note->position + 1,
             note->round + 1, loss, note->lr, result->grad_norm, speed);
}

void train_send_metrics(struct trainer *t, bool force, uint64_t now_us)
{
    struct msg_metrics *m = &t->metrics;
    const struct outer_times *times = outer_loop_times(t->loop);
    bool round = times->round != t->reported_round && times->round != UINT64_MAX;
    bool full = m->n_steps == WIRE_METRICS_MAX;
    if (!m->n_steps && !round) return;
    if (!force && !full && now_us < t->metrics_us + METRICS_US) return;
    link_bytes(t->link, &m->bytes_up, &m->bytes_down);
    m->round = round ? times->round : UINT64_MAX;
    m->compute_s = round ? number(times->compute_s) : 0;
    m->compress_s = round ? number(times->compress_s) : 0;
    m->send_s = round ? number(times->send_s) : 0;
    m->wait_s = round ? number(times->wait_s) : 0;
    m->apply_s = round ? number(times->apply_s) : 0;
    outer_loop_metrics(t->loop, m);
    t->reported_round = times->round;
    t->metrics_us = now_us;
    memset(m, 0, sizeof *m);
}
