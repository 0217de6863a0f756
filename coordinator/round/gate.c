#include "coordinator/round/gate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/schedule.h"

static const double factor_gradient = 16, factor_unknown = 16, factor_delta = 4, factor_most = 3, spread = 8;
static const double bound_room = 4; /* weight decay, bf16 moments, rounding */
static const double decay_room = 2; /* parameters that grow on the way */
static const double opposing = -0.1;

struct gate_sample gate_sample_of(double norm, double reach)
{
    assert(norm > 0 && reach > 0);
    return (struct gate_sample){(float)log(norm), (float)log(reach)};
}

void gate_add(struct gate *g, double norm, double reach)
{
    assert(g->next < GATE_SAMPLES && g->n <= GATE_SAMPLES);
    if (!(norm > 0) || !isfinite(norm) || !(reach > 0)) return;
    g->samples[g->next] = gate_sample_of(norm, reach);
    g->next = (g->next + 1) % GATE_SAMPLES;
    if (g->n < GATE_SAMPLES) g->n++;
}

static int by_norm(const void *a, const void *b)
{
    float x = ((const struct gate_sample *)a)->log_norm, y = ((const struct gate_sample *)b)->log_norm;
    return (x > y) - (x < y);
}

/* The lower middle value if n is even: a liar among two samples does not raise it. */
static double median(struct gate_sample *samples, uint32_t n)
{
    assert(n > 0);
    qsort(samples, n, sizeof *samples, by_norm);
    return (double)samples[(n - 1) / 2].log_norm;
}

struct gate_limit gate_limit_of(const struct gate_rule *rule, struct gate_sample *samples, uint32_t n, double reach)
{
    if (!(reach > 0)) return (struct gate_limit){.limit = INFINITY};
    double at = log(reach), shrink = rule->carries ? 0 : 0.5;
    for (uint32_t i = 0; i < n; i++) {
        double further = at - (double)samples[i].log_reach;
        samples[i].log_norm = (float)((double)samples[i].log_norm + (further > 0 ? further : shrink * further));
    }
    double middle = median(samples, n);
    for (uint32_t i = 0; i < n; i++) samples[i].log_norm = fabsf(samples[i].log_norm - (float)middle);
    double factor = exp(spread * median(samples, n));
    if (!(factor > rule->factor)) factor = rule->factor;
    if (factor > factor_most * rule->factor) factor = factor_most * rule->factor;
    return (struct gate_limit){.limit = exp(middle) * factor, .median = exp(middle), .n = n};
}

struct gate_limit gate_history(const struct gate_rule *rule, const struct gate *g, double reach)
{
    struct gate_sample samples[GATE_SAMPLES];
    assert(g->n <= GATE_SAMPLES);
    if (g->n < GATE_SAMPLES_MIN) return (struct gate_limit){.limit = INFINITY};
    memcpy(samples, g->samples, g->n * sizeof *samples);
    return gate_limit_of(rule, samples, g->n, reach);
}

/* --- what the inner optimizer allows ------------------------------------------------------------------------------ */

/* The residual of a lossy codec adds earlier deltas to a delta (measured: docs/results.md). */
static double residual_room(const struct config *c)
{
    char specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    double most = 1;
    for (uint32_t i = 0, n = config_up_specs(c, specs); i < n; i++) {
        double room = !config_error_feedback(c, specs[i]) ? 1 : codec_spec_sparse(specs[i]) ? 4 : 2;
        if (room > most) most = room;
    }
    return most;
}

struct gate_rule gate_rule_of(const struct config *c)
{
    double b1 = c->inner.beta1, b2 = c->inner.beta2, room = bound_room * residual_room(c);
    struct gate_rule rule = {.learning_rate = lr_inner_peak(c),
                             .warmup_steps = c->inner.warmup_steps,
                             .gradient = c->train.method == METHOD_DDP,
                             .carries = residual_room(c) > 1,
                             .decay = c->inner.weight_decay,
                             .by_root = INFINITY,
                             .by_clip = INFINITY};
    rule.factor = rule.gradient ? factor_gradient : factor_delta;
    if (config_is_external(c)) { /* the program's schedule and optimizer are unknown */
        rule.factor = factor_unknown;
        rule.learning_rate = 1;
        rule.warmup_steps = 0;
        return rule;
    }
    if (rule.gradient) return rule;
    if (c->inner.optimizer == OPTIMIZER_SGD) {
        if (c->inner.grad_clip > 0) rule.by_clip = room * c->inner.grad_clip;
    } else if (b1 * b1 < b2 && b2 < 1) {
        double most = (1 - b1) / sqrt((1 - b2) * (1 - b1 * b1 / b2));
        rule.by_root = room * (most > 1 ? most : 1);
    }
    return rule;
}

double gate_reach(const struct gate_rule *rule, double peak, double step0, double rate, uint32_t steps)
{
    double sum = 0;
    if (rule->gradient) return 1;
    for (uint32_t i = 0; i < steps; i++) {
        double step = step0 + rate * i + 1;
        sum += rule->warmup_steps > 0 && step < rule->warmup_steps ? step / rule->warmup_steps : 1;
    }
    return sum * peak;
}

double gate_bound(const struct gate_rule *rule, double reach, uint64_t count, double theta_norm)
{
    assert(count > 0);
    double root = reach * rule->by_root * sqrt((double)count), clip = reach * rule->by_clip;
    if (rule->gradient || !(reach > 0)) return INFINITY;
    return (root < clip ? root : clip) + decay_room * reach * rule->decay * theta_norm;
}

/* --- directions --------------------------------------------------------------------------------------------------- */

void gate_add_cosine(struct gate_cosines *c, double cosine)
{
    assert(c->next < GATE_COSINES && c->n <= GATE_COSINES);
    if (isnan(cosine)) return;
    c->values[c->next] = (float)cosine;
    c->next = (c->next + 1) % GATE_COSINES;
    if (c->n < GATE_COSINES) c->n++;
}

bool gate_opposes(const struct gate_cosines *c, double *mean_p)
{
    double sum = 0, squares = 0;
    *mean_p = 0;
    if (c->n < GATE_COSINES) return false;
    for (uint32_t i = 0; i < GATE_COSINES; i++) sum += (double)c->values[i];
    double mean = sum / GATE_COSINES;
    for (uint32_t i = 0; i < GATE_COSINES; i++) {
        double d = (double)c->values[i] - mean;
        squares += d * d;
    }
    *mean_p = mean;
    return mean < opposing && mean < -sqrt(squares / (GATE_COSINES - 1));
}
