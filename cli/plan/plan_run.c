#include "cli/plan/plan_run.h"

#include <math.h>

#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/config/sync_points.h"

/* Keeps the rounds of each kind that are enough to know all of them. */
static void shorten(struct config *config, uint64_t rounds_max)
{
    struct sync_rounds r = sync_rounds_of(config);
    if (sync_rounds_count(&r) <= rounds_max) return;
    uint64_t averaged = r.start_step < rounds_max ? r.start_step : rounds_max;
    config->train.start_step = (uint32_t)averaged;
    config->train.max_steps = (uint32_t)(averaged + rounds_max * r.sync_every);
}

/* Rounds of one kind: `count` in the run, of which [first, end) were planned. */
struct kind {
    size_t first, end;
    uint64_t count;
    double usual_s;
};

static double length_s(const struct plan_mark *marks, size_t round)
{
    return marks[round + 1].at_s - marks[round].at_s;
}

/* The usual length is the median of the later half, without the last round, which has no overlap. */
static struct kind kind_of(const struct plan_mark *marks, size_t first, size_t end, uint64_t count)
{
    struct kind k = {.first = first, .end = end, .count = count};
    double values[1024];
    size_t n = 0, from = first + (end - first) / 2, to = end - from > 1 ? end - 1 : end;
    for (size_t i = from; i < to && n < 1024; i++) values[n++] = length_s(marks, i);
    k.usual_s = n ? median_of(values, n) : 0;
    return k;
}

/* Writes the ends of the rounds of a kind: the usual one is repeated before the last one. Returns the last end. */
static double stretch(const struct plan_mark *marks, const struct kind *k, double at_s, double *ends_s)
{
    size_t n = k->end - k->first;
    for (uint64_t i = 0; i < k->count; i++) {
        if (i + 1 < n || k->count == n)
            at_s += length_s(marks, k->first + i);
        else
            at_s += i + 1 == k->count ? length_s(marks, k->end - 1) : k->usual_s;
        ends_s[i] = at_s;
    }
    return at_s;
}

static enum status fill(struct plan_run *run, const struct plan_setup *whole, const struct config *some,
                        const struct plan_mark *marks)
{
    struct sync_rounds all = sync_rounds_of(whole->config), planned = sync_rounds_of(some);
    uint64_t rounds = sync_rounds_count(&all), early = all.start_step < rounds ? all.start_step : rounds;
    size_t n = sync_rounds_count(&planned), averaged = planned.start_step < n ? planned.start_step : n;
    struct kind first = kind_of(marks, 0, averaged, early), later = kind_of(marks, averaged, n, rounds - early);
    const struct kind *k = later.count ? &later : &first;
    *run = (struct plan_run){.rounds = rounds, .round_s = k->usual_s};
    run->ends_s = mem_alloc(rounds ? rounds : 1, sizeof *run->ends_s);
    if (!run->ends_s) return STATUS_NOMEM;
    run->seconds = stretch(marks, &first, 0, run->ends_s);
    run->seconds = stretch(marks, &later, run->seconds, run->ends_s + early);
    size_t from = k->end - k->first > 2 ? k->first + (k->end - k->first) / 2 : k->first; /* as kind_of */
    size_t to = n - from > 1 ? n - 1 : n;
    const struct plan_mark *a = &marks[from], *b = &marks[to], *end = &marks[n];
    double share = 1 / ((double)(to - from) * whole->workers), took = b->at_s - a->at_s;
    for (int p = 0; p < PLAN_PARTS; p++) run->parts_s[p] = (b->parts_s[p] - a->parts_s[p]) * share;
    if (took > 0) run->utilization = fmin(1, run->parts_s[PLAN_COMPUTE] * (double)(to - from) / took);
    double more = (double)(rounds - n) / (double)(to - from);
    run->bytes_up = (uint64_t)(end->up + (b->up - a->up) * more);
    run->bytes_down = (uint64_t)(end->down + (b->down - a->down) * more);
    return STATUS_OK;
}

enum status plan_run_make(struct plan_run *run, const struct plan_setup *setup, uint64_t rounds_max, struct err *err)
{
    *run = (struct plan_run){0};
    struct config *some = mem_alloc(1, sizeof *some);
    if (!some) return err_set(err, STATUS_NOMEM, "out of memory");
    *some = *setup->config;
    shorten(some, rounds_max);
    struct plan_setup shorter = *setup;
    shorter.config = some;
    struct sync_rounds rounds = sync_rounds_of(some);
    struct plan_mark *marks = mem_alloc(sync_rounds_count(&rounds) + 1, sizeof *marks);
    enum status status = marks ? plan_rounds(marks, &shorter) : STATUS_NOMEM;
    if (status == STATUS_OK) status = fill(run, setup, some, marks);
    if (status != STATUS_OK)
        err_set(err, status, "%s", status == STATUS_NOMEM ? "out of memory" : "the run does not end");
    mem_free(marks);
    mem_free(some);
    return status;
}
