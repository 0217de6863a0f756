#include "common/config/sync_points.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct sync_rounds sync_rounds_of(const struct config *config)
{
    return (struct sync_rounds){.sync_every = config->train.sync_every,
                                .max_steps = config->train.max_steps,
                                .start_step = config->train.start_step};
}

struct sync_round sync_round_at(const struct sync_rounds *r, uint64_t round)
{
    assert(r->sync_every > 0);
    bool is_averaged = round < r->start_step;
    uint32_t usual = is_averaged ? 1 : r->sync_every;
    uint64_t first = is_averaged ? round : r->start_step + (round - r->start_step) * r->sync_every;
    if (r->again && round + 1 == r->again)
        return (struct sync_round){r->steps - r->before, r->before, usual, is_averaged};
    if (r->again && round >= r->again) first = r->steps + (round - r->again) * r->sync_every;
    if (first > r->max_steps) first = r->max_steps;
    uint64_t left = r->max_steps - first;
    return (struct sync_round){first, left < usual ? (uint32_t)left : usual, usual, is_averaged};
}

uint64_t sync_rounds_count(const struct sync_rounds *r)
{
    assert(r->sync_every > 0 && r->steps <= r->max_steps);
    if (r->again) return r->again + ((uint64_t)r->max_steps - r->steps + r->sync_every - 1) / r->sync_every;
    uint32_t start = r->start_step < r->max_steps ? r->start_step : r->max_steps;
    return start + ((uint64_t)r->max_steps - start + r->sync_every - 1) / r->sync_every;
}

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

bool sync_overlaps(const struct config *config)
{
    return config->train.overlap || config->train.stagger == CHOICE_ON;
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
                                  bool whole)
{
    assert(fragment < n_fragments && steps > 0);
    uint64_t tau =
        sync_overlap_of(config->train.overlap, config->train.sync_every, steps, config->train.method != METHOD_ASYNC);
    struct sync_points p = {.sent = steps, .applied = steps};
    if (whole) return p;
    if (tau > steps) tau = steps;
    uint64_t span = steps - tau;
    if (config->train.stagger == CHOICE_ON && n_fragments > 1)
        span = ((fragment + 1) * span + n_fragments - 1) / n_fragments;
    p.sent = (uint32_t)span;
    p.applied = (uint32_t)(span + tau);
    assert(p.applied <= steps);
    return p;
}

bool sync_points_whole(const struct config *config, double step0, double rate, uint32_t steps)
{
    return step0 + rate * steps >= config->train.max_steps - 0.5 || step0 + 0.5 < config->train.start_step;
}

bool sync_points_after_mean(const struct config *config, double step0)
{
    return step0 > 0.5 && step0 - 0.5 < config->train.start_step;
}
