/* Regions: a tree of runs in virtual time. Two regions with two and three workers, and a plain worker, with kills of
 * every process; all copies of theta have one hash, and the tree computes what a star computes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/rigs/engine_view.h"
#include "tests/lib/sim/sim_region.h"
#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"

enum { REGIONS = 2, UNTIL_S = 4000, CLIENTS = 1 + REGIONS, SETTINGS = 16 };

static const int workers_of[REGIONS] = {2, 3};

struct tree {
    struct sim_cluster *up, *down[REGIONS];
    struct sim_region regions[REGIONS];
};

static void note(void *ctx, enum log_level level, const char *line)
{
    const struct tree *t = ctx;
    (void)level;
    sim_check_note(t->up->check, sim_net_now(t->up->net), "log: %s", line);
}

static struct sim_cluster *cluster(const char *const *settings, int n, struct sim_cluster *upstream, uint64_t seed,
                                   const char *min_workers)
{
    const char *all[SETTINGS + 3];
    int k = 0;
    for (; settings[k] && k < SETTINGS; k++) all[k] = settings[k];
    all[k++] = min_workers;
    all[k] = NULL;
    struct sim_cluster_setup setup = {.seed = seed, .n_workers = n, .config = all, .upstream = upstream};
    struct sim_cluster *c;
    struct err err = {0};
    if (sim_cluster_create(&c, &setup, &err) != STATUS_OK) fail_msg("%s", err.msg);
    sim_check_trace(c->check, getenv("SIM_TRACE") != NULL);
    return c;
}

static void tree_open(struct tree *t, const char *const *settings, uint64_t seed)
{
    memset(t, 0, sizeof *t);
    t->up = cluster(settings, CLIENTS, NULL, seed, "coordinator.min_workers=3");
    for (int i = 0; i < REGIONS; i++) {
        t->down[i] = cluster(settings, workers_of[i], t->up, seed + 1 + (uint64_t)i, "coordinator.min_workers=1");
        t->down[i]->toy = t->up->toy;
        sim_region_init(&t->regions[i], t->up, 1 + i, t->down[i]);
    }
    log_set_sink(note, t);
}

/* The plain worker comes last, so that the regions know their workers before the first round. */
static void tree_start(struct tree *t)
{
    sim_cluster_coordinator_start(t->up);
    for (int i = 0; i < REGIONS; i++) {
        sim_cluster_coordinator_start(t->down[i]);
        for (int k = 0; k < workers_of[i]; k++) sim_worker_start(&t->down[i]->workers[k]);
    }
    sim_cluster_start_at(t->up, 8000000, 0);
}

static const char *failure(const struct tree *t)
{
    const char *text = sim_check_failure(t->up->check);
    for (int i = 0; i < REGIONS && !text; i++) text = sim_check_failure(t->down[i]->check);
    return text;
}

static bool ended(const struct tree *t)
{
    bool all = t->up->finished;
    for (int i = 0; i < REGIONS; i++) all = all && t->down[i]->finished;
    return all;
}

static bool step(struct tree *t)
{
    return !failure(t) && sim_cluster_step(t->up, (uint64_t)UNTIL_S * 1000000);
}

static void explain(struct tree *t)
{
    sim_cluster_explain(t->up, stdout);
    for (int i = 0; i < REGIONS; i++) {
        printf("region %d:\n", 1 + i);
        sim_cluster_explain(t->down[i], stdout);
    }
}

/* Runs to the end: every summary has the same theta. A region that was away at the end may lack the last updates. */
static void tree_run(struct tree *t)
{
    while (!ended(t) && step(t)) continue;
    bool good = !failure(t) && ended(t);
    for (int i = 0; i < REGIONS && good; i++)
        good = t->down[i]->result.theta_hash == t->up->result.theta_hash ||
               t->down[i]->result.rounds < t->up->result.rounds;
    if (!good) explain(t);
    assert_true(good);
}

static void tree_close(struct tree *t)
{
    log_set_sink(NULL, NULL);
    for (int i = 0; i < REGIONS; i++) {
        sim_region_finish(&t->regions[i]);
        t->up->regions[1 + i] = NULL;
        sim_cluster_destroy(t->down[i]);
    }
    sim_cluster_destroy(t->up);
    assert_int_equal(mem_live_bytes(), 0);
}

static const char *const lossless[] = {"train.fragments=2", "checkpoint.every=2", "train.eval_every=3", NULL};
static const char *const lossy[] = {
    "train.fragments=2",  "codec.up=int8:16",   "codec.down=int8:16",           "checkpoint.every=2",
    "train.eval_every=2", "train.max_steps=48", "coordinator.evict_after_s=30", NULL};

/* ---- the tree is the star ---------------------------------------------------------------------------------------- */

enum { PARAMS_MAX = 256 };

