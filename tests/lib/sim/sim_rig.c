#include "tests/lib/sim/sim_rig.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"

static void log_to_notes(void *ctx, enum log_level level, const char *line)
{
    struct sim_cluster *c = ctx;
    (void)level;
    sim_check_note(c->check, sim_net_now(c->net), "log: %s", line);
}

struct sim_cluster *sim_rig_cluster(const struct sim_cluster_setup *setup)
{
    struct sim_cluster *c;
    struct err err = {0};
    if (sim_cluster_create(&c, setup, &err) != STATUS_OK) {
        fprintf(stderr, "invalid configuration of a scenario: %s\n", err.msg);
        abort();
    }
    sim_check_trace(c->check, getenv("SIM_TRACE") != NULL);
    log_set_sink(log_to_notes, c);
    return c;
}

void sim_rig_start(struct sim_cluster *c, int n)
{
    if (!c->engine) sim_cluster_coordinator_start(c);
    for (int i = 0; i < n; i++) sim_worker_start(&c->workers[i]);
}

bool sim_rig_ends(struct sim_cluster *c, uint64_t within_s)
{
    bool ended = sim_cluster_run(c, sim_net_now(c->net) + within_s * 1000000);
    if (!ended) sim_cluster_explain(c, stdout);
    return ended;
}

bool sim_rig_until(struct sim_cluster *c, uint64_t within_s, sim_rig_condition_fn condition, void *ctx)
{
    uint64_t until = sim_net_now(c->net) + within_s * 1000000;
    while (!condition(c, ctx))
        if (!sim_cluster_step(c, until)) {
            sim_cluster_explain(c, stdout);
            return false;
        }
    return true;
}

void sim_rig_done(struct sim_cluster *c)
{
    log_set_sink(NULL, NULL);
    sim_cluster_destroy(c);
}

uint64_t sim_rig_calm_theta(const struct sim_cluster_setup *setup)
{
    struct sim_cluster *c = sim_rig_cluster(setup);
    sim_rig_start(c, setup->n_workers);
    uint64_t theta = sim_rig_ends(c, 100000) ? c->result.theta_hash : 0;
    sim_rig_done(c);
    return theta;
}
