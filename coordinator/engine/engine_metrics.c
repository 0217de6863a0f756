#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/config/model_flops.h"
#include "coordinator/engine/engine_impl.h"

enum { SKIPS_LINE_US = 30000000 };

static const uint64_t age_max_us = 7 * 86400 * UINT64_C(1000000); /* no outage with a full queue lasts longer */

/* Merged tokens, plus the tokens of reported steps whose rounds are not merged yet. */
static uint64_t tokens_so_far(const struct engine *e)
{
    uint64_t tokens = e->ledger.round.tokens;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        const struct session *s = &e->sessions.sessions[i];
        const struct member *m = s->id ? member_by_id(&e->ledger.round.members, s->member) : NULL;
        if (m && m->work.open && !m->work.merged && m->work.round == s->step_round) tokens += s->step_tokens;
    }
    return tokens;
}

/* False: the record is counted already; the worker resent it. A round that is trained again begins with step 0. */
static bool count_step(struct session *s, const struct metrics_step *step)
{
    bool begins = s->step_round != step->round || !step->step;
    if (!begins && step->step <= s->last_step) return false;
    if (begins) s->step_tokens = 0;
    s->step_round = step->round;
    s->last_step = step->step;
    s->step_tokens += step->tokens;
    return true;
}

void engine_emit_skips(struct engine *e, struct session *s)
{
    char text[256];
    if (!s->skips) return;
    snprintf(text, sizeof text,
             "skipped %" PRIu64 " inner steps up to round %" PRIu64 ": the gradient is not finite; %s", s->skips,
             s->step_round + 1, config_divergence_advice(&e->config));
    s->skips = 0;
    s->skips_logged_us = e->now_us;
    engine_emit_text(e, ENGINE_EVENT_FAULT, s->name, text);
}

/* The worker has reported the last step of its round. */
static bool trained(const struct engine *e, const struct session *s, const struct metrics_step *last)
{
    const struct member *m = member_by_id(&e->ledger.round.members, s->member);
    return !m || m->work.round != last->round || last->step + 1 >= m->work.steps;
}

/* Emits a STEP event. Events count steps and rounds from 1. */
static void emit_step(struct engine *e, const struct session *s, const struct msg_metrics *m, uint32_t i)
{
    assert(i < m->n_steps);
    const struct metrics_step *step = &m->steps[i];
    bool last = i + 1 == m->n_steps;
    struct engine_event event = {.kind = ENGINE_EVENT_STEP,
                                 .step = {.worker = s->name,
                                          .step = (uint64_t)(step->position + 1.5),
                                          .round = step->round + 1,
                                          .tokens = tokens_so_far(e),
                                          .age_s = step->age_us <= age_max_us ? (double)step->age_us * 1e-6 : 0,
                                          .loss = (double)step->loss,
                                          .lr = (double)step->lr,
                                          .grad_norm = (double)step->grad_norm,
                                          .skipped = !isfinite(step->grad_norm),
                                          .timed = step->step_us > 0,
                                          .counted = last,
                                          .measured = last && m->round != UINT64_MAX}};
    struct engine_event_step *out = &event.step;
    if (out->timed) {
        out->tokens_per_s = (double)step->tokens * 1e6 / step->step_us;
        out->tflops = out->tokens_per_s * model_flops_per_token(&e->config) * 1e-12;
    }
    if (out->counted) {
        out->bytes_up = m->bytes_up;
        out->bytes_down = m->bytes_down;
    }
    if (out->measured) {
        out->compute_s = (double)m->compute_s;
        out->compress_s = (double)m->compress_s;
        out->send_s = (double)m->send_s;
        out->wait_s = (double)m->wait_s;
        out->apply_s = (double)m->apply_s;
    }
    engine_emit(e, &event);
}

void engine_on_metrics(struct engine *e, struct session *s, const struct msg_metrics *m)
{
    for (uint32_t i = 0; i < m->n_steps; i++) {
        bool counted = count_step(s, &m->steps[i]);
        s->skips += counted && !isfinite(m->steps[i].grad_norm);
        emit_step(e, s, m, i);
    }
    bool due = !s->skips_logged_us || e->now_us - s->skips_logged_us >= SKIPS_LINE_US;
    if (due && m->n_steps && trained(e, s, &m->steps[m->n_steps - 1])) engine_emit_skips(e, s);
}
