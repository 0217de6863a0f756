/* Judges the results of evaluations: a worker may compute or report wrong values.
 *
 * - A share has up to 64 parts, and a result the loss and the tokens of each. It is refused if a part is negative or
 *   has other tokens than its windows, or if the parts do not add up.
 * - A second worker evaluates a sample of the parts. They are drawn after the first answer: an eighth of them, each
 *   with the same chance. The parts with the lowest and the highest mean are always added; for external models also
 *   the part with the most tokens in a window.
 * - If the two differ by more than rounding, a third worker evaluates the sample, and the majority counts. Without a
 *   third worker a part decides that is not finite or above 2 ln(vocabulary) nats per token. Otherwise the value is
 *   disputed: both workers are named, and the larger value counts: the sample's difference is added to the whole share.
 * - A worker whose result is proven wrong is named, and evaluates no more in this process.
 * - Nobody checks a worker alone, nor the periodic evaluations of async: events and lines then say "by one worker". A
 *   part above 2 ln(vocabulary) is reported.
 *
 * What a liar can reach beside honest workers: each value that no second worker computed lies between two confirmed
 * ones. A lie in one part, or in the most extreme one, thus stays within the spread of the honest parts. A lie in k of
 * n parts moves the mean by k / n of that spread at most, and escapes with probability (7/8)^k. A lie in all parts is
 * found unless it is below the tolerance.
 *
 * model.family external: samples may have any number of tokens, and losses may be negative. There is no bound for a
 * part, and rounding is relative to the mean absolute loss of the share. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/minmax.h"
#include "coordinator/engine/engine_impl.h"

enum { SAMPLE_SHARE = 8 }; /* one of so many parts is evaluated twice */

/* Sums of honest workers differ by rounding. Measured, relative: 4e-8 between the CPU's instructions (avx512, avx2,
 * portable), and 4e-3 per token between bf16 and fp32 (tests/parity/test_cuda_bf16.c). One part may differ by ten times
 * as much as the sample: it has fewer tokens. */
static const double tolerance_fp32 = 1e-4, tolerance_bf16 = 1e-2, part_factor = 10;
static const double least_nats = 0.1; /* losses below it have the rounding errors of this one */

static uint64_t n_parts(const struct eval_share *share)
{
    return msg_eval_parts(share->count, share->part);
}

static uint64_t windows_of(const struct eval_share *share, uint64_t part)
{
    return min_u64(share->count - part * share->part, share->part);
}

static bool in_sample(const struct eval_share *share, uint64_t part)
{
    return share->wanted >> part & 1;
}

/* Nats per token; infinite if the sum is not finite. */
static double mean_of(struct wire_part part)
{
    return isfinite(part.sum) ? part.sum / (double)(part.tokens ? part.tokens : 1) : INFINITY;
}

static double sample_mean(const struct eval_share *share, const struct wire_part *parts)
{
    struct wire_part all = {0};
    for (uint64_t i = 0; i < n_parts(share); i++) {
        if (!in_sample(share, i)) continue;
        all.sum += parts[i].sum;
        all.tokens += parts[i].tokens;
    }
    return mean_of(all);
}

/* The size of a loss, in nats per token, below which rounding errors do not shrink further. */
static double scale_of(const struct engine *e, const struct eval_share *share)
{
    double sum = 0;
    if (!config_is_external(&e->config)) return least_nats;
    for (uint64_t i = 0; i < n_parts(share); i++) sum += isfinite(share->parts[i].sum) ? fabs(share->parts[i].sum) : 0;
    return sum / (double)share->tokens;
}

/* The part of the sample in which two answers differ most; -1: they agree. */
static int difference(const struct engine *e, const struct eval_share *share, const struct wire_part *a,
                      const struct wire_part *b)
{
    bool bf16 = e->config.train.precision == PRECISION_BF16 || config_is_external(&e->config); /* external: unknown */
    double tolerance = bf16 ? tolerance_bf16 : tolerance_fp32, scale = scale_of(e, share);
    double sum = 0, sum_limit = 0, most = 0;
    bool differ = false;
    int at = -1;
    for (int i = 0; i < WIRE_PARTS_MAX; i++) {
        if (!in_sample(share, (uint64_t)i)) continue;
        double tokens = (double)a[i].tokens, gap = a[i].sum - b[i].sum;
        if (isfinite(a[i].sum) != isfinite(b[i].sum)) return i;
        if (fabs(tokens - (double)b[i].tokens) > tolerance * tokens) return i;
        if (!isfinite(gap)) continue;
        double limit = tolerance * fmax(fmax(fabs(a[i].sum), fabs(b[i].sum)), scale * tokens);
        differ = differ || fabs(gap) > part_factor * limit;
        sum += gap;
        sum_limit += limit;
        if (fabs(gap) <= most) continue;
        most = fabs(gap);
        at = i;
    }
    return differ || fabs(sum) > sum_limit ? at : -1;
}

/* The first part of the sample that is not finite, or above 2 ln(vocabulary): a uniform guess loses ln(vocabulary) nats
 * per token. -1: none. */
