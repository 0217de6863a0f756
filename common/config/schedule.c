#include "common/config/schedule.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double wsd_decay_share = 0.2; /* fraction of all steps */
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

bool scaling_parse(const char *text, enum scaling *scaling_p, uint32_t *workers_p)
{
    static const char *const names[] = {[SCALING_NONE] = "none", [SCALING_SQRT] = "sqrt", [SCALING_LINEAR] = "linear"};
    size_t n = strcspn(text, ":"), digits = strspn(text + n + !!text[n], "0123456789");
    long workers = text[n] ? atol(text + n + 1) : 0;
    bool number_ok = digits && digits <= 5 && !text[n + 1 + digits] && workers >= 1 && workers <= CONFIG_WORKERS_MAX;
    for (int i = 0; i <= SCALING_LINEAR; i++) {
        if (strlen(names[i]) != n || memcmp(names[i], text, n) != 0) continue;
        if (text[n] && (!number_ok || i == SCALING_NONE)) return false;
        *scaling_p = (enum scaling)i;
        *workers_p = (uint32_t)workers;
        return true;
    }
    return false;
}

double lr_inner_peak(const struct config *config)
{
    enum scaling scaling;
    uint32_t workers;
    bool known = scaling_parse(config->inner.scaling, &scaling, &workers);
    if (!known || !workers) return config->inner.learning_rate;
    return config->inner.learning_rate * (scaling == SCALING_SQRT ? sqrt(workers) : workers);
}

struct lr_schedule lr_inner_schedule(const struct config *config)
{
    return (struct lr_schedule){.kind = config->inner.schedule,
                                .base = lr_inner_peak(config),
                                .min_fraction = config->inner.min_lr_fraction,
                                .warmup_steps = config->inner.warmup_steps,
                                .total_steps = config->train.max_steps};
}
