#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/config/model_flops.h"
#include "coordinator/engine/engine_impl.h"

enum { FULL_WORKERS = 8 };  /* so many workers have all their steps in metrics.jsonl */
enum { COUNT_US = 100000 }; /* between two counts of the tokens of all workers */
enum { SKIPS_LINE_US = 30000000, STRANGE_LINE_US = 1000000 };

#define BYTES_END ((uint64_t)1 << 53) /* JSON numbers are exact below */

static const uint64_t age_max_us = 7 * 86400 * UINT64_C(1000000); /* no outage with a full queue lasts longer */

/* The reported steps of this session are not merged. */
static bool is_unmerged(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    return m && m->work.open && !m->work.merged && m->work.round == s->step_round;
}

/* Merged tokens, plus those of reported steps that are not merged. Counted ten times a second and after each merge;
 * count_step adds the steps since. */
static uint64_t tokens_so_far(struct engine *e)
{
    struct token_count *t = &e->tokens;
    bool holds = t->merged == e->ledger.round.tokens && t->sessions == e->sessions.changes && e->now_us < t->again_us;
    if (holds) return t->tokens;
    *t = (struct token_count){.merged = e->ledger.round.tokens,
                              .tokens = e->ledger.round.tokens,
                              .sessions = e->sessions.changes,
                              .again_us = e->now_us + COUNT_US};
    for_each_session(e, s) t->tokens += is_unmerged(e, s) ? s->step_tokens : 0;
    return t->tokens;
}

/* False: the record is counted already; the worker resent it. A round that is trained again begins with step 0. */
static bool count_step(struct engine *e, struct session *s, const struct metrics_step *step)
{
    bool begins = s->step_round != step->round || !step->step;
    if (!begins && step->step <= s->last_step) return false;
    if (begins && is_unmerged(e, s)) e->tokens.tokens -= s->step_tokens;
    if (begins) s->step_tokens = 0;
    s->step_round = step->round;
    s->last_step = step->step;
    s->step_tokens += step->tokens;
    if (is_unmerged(e, s)) e->tokens.tokens += step->tokens;
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
    const struct member *m = engine_member(e, s);
    return !m || m->work.round != last->round || last->step + 1 >= m->work.steps;
}

/* A rate or norm; METRICS_UNKNOWN becomes NaN. */
static double known(float value)
{
    return value == METRICS_UNKNOWN ? NAN : (double)value;
}

static bool in_range(float value)
{
    return !(value < 0) || value == METRICS_UNKNOWN;
}

/* The record describes a step that the worker can have taken, and its numbers are in range. */
static bool explained(const struct engine *e, const struct member *m, const struct metrics_step *step)
{
    const struct round_params *p = &e->ledger.round.p;
    uint32_t steps = m->work.round == step->round ? m->work.steps : p->sync_every;
    double end = (double)p->max_steps + (double)p->sync_every * e->config.coordinator.max_workers;
    return step->round < m->next_round && step->step < steps && step->tokens <= p->step_samples * p->sample_tokens &&
           step->position >= 0 && step->position <= end && in_range(step->lr) && in_range(step->grad_norm) &&
           (!(step->loss < 0) || config_is_external(&e->config));
}

/* Accepts one record, within the number that the worker's assignments allow. */
static bool take_record(const struct engine *e, struct session *s, const struct metrics_step *step)
{
    struct member *m = engine_member(e, s);
    if (m && m->records && explained(e, m, step)) {
        m->records--;
        return true;
    }
    s->strange++;
    return false;
}

static bool is_time(float seconds)
{
    return seconds >= 0 && seconds < 1e9f;
}

static bool times_in_range(const struct msg_metrics *m)
{
    return m->round != UINT64_MAX && is_time(m->compute_s) && is_time(m->compress_s) && is_time(m->send_s) &&
           is_time(m->wait_s) && is_time(m->apply_s);
}

/* Emits a STEP event. Events count steps and rounds from 1. */
static void emit_step(struct engine *e, const struct session *s, const struct msg_metrics *m, uint32_t i, bool last)
{
    assert(i < m->n_steps);
    const struct metrics_step *step = &m->steps[i];
    struct engine_event event = {.kind = ENGINE_EVENT_STEP,
                                 .step = {.worker = s->name,
                                          .step = (uint64_t)(step->position + 1.5),
                                          .round = step->round + 1,
                                          .tokens = tokens_so_far(e),
                                          .age_s = step->age_us <= age_max_us ? (double)step->age_us * 1e-6 : 0,
                                          .loss = (double)step->loss,
                                          .lr = known(step->lr),
                                          .grad_norm = known(step->grad_norm),
                                          .skipped = !isfinite(step->grad_norm),
                                          .timed = step->step_us > 0,
                                          .counted = last && m->bytes_up < BYTES_END && m->bytes_down < BYTES_END,
                                          .measured = last && times_in_range(m)}};
    struct engine_event_step *out = &event.step;
    if (out->timed) {
        out->tokens_per_s = (double)step->tokens * 1e6 / step->step_us;
        out->tflops =
            config_is_external(&e->config) ? NAN : out->tokens_per_s * model_flops_per_token(&e->config) * 1e-12;
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

/* Emits the number of ignored records. */
static void emit_strange(struct engine *e, struct session *s)
{
    char text[160];
    if (!s->strange || (s->strange_us && e->now_us - s->strange_us < STRANGE_LINE_US)) return;
    snprintf(text, sizeof text, "ignored %" PRIu64 " step records: no assignment explains them", s->strange);
    s->strange = 0;
    s->strange_us = e->now_us;
    engine_emit_text(e, ENGINE_EVENT_FAULT, s->name, text);
}

/* With more than FULL_WORKERS the file grows no faster: of each worker every n-th step, and those with news. */
static bool is_written(const struct engine *e, const struct metrics_step *step, bool last)
{
    uint32_t every = (e->ledger.round.members.n_active + FULL_WORKERS - 1) / FULL_WORKERS;
    return last || every <= 1 || step->step % every == 0 || !isfinite(step->grad_norm);
}

void engine_on_metrics(struct engine *e, struct session *s, const struct msg_metrics *m)
{
    uint32_t accepted[WIRE_METRICS_MAX], n = 0;
    for (uint32_t i = 0; i < m->n_steps; i++)
        if (take_record(e, s, &m->steps[i])) accepted[n++] = i;
    for (uint32_t i = 0; i < n; i++) {
        const struct metrics_step *step = &m->steps[accepted[i]];
        bool counted = count_step(e, s, step);
        s->skips += counted && !isfinite(step->grad_norm);
        if (counted) engine_note_step(e, s, step, trained(e, s, step));
        if (is_written(e, step, i + 1 == n)) emit_step(e, s, m, accepted[i], i + 1 == n);
    }
    emit_strange(e, s);
    bool due = !s->skips_logged_us || e->now_us - s->skips_logged_us >= SKIPS_LINE_US;
    if (due && n && trained(e, s, &m->steps[accepted[n - 1]])) engine_emit_skips(e, s);
}
