#include "common/config/sync_points.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool apply_rule_parse(const char *text, enum apply_rule *rule, double *alpha)
{
    *alpha = 0;
    *rule = APPLY_REPLACE;
    if (!strcmp(text, "replace")) return true;
    *rule = APPLY_CORRECT;
    if (!strcmp(text, "correct")) return true;
    *rule = APPLY_MIX;
    if (strncmp(text, "mix:", 4) != 0 || !strchr("0123456789.", text[4])) return false;
    char *end;
    *alpha = strtod(text + 4, &end);
    return text[4] && !*end && *alpha >= 0 && *alpha <= 1;
}

uint32_t sync_overlap_of(uint32_t overlap, uint32_t sync_every, uint32_t steps, bool barrier)
{
    assert(overlap <= sync_every && sync_every > 0);
    uint32_t scaled = (uint32_t)((uint64_t)overlap * steps / sync_every), half = steps / 2;
    if (barrier || steps == sync_every) return scaled;
    if (overlap <= half) return overlap;
    return half > scaled ? half : scaled;
}

struct sync_points sync_points_of(const struct config *config, uint32_t fragment, uint32_t n_fragments, uint32_t steps,
                                  bool last)
{
    assert(fragment < n_fragments && steps > 0);
    uint64_t tau =
        sync_overlap_of(config->train.overlap, config->train.sync_every, steps, config->train.method != METHOD_ASYNC);
    struct sync_points p = {.sent = steps, .applied = steps};
    if (last) return p;
    if (tau > steps) tau = steps;
    uint64_t span = steps - tau;
    if (config->train.stagger == CHOICE_ON && n_fragments > 1)
        span = ((fragment + 1) * span + n_fragments - 1) / n_fragments;
    p.sent = (uint32_t)span;
    p.applied = (uint32_t)(span + tau);
    assert(p.applied <= steps);
    return p;
}

bool sync_points_last(const struct config *config, double step0, double rate, uint32_t steps)
{
    return step0 + rate * steps >= config->train.max_steps - 0.5;
}
