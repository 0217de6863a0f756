#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/config/model_flops.h"
#include "worker/train_impl.h"

enum { SKIP_LINE_US = 30000000 };

/* Returns 0 for a time above the protocol's range: a missing time is better than a wrong one. */
static uint32_t microseconds(double s)
{
    return s * 1e6 <= UINT32_MAX ? (uint32_t)(s * 1e6) : 0;
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
    int n = snprintf(out, SPEED_MAX, "%6s tokens/s  %.4g %cFLOP/s", units_count(tokens_per_s).text,
                     flops * (small ? 1e-9 : 1e-12), small ? 'G' : 'T');
    if (peak_flops > 0 && n < SPEED_MAX)
        snprintf(out + n, SPEED_MAX - (size_t)n, "  MFU %.1f %%", 100 * flops / peak_flops);
}

void train_note_step(struct trainer *t, const struct step_note *note, const struct step_result *result)
{
    double loss = result->tokens ? result->loss_sum / (double)result->tokens : NAN;
    worker_session_add_step(t->session, &(struct metrics_step){
                                            .round = note->round,
                                            .step = note->step,
                                            .position = note->position,
                                            .loss = (float)loss,
                                            .lr = (float)note->lr,
                                            .grad_norm = (float)result->grad_norm,
                                            .tokens = result->tokens,
                                            .step_us = microseconds(result->compute_s),
                                        });
    t->steps_done++;
    if (result->skipped) train_note_skip(&t->skips, &t->config, note->position, clock_monotonic_us());
    if (t->steps_done % LOG_EVERY_STEPS) return;
    char speed[SPEED_MAX];
    double rate = result->compute_s > 0 ? (double)result->tokens / result->compute_s : 0.0;
    train_speed_text(speed, rate, model_flops_per_token(&t->config), replica_peak_flops(t->replica));
    log_info("step %6.0f  round %4" PRIu64 "  loss %7.4f  lr %.3e  norm %7.3f  %s", note->position + 1, note->round + 1,
             loss, note->lr, result->grad_norm, speed);
}
