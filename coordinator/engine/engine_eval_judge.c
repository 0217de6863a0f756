/* Judges the results of evaluations: a worker may compute or report wrong values.
 *
 * - A result is refused if its sum or a part is negative, its tokens are not those of its windows, or its parts do not
 *   add up to its sum.
 * - A second worker evaluates a sample of each share: an eighth of its parts, drawn after the first answer, so the
 *   first worker cannot know which. A whole share costs twice the time, the sample one eighth.
 * - A sum that is not finite, or above 2 ln(vocabulary) nats per token, is what a diverged model gives. The sample is
 *   then its worst part. Two workers that agree are believed.
 * - If two workers differ by more than rounding, a third one evaluates the sample, and the majority counts. Without a
 *   third worker the bounds decide. If both are within them the value is disputed: both workers are named, and the
 *   larger value counts, so a false value never flatters the run.
 * - A worker whose result is proven wrong is named, and evaluates no more in this process.
 * - One worker alone: its value counts, and a value above the bound is reported.
 * - model.family external: there is no such bound, samples may have any number of tokens, and losses may be negative.
 */
#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/engine/engine_impl.h"

enum { SAMPLE_SHARE = 8 }; /* one of so many parts is evaluated twice */

/* Sums of honest workers differ by rounding. Measured, relative: 4e-8 between the CPU's instructions (avx512, avx2,
 * portable), and 4e-3 per token between bf16 and fp32 (tests/parity/test_cuda_bf16.c). */
static const double tolerance_fp32 = 1e-4, tolerance_bf16 = 1e-2;

