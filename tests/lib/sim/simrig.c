#include "tests/lib/sim/simrig.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"

static void log_to_notes(void *ctx, enum log_level level, const char *line)
{
    struct simcluster *c = ctx;
    (void)level;
    simcheck_note(c->check, simnet_now(c->net), "log: %s", line);
}

struct simcluster *simrig_cluster(const struct simcluster_setup *setup)
{
    struct simcluster *c;
    struct err err = {0};
    if (simcluster_create(&c, setup, &err) != STATUS_OK) {
        fprintf(stderr, "a scenario's configuration is wrong: %s\n", err.msg);
        abort();
    }
    simcheck_trace(c->check, getenv("SIM_TRACE") != NULL);
    log_set_sink(log_to_notes, c);
    return c;
}

void simrig_start(struct simcluster *c, int n)
{
    if (!c->engine) simcluster_coordinator_start(c);
    for (int i = 0; i < n; i++) simworker_start(&c->workers[i]);
}

bool simrig_ends(struct simcluster *c, uint64_t within_s)
{
    bool ended = simcluster_run(c, simnet_now(c->net) + within_s * 1000000);
    if (!ended) simcluster_explain(c, stdout);
    return ended;
}

bool simrig_until(struct simcluster *c, uint64_t within_s, simrig_condition_fn condition, void *ctx)
{
    uint64_t until = simnet_now(c->net) + within_s * 1000000;
    while (!condition(c, ctx))
        if (simcheck_failure(c->check) || !simnet_step(c->net, until)) {
            simcluster_explain(c, stdout);
            return false;
        }
    return true;
}

void simrig_done(struct simcluster *c)
{
    log_set_sink(NULL, NULL);
    simcluster_destroy(c);
}

uint64_t simrig_calm_theta(const struct simcluster_setup *setup)
{
    struct simcluster *c = simrig_cluster(setup);
    simrig_start(c, setup->n_workers);
    uint64_t theta = simrig_ends(c, 100000) ? c->result.theta_hash : 0;
    simrig_done(c);
    return theta;
}
