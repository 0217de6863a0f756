/* Tests steps whose results arrive one step later. On an asynchronous device (the emulated CUDA plugin) the host does
 * not wait between the first and the last step. Results, parameters, moments and counts equal those of a run that waits
 * for every step, also with a refused step and a restart. ctest: timeout=240 */
#include <dlfcn.h>
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/device/emulated_plugin.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"
#include "worker/replica/replica.h"

enum { N_TOKENS = 2001, BATCH = 2, STEPS = 5, SAMPLES_MAX = 2 * BATCH };

static const struct model_config model = {.n_layer = 2, .n_head = 1, .n_embd = 8, .block_size = 6, .vocab_size = 32};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;
static unsigned long (*idle_waits)(void);

static bool bf16_moments;
static uint32_t worker; /* index of the worker: selects the rounding of bf16 moments */
static uint64_t run_seed;

struct outcome {
    struct step_result steps[STEPS];
    int n;
    uint64_t theta, m, v, taken, skipped;
    unsigned long waits; /* between the first submission and the last */
};

static int set_up(void **state)
{
    const char *path = emulated_plugin_path();
    (void)state;
    setenv("ATOLL_CUDA_PLUGIN", path, 1);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return -1;
    *(void **)&idle_waits = dlsym(plugin, "emulate_idle_waits");
    for (uint32_t i = 0; i < N_TOKENS; i++)
        bytes[2 * i] = (uint8_t)((i % 5 * 7 + rng_u64(1, RNG_TEST, i) % 3) % model.vocab_size);
    layout_init(&layout);
    return idle_waits && gpt2_layout(&model, &layout, NULL) == STATUS_OK && layout_split(&layout, 1) == STATUS_OK ? 0
                                                                                                                  : -1;
}

static int tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

static struct replica *open_replica(const char *device, enum optimizer kind, uint32_t accum)
{
    struct replica_config config = {.family = &gpt2_family,
                                    .model = model,
                                    .device = device,
                                    .ranks = 1,
                                    .threads = 1,
                                    .batch_size = BATCH,
                                    .grad_accum = accum,
                                    .seed = 5,
                                    .opt = {.kind = kind,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .eps = 1e-8,
                                            .weight_decay = 0.1,
                                            .grad_clip = 1,
                                            .bf16 = bf16_moments,
                                            .seed = run_seed}};
    struct replica *r = NULL;
    struct err err = {0};
    if (replica_create(&r, &config, &layout, &data, &err) != STATUS_OK) fail_msg("%s", err.msg);
    inner_opt_set_worker(replica_optimizer(r), worker);
    return r;
}

static void put_params(struct replica *r, bool poisoned)
{
    float *values = mem_alloc(layout.n_params, sizeof *values);
    layout_fill(&layout, 0, 9, values);
    if (poisoned) values[layout.n_params - 1] = NAN;
    assert_int_equal(replica_set_params(r, values, NULL), STATUS_OK);
    mem_free(values);
}

static void take(struct outcome *o, const struct step_result *result)
{
    if (!result->tokens) return;
    assert_true(o->n < STEPS);
    o->steps[o->n++] = *result;
}

static void flush(struct replica *r, struct outcome *o)
{
    struct step_result result;
    assert_int_equal(replica_flush(r, &result, NULL), STATUS_OK);
    take(o, &result);
}

static void step(struct replica *r, struct outcome *o, uint64_t at)
{
    struct step_result result;
    struct err err = {0};
    uint64_t counters[SAMPLES_MAX];
    uint32_t n = replica_step_samples(r);
    for (uint32_t i = 0; i < n; i++) counters[i] = at * n + i;
    if (replica_train_step(r, counters, n, 3e-3, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
    take(o, &result);
}

static void finish(struct replica *r, struct outcome *o)
{
    struct inner_opt *opt = replica_optimizer(r);
    const float *params;
    const void *m, *v;
    assert_int_equal(replica_get_params(r, &params, NULL), STATUS_OK);
    assert_int_equal(inner_opt_read(opt, &m, &v, NULL), STATUS_OK);
    o->theta = layout_theta_hash(&layout, params);
    o->m = m ? hash64(m, layout.n_params * opt->moment) : 0;
    o->v = v ? hash64(v, layout.n_params * opt->moment) : 0;
    o->taken = opt->steps;
    o->skipped = opt->skipped;
}

/* refused: index of the step with a gradient that is not finite; -1: no such step. */
static struct outcome run(const char *device, enum optimizer kind, uint32_t accum, bool wait, int refused)
{
    struct outcome o = {0};
    struct replica *r = open_replica(device, kind, accum);
    put_params(r, refused == 0);
    for (int i = 0; i < STEPS; i++) {
        if (i == refused && i) put_params(r, true);
        if (refused >= 0 && i == refused + 1) put_params(r, false);
        if (i == 0) o.waits = idle_waits();
        step(r, &o, (uint64_t)i);
        if (wait) flush(r, &o);
    }
    o.waits = idle_waits() - o.waits;
    flush(r, &o);
    finish(r, &o);
    replica_destroy(r);
    return o;
}

static void same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, STEPS);
    assert_int_equal(b->n, STEPS);
    for (int i = 0; i < STEPS; i++) {
        const struct step_result *x = &a->steps[i], *y = &b->steps[i];
        assert_int_equal(x->tokens, y->tokens);
        assert_int_equal(x->skipped, y->skipped);
        if (x->skipped)
            assert_false(isfinite(x->grad_norm) || isfinite(y->grad_norm));
        else
            assert_true(x->loss_sum == y->loss_sum && x->grad_norm == y->grad_norm);
    }
    assert_true(a->theta == b->theta && a->m == b->m && a->v == b->v);
    assert_true(a->taken == b->taken && a->skipped == b->skipped);
}

