#include "coordinator/round/deadline.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/base/units.h"

enum { SAMPLES_MIN = 3 };

/* Moves the values between the oldest sample's place and the new one's, so that the array stays sorted. */
static void sort_in(struct deadline *d, uint64_t duration_us)
{
    uint32_t at = d->n;
    if (d->n == DEADLINE_SAMPLES) {
        at = 0;
        while (d->sorted_us[at] != d->samples_us[d->next]) at++;
    }
    assert(at < DEADLINE_SAMPLES);
    while (at > 0 && d->sorted_us[at - 1] > duration_us) d->sorted_us[at] = d->sorted_us[at - 1], at--;
    while (at + 1 < d->n && d->sorted_us[at + 1] < duration_us) d->sorted_us[at] = d->sorted_us[at + 1], at++;
    d->sorted_us[at] = duration_us;
}

/* The lower median of the distances to the median: they grow to both sides of it. */
static uint64_t mad_of(const uint64_t *sorted, uint32_t n)
{
    uint32_t middle = (n - 1) / 2, left = middle, right = middle + 1;
    uint64_t median = sorted[middle], distance = 0;
    for (uint32_t i = 0; i < middle; i++) { /* the median's own distance is the first */
        bool down = left > 0 && (right == n || median - sorted[left - 1] <= sorted[right] - median);
        distance = down ? median - sorted[--left] : sorted[right++] - median;
    }
    return distance;
}

void deadline_add(struct deadline *d, uint64_t duration_us)
{
    assert(d->next < DEADLINE_SAMPLES && d->n <= DEADLINE_SAMPLES);
    sort_in(d, duration_us);
    d->samples_us[d->next] = duration_us;
    d->next = (d->next + 1) % DEADLINE_SAMPLES;
    if (d->n < DEADLINE_SAMPLES) d->n++;
    d->median_us = d->sorted_us[(d->n - 1) / 2];
    d->mad_us = mad_of(d->sorted_us, d->n);
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
    double us = (double)d->median_us + k * (double)d->mad_us;
    return (struct deadline_limit){
        .limit_us = clamp(us, floor_us, ceiling_us), .median_us = d->median_us, .mad_us = d->mad_us, .k = k, .n = d->n};
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