static int implausible(const struct engine *e, const struct eval_share *share, const struct wire_part *parts)
{
    double most = config_is_external(&e->config) ? INFINITY : 2 * log(e->config.model.vocab_size);
    for (int i = 0; i < WIRE_PARTS_MAX; i++)
        if (in_sample(share, (uint64_t)i) && !(isfinite(parts[i].sum) && mean_of(parts[i]) <= most)) return i;
    return -1;
}

/* A text for log lines: "2.3142 nats per token (2048 tokens)". */
struct value_text {
    char text[72];
};

static struct value_text value_of(struct wire_part part)
{
    struct value_text out;
    snprintf(out.text, sizeof out.text, "%.6g nats per token (%llu tokens)",
             part.sum / (double)(part.tokens ? part.tokens : 1), (unsigned long long)part.tokens);
    return out;
}

/* "windows 17 to 32" */
static struct value_text windows_text(const struct eval_share *share, int part)
{
    struct value_text out;
    uint64_t from = share->start + (uint64_t)part * share->part;
    snprintf(out.text, sizeof out.text, "windows %llu to %llu", (unsigned long long)from + 1,
             (unsigned long long)from + windows_of(share, (uint64_t)part));
    return out;
}

static const char *name_of(const struct engine *e, uint32_t member)
{
    return member_by_id(&e->ledger.round.members, member)->name;
}

/* --- stages ------------------------------------------------------------------------------------------------------- */

static void set_stage(struct engine *e, struct eval_share *share, enum eval_stage stage, uint64_t wanted)
{
    e->eval.changed = true;
    share->stage = stage;
    share->holder = share->id = 0;
    share->asked_us = stage == EVAL_FIRST ? 0 : e->now_us;
    share->done = false;
    share->wanted = wanted;
    share->n = 0;
    for (uint64_t i = 0; i < n_parts(share); i++) share->n += in_sample(share, i) ? windows_of(share, i) : 0;
    assert(share->n > 0 && share->n <= share->count);
}

bool engine_eval_answered(const struct eval_share *share, uint32_t member)
{
    return (share->stage >= EVAL_SECOND && share->first == member) ||
           (share->stage >= EVAL_THIRD && share->second == member);
}

/* Takes the member's evaluations back: other workers repeat them. */
static void refuse_member(struct engine *e, uint32_t member, const char *why)
{
    char text[WIRE_TEXT_MAX];
    struct member *m = member_by_id(&e->ledger.round.members, member);
    const struct session *s = session_by_member(&e->sessions, member);
    m->false_evals = e->eval.changed = true;
    snprintf(text, sizeof text, "refused its evaluation after round %llu: %s; it evaluates no more",
             (unsigned long long)e->eval.round, why);
    engine_emit_text(e, ENGINE_EVENT_FAULT, m->name, text);
    for (uint32_t i = 0; i < e->eval.n; i++) {
        struct eval_share *share = &e->eval.shares[i];
        bool answered = share->done || share->stage != EVAL_FIRST;
        if (s && share->holder == s->id) share->holder = 0;
        if (answered && share->first == member)
            set_stage(e, share, EVAL_FIRST, msg_eval_all(n_parts(share)));
        else if (!share->done && share->stage == EVAL_THIRD && share->second == member)
            set_stage(e, share, EVAL_SECOND, share->wanted);
    }
}

/* Draws the parts for the second worker. */
static uint64_t draw_sample(struct engine *e, const struct eval_share *share)
{
    const struct wire_part *parts = share->parts;
    uint64_t n = n_parts(share), left = (n + SAMPLE_SHARE - 1) / SAMPLE_SHARE, wanted = 0;
    uint64_t low = 0, high = 0, dense = 0;
    for (uint64_t i = 0; i < n; i++) { /* without replacement: Knuth, TAOCP 2, algorithm S */
        bool drawn = engine_draw(e) % (n - i) < left;
        left -= drawn;
        wanted |= (uint64_t)drawn << i;
        if (mean_of(parts[i]) < mean_of(parts[low])) low = i;
        if (mean_of(parts[i]) > mean_of(parts[high])) high = i;
        if (parts[i].tokens / windows_of(share, i) > parts[dense].tokens / windows_of(share, dense)) dense = i;
    }
    assert(!left);
    if (config_is_external(&e->config)) wanted |= (uint64_t)1 << dense;
    return wanted | (uint64_t)1 << low | (uint64_t)1 << high;
}

/* --- verdicts ----------------------------------------------------------------------------------------------------- */

/* The first and the second worker differ in this part, and nobody can decide. */
static void dispute(struct engine *e, struct eval_share *share, int part)
{
    char text[WIRE_TEXT_MAX];
    snprintf(text, sizeof text,
             "disputed evaluation after round %llu, %s: %s gives %s, %s gives %s; one of them is wrong, and the larger "
             "value counts",
             (unsigned long long)e->eval.round, windows_text(share, part).text, name_of(e, share->first),
             value_of(share->parts[part]).text, name_of(e, share->second), value_of(share->checks[part]).text);
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
    /* NaN or infinite: so is the value */
    double gap = sample_mean(share, share->checks) - sample_mean(share, share->parts);
    if (!(gap <= 0)) share->loss_sum += gap * (double)share->tokens;
    share->done = share->checked = e->eval.disputed = true;
}