TEST(test_late_is_the_same)
{
    static const int refused[] = {-1, 0, 2};
    for (uint32_t accum = 1; accum <= 2; accum++)
        for (int i = 0; i < 3; i++) {
            enum optimizer o = accum == 1 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
            bool one = refused[i] >= 0;
            struct outcome late = run("cuda", o, accum, false, refused[i]);
            struct outcome now = run("cuda", o, accum, true, refused[i]);
            same(&late, &now);
            assert_int_equal(late.skipped, one);
            assert_int_equal(late.taken, STEPS - one);
            if (one) assert_true(late.steps[refused[i]].skipped);
            assert_true(now.waits >= STEPS);
            if (!one) assert_int_equal(late.waits, 0); /* the host writes no parameters between the steps */
        }
}

/* An evaluation during a step in flight does not change the step's losses. */
TEST(test_eval_with_a_step_in_flight)
{
    struct outcome alone = run("cuda", OPTIMIZER_ADAMW, 1, false, -1), beside = {0};
    struct replica *r = open_replica("cuda", OPTIMIZER_ADAMW, 1);
    put_params(r, false);
    for (uint64_t i = 0; i < STEPS; i++) {
        double loss;
        uint64_t tokens;
        step(r, &beside, i);
        if (i > 1) continue; /* each slot has been in flight once */
        assert_int_equal(replica_eval(r, &data, 7, 3 * BATCH, &loss, &tokens, NULL, NULL), STATUS_OK);
        assert_int_equal(tokens, 3 * BATCH * model.block_size);
    }
    flush(r, &beside);
    finish(r, &beside);
    same(&alone, &beside);
    replica_destroy(r);
}

/* A CPU reports each step at once, and refuses a step in the same way. */
TEST(test_cpu_is_not_late)
{
    struct replica *r = open_replica("cpu", OPTIMIZER_ADAMW, 1);
    struct outcome o = {0};
    put_params(r, false);
    for (int i = 0; i < STEPS; i++) {
        step(r, &o, (uint64_t)i);
        assert_int_equal(o.n, i + 1);
        assert_false(o.steps[i].late);
    }
    flush(r, &o);
    assert_int_equal(o.n, STEPS);
    replica_destroy(r);
}

/* Moments and step count, read and written into another replica, continue with the same bits. */
static void check_restart(void)
{
    struct outcome whole = run("cuda", OPTIMIZER_ADAMW, 1, false, -1), parts = {0};
    struct replica *first = open_replica("cuda", OPTIMIZER_ADAMW, 1);
    put_params(first, false);
    for (uint64_t i = 0; i < 3; i++) step(first, &parts, i);
    flush(first, &parts);
    struct replica *second = open_replica("cuda", OPTIMIZER_ADAMW, 1);
    struct inner_opt *from = replica_optimizer(first), *to = replica_optimizer(second);
    const float *params;
    const void *m, *v;
    assert_int_equal(replica_get_params(first, &params, NULL), STATUS_OK);
    assert_int_equal(replica_set_params(second, params, NULL), STATUS_OK);
    assert_int_equal(inner_opt_read(from, &m, &v, NULL), STATUS_OK);
    to->steps = from->steps;
    assert_int_equal(inner_opt_write(to, m, v, NULL), STATUS_OK);
    for (uint64_t i = 3; i < STEPS; i++) step(second, &parts, i);
    flush(second, &parts);
    finish(second, &parts);
    same(&whole, &parts);
    replica_destroy(second);
    replica_destroy(first);
}

/* The rounding of moments depends on worker and step, not on the start; a refused step does not count. */
TEST(test_restart_bf16_moments)
{
    struct outcome wide = run("cuda", OPTIMIZER_ADAMW, 1, false, -1);
    bf16_moments = true;
    worker = 3;
    check_restart();
    struct outcome late = run("cuda", OPTIMIZER_ADAMW, 2, false, 2), now = run("cuda", OPTIMIZER_ADAMW, 2, true, 2);
    same(&late, &now);
    struct outcome third = run("cuda", OPTIMIZER_ADAMW, 1, false, -1);
    worker = 4;
    struct outcome fourth = run("cuda", OPTIMIZER_ADAMW, 1, false, -1);
    run_seed = 9;
    struct outcome other = run("cuda", OPTIMIZER_ADAMW, 1, false, -1);
    assert_true(third.m != fourth.m && third.v != fourth.v && other.m != fourth.m && third.m != wide.m);
    assert_true(third.steps[0].loss_sum == fourth.steps[0].loss_sum);
    bf16_moments = false;
    worker = 0;
    run_seed = 0;
}

TEST_MAIN(set_up, tear_down)
