#include "coordinator/round/deadline.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "common/base/median.h"
#include "common/base/units.h"

enum { SAMPLES_MIN = 3 };

void deadline_add(struct deadline *d, uint64_t duration_us)
{
    assert(d->next < DEADLINE_SAMPLES && d->n <= DEADLINE_SAMPLES);
    d->samples_us[d->next] = duration_us;
    d->next = (d->next + 1) % DEADLINE_SAMPLES;
    if (d->n < DEADLINE_SAMPLES) d->n++;
}

static uint64_t clamp(double us, uint64_t floor_us, uint64_t ceiling_us)
{
    assert(floor_us <= ceiling_us);
    if (us >= (double)ceiling_us) return ceiling_us;
    return us > (double)floor_us ? (uint64_t)us : floor_us;
}

struct deadline_limit deadline_of(const struct deadline *d, double k, uint64_t floor_us, uint64_t ceiling_us,
                                  uint64_t unknown_us)
{
    if (d->n < SAMPLES_MIN) return (struct deadline_limit){.limit_us = clamp((double)unknown_us, floor_us, ceiling_us)};
    double v[DEADLINE_SAMPLES];
    for (uint32_t i = 0; i < d->n; i++) v[i] = (double)d->samples_us[i];
    double median = median_of(v, d->n);
    for (uint32_t i = 0; i < d->n; i++) v[i] = fabs(v[i] - median);
    double mad = median_of(v, d->n);
    return (struct deadline_limit){.limit_us = clamp(median + k * mad, floor_us, ceiling_us),
                                   .median_us = (uint64_t)median,
                                   .mad_us = (uint64_t)mad,
                                   .k = k,
                                   .n = d->n};
}

const char *deadline_text(const struct deadline_limit *limit, char *out, size_t cap)
{
    struct units_text length = units_us(limit->limit_us);
    if (limit->n)
        snprintf(out, cap, "%s (median %s + %g x MAD %s of %u durations, bounded)", length.text,
                 units_us(limit->median_us).text, limit->k, units_us(limit->mad_us).text, limit->n);
    else
        snprintf(out, cap, "%s (default, nothing measured yet)", length.text);
    return out;
}
