#include "coordinator/round/gate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/schedule.h"

struct gate_rule gate_rule_of(const struct config *c)
{
    struct gate_rule rule = {.learning_rate = 1, .sparse = codec_spec_sparse(config_merge_spec(c, false))};
    if (config_is_external(c)) return rule;
    rule.learning_rate = lr_inner_peak(c);
    rule.warmup_steps = c->inner.warmup_steps;
    return rule;
}

double gate_reach(const struct gate_rule *rule, double peak, double step0, double rate, uint32_t steps)
{
    double sum = 0;
    for (uint32_t i = 0; i < steps; i++) {
        double step = step0 + rate * i + 1;
        sum += rule->warmup_steps > 0 && step < rule->warmup_steps ? step / rule->warmup_steps : 1;
    }
    return sum * peak;
}

static int by_norm(const void *a, const void *b)
{
    float x = ((const struct gate_sample *)a)->norm, y = ((const struct gate_sample *)b)->norm;
    return (x > y) - (x < y);
}

double gate_expected(const struct gate_rule *rule, struct gate_sample *samples, uint32_t n, double reach)
{
    if (n < 2 || !(reach > 0)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        double ratio = reach / (double)samples[i].reach;
        assert(samples[i].norm > 0 && samples[i].reach > 0);
        if (ratio < 1) ratio = rule->sparse ? 1 : sqrt(ratio);
        samples[i].norm = (float)((double)samples[i].norm * ratio);
    }
    qsort(samples, n, sizeof *samples, by_norm);
    return (double)samples[(n - 1) / 2].norm;
}
