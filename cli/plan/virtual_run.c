#include "cli/plan/virtual_run.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "cli/plan/virtual_coordinator.h"
#include "cli/plan/virtual_worker.h"
#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/config/sync_points.h"

/* Virtual time in which a round must end. */
#define ROUND_MAX_US ((uint64_t)400 * 86400 * 1000000)

/* The totals of all workers at the end of a round. */
struct mark {
    uint64_t at_us, up, down;
    struct virtual_parts parts;
};

struct cluster {
    struct virtual_setup setup;
    struct config config;
    struct event_queue clock;
    struct virtual_worker *workers;
    struct virtual_line *up, *down;
    struct virtual_peer *peers;
    struct virtual_coordinator coordinator;
    bool failed;
    struct mark *marks; /* [rounds simulated + 1]; the first is the start */
};

static struct mark mark_of(const struct cluster *c, uint64_t at_us)
{
    struct mark m = {.at_us = at_us};
    for (uint32_t i = 0; i < c->setup.workers; i++) {
        const struct virtual_parts *p = &c->workers[i].parts;
        m.up += c->up[i].bytes;
        m.down += c->down[i].bytes;
        m.parts.compute_s += p->compute_s;
        m.parts.compress_s += p->compress_s;
        m.parts.send_s += p->send_s;
        m.parts.wait_s += p->wait_s;
        m.parts.apply_s += p->apply_s;
    }
    return m;
}

/* Simulates the rounds of one kind that are enough to know all of them: the run's first ones, and its end. */
static void shorten(struct config *config, uint64_t rounds_max)
{
    struct sync_rounds r = sync_rounds_of(config);
    if (sync_rounds_count(&r) <= rounds_max) return;
    uint64_t averaged = r.start_step < rounds_max ? r.start_step : rounds_max;
    config->train.start_step = (uint32_t)averaged;
    config->train.max_steps = (uint32_t)(averaged + rounds_max * r.sync_every);
}

static enum status cluster_init(struct cluster *c, const struct virtual_setup *setup)
{
    uint32_t n = setup->workers;
    c->config = *setup->config;
    shorten(&c->config, setup->rounds_max);
    c->config.coordinator.min_workers = n;
    c->setup = *setup;
    c->setup.config = &c->config;
    struct sync_rounds rounds = sync_rounds_of(&c->config);
    c->workers = mem_alloc(n, sizeof *c->workers);
    c->up = mem_alloc(n, sizeof *c->up);
    c->down = mem_alloc(n, sizeof *c->down);
    c->peers = mem_alloc(n, sizeof *c->peers);
    c->marks = mem_alloc(sync_rounds_count(&rounds) + 1, sizeof *c->marks);
    c->coordinator =
        (struct virtual_coordinator){.setup = &c->setup, .clock = &c->clock, .peers = c->peers, .failed = &c->failed};
    if (!c->workers || !c->up || !c->down || !c->peers || !c->marks) return STATUS_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        virtual_line_init(&c->up[i], &c->clock, &setup->links[i], false);
        virtual_line_init(&c->down[i], &c->clock, &setup->links[i], true);
        c->up[i].failed = c->down[i].failed = &c->failed;
        c->up[i].arrive = virtual_coordinator_receive;
        c->up[i].ctx = &c->peers[i];
        c->down[i].arrive = virtual_worker_receive;
        c->down[i].ctx = &c->workers[i];
        c->peers[i].down = &c->down[i];
        c->workers[i] = (struct virtual_worker){.setup = &c->setup, .clock = &c->clock, .up = &c->up[i], .id = i};
    }
    TRY(virtual_coordinator_start(&c->coordinator));
    for (uint32_t i = 0; i < n; i++) virtual_worker_start(&c->workers[i]);
    return STATUS_OK;
}

static void cluster_finish(struct cluster *c)
{
    for (uint32_t i = 0; c->workers && c->up && c->down && i < c->setup.workers; i++) {
        virtual_worker_finish(&c->workers[i]);
        virtual_line_finish(&c->up[i]);
        virtual_line_finish(&c->down[i]);
    }
    if (c->peers) virtual_coordinator_finish(&c->coordinator);
    event_queue_finish(&c->clock);
    mem_free(c->workers);
    mem_free(c->up);
    mem_free(c->down);
    mem_free(c->peers);
    mem_free(c->marks);
    mem_free(c);
}

