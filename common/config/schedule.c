#include "common/config/schedule.h"

#include <assert.h>
#include <math.h>

static const double wsd_decay_share = 0.2; /* fraction of all steps */

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
    case SCHEDULE_COSINE: left = 0.5 * (1 + cos(3.141592653589793 * progress(step, warmup, total))); break;
    case SCHEDULE_WSD:
        x = progress(step, fmax(warmup, (1 - wsd_decay_share) * total), total);
        left = 1 - sqrt(x);
        break;
    }
    assert(left >= 0 && left <= 1);
    double min = base * schedule->min_fraction;
    return min + (base - min) * left;
}