/* Theta of the star of as many workers, at its end. */
static void star(const char *const *settings, float theta[PARAMS_MAX])
{
    int n = 1;
    for (int i = 0; i < REGIONS; i++) n += workers_of[i];
    struct sim_cluster *c = cluster(settings, n, NULL, 1, "coordinator.min_workers=6");
    log_set_sink(NULL, NULL);
    sim_cluster_coordinator_start(c);
    for (int i = 0; i < n; i++) sim_worker_start(&c->workers[i]);
    const struct layout *layout = NULL;
    while (!c->finished && sim_cluster_step(c, (uint64_t)UNTIL_S * 1000000)) {
        if (!c->engine || !engine_theta(c->engine)) continue;
        layout = engine_layout(c->engine);
        assert_true(layout->n_params <= PARAMS_MAX);
        memcpy(theta, engine_theta(c->engine), layout->n_params * sizeof(float));
    }
    if (!c->finished) sim_cluster_explain(c, stdout);
    assert_true(c->finished);
    sim_cluster_destroy(c);
}

TEST(test_tree_is_the_star)
{
    struct tree t;
    static float flat[PARAMS_MAX], deep[PARAMS_MAX];
    size_t n = 0;
    double most = 0, moved = 0;
    star(lossless, flat);
    tree_open(&t, lossless, 1);
    tree_start(&t);
    float first[PARAMS_MAX] = {0};
    while (!ended(&t) && step(&t)) {
        const struct engine *e = t.down[1]->engine;
        if (!e || !engine_theta(e)) continue;
        if (!n) memcpy(first, engine_theta(e), engine_layout(e)->n_params * sizeof(float));
        n = engine_layout(e)->n_params;
        memcpy(deep, engine_theta(e), n * sizeof(float));
    }
    tree_run(&t);
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)flat[i] - (double)deep[i]));
        moved = fmax(moved, fabs((double)first[i] - (double)deep[i]));
    }
    printf("largest difference %g, largest change %g\n", most, moved);
    assert_true(moved > 0.1 && most < 1e-5 * moved);
    tree_close(&t);
}

TEST(test_lossy_tree_ends)
{
    struct tree t;
    tree_open(&t, lossy, 2);
    tree_start(&t);
    tree_run(&t);
    struct sim_check_counts up = sim_check_counts(t.up->check), down = sim_check_counts(t.down[0]->check);
    assert_int_equal(up.merged, 3 * up.updates); /* the plain worker and both regions, in every update */
    assert_int_equal(down.merged, 2 * down.updates);
    assert_int_equal(up.rejected, 0);
    tree_close(&t);
}

/* ---- a round that upstream assigns again --------------------------------------------------------------------------
 */

static bool until_sealed(struct tree *t, uint64_t round)
{
    for (bool both = false; !both;) {
        if (!step(t)) return false;
        both = true;
        for (int i = 0; i < REGIONS; i++)
            both = both && t->down[i]->engine && engine_region_sealed(t->down[i]->engine, round);
    }
    return true;
}

static void cut_off(struct tree *t, bool cut)
{
    for (int i = 0; i < REGIONS; i++) sim_net_partition(t->up->net, 1 + i, cut);
}

static void heal(void *ctx, uint64_t arg)
{
    (void)arg;
    cut_off(ctx, false);
}

/* Both regions are evicted before their deltas arrive, then the plain worker drops its own: upstream assigns the round
 * again. The residuals hold the regions' deltas, so their workers' work counts once. */