static enum status simulate(struct cluster *c, struct err *err)
{
    const struct virtual_coordinator *coordinator = &c->coordinator;
    size_t seen = 0;
    c->marks[0] = mark_of(c, 0);
    while (!virtual_coordinator_done(coordinator)) {
        if (!event_queue_step(&c->clock, c->marks[seen].at_us + ROUND_MAX_US))
            return err_set(err, STATUS_STATE,
                           "round %zu does not end within 400 days: give a faster link or fewer bytes", seen + 1);
        if (c->failed) return STATUS_NOMEM;
        for (; seen < coordinator->n_ends; seen++) c->marks[seen + 1] = mark_of(c, coordinator->ends_us[seen]);
    }
    return STATUS_OK;
}

/* --- the whole run from the simulated rounds ---------------------------------------------------------------------- */

static double length_s(const struct cluster *c, size_t round)
{
    return (double)(c->marks[round + 1].at_us - c->marks[round].at_us) * 1e-6;
}

/* The median length of the later half of the simulated rounds [first, end): in the first ones the workers measure the
 * link's rate. Without the last one, which has no overlap. */
static double usual_length_s(const struct cluster *c, size_t first, size_t end)
{
    double values[1024];
    size_t n = 0, from = first + (end - first) / 2, to = end - from > 1 ? end - 1 : end;
    for (size_t i = from; i < to && n < 1024; i++) values[n++] = length_s(c, i);
    return n ? median_of(values, n) : 0;
}

/* Writes the ends of `rounds` rounds of one kind, of which [first, end) were simulated: the usual one is repeated
 * before the last one. Returns the last end. */
static double stretch(const struct cluster *c, size_t first, size_t end, uint64_t rounds, double at, double *ends)
{
    size_t n = end - first;
    double usual = usual_length_s(c, first, end);
    for (uint64_t i = 0; i < rounds; i++) {
        uint64_t left = rounds - i; /* rounds to the end, this one included */
        if (i + 1 < n || rounds == n)
            at += length_s(c, first + i);
        else
            at += left == 1 ? length_s(c, end - 1) : usual;
        ends[i] = at;
    }
    return at;
}

static enum status fill(const struct cluster *c, const struct config *whole, struct virtual_result *result)
{
    struct sync_rounds all = sync_rounds_of(whole), some = sync_rounds_of(&c->config);
    uint64_t rounds = sync_rounds_count(&all);
    size_t n = c->coordinator.n_ends, averaged = some.start_step < n ? some.start_step : n;
    *result = (struct virtual_result){.rounds = rounds, .ends_s = mem_alloc(rounds ? rounds : 1, sizeof(double))};
    if (!result->ends_s) return STATUS_NOMEM;
    uint64_t early = averaged ? all.start_step < rounds ? all.start_step : rounds : 0;
    double at = averaged ? stretch(c, 0, averaged, early, 0, result->ends_s) : 0;
    if (n > averaged) at = stretch(c, averaged, n, rounds - early, at, result->ends_s + early);
    result->seconds = at;
    size_t first = n > averaged ? averaged : 0;
    result->round_s = usual_length_s(c, first, n);
    if (n - first > 2) first += (n - first) / 2; /* as usual_length_s */
    const struct mark *a = &c->marks[first], *b = &c->marks[n];
    double share = 1 / ((double)(n - first) * c->setup.workers), took = (double)(b->at_us - a->at_us) * 1e-6;
    result->parts = (struct virtual_parts){.compute_s = (b->parts.compute_s - a->parts.compute_s) * share,
                                           .compress_s = (b->parts.compress_s - a->parts.compress_s) * share,
                                           .send_s = (b->parts.send_s - a->parts.send_s) * share,
                                           .wait_s = (b->parts.wait_s - a->parts.wait_s) * share,
                                           .apply_s = (b->parts.apply_s - a->parts.apply_s) * share};
    if (took > 0) result->utilization = (b->parts.compute_s - a->parts.compute_s) / c->setup.workers / took;
    if (result->utilization > 1) result->utilization = 1; /* async: a round ends within another worker's steps */
    double factor = (double)(rounds - n) / (double)(n - first);
    result->bytes_up = b->up + (uint64_t)((double)(b->up - a->up) * factor);
    result->bytes_down = b->down + (uint64_t)((double)(b->down - a->down) * factor);
    return STATUS_OK;
}

enum status virtual_run(const struct virtual_setup *setup, struct virtual_result *result, struct err *err)
{
    assert(setup->workers > 0 && setup->workers <= VIRTUAL_WORKERS_MAX && setup->rounds_max > 0);
    *result = (struct virtual_result){0};
    struct cluster *c = mem_alloc(1, sizeof *c);
    if (!c) return err_set(err, STATUS_NOMEM, "out of memory");
    enum status status = cluster_init(c, setup);
    if (status == STATUS_OK) status = simulate(c, err);
    if (status == STATUS_OK) status = fill(c, setup->config, result);
    if (status == STATUS_NOMEM) err_set(err, status, "out of memory");
    cluster_finish(c);
    return status;
}
