#include "tests/lib/sim/sim_random.h"

#include <stdarg.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rng.h"
#include "tests/lib/store/store_mem.h"

enum { WIDE_EVERY = 300 }; /* a wide run takes seconds */
enum { SETTINGS_MAX = 44, FAULTS_US = 20 * 1000000, PATIENCE_US = 900 * 1000000 };

/* The settings drawn before the run begins, equal with and without faults. */
struct plan {
    uint64_t seed, drawn;
    char settings[SETTINGS_MAX][64];
    const char *list[SETTINGS_MAX + 1];
    int n_settings, n_workers, n_late;
    bool harsh, barrier, starts, saves_all, nan;
    unsigned evict_s; /* 0: no evictions */
    const char *up;   /* codec.up; NULL: the default of ddp */
    struct sim_cluster *cluster;
    uint64_t kills;
    bool wide, unequal, forgets;
    uint64_t long_us, free_bytes; /* 0: long work takes no time; the disk has room */
    bool other_minimum;           /* restarts have other numbers for coordinator.min_workers */
};

static uint64_t draw(struct plan *p, uint64_t below)
{
    return rng_u64(p->seed, RNG_TEST + 7, p->drawn++) % below;
}

static void set(struct plan *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void set(struct plan *p, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->settings[p->n_settings], sizeof(p->settings[0]), fmt, args);
    va_end(args);
    p->list[p->n_settings] = p->settings[p->n_settings];
    p->n_settings++;
}

static bool plan_has(const struct plan *p, const char *prefix)
{
    for (int i = 0; i < p->n_settings; i++)
        if (strncmp(p->settings[i], prefix, strlen(prefix)) == 0) return true;
    return false;
}

/* Draws the codecs of both directions. Updates without a plain codec need plain SGD. */
static bool plan_codecs(struct plan *p)
{
    static const char *const up[] = {"fp32", "int8:32",          "int8:16",           "fp32+lz4",
                                     "bf16", "topk:64/256+sign", "topk:100/256+int8", "topk:40/256+2bit"};
    static const char *const down[] = {"fp32", "fp32", "int8:32", "int8:16", "fp32+lz4", "bf16", "topk:128/256+int8"};
    static const char *const special[] = {"relay", "auto", "union", "union+int8"};
    const char *mine = up[draw(p, 8)];
    bool sparse = codec_spec_sparse(mine), is_special = draw(p, 2);
    uint64_t which = p->barrier ? draw(p, sparse ? 4 : 2) : 1 + draw(p, sparse ? 3 : 1);
    p->up = mine;
    set(p, "codec.up=%s", mine);
    set(p, "codec.down=%s", is_special ? special[which] : down[draw(p, 7)]);
    if (draw(p, 3) == 0) set(p, "merge.rule=%s", draw(p, 2) ? "mean" : "contributors");
    (void)draw(p, 3); /* the seeds keep their other settings */
    bool clips = draw(p, 4) == 0;
    if (clips) set(p, "merge.clip=median");
    /* The checker does not know the members' last deltas, which bound a delta of an async run (test_engine_gate). */
    if (!p->barrier || (!clips && rng_u64(p->seed, RNG_TEST + 22, 0) % 3 == 0)) set(p, "merge.clip=off");
    if (!sparse && !is_special && rng_u64(p->seed, RNG_TEST + 21, 0) % 3 == 0) set(p, "merge.rule=rda");
    return is_special;
}

/* In half of the runs, training goes on during transfers; draws from a separate sequence. */
static void plan_overlap(struct plan *p, unsigned every)
{
    static const char *const rules[] = {"correct", "mix:0.5", "mix:0", "mix:1"};
    uint64_t r = rng_u64(p->seed, RNG_TEST + 11, 0);
    unsigned tau = (unsigned)((r >> 8) % (every + 1));
    if (r & 1) return;
    set(p, "train.overlap=%u", tau);
    if (r & 2) set(p, "train.stagger=on");
    if (tau) set(p, "train.apply=%s", rules[r & 4 ? 0 : (r >> 16) % 4]);
}