/* One of the two workers is wrong in this part. */
static void refuse_one(struct engine *e, struct eval_share *share, bool first, int part, const char *judge)
{
    char why[400];
    struct wire_part told = share->parts[part], other = share->checks[part];
    snprintf(why, sizeof why, "%s in %s, but %s%s %s", value_of(first ? told : other).text,
             windows_text(share, part).text, name_of(e, first ? share->second : share->first), judge,
             value_of(first ? other : told).text);
    share->done = share->checked = !first;
    refuse_member(e, first ? share->first : share->second, why);
}

void engine_eval_settle(struct engine *e, struct eval_share *share)
{
    char text[WIRE_TEXT_MAX];
    int first = implausible(e, share, share->parts);
    assert(!share->done && share->stage != EVAL_FIRST && !share->holder);
    if (share->stage == EVAL_THIRD) {
        int second = implausible(e, share, share->checks);
        if ((first < 0) == (second < 0))
            dispute(e, share, difference(e, share, share->parts, share->checks));
        else
            refuse_one(e, share, first >= 0, first >= 0 ? first : second, " gives");
        return;
    }
    share->done = true;
    if (first < 0 || !isfinite(share->loss_sum)) return;
    snprintf(text, sizeof text,
             "its evaluation after round %llu gives %s in %s, above 2 ln(model.vocab_size): no other worker could "
             "check it",
             (unsigned long long)e->eval.round, value_of(share->parts[first]).text, windows_text(share, first).text);
    engine_emit_text(e, ENGINE_EVENT_FAULT, name_of(e, share->first), text);
}

/* Why a result is wrong by itself; NULL: it may be right. all: its parts, in their places. */
static const char *fault_of(const struct engine *e, const struct eval_share *share, const struct msg_eval_result *m,
                            struct wire_part all[WIRE_PARTS_MAX])
{
    double sum = 0;
    uint64_t tokens = 0, n = 0, each = e->ledger.round.p.sample_tokens;
    bool external = config_is_external(&e->config);
    for (uint64_t i = 0; i < n_parts(share); i++) {
        if (!in_sample(share, i)) continue;
        if (n == m->n_parts) return "it has not one sum for each part";
        struct wire_part part = all[i] = m->parts[n++];
        if (external ? part.tokens / each > windows_of(share, i) : part.tokens != windows_of(share, i) * each)
            return "its tokens are not those of its windows";
        if (part.sum < 0 && !external) return "it has a negative loss";
        sum += part.sum;
        tokens += part.tokens;
    }
    if (n != m->n_parts) return "it has not one sum for each part";
    bool adds_up = isfinite(sum) == isfinite(m->loss_sum) &&
                   (!isfinite(sum) || fabs(sum - m->loss_sum) <= 1e-9 * (1 + fabs(m->loss_sum)));
    return adds_up && tokens == m->tokens ? NULL : "its parts do not add up to its sum";
}

/* A third worker evaluated the sample. */
static void decide(struct engine *e, struct eval_share *share, const struct session *s, const struct wire_part *third)
{
    char judge[WIRE_NAME_MAX + 16];
    int first = difference(e, share, share->parts, third), second = difference(e, share, share->checks, third);
    snprintf(judge, sizeof judge, " and %s give", s->name);
    if (first >= 0 && second >= 0)
        dispute(e, share, difference(e, share, share->parts, share->checks));
    else if (first < 0 && second < 0)
        share->done = share->checked = true;
    else
        refuse_one(e, share, first >= 0, first >= 0 ? first : second, judge);
}

void engine_eval_answer(struct engine *e, struct eval_share *share, const struct session *s,
                        const struct msg_eval_result *m)
{
    char why[160];
    struct wire_part parts[WIRE_PARTS_MAX] = {0};
    const char *fault = fault_of(e, share, m, parts);
    assert(!share->done && !share->holder && m->tokens);
    if (fault) {
        snprintf(why, sizeof why, "%s (%.6g nats, %llu tokens)", fault, m->loss_sum, (unsigned long long)m->tokens);
        refuse_member(e, s->member, why);
        return;
    }
    switch (share->stage) {
    case EVAL_FIRST:
        share->first = s->member;
        share->loss_sum = m->loss_sum;
        share->tokens = m->tokens;
        memcpy(share->parts, parts, sizeof parts);
        deadline_add(&e->eval.window_ns, (e->now_us - share->given_us) * 1000 / share->n);
        bool alone = e->config.train.method == METHOD_ASYNC && !e->eval.final;
        set_stage(e, share, EVAL_SECOND, alone ? share->wanted : draw_sample(e, share));
        if (alone) engine_eval_settle(e, share);
        break;
    case EVAL_SECOND:
        share->second = s->member;
        memcpy(share->checks, parts, sizeof parts);
        share->done = share->checked = difference(e, share, share->parts, parts) < 0;
        if (!share->done) set_stage(e, share, EVAL_THIRD, share->wanted);
        break;
    case EVAL_THIRD: decide(e, share, s, parts); break;
    }
}