TEST(test_round_assigned_again)
{
    static const char *const settings[] = {"codec.up=int8:16",   "codec.down=int8:16",
                                           "train.eval_every=0", "coordinator.evict_after_s=10",
                                           "train.max_steps=12", NULL};
    struct tree t;
    tree_open(&t, settings, 3);
    t.up->workers[0].step_us = 6000000;
    t.up->workers[0].nan_round = 1;
    tree_start(&t);
    assert_true(until_sealed(&t, 1));
    cut_off(&t, true);
    sim_net_at(t.up->net, sim_net_now(t.up->net) + 15000000, heal, &t, 0);
    tree_run(&t);
    assert_true(sim_check_counts(t.up->check).rejected >= REGIONS);
    assert_true(sim_check_counts(t.up->check).evicted >= REGIONS);
    for (int i = 0; i < REGIONS; i++) assert_true(t.regions[i].again_rounds > 0);
    tree_close(&t);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

enum { STORM_US = 40000000, FAULTS = 12, DOWN_US = 3000000 };

/* The next so many sends and writes of a region end with its death. */
static void die(void *ctx, uint64_t region)
{
    struct tree *t = ctx;
    struct sim_cluster *c = t->down[region];
    if (!c->engine || c->dying) return;
    c->die_in = 1 + (long)sim_net_draw(t->up->net, 60);
    c->die_by_power = sim_net_draw(t->up->net, 2);
    c->revive_us = 1 + sim_net_draw(t->up->net, DOWN_US);
}

static void lose_state(void *ctx, uint64_t region)
{
    struct tree *t = ctx;
    if (t->down[region]->finished || t->down[region]->engine) return;
    sim_check_note(t->up->check, sim_net_now(t->up->net), "region %d loses its saved state", (int)region + 1);
    sim_region_forget(&t->regions[region]);
}

static void fault(struct tree *t, uint64_t at_us)
{
    struct sim_net *net = t->up->net;
    int region = (int)sim_net_draw(net, REGIONS);
    struct sim_cluster *down = t->down[region];
    uint64_t back_us = at_us + 1 + sim_net_draw(net, DOWN_US);
    bool power = sim_net_draw(net, 3) == 0;
    int worker = (int)sim_net_draw(net, (uint64_t)workers_of[region]);
    switch (sim_net_draw(net, 6)) {
    case 0: /* upstream's coordinator */
        sim_cluster_kill_at(t->up, at_us, SIM_NET_LISTENER, power);
        sim_cluster_start_at(t->up, back_us, SIM_NET_LISTENER);
        break;
    case 1: /* a region, with its client */
    case 2:
        sim_cluster_kill_at(down, at_us, SIM_NET_LISTENER, power);
        if (sim_net_draw(net, 4) == 0) sim_net_at(net, at_us + 1, lose_state, t, (uint64_t)region);
        sim_cluster_start_at(down, back_us, SIM_NET_LISTENER);
        break;
    case 3: sim_net_at(net, at_us, die, t, (uint64_t)region); break;
    case 4: /* a worker of a region */
        sim_cluster_kill_at(down, at_us, worker, false);
        sim_cluster_start_at(down, back_us, worker);
        break;
    default: /* the plain worker */
        sim_cluster_kill_at(t->up, at_us, 0, false);
        sim_cluster_start_at(t->up, back_us, 0);
        break;
    }
}

static void weather(struct sim_cluster *c, double loss)
{
    for (int i = 0; i < c->n_workers; i++)
        *sim_net_link(c->net, i) = (struct sim_net_link){
            .latency_us = 5000 + sim_net_draw(c->net, 60000), .jitter_us = 5000, .loss = loss, .duplicate = loss / 2};
}

static void calm(void *ctx, uint64_t arg)
{
    struct tree *t = ctx;
    (void)arg;
    weather(t->up, 0);
    for (int i = 0; i < REGIONS; i++) {
        weather(t->down[i], 0);
        t->down[i]->die_in = 0;
    }
}

static void storm(uint64_t seed)
{
    static const char *const methods[][5] = {{"codec.up=int8:16", "codec.down=int8:16", NULL},
                                             {"codec.up=fp32", "codec.down=fp32", NULL},
                                             {"codec.up=fp32", "codec.down=int8:16", NULL},
                                             {"codec.up=topk:64/256+int8", "codec.down=int8:16", NULL},
                                             {"codec.up=int8:16", "codec.down=fp32", "coordinator.quorum=2", NULL}};
    const char *settings[SETTINGS] = {"train.fragments=3", "checkpoint.every=2", "train.eval_every=2",
                                      "train.max_steps=64", "coordinator.evict_after_s=15"};
    const char *const *method = methods[seed % (sizeof methods / sizeof *methods)];
    int k = 5;
    for (int i = 0; method[i]; i++) settings[k++] = method[i];
    if (seed % 3 == 0) settings[k++] = "train.method=local-sgd";
    if (seed % 7 == 0) settings[k++] = "checkpoint.worker_every=3";
    struct tree t;
    tree_open(&t, settings, 1000 * seed);
    double loss = (double)sim_net_draw(t.up->net, 4) * 0.02;
    weather(t.up, loss);
    for (int i = 0; i < REGIONS; i++) weather(t.down[i], loss);
    tree_start(&t);
    int n = (int)sim_net_draw(t.up->net, FAULTS);
    for (int i = 0; i < n; i++) fault(&t, 1000000 + sim_net_draw(t.up->net, STORM_US));
    sim_net_at(t.up->net, STORM_US + DOWN_US, calm, &t, 0);
    while (!ended(&t) && step(&t)) continue;
    if (failure(&t) || !ended(&t)) printf("seed %llu\n", (unsigned long long)seed);
    tree_run(&t);
    tree_close(&t);
}

TEST(test_storms)
{
    const char *runs = getenv("SIM_RUNS"), *only = getenv("SIM_SEED");
    uint64_t n = runs ? strtoull(runs, NULL, 10) : 40;
    if (only) storm(strtoull(only, NULL, 10));
    for (uint64_t seed = 1; !only && seed <= n; seed++) storm(seed);
}

TEST_MAIN(NULL, NULL)
