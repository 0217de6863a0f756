/* The rounds of `atoll plan` against the simulated cluster, which runs the real engine and the real outer loop: on
 * the same link, with the same times of computation, both take the same time for a round. ctest: timeout=180 */

#include "cli/plan/plan.h"
#include "common/base/mem.h"
#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"

enum { SETTINGS = 16, SAVE_US = 70000, SHORT = 48, LONG = 144 /* inner steps of the two runs */ };

struct scenario {
    const char *name;
    int workers;
    uint64_t latency_us, rate, step_us; /* rate: bytes/s, of the fastest link */
    uint32_t scale;
    const char *settings[SETTINGS];
};

static const struct scenario scenarios[] = {
    {"local SGD", 3, 25000, 0, 100000, 1, {"train.method=local-sgd"}},
    {"DiLoCo over a slow link", 3, 25000, 12500, 100000, 100, {"train.method=diloco"}},
    {"ddp", 2, 50000, 0, 20000, 1, {"train.method=ddp"}},
    {"ddp over a slow link", 2, 5000, 125000, 20000, 200, {"train.method=ddp"}},
    {"two fragments, int8",
     4,
     25000,
     25000,
     50000,
     400,
     {"train.fragments=2", "codec.up=int8:16", "codec.down=int8:16"}},
    {"relay", 3, 10000, 12500, 30000, 200, {"train.method=local-sgd", "codec.up=int8:16", "codec.down=relay"}},
    {"overlap", 3, 30000, 12500, 100000, 100, {"train.overlap=3", "train.sync_every=8"}},
    {"overlap that hides all", 3, 30000, 0, 100000, 1, {"train.overlap=4", "train.sync_every=8"}},
    {"streaming", 3, 20000, 25000, 50000, 200, {"train.method=streaming", "train.sync_every=8", "train.overlap=2"}},
    {"no saves", 2, 100000, 0, 10000, 1, {"checkpoint.worker_every=0"}},
    {"async", 3, 25000, 12500, 100000, 100, {"train.method=async", "outer.grace=0"}},
    {"async with overlap", 3, 25000, 0, 100000, 1, {"train.method=async", "train.overlap=2"}},
};
enum { N = sizeof scenarios / sizeof *scenarios };

/* The steps of the workers follow their links, so these runs are compared as a whole. */
static const struct scenario unequal[] = {
    {"unequal links", 4, 25000, 100000, 50000, 100, {"train.method=async", "train.sync_every=8"}},
    {"unequal links, overlap",
     4,
     25000,
     100000,
     50000,
     100,
     {"train.method=async", "train.sync_every=8", "train.overlap=3"}},
    {"unequal links, one fragment",
     3,
     25000,
     100000,
     50000,
     100,
     {"train.method=async", "train.sync_every=8", "train.fragments=1"}},
};
enum { N_UNEQUAL = sizeof unequal / sizeof *unequal };

static bool is_unequal(const struct scenario *s)
{
    return s >= unequal && s < unequal + N_UNEQUAL;
}

/* Of worker i: of the scenarios "unequal" the slowest has a third of the fastest one's rate. */
static uint64_t rate_of(const struct scenario *s, int i)
{
    return is_unequal(s) ? s->rate - s->rate * 2 / 3 * (uint64_t)i / (uint64_t)(s->workers - 1) : s->rate;
}

/* Time at which the simulated cluster has merged all work, of a run of `steps` steps; *config_p: its configuration. */
static double simulated_s(const struct scenario *s, uint32_t steps, struct config *config_p, struct plan_costs *costs)
{
    const char *settings[SETTINGS + 8];
    char max_steps[32], workers[48];
    size_t n = 0;
    snprintf(max_steps, sizeof max_steps, "train.max_steps=%u", steps);
    snprintf(workers, sizeof workers, "coordinator.min_workers=%d", s->workers);
    for (size_t i = 0; i < SETTINGS && s->settings[i]; i++) settings[n++] = s->settings[i];
    settings[n++] = max_steps;
    settings[n++] = workers;
    settings[n++] = "train.eval_every=0";
    settings[n++] = "coordinator.evict_after_s=1000";
    settings[n++] = "checkpoint.every=0";
    settings[n] = NULL;
    struct sim_cluster_setup setup = {
        .seed = 3, .n_workers = s->workers, .config = settings, .scale = s->scale, .train_samples = 4096};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    for (int i = 0; i < s->workers; i++) {
        *sim_net_link(c->net, i) = (struct sim_net_link){.latency_us = s->latency_us, .rate = rate_of(s, i)};
        c->workers[i].step_us = s->step_us;
        c->workers[i].eval_us = 1000;
        c->workers[i].disk.save_us = SAVE_US;
        c->workers[i].lazy = true;
    }
    sim_rig_start(c, s->workers);
    assert_true(sim_rig_ends(c, 100000));
    struct layout layout;
    struct err err = {0};
    assert_int_equal(toy_layout(&c->toy, &c->config, &layout), STATUS_OK);
    assert_int_equal(plan_cost_measure(costs, &c->config, &layout, (uint32_t)s->workers, &err), STATUS_OK);
    layout_finish(&layout);
    double end_s = (double)c->result.end_us * 1e-6;
    *config_p = c->config;
    sim_rig_done(c);
    return end_s;
}

/* In the simulated cluster only steps and saves take time. */
static void only_steps(struct plan_costs *costs, const struct scenario *s)
{
    costs->step_s = (double)s->step_us * 1e-6;
    costs->save_s = SAVE_US * 1e-6;
    costs->place_s = costs->sync_s = costs->sync_byte_s = costs->byte_s = 0;
    for (uint32_t f = 0; f < costs->n_fragments; f++) {
        struct plan_fragment *p = &costs->fragments[f];
        p->compress_s = p->deliver_s = p->merge_s = p->outer_s = p->apply_s = 0;
    }
}

