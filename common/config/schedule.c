#include "common/config/schedule.h"

#include <assert.h>
#include <math.h>

#include "common/config/sync_points.h"

static const double wsd_decay_share = 0.2; /* fraction of all steps */
static const double outer_min_fraction = 0.1;
static const double pi = 3.141592653589793;

/* Position of `step` between `from` and `to`, in [0, 1]; 1 for an empty interval. */
static double progress(double step, double from, double to)
{
    if (step >= to) return 1;
    return step <= from ? 0 : (step - from) / (to - from);
}

double lr_schedule_at(const struct lr_schedule *schedule, double step)
{
    double base = schedule->base, warmup = schedule->warmup_steps, total = schedule->total_steps, left = 1, x;
    if (!(step > 0)) step = 0;
    if (step < warmup) return base * fmin(1, (step + 1) / warmup);
    switch (schedule->kind) {
    case SCHEDULE_CONSTANT: return base;
    case SCHEDULE_LINEAR: left = 1 - progress(step, warmup, total); break;
    case SCHEDULE_COSINE: left = 0.5 * (1 + cos(pi * progress(step, warmup, total))); break;
    case SCHEDULE_WSD:
        x = progress(step, fmax(warmup, (1 - wsd_decay_share) * total), total);
        left = 1 - sqrt(x);
        break;
    }
    assert(left >= 0 && left <= 1);
    double min = base * schedule->min_fraction;
    return min + (base - min) * left;
}

double outer_rate(const struct config *config, double progress, uint64_t age)
{
    double rate = config->outer.learning_rate, left;
    switch (config->outer.schedule) {
    case OUTER_CONSTANT: break;
    case OUTER_COSINE:
        left = 0.5 * (1 + cos(pi * fmin(1, fmax(0, progress))));
        return rate * (outer_min_fraction + (1 - outer_min_fraction) * left);
    case OUTER_TRANSIENT: return rate / (1 - pow(config->outer.momentum, (double)age + 1));
    }
    return rate;
}

double outer_rate_of_version(const struct config *config, uint64_t version)
{
    const struct sync_rounds rounds = sync_rounds_of(config);
    uint64_t all = sync_rounds_count(&rounds) - config->train.start_step,
             before = version - 1 - config->train.start_step;
    assert(version > config->train.start_step && all >= 1);
    return outer_rate(config, (double)before / (double)all, before);
}

double lr_inner_peak(const struct config *config)
{
    double n = config->inner.scaling_workers ? config->inner.scaling_workers : 1;
    switch (config->inner.scaling) {
    case SCALING_NONE: break;
    case SCALING_SQRT: return config->inner.learning_rate * sqrt(n);
    case SCALING_LINEAR: return config->inner.learning_rate * n;
    }
    return config->inner.learning_rate;
}

struct lr_schedule lr_inner_schedule(const struct config *config)
{
    return (struct lr_schedule){.kind = config->inner.schedule,
                                .base = lr_inner_peak(config),
                                .min_fraction = config->inner.min_lr_fraction,
                                .warmup_steps = config->inner.warmup_steps,
                                .total_steps = config->train.max_steps};
}