/* In a third of the runs with a barrier, rounds of one step come first; draws from a separate sequence. */
static void plan_start(struct plan *p, unsigned steps)
{
    uint64_t r = rng_u64(p->seed, RNG_TEST + 20, 0);
    unsigned most = steps - 1 < 6 ? steps - 1 : 6;
    p->starts = p->barrier && r % 3 == 0;
    if (p->starts) set(p, "train.start_step=%u", 1 + (unsigned)((r >> 8) % most));
}

static void plan_method(struct plan *p)
{
    static const char *const methods[] = {"diloco", "local-sgd", "local-sgd", "async", "async", "ddp"};
    const char *method = methods[draw(p, 6)];
    bool special = false;
    p->barrier = strcmp(method, "async") != 0;
    set(p, "train.method=%s", method);
    set(p, "train.fragments=%u", 1 + (unsigned)draw(p, p->harsh ? 5 : 3));
    if (strcmp(method, "ddp") == 0) {
        set(p, "train.max_steps=%u", 4 + (unsigned)draw(p, 8));
        (void)draw(p, 2);
    } else {
        /* With 1 the journal is synced at checkpoints only, which the checker knows of ddp. */
        unsigned every = 2 + (unsigned)draw(p, 4), rounds = 3 + (unsigned)draw(p, 6);
        set(p, "train.sync_every=%u", every);
        unsigned steps = every * rounds - (unsigned)draw(p, every);
        set(p, "train.max_steps=%u", steps);
        plan_start(p, steps);
        plan_overlap(p, every);
        if (p->barrier && rng_u64(p->seed, RNG_TEST + 13, 0) % 4 == 0) set(p, "train.dynamic_steps=on");
        special = plan_codecs(p);
    }
    if (special && strcmp(method, "diloco") == 0) set(p, "outer.optimizer=sgd");
    if (special && p->starts) set(p, "outer.learning_rate=0.7");
    if (!p->barrier) {
        set(p, "outer.optimizer=%s", !special && draw(p, 4) ? "nesterov" : "sgd");
        set(p, "outer.learning_rate=0.3");
        set(p, "outer.max_staleness=%u", (unsigned)draw(p, 5));
        set(p, "train.dynamic_steps=%s", draw(p, 2) ? "on" : "off");
        static const char *const graces[] = {"0", "auto", "0.3", "2"};
        set(p, "outer.grace=%s", graces[rng_u64(p->seed, RNG_TEST + 12, 0) % 4]);
        if (draw(p, 3)) (void)draw(p, 3);
    }
}

/* Large models on long and unequal links: windows of many chunks. The rest of the plan stays small. */
static void plan_wide(struct plan *p)
{
    static const char *const methods[] = {"diloco", "local-sgd", "async"}, *const codecs[] = {"fp32", "fp32",
                                                                                              "int8:256"};
    uint64_t r = rng_u64(p->seed, RNG_TEST + 31, 0);
    const char *method = methods[r % 3], *codec = codecs[(r >> 4) % 3];
    p->barrier = r % 3 != 2;
    p->up = codec;
    set(p, "train.method=%s", method);
    set(p, "train.fragments=%u", 1 + (unsigned)((r >> 8) % 3));
    set(p, "train.sync_every=2");
    set(p, "train.max_steps=%u", 4 + (unsigned)((r >> 12) % 3));
    set(p, "codec.up=%s", codec);
    set(p, "codec.down=%s", codec);
    set(p, "merge.clip=off");
    if (!p->barrier) set(p, "outer.learning_rate=0.3");
}

