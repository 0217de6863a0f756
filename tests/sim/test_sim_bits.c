/* "When bits differ" in docs/recovery.md: each setting of a run is tried with kills of all processes. A setting that
 * the table does not name must give the theta of the undisturbed run; each one that it names must give another theta at
 * least once. Every key of the configuration is tried here, or stands in a list with the reason why not.
 * SIM_TRACE=1 prints every event. */

#include "common/base/rng.h"
#include "common/config/config_keys.h"
#include "tests/lib/sim/sim_rig.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_ADDRESS__)
enum { EQUAL_SEEDS = 3 };
#else
enum { EQUAL_SEEDS = 10 };
#endif
enum { WORKERS = 3, OTHER_SEEDS = 40, ROWS = 16, SETTINGS = 6, KILLS = 6 };

struct variant {
    const char *row; /* the code in the first column of its row; NULL: the bits must agree */
    const char *settings[SETTINGS];
};

static const struct variant variants[] = {
    {NULL, {"run.seed=7"}},
    {NULL, {"train.method=local-sgd"}},
    {NULL, {"train.method=ddp"}},
    {NULL, {"train.method=streaming"}},
    {NULL, {"train.max_steps=40", "train.sync_every=7"}},
    {NULL, {"train.batch_size=3", "train.grad_accum=2"}},
    {NULL, {"train.eval_every=5 steps", "train.eval_tokens=16"}},
    {NULL, {"train.fragments=3"}},
    {NULL, {"train.overlap=2", "train.apply=correct", "train.stagger=on"}},
    {NULL, {"train.overlap=4", "train.apply=mix:0.5", "train.fragments=2"}},
    {NULL, {"train.start_step=3"}},
    {NULL, {"outer.optimizer=sgd", "outer.learning_rate=0.9"}},
    {NULL, {"outer.momentum=0.5"}},
    {NULL, {"outer.state=fp32"}},
    {NULL, {"outer.state=bf16", "codec.up=fp32", "codec.down=fp32"}},
    {NULL, {"codec.up=int8:16", "codec.down=int8:16"}},
    {NULL, {"codec.up=topk:64/256+sign", "codec.down=bf16", "merge.rule=mean"}},
    {NULL, {"codec.up=topk:64/256+sign", "codec.down=auto", "outer.optimizer=sgd"}},
    {NULL, {"merge.rule=rda"}},
    {NULL, {"merge.clip=median"}},
    {NULL, {"merge.clip=off"}},
    {NULL, {"train.method=streaming", "train.fragments=2", "train.overlap=1"}},
    {NULL, {"coordinator.min_workers=3", "coordinator.max_workers=4", "coordinator.threads=2"}},
    {NULL, {"checkpoint.every=1", "checkpoint.keep=1"}},
    {NULL, {"checkpoint.every=0"}},
    {NULL, {"train.method=ddp"}},
    {"checkpoint.worker_every", {"checkpoint.worker_every=2"}},
    {"checkpoint.worker_every", {"checkpoint.worker_every=0"}},
    {"train.method: async", {"train.method=async", "merge.clip=off"}},
    {"train.method: async", {"train.method=async", "merge.clip=off", "outer.grace=0", "outer.max_staleness=2"}},
    {"train.dynamic_steps: on", {"train.dynamic_steps=on"}},
    {"coordinator.quorum", {"coordinator.quorum=2"}},
    {"coordinator.evict_after_s", {"coordinator.evict_after_s=2"}},
    {"ddp", {"train.method=ddp", "codec.up=int8:16", "codec.down=int8:16"}},
    {"train.sync_every: 1", {"train.sync_every=1", "codec.up=int8:16"}},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* Keys without a part in the protocol: the simulation has a toy model. */
static const struct {
    const char *keys, *reason;
} untried[] = {
    {"run.name data.* log.*", "names, files and lines"},
    {"run.max_hours run.max_gb", "when the coordinator stops: tests/unit/coordinator/watch/test_engine_budget.c"},
    {"coordinator.listen coordinator.advertise", "addresses"},
    {"model.*", "the model: kills with the real one in tests/e2e/test_e2e_kill.sh"},
    {"inner.* train.precision", "steps of one worker, which its saved state continues: test_e2e_kill.sh"},
    {"train.threads train.recompute", "equal bits in one process: test_train, test_cuda_recompute"},
    {"codec.up_allowed", "codecs of single workers: tests/e2e/settings/test_e2e_codecs.sh"},
    {"train.ranks train.devices", "another sum or device: a row of the table of events"},
};

/* --- the table ---------------------------------------------------------------------------------------------------- */

static char rows[ROWS][256];
static int n_rows;

/* Reads the first column of the table of settings. */
static void read_table(void)
{
    char line[2048];
    bool inside = false;
    FILE *f = fopen("docs/recovery.md", "r");
    assert_non_null(f);
    n_rows = 0;
    while (fgets(line, sizeof line, f)) {
        if (!strncmp(line, "| setting | why", 15)) inside = true;
        if (inside && line[0] != '|') break;
        char *end = strstr(line + 1, " | ");
        if (!inside || line[2] != '`' || !end) continue;
        *end = '\0';
        assert_true(n_rows < ROWS);
        snprintf(rows[n_rows++], sizeof rows[0], "%.200s", line + 2);
    }
    fclose(f);
    assert_true(n_rows > 0);
}

static bool is_in(const char *row, const char *code)
{
    char begin[64];
    snprintf(begin, sizeof begin, "`%s`", code);
    return !strncmp(row, begin, strlen(begin));
}

TEST(test_each_row_is_tried)
{
    read_table();
    for (int r = 0; r < n_rows; r++) {
        bool tried = false;
        for (int v = 0; v < VARIANTS; v++) tried = tried || (variants[v].row && is_in(rows[r], variants[v].row));
        if (!tried) fail_msg("no variant for the row %s of docs/recovery.md", rows[r]);
    }
    for (int v = 0; v < VARIANTS; v++) {
        bool listed = !variants[v].row;
        for (int r = 0; r < n_rows; r++) listed = listed || is_in(rows[r], variants[v].row);
        if (!listed) fail_msg("docs/recovery.md has no row for %s", variants[v].row);
    }
}

static bool is_varied(const char *name)
{
    size_t n = strlen(name);
    for (int v = 0; v < VARIANTS; v++)
        for (int i = 0; i < SETTINGS && variants[v].settings[i]; i++)
            if (!strncmp(variants[v].settings[i], name, n) && variants[v].settings[i][n] == '=') return true;
    return false;
}

static bool is_untried(const char *section, const char *name)
{
    for (size_t i = 0; i < sizeof untried / sizeof *untried; i++) {
        char words[256];
        snprintf(words, sizeof words, "%s", untried[i].keys);
        for (char *save, *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
            size_t n = strlen(section);
            if (!strcmp(word, name) || (!strncmp(word, section, n) && !strcmp(word + n, ".*"))) return true;
        }
    }
    return false;
}

TEST(test_each_key_is_tried_or_explained)
{
    for (int i = 0; i < config_keys_count; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", config_keys[i].section, config_keys[i].key);
        if (is_varied(name) == is_untried(config_keys[i].section, name))
            fail_msg("%s must be in exactly one of the lists of this test", name);
    }
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static uint64_t draw(uint64_t seed, uint64_t i)
{
    return rng_u64(seed, RNG_TEST + 40, i);
}

static struct sim_cluster *cluster(const struct variant *v, uint64_t seed)
{
    const char *config[SETTINGS + 3] = {"coordinator.min_workers=3", "coordinator.evict_after_s=1000"};
    memcpy(config + 2, v->settings, sizeof v->settings);
    struct sim_cluster_setup setup = {.seed = seed, .n_workers = WORKERS, .config = config};
    struct sim_cluster *c = sim_rig_cluster(&setup);
    for (int i = 0; i < WORKERS; i++) {
        c->workers[i].step_us = 20000 + draw(seed, (uint64_t)i) % 60000;
        sim_net_link(c->net, i)->latency_us = 1000 + draw(seed, 10 + (uint64_t)i) % 20000;
    }
    return c;
}

/* Kills each worker, and the coordinator with and without a power cut. */
static void disturb(struct sim_cluster *c, uint64_t seed)
{
    for (uint64_t k = 0; k < KILLS; k++) {
        uint64_t at = 300000 + draw(seed, 100 + k) % 2500000, down = 100000 + draw(seed, 200 + k) % 3500000;
        int client = k < WORKERS ? (int)k : SIM_NET_LISTENER;
        sim_cluster_kill_at(c, at, client, k % 2);
        sim_cluster_start_at(c, at + (client == SIM_NET_LISTENER ? 300000 : down), client);
    }
}

static uint64_t theta_of(const struct variant *v, uint64_t seed, bool disturbed)
{
    struct sim_cluster *c = cluster(v, seed);
    sim_rig_start(c, WORKERS);
    if (disturbed) disturb(c, seed);
    if (!sim_rig_ends(c, 1000)) fail_msg("%s, seed %d: the run does not end", v->settings[0], (int)seed);
    uint64_t theta = c->result.theta_hash;
    sim_rig_done(c);
    return theta;
}

TEST(test_bits_differ_where_the_table_says)
{
    for (int i = 0; i < VARIANTS; i++) {
        const struct variant *v = &variants[i];
        uint64_t seeds = v->row ? OTHER_SEEDS : EQUAL_SEEDS, differ = 0, seed;
        for (seed = 1; seed <= seeds && !differ; seed++) differ += theta_of(v, seed, true) != theta_of(v, seed, false);
        if (differ && !v->row)
            fail_msg("%s, seed %d: kills change the bits, and docs/recovery.md does not say so", v->settings[0],
                     (int)seed - 1);
        if (!differ && v->row)
            fail_msg("%s: kills never change the bits; docs/recovery.md says they do", v->settings[0]);
    }
}

/* Momentum and residual in bf16, in checkpoints and in replays: 24 kills of the coordinator, half of them power cuts,
 * and more of workers. */
TEST(test_lean_state_over_many_kills)
{
    static const struct variant cases[] = {
        {NULL,
         {"codec.up=int8:16", "codec.down=int8:16", "outer.state=bf16", "checkpoint.every=3", "train.fragments=2"}},
        {NULL, {"codec.up=topk:64/256+sign", "codec.down=union", "outer.optimizer=sgd", "outer.state=bf16"}},
    };
    enum { LEAN_KILLS = 24, APART_US = 700000 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t whole = theta_of(&cases[i], 5, false);
        struct sim_cluster *c = cluster(&cases[i], 5);
        sim_rig_start(c, WORKERS);
        for (uint64_t k = 0; k < LEAN_KILLS; k++) {
            uint64_t at = 300000 + k * APART_US + draw(5, 300 + k) % (APART_US / 2);
            sim_cluster_kill_at(c, at, SIM_NET_LISTENER, k % 2);
            sim_cluster_start_at(c, at + APART_US / 4, SIM_NET_LISTENER);
        }
        disturb(c, 5);
        if (!sim_rig_ends(c, 1000)) fail_msg("case %zu: the run does not end", i);
        if (c->result.restarts < LEAN_KILLS) fail_msg("case %zu: %d restarts", i, (int)c->result.restarts);
        if (c->result.theta_hash != whole) fail_msg("case %zu: kills change the bits", i);
        sim_rig_done(c);
    }
}

TEST_MAIN(NULL, NULL)
