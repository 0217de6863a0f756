#include "coordinator/round/beat.h"

#include <assert.h>
#include <math.h>

#include "common/base/median.h"

enum { HALVINGS = 30, MEMBERS_SORTED = 256 };

static const double equal = 0.1; /* steps that differ by less count as equal, because measured times scatter */

static bool is_known(const struct member *m)
{
    return m->active && m->speed.usual.step_s > 0;
}

static double moving_s(const struct member *m)
{
    return m->speed.usual.down_s + m->speed.usual.up_s;
}

/* Steps of a member that delivers each s seconds. Transfers go on while it trains the steps after its sync point, at
 * most half of all. */
static double steps_in(const struct round *r, const struct member *m, double s)
{
    double step_s = m->speed.usual.step_s, before = fmax(0, s - moving_s(m)) / step_s;
    return fmin(s / step_s, before + fmin(before, r->p.overlap));
}

/* The shortest time between two deliveries: it trains half as long as its transfers take, but at least BEAT_STEPS_LEAST
 * steps and at most half of H. The reverse of steps_in. */
static double least_s(const struct round *r, const struct member *m)
{
    double step_s = m->speed.usual.step_s, steps = fmin(0.5 * moving_s(m) / step_s, 0.5 * r->p.sync_every);
    steps = fmax(steps, fmin(BEAT_STEPS_LEAST, r->p.sync_every));
    return fmax(steps * step_s, fmax(steps / 2, steps - r->p.overlap) * step_s + moving_s(m));
}

double beat_steps(const struct round *r, const struct member *m, double s, double *every_p)
{
    assert(is_known(m) && s > 0);
    *every_p = fmax(1, ceil(least_s(r, m) / s - 1e-6));
    return fmin(steps_in(r, m, *every_p * s), BEAT_STEPS_MOST * r->p.sync_every);
}

/* The steps that all members do in a beat of s seconds. *alike_p: each of them about the same. */
static double steps_of_all(const struct round *r, double s, bool *alike_p)
{
    double sum = 0, least = INFINITY, most = 0, every;
    for_each_member(&r->members, m) {
        if (!is_known(m)) continue;
        double steps = beat_steps(r, m, s, &every);
        sum += steps / every;
        least = fmin(least, steps);
        most = fmax(most, steps);
    }
    *alike_p = least >= (1 - equal) * most;
    return sum;
}

double beat_s(const struct round *r)
{
    double least[MEMBERS_SORTED], wanted = 0;
    uint32_t n = 0;
    bool alike;
    for_each_member(&r->members, m) {
        if (!is_known(m)) continue;
        if (n < MEMBERS_SORTED) least[n++] = least_s(r, m);
        wanted += r->p.sync_every;
    }
    if (!n) return 0;
    double low = median_of(least, n), high = low;
    while (steps_of_all(r, high, &alike) < wanted) high *= 2;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (steps_of_all(r, middle, &alike) < wanted)
            low = middle;
        else
            high = middle;
    }
    (void)steps_of_all(r, high, &alike);
    return alike ? 0 : high;
}