/* What a long run meets; each draw has its own sequence, so the seeds keep their other settings. */
static void plan_long_run(struct plan *p)
{
    static const uint64_t pieces[] = {300000, 3000000, 25000000};
    uint64_t r[6];
    for (uint64_t i = 0; i < 6; i++) r[i] = rng_u64(p->seed, RNG_TEST + 30, i);
    if (r[0] % 4 == 0) p->long_us = pieces[(r[0] >> 8) % 3];
    p->unequal = r[1] % (p->barrier ? 4 : 2) == 0;
    p->other_minimum = r[2] % (p->barrier ? 8 : 2) == 0;
    if (r[3] % 5 == 0) p->free_bytes = 1 + (r[3] >> 8) % 20000;
    p->forgets = r[4] % 4 == 0 && p->evict_s;
}

static int draw_workers(struct plan *p)
{
    uint64_t r = rng_u64(p->seed, RNG_TEST + 32, 0);
    int few = p->harsh ? 2 + (int)draw(p, 6) : 1 + (int)draw(p, 4);
    if (p->wide) return 2 + (int)(r % 2);
    return r % (p->harsh ? 10 : 20) == 0 ? 9 + (int)((r >> 8) % 6) : few;
}

static void plan_make(struct plan *p, uint64_t seed, bool harsh)
{
    *p = (struct plan){.seed = seed, .harsh = harsh};
    p->wide = rng_u64(seed, RNG_TEST + 31, 34) % WIDE_EVERY == 0;
    if (p->wide)
        plan_wide(p);
    else
        plan_method(p);
    p->n_workers = draw_workers(p);
    p->n_late = draw(p, 3) ? 0 : (int)draw(p, (uint64_t)p->n_workers);
    set(p, "coordinator.min_workers=%d", p->n_workers - p->n_late);
    if (draw(p, harsh ? 2 : 4) == 0) p->evict_s = 3 + (unsigned)draw(p, 10);
    set(p, "coordinator.evict_after_s=%u", p->evict_s ? p->evict_s : 100000);
    if (p->barrier && (draw(p, 4) == 0) != harsh)
        set(p, "coordinator.quorum=%u", 1 + (unsigned)draw(p, (uint64_t)p->n_workers));
    set(p, "train.batch_size=%u", 1 + (unsigned)draw(p, 3));
    set(p, "train.grad_accum=%u", 1 + (unsigned)draw(p, 2));
    set(p, "train.eval_every=%u", (unsigned)draw(p, 4));
    set(p, "checkpoint.every=%u", (unsigned)draw(p, 5));
    static const unsigned keeps[] = {0, 1, 1, 2};
    set(p, "checkpoint.keep=%u", keeps[draw(p, 4)]);
    p->saves_all = draw(p, 5) != 0;
    set(p, "checkpoint.worker_every=%u", p->saves_all ? 1 : 2 * (unsigned)draw(p, 2));
    p->nan = draw(p, 8) == 0;
    if (p->wide) set(p, "train.batch_size=1"), set(p, "train.grad_accum=1"), set(p, "train.eval_every=0");
    plan_long_run(p);
    p->list[p->n_settings] = NULL;
}

/* ---- links, speeds, arrivals ------------------------------------------------------------------------------------- */

/* Links of one run differ by 1, 3 or 10 in rate, and in their round trips. */
static void setup_unequal(struct plan *p, struct sim_net_link *link, int client)
{
    static const uint64_t latencies[] = {5000, 50000, 150000, 400000}, shares[] = {1, 1, 3, 10};
    uint64_t all = rng_u64(p->seed, RNG_TEST + 33, 0), r = rng_u64(p->seed, RNG_TEST + 33, 1 + (uint64_t)client);
    uint64_t rate = p->wide ? 4000000u << all % 4 : 20000u << all % 3;
    link->latency_us = latencies[r % 4];
    link->jitter_us = link->latency_us / 4;
    link->rate = rate / shares[(r >> 8) % 4];
    link->queue_us = 500000;
}