static bool agree(const struct engine *e, double a, double b)
{
    bool bf16 = e->config.train.precision == PRECISION_BF16 || config_is_external(&e->config); /* external: unknown */
    double tolerance = bf16 ? tolerance_bf16 : tolerance_fp32;
    if (!isfinite(a) || !isfinite(b)) return !isfinite(a) && !isfinite(b);
    return fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

/* Windows of a share, in which the first answer counted its tokens. */
static double per_token(const struct engine *e, const struct eval_share *share, double loss_sum, uint64_t windows)
{
    double each = (double)e->ledger.model.sample_tokens;
    if (config_is_external(&e->config)) each = (double)share->tokens / (double)share->count;
    return loss_sum / ((double)windows * each);
}

/* A uniform guess loses ln(vocabulary) nats per token. */
static bool is_plausible(const struct engine *e, const struct eval_share *share, double loss_sum, uint64_t windows)
{
    if (!isfinite(loss_sum) || config_is_external(&e->config)) return isfinite(loss_sum);
    return per_token(e, share, loss_sum, windows) <= 2 * log(e->config.model.vocab_size);
}

/* A text for log lines: "2.3142 nats per token". */
struct value_text {
    char text[48];
};

static struct value_text value_of(const struct engine *e, const struct eval_share *share, double loss_sum,
                                  uint64_t windows)
{
    struct value_text out;
    snprintf(out.text, sizeof out.text, "%.6g nats per token", per_token(e, share, loss_sum, windows));
    return out;
}

static const char *name_of(const struct engine *e, uint32_t member)
{
    return member_by_id(&e->ledger.round.members, member)->name;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

static void set_stage(const struct engine *e, struct eval_share *share, enum eval_stage stage)
{
    share->stage = stage;
    share->holder = share->id = 0;
    share->asked_us = stage == EVAL_FIRST ? 0 : e->now_us;
    if (stage != EVAL_FIRST) return;
    share->done = false;
    share->from = share->start;
    share->n = share->count;
}

bool engine_eval_answered(const struct eval_share *share, uint32_t member)
{
    return (share->stage >= EVAL_SECOND && share->first == member) ||
           (share->stage >= EVAL_THIRD && share->second == member);
}

/* Takes the member's evaluations back: other workers repeat them. */
static void refuse_member(struct engine *e, uint32_t member, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse_member(struct engine *e, uint32_t member, const char *fmt, ...)
{
    char why[400], text[WIRE_TEXT_MAX];
    struct member *m = member_by_id(&e->ledger.round.members, member);
    const struct session *s = session_by_member(&e->sessions, member);
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    m->false_evals = true;
    snprintf(text, sizeof text, "refused its evaluation after round %llu: %s; it evaluates no more",
             (unsigned long long)e->eval.round, why);
    engine_emit_text(e, ENGINE_EVENT_FAULT, m->name, text);
    for (uint32_t i = 0; i < e->eval.n; i++) {
        struct eval_share *share = &e->eval.shares[i];
        bool answered = share->done || share->stage != EVAL_FIRST;
        if (s && share->holder == s->id) share->holder = 0;
        if (answered && share->first == member)
            set_stage(e, share, EVAL_FIRST);
        else if (!share->done && share->stage == EVAL_THIRD && share->second == member)
            set_stage(e, share, EVAL_SECOND);
    }
}

/* The part with the largest mean; one that is not finite counts as the largest. */
static uint32_t worst_part(const struct eval_share *share, uint32_t n)
{
    uint32_t worst = 0;
    double largest = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t left = share->count - i * share->part;
        double mean = share->parts[i] / (double)(left < share->part ? left : share->part);
        if (!isfinite(mean)) return i;
        if (mean <= largest) continue;
        largest = mean;
        worst = i;
    }
    return worst;
}

/* Draws the sample of the second worker. */
static void draw_sample(struct engine *e, struct eval_share *share)
{
    uint32_t n = (uint32_t)msg_eval_parts(share->count, share->part), k = (n + SAMPLE_SHARE - 1) / SAMPLE_SHARE;
    uint32_t at = (uint32_t)(engine_draw(e) % (n - k + 1));
    if (!is_plausible(e, share, share->loss_sum, share->count)) {
        at = worst_part(share, n);
        k = 1;
    }
    uint64_t left = share->count - at * share->part;
    set_stage(e, share, EVAL_SECOND);
    share->from = share->start + at * share->part;
    share->n = k * share->part < left ? k * share->part : left;
    share->sample[0] = 0;
    for (uint32_t i = at; i < at + k; i++) share->sample[0] += share->parts[i];
    assert(share->n > 0 && share->from + share->n <= share->start + share->count);
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

static double larger(double a, double b)
{
    if (!isfinite(a) || !isfinite(b)) return INFINITY;
    return a > b ? a : b;
}

static void dispute(struct engine *e, struct eval_share *share)
{
    char text[WIRE_TEXT_MAX];
    snprintf(
        text, sizeof text,
        "disputed evaluation after round %llu, windows %llu to %llu: %s gives %s, %s gives %s; one of them is wrong, "
        "and the larger value counts",
        (unsigned long long)e->eval.round, (unsigned long long)share->from + 1,
        (unsigned long long)share->from + share->n, name_of(e, share->first),
        value_of(e, share, share->sample[0], share->n).text, name_of(e, share->second),
        value_of(e, share, share->sample[1], share->n).text);
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
    share->loss_sum = larger(share->loss_sum, share->sample[1] * ((double)share->count / (double)share->n));
    share->done = true;
    e->eval.disputed = true;
}

void engine_eval_settle(struct engine *e, struct eval_share *share)
{
    bool first = is_plausible(e, share, share->sample[0], share->n),
         second = is_plausible(e, share, share->sample[1], share->n);
    char text[WIRE_TEXT_MAX];
    assert(!share->done && share->stage != EVAL_FIRST && !share->holder);
    if (share->stage == EVAL_SECOND) {
        share->done = true;
        if (is_plausible(e, share, share->loss_sum, share->count) || !isfinite(share->loss_sum)) return;
        snprintf(
            text, sizeof text,
            "its evaluation after round %llu gives %s, above 2 ln(model.vocab_size): no other worker could check it",
            (unsigned long long)e->eval.round, value_of(e, share, share->loss_sum, share->count).text);
        engine_emit_text(e, ENGINE_EVENT_FAULT, name_of(e, share->first), text);
    } else if (first == second) {
        dispute(e, share);
    } else {
        uint32_t liar = first ? share->second : share->first;
        share->done = first;
        refuse_member(e, liar, "%s, but %s gives %s", value_of(e, share, share->sample[first], share->n).text,
                      name_of(e, first ? share->first : share->second),
                      value_of(e, share, share->sample[!first], share->n).text);
    }
}

/* Why a result is wrong by itself; NULL: it may be right. */
static const char *fault_of(const struct engine *e, const struct eval_share *share, const struct msg_eval_result *m)
{
    double sum = 0;
    bool external = config_is_external(&e->config), negative = m->loss_sum < 0;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        sum += m->parts[i];
        negative = negative || m->parts[i] < 0;
    }
    if (external ? m->tokens / e->ledger.round.p.sample_tokens > share->n
                 : m->tokens != share->n * e->ledger.model.sample_tokens)
        return "its tokens are not those of its windows";
    if (m->n_parts != msg_eval_parts(share->n, share->part)) return "it has not one sum for each part";
    if (negative && !external) return "it has a negative loss";
    bool adds_up = isfinite(sum) == isfinite(m->loss_sum) &&
                   (!isfinite(sum) || fabs(sum - m->loss_sum) <= 1e-9 * (1 + fabs(m->loss_sum)));
    return adds_up ? NULL : "its parts do not add up to its sum";
}

/* The third worker's sum over the sample. */
static void decide(struct engine *e, struct eval_share *share, const struct session *s, double third)
{
    bool first = agree(e, share->sample[0], third), second = agree(e, share->sample[1], third);
    if (!first && !second) {
        dispute(e, share);
        return;
    }
    share->done = first;
    if (first && second) return;
    uint32_t other = first ? share->first : share->second;
    refuse_member(e, first ? share->second : share->first, "%s, but %s and %s give %s",
                  value_of(e, share, share->sample[first], share->n).text, name_of(e, other), s->name,
                  value_of(e, share, third, share->n).text);
}

void engine_eval_answer(struct engine *e, struct eval_share *share, const struct session *s,
                        const struct msg_eval_result *m)
{
    const char *fault = fault_of(e, share, m);
    assert(!share->done && !share->holder && m->tokens);
    if (fault) {
        refuse_member(e, s->member, "%s (%.6g nats, %llu tokens)", fault, m->loss_sum, (unsigned long long)m->tokens);
        return;
    }
    switch (share->stage) {
    case EVAL_FIRST:
        share->first = s->member;
        share->loss_sum = m->loss_sum;
        share->tokens = m->tokens;
        memcpy(share->parts, m->parts, sizeof share->parts);
        deadline_add(&e->eval.window_ns, (e->now_us - share->given_us) * 1000 / share->n);
        draw_sample(e, share);
        if (e->config.train.method == METHOD_ASYNC && !e->eval.final) engine_eval_settle(e, share);
        break;
    case EVAL_SECOND:
        share->second = s->member;
        share->sample[1] = m->loss_sum;
        share->done = agree(e, share->sample[0], m->loss_sum);
        if (!share->done) set_stage(e, share, EVAL_THIRD);
        break;
    case EVAL_THIRD: decide(e, share, s, m->loss_sum); break;
    }
}