static struct plan_setup setup_of(const struct scenario *s, const struct config *config, struct plan_costs *costs,
                                  struct link_spec *links)
{
    only_steps(costs, s);
    for (int i = 0; i < s->workers; i++)
        links[i] = (struct link_spec){.up_mbit = (double)rate_of(s, i) * 8e-6,
                                      .down_mbit = (double)rate_of(s, i) * 8e-6,
                                      .delay_ms = (double)s->latency_us * 1e-3};
    return (struct plan_setup){config, costs, links, (uint32_t)s->workers, NULL};
}

static void test_unequal(void **state)
{
    const struct scenario *s = *state;
    struct config config;
    static struct plan_costs costs;
    struct err err = {0};
    struct link_spec links[4];
    double real_s = simulated_s(s, LONG, &config, &costs);
    struct plan_setup setup = setup_of(s, &config, &costs, links);
    struct plan_run all;
    assert_int_equal(plan_run_make(&all, &setup, 1000, NULL, &err), STATUS_OK);
    printf("%-26s simulated %.2f s, planned %.2f\n", s->name, real_s, all.seconds);
    assert_true(all.seconds > 0.95 * real_s && all.seconds < 1.05 * real_s);
}

static void test_agrees(void **state)
{
    const struct scenario *s = *state;
    struct config config;
    static struct plan_costs costs;
    struct err err = {0};
    double few = simulated_s(s, SHORT, &config, &costs), many = simulated_s(s, LONG, &config, &costs);
    struct link_spec links[4];
    struct plan_setup setup = setup_of(s, &config, &costs, links);
    struct plan_run all, some;
    double *ends_s;
    assert_int_equal(plan_run_make(&all, &setup, 1000, NULL, &err), STATUS_OK);
    assert_int_equal(plan_run_make(&some, &setup, 16, &ends_s, &err), STATUS_OK);
    double real_s = many - few, rounds = (double)all.rounds * (LONG - SHORT) / LONG, each = real_s / rounds;
    printf("%-26s simulated %.4f s a round, planned %.4f, from sixteen %.4f\n", s->name, each,
           all.seconds / (double)all.rounds, some.round_s);
    assert_true(all.round_s > 0.97 * each && all.round_s < 1.03 * each);
    assert_true(some.seconds > 0.97 * all.seconds && some.seconds < 1.03 * all.seconds);
    assert_true(ends_s[some.rounds - 1] == some.seconds && some.rounds == all.rounds);
    mem_free(ends_s);
    /* With a barrier each worker loads each update, the last one, too. A relayed one has down_bytes 0. */
    double least = 0;
    for (uint32_t f = 0; f < costs.n_fragments && config.train.method != METHOD_ASYNC; f++)
        least += (double)costs.fragments[f].down_bytes * (double)all.rounds * s->workers;
    assert_true((double)all.bytes_down >= least && (double)some.bytes_down >= least);
}

/* async with outer.max_staleness 0 and unequal links: most deltas of the slow workers are refused, and the rounds end
 * with the refusal of the last one. */
static void test_refused_deltas(void **state)
{
    (void)state;
    const char *settings[] = {"train.method=async", "outer.grace=0", "outer.max_staleness=0", NULL};
    struct sim_cluster_setup sim = {.seed = 3, .n_workers = 4, .config = settings, .scale = 1, .train_samples = 4096};
    struct sim_cluster *c = sim_rig_cluster(&sim);
    struct config config = c->config;
    sim_rig_done(c);
    static struct plan_costs costs;
    costs = (struct plan_costs){.step_s = 0.1, .n_fragments = 3};
    for (uint32_t f = 0; f < costs.n_fragments; f++)
        costs.fragments[f] = (struct plan_fragment){.floats = 1000, .up_bytes = 4000, .down_bytes = 4000};
    for (int k = 1; k <= 40; k++) { /* in some of them a refusal is the last thing that happens */
        struct link_spec links[4];
        for (int i = 0; i < 4; i++) links[i] = (struct link_spec){.up_mbit = 0.01 * (k + i * k % 7), .delay_ms = 7};
        config.train.max_steps = (uint32_t)(100 + k);
        struct plan_setup setup = {&config, &costs, links, 4, NULL};
        struct plan_run run;
        double *ends_s;
        struct err err = {0};
        assert_int_equal(plan_run_make(&run, &setup, 1000, &ends_s, &err), STATUS_OK);
        assert_true(run.rounds > 1 && ends_s[run.rounds - 1] == run.seconds && run.seconds < 1e6);
        for (uint64_t i = 1; i < run.rounds; i++) assert_true(ends_s[i] >= ends_s[i - 1]);
        mem_free(ends_s);
    }
}

int main(void)
{
    struct CMUnitTest tests[N + N_UNEQUAL + 1];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){scenarios[i].name, test_agrees, NULL, NULL, (void *)&scenarios[i]};
    for (size_t i = 0; i < N_UNEQUAL; i++)
        tests[N + i] = (struct CMUnitTest){unequal[i].name, test_unequal, NULL, NULL, (void *)&unequal[i]};
    tests[N + N_UNEQUAL] = (struct CMUnitTest)cmocka_unit_test(test_refused_deltas);
    return _cmocka_run_group_tests("plan", tests, N + N_UNEQUAL + 1, NULL, NULL);
}
