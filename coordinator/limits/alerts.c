#include "coordinator/limits/alerts.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/median.h"
#include "common/base/text.h"

enum { MISSED_MOST = 2, REFUSED_MOST = 2, JUMPED_ROUNDS = 2, LOSSES_LEAST = 3 };

static const double usual_times = 5;                      /* a round that takes longer than this many medians */
static const double round_least_s = 30;                   /* short rounds vary more than their median tells */
static const double workers_least_s = 60;                 /* a worker that restarts is back earlier */
static const double disk_starts = 0.10, disk_ends = 0.12; /* free bytes of the disk */
static const double checkpoints_start = 2, checkpoints_end = 2.5;
static const double budget_share = 0.8;

const char *alert_rule_name(enum alert_rule rule)
{
    static const char *const names[ALERT_RULES] = {
        [ALERT_NO_ROUND] = "no_round", [ALERT_WORKER_MISSING] = "worker_missing",
        [ALERT_LOSS] = "loss",         [ALERT_AGREEMENT] = "agreement",
        [ALERT_DISK] = "disk",         [ALERT_REFUSED] = "refused",
        [ALERT_BUDGET] = "budget",
    };
    assert(rule < ALERT_RULES);
    return names[rule];
}

/* --- rules -------------------------------------------------------------------------------------------------------- */

bool alert_no_round(bool fires, double waited_s, double usual_s)
{
    if (isnan(usual_s)) return fires && waited_s > 0;
    if (fires) return waited_s > 0; /* until a round ends */
    return waited_s >= fmax(usual_times * usual_s, round_least_s);
}

bool alert_no_workers(bool fires, double waited_s, double usual_s)
{
    if (fires) return waited_s > 0;
    return waited_s >= fmax(isnan(usual_s) ? 0 : usual_times * usual_s, workers_least_s);
}

bool alert_worker_missing(bool fires, uint32_t rounds)
{
    uint32_t missed = 0;
    for (int i = 0; i < ALERT_ROUNDS; i++) missed += rounds >> i & 1;
    return fires ? missed > 0 : missed >= MISSED_MOST;
}

bool alert_disk(bool fires, uint64_t free, uint64_t total, uint64_t checkpoint)
{
    if (free == UINT64_MAX) return false;
    double left = (double)free;
    bool part = total && total != UINT64_MAX && left < (fires ? disk_ends : disk_starts) * (double)total;
    bool bytes = checkpoint != UINT64_MAX && left < (fires ? checkpoints_end : checkpoints_start) * (double)checkpoint;
    return part || bytes;
}

bool alert_refused(bool fires, uint64_t refused)
{
    return fires ? refused > 0 : refused >= REFUSED_MOST;
}

bool alert_budget(double used, double most)
{
    return most > 0 && used >= budget_share * most;
}

static double loss_limit(const struct alert_losses *l)
{
    double v[ALERT_LOSSES];
    if (l->n < LOSSES_LEAST) return INFINITY;
    memcpy(v, l->values, l->n * sizeof *v);
    double middle = median_of(v, l->n);
    for (uint32_t i = 0; i < l->n; i++) v[i] = fabs(l->values[i] - middle);
    return middle + fmax(0.2 * fabs(middle), 8 * median_of(v, l->n));
}

bool alert_loss(struct alert_losses *l, bool fires, double loss)
{
    bool above = !isfinite(loss) || loss > (l->limit = loss_limit(l));
    l->jumped = above ? l->jumped + 1 : 0;
    l->back = above ? 0 : l->back + 1;
    if (!above) {
        l->values[l->next] = loss;
        l->next = (l->next + 1) % ALERT_LOSSES;
        l->n += l->n < ALERT_LOSSES;
    }
    if (fires) return l->back < JUMPED_ROUNDS;
    return !isfinite(loss) || l->jumped >= JUMPED_ROUNDS;
}

/* --- the list ----------------------------------------------------------------------------------------------------- */

static uint32_t place_of(const struct alerts *a, enum alert_rule rule, int64_t subject)
{
    uint32_t i = 0;
    while (i < a->n && (a->firing[i].rule != rule || a->firing[i].subject != subject)) i++;
    return i;
}

const struct alert *alerts_find(const struct alerts *a, enum alert_rule rule, int64_t subject)
{
    uint32_t i = place_of(a, rule, subject);
    return i < a->n ? &a->firing[i] : NULL;
}

enum alert_change alerts_set(struct alerts *a, enum alert_rule rule, int64_t subject, bool fires, const char *worker,
                             const char *text, uint64_t now_us, struct alert *ended_p)
{
    uint32_t i = place_of(a, rule, subject);
    bool fired = i < a->n;
    assert(rule < ALERT_RULES && a->n <= ALERTS_MAX);
    if (!fires && !fired) return ALERT_SAME;
    if (!fires) {
        if (ended_p) *ended_p = a->firing[i];
        memmove(a->firing + i, a->firing + i + 1, (--a->n - i) * sizeof *a->firing);
        return ALERT_ENDS;
    }
    if (!fired && a->n == ALERTS_MAX) return ALERT_SAME;
    struct alert *alert = &a->firing[i];
    if (!fired) {
        *alert = (struct alert){.rule = rule, .subject = subject, .since_us = now_us};
        snprintf(alert->worker, sizeof alert->worker, "%s", worker ? worker : "");
        a->total[rule]++;
        a->n++;
    }
    snprintf(alert->text, sizeof alert->text, "%s", text);
    text_make_clean(alert->text);
    return fired ? ALERT_SAME : ALERT_STARTS;
}