static void setup_workers(struct plan *p, bool calm)
{
    struct sim_cluster *c = p->cluster;
    for (int i = 0; i < p->n_workers; i++) {
        static const uint64_t latencies[] = {100, 5000, 20000, 80000, 200000};
        static const uint64_t rates[] = {0, 0, 20000, 5000, 2000};
        static const uint64_t save_times[] = {0, 2000, 30000, 300000, 1000000};
        struct sim_net_link *link = sim_net_link(c->net, i);
        link->latency_us = latencies[draw(p, 5)];
        link->jitter_us = draw(p, 2) ? link->latency_us / 2 : 0;
        link->rate = rates[draw(p, 5)];
        link->queue_us = link->rate ? 500000 : 0;
        link->same_peer = draw(p, 2) ? 0.5 : 0.0;
        link->loss = (double)draw(p, 4) * (p->harsh ? 0.1 : 0.03);
        link->duplicate = (double)draw(p, 4) * 0.03;
        if (p->unequal || p->wide) setup_unequal(p, link, i);
        if (calm) link->loss = link->duplicate = link->same_peer = 0;
        if (calm && !p->unequal) *link = (struct sim_net_link){.latency_us = 1000};
        struct sim_worker *w = &c->workers[i];
        w->step_us = 20000 + draw(p, 200000);
        w->eval_us = 10000 + draw(p, 100000);
        w->lazy = draw(p, 2);
        w->kind = (p->seed + (uint64_t)i) % 3;
        uint64_t start = i < p->n_workers - p->n_late ? draw(p, 1000000) : 500000 + draw(p, 5000000);
        if (p->nan && i == 0) w->nan_round = 1 + draw(p, 2);
        w->disk.save_us = save_times[rng_u64(p->seed, RNG_TEST + 9, (uint64_t)i) % 5];
        sim_cluster_start_at(c, start, i);
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

struct fault {
    int kind, client;
};

enum { FAULT_CUT, FAULT_HEAL, FAULT_FREEZE, FAULT_THAW, FAULT_DIE_IN, FAULT_FORGET, FAULT_CALM };

static void fault_now(void *ctx, uint64_t arg)
{
    struct plan *p = ctx;
    struct sim_cluster *c = p->cluster;
    int kind = (int)(arg & 15), client = (int)(arg >> 4 & 15);
    uint64_t more = arg >> 8;
    switch (kind) {
    case FAULT_CUT: sim_net_partition(c->net, client, true); break;
    case FAULT_HEAL: sim_net_partition(c->net, client, false); break;
    case FAULT_FREEZE:
        if (c->workers[client].up) sim_worker_freeze(&c->workers[client], true);
        break;
    case FAULT_THAW:
        if (c->workers[client].up) sim_worker_freeze(&c->workers[client], false);
        break;
    case FAULT_DIE_IN:
        c->die_in = c->engine ? (long)(more >> 1) + 1 : 0;
        c->die_by_power = more & 1;
        c->revive_us = 300000;
        break;
    case FAULT_FORGET: /* the machine gets a new disk */
        sim_worker_kill(&c->workers[client]);
        sim_worker_forget(&c->workers[client]);
        sim_worker_start(&c->workers[client]);
        break;
    default: /* FAULT_CALM: no faults from here on */
        c->die_in = 0;
        c->long_us = 0;
        for (int i = 0; i < p->n_workers; i++) {
            struct sim_net_link *link = sim_net_link(c->net, i);
            link->loss = link->duplicate = 0.0;
            sim_net_partition(c->net, i, false);
            if (c->workers[i].frozen) sim_worker_freeze(&c->workers[i], false);
            sim_cluster_start_at(c, sim_net_now(c->net), i);
        }
        sim_cluster_start_at(c, sim_net_now(c->net), SIM_NET_LISTENER);
    }
}

static void fault_at(struct plan *p, uint64_t at_us, int kind, int client, uint64_t more)
{
    sim_net_at(p->cluster->net, at_us, fault_now, p, more << 8 | (uint64_t)client << 4 | (uint64_t)kind);
}

/* In every fourth run, tells workers to stop and starts them again; draws from a separate sequence. */
static void setup_leaves(struct plan *p, uint64_t span)
{
    uint64_t n = rng_u64(p->seed, RNG_TEST + 10, 0) % 12;
    for (uint64_t i = 1; i <= n && n < 4; i++) {
        uint64_t r = rng_u64(p->seed, RNG_TEST + 10, i), at = r % span, lasts = 10000 + (r >> 32) % 4000000;
        int client = (int)(rng_u64(p->seed, RNG_TEST + 10, 100 + i) % (uint64_t)p->n_workers);
        sim_cluster_leave_at(p->cluster, at, client);
        sim_cluster_start_at(p->cluster, at + lasts, client);
    }
}

/* Causes evictions, often of all workers at once, so that rounds are assigned again. Workers that return are soon
 * told to stop or killed. Draws from a separate sequence; returns the end time of the outage. */
static uint64_t setup_outage(struct plan *p)
{
    uint64_t r = rng_u64(p->seed, RNG_TEST + 11, 0), begin = 500000 + (r >> 8) % 4000000, last = 0;
    if (!p->evict_s || r % 4 == 0) return 0;
    for (int i = 0; i < p->n_workers; i++) {
        uint64_t more = rng_u64(p->seed, RNG_TEST + 11, 1 + (uint64_t)i);
        uint64_t back = begin + p->evict_s * 1000000 + 500000 + more % 3000000, at = back + (more >> 32) % 2000000;
        fault_at(p, begin + (more >> 16) % 1000000, more % 2 ? FAULT_CUT : FAULT_FREEZE, i, 0);
        fault_at(p, back, more % 2 ? FAULT_HEAL : FAULT_THAW, i, 0);
        if (more / 2 % 2)
            sim_cluster_leave_at(p->cluster, at, i);
        else
            sim_cluster_kill_at(p->cluster, at, i, false);
        sim_cluster_start_at(p->cluster, at + 300000, i);
        if (at > last) last = at;
    }
    return last;
}

static void setup_faults(struct plan *p)
{
    struct sim_cluster *c = p->cluster;
    uint64_t n = draw(p, p->harsh ? 30 : 14), span = 2000000 + draw(p, FAULTS_US - 2000000);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = draw(p, span), lasts = 10000 + draw(p, 1000) * draw(p, 6000);
        int client = (int)draw(p, (uint64_t)p->n_workers);
        bool power = draw(p, 2);
        switch (draw(p, 6)) {
        case 0:
            sim_cluster_kill_at(c, at, SIM_NET_LISTENER, power);
            sim_cluster_start_at(c, at + lasts, SIM_NET_LISTENER);
            p->kills++;
            break;
        case 1:
            sim_cluster_kill_at(c, at, client, false);
            sim_cluster_start_at(c, at + lasts, client);
            p->kills++;
            break;
        case 2:
            fault_at(p, at, FAULT_CUT, client, 0);
            fault_at(p, at + lasts, FAULT_HEAL, client, 0);
            break;
        case 3:
            fault_at(p, at, FAULT_FREEZE, client, 0);
            fault_at(p, at + lasts, FAULT_THAW, client, 0);
            break;
        default: /* kills the coordinator in the middle of an operation */
            fault_at(p, at, FAULT_DIE_IN, 0, draw(p, 60) << 1 | power);
            p->kills++;
        }
    }
    setup_leaves(p, span);
    for (uint64_t i = 0; i < 3 && p->forgets; i++) {
        uint64_t r = rng_u64(p->seed, RNG_TEST + 34, i);
        fault_at(p, 500000 + (r >> 8) % span, FAULT_FORGET, (int)(r % (uint64_t)p->n_workers), 0);
    }
    uint64_t outage = setup_outage(p);
    fault_at(p, (outage > span ? outage : span) + 7000000, FAULT_CALM, 0, 0);
}

static void setup_long_run(struct plan *p)
{
    struct sim_cluster *c = p->cluster;
    c->long_us = p->long_us;
    c->workers_most = p->other_minimum ? (uint32_t)p->n_workers : 0;
    if (p->free_bytes) store_mem_set_free(c->store, p->free_bytes);
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static void log_to_notes(void *ctx, enum log_level level, const char *line)
{
    struct sim_cluster *c = ctx;
    (void)level;
    sim_check_note(c->check, sim_net_now(c->net), "log: %s", line);
}

static void plan_describe(const struct plan *p, char *out, size_t cap)
{
    size_t at = (size_t)snprintf(out, cap, "%d workers (%d late)%s%s%s%s%s%s%s", p->n_workers, p->n_late,
                                 p->nan ? ", NaN" : "", p->wide ? ", wide" : "", p->unequal ? ", unequal links" : "",
                                 p->long_us ? ", long work" : "", p->free_bytes ? ", little disk" : "",
                                 p->other_minimum ? ", other minimum" : "", p->forgets ? ", new disks" : "");
    for (int i = 0; i < p->n_settings && at < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, " %s", strchr(p->settings[i], '.') + 1);
}

static double updates_of_beats(const struct config *c)
{
    bool beats = c->train.method == METHOD_ASYNC && !strcmp(c->outer.grace, "auto");
    return beats ? (double)c->train.fragments * c->train.max_steps / c->train.sync_every : 0;
}

enum status sim_random_run(uint64_t seed, unsigned flags, FILE *explain, struct sim_random_plan *plan,
                           struct sim_random_outcome *outcome)
{
    static struct plan p;
    struct err err = {0};
    bool calm = flags & SIM_RANDOM_CALM;
    plan_make(&p, seed, flags & SIM_RANDOM_HARSH);
    plan_describe(&p, plan->text, sizeof(plan->text));
    plan->comparable = p.barrier && p.n_late == 0 && p.saves_all && !p.nan && !plan_has(&p, "coordinator.quorum") &&
                       !plan_has(&p, "train.dynamic_steps=on") && !p.other_minimum && !p.forgets;
    struct sim_cluster_setup setup = {.seed = seed, .n_workers = p.n_workers, .config = p.list};
    setup.train_samples = 20 + draw(&p, 200);
    setup.n_tensors = 3 + (uint32_t)draw(&p, 4);
    setup.scale = p.wide ? 15000 + (uint32_t)(rng_u64(seed, RNG_TEST + 31, 2) % 45000) : 1;
    enum status status = sim_cluster_create(&p.cluster, &setup, &err);
    if (status != STATUS_OK) {
        fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, err.msg);
        return status;
    }
    struct sim_cluster *c = p.cluster;
    plan->updates = updates_of_beats(&c->config);
    sim_check_trace(c->check, flags & SIM_RANDOM_TRACE);
    log_set_sink(log_to_notes, c);
    setup_workers(&p, calm);
    if (!calm) setup_long_run(&p);
    if (!calm) setup_faults(&p);
    sim_cluster_coordinator_start(c);
    outcome->ended = sim_cluster_run(c, PATIENCE_US);
    outcome->result = c->result;
    outcome->checks = sim_check_counts(c->check);
    outcome->net = sim_net_counts(c->net);
    outcome->kills = p.kills;
    outcome->long_works = c->long_works;
    if (!outcome->ended && explain) {
        fprintf(explain, "seed %llu%s: %s\n", (unsigned long long)seed, calm ? " (calm)" : "", plan->text);
        sim_cluster_explain(c, explain);
    }
    log_set_sink(NULL, NULL);
    sim_cluster_destroy(c);
    return STATUS_OK;
}
