/* The whole outer step of a coordinator, for every optimizer and method: the same bits with any number of threads,
 * and every NaN is detected. ctest: labels=threads */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/outer/outer_state.h"
#include "tests/lib/test.h"

enum { STEPS = 3, AT = 100 };

#ifdef __SANITIZE_THREAD__ /* slow */
enum { LEAST = 3, MOST = 3 };
#else
enum { LEAST = 2, MOST = 4 };
#endif

struct world {
    struct config config;
    struct layout layout;
    struct outer_state outer;
    size_t n;
};

static void world_open_as(struct world *w, const char *const *settings, unsigned threads, uint32_t flags)
{
    static const uint64_t rows[] = {100, 3, 250, 41};
    struct config_sources sources;
    struct err err = {0};
    memset(w, 0, sizeof *w);
    config_defaults(&w->config, &sources);
    for (; *settings; settings++)
        assert_int_equal(config_set(&w->config, &sources, *settings, CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(&w->config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    w->config.coordinator.threads = threads;
    layout_init(&w->layout);
    for (uint64_t t = 0; t < sizeof rows / sizeof *rows; t++) {
        char name[16];
        uint64_t shape[2] = {rows[t], 701};
        snprintf(name, sizeof name, "t%d", (int)t);
        assert_int_equal(
            layout_add(&w->layout, name, 2, shape, LAYOUT_INIT_NORMAL, 1.0f, t != 1 ? LAYOUT_DECAY | flags : flags),
            STATUS_OK);
    }
    assert_int_equal(layout_split(&w->layout, 1), STATUS_OK);
    w->n = w->layout.n_params;
    if (outer_state_init(&w->outer, &w->config, &w->layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(outer_state_fill(&w->outer, NULL, &err), STATUS_OK);
}

static void world_open(struct world *w, const char *const *settings, unsigned threads)
{
    world_open_as(w, settings, threads, 0);
}

static void world_close(struct world *w)
{
    outer_state_finish(&w->outer);
    layout_finish(&w->layout);
}

/* The allocated bytes equal the plan, for every kind of configuration, with the deltas of a round together. */
static void check_bytes(const char *const *settings, bool together, unsigned threads)
{
    static struct world w;
    struct err err = {0};
    uint64_t alone, many;
    world_open(&w, settings, threads);
    outer_state_finish(&w.outer);
    assert_int_equal(outer_state_bytes(&alone, &w.config, &w.layout, 1, &err), STATUS_OK);
    assert_int_equal(outer_state_bytes(&many, &w.config, &w.layout, 500, &err), STATUS_OK);
    size_t before = mem_live_bytes();
    assert_int_equal(outer_state_init(&w.outer, &w.config, &w.layout, &err), STATUS_OK);
    size_t took = mem_live_bytes() - before, pool = threads > 1 ? 16384 : 0;
    if (took < alone || took > alone + pool) fail_msg("%s: took %zu, planned %zu", *settings, took, (size_t)alone);
    assert_int_equal(many > alone, together);
    world_close(&w);
}

TEST(test_allocated_bytes_equal_plan)
{
    static const char *const plain[] = {"outer.optimizer=sgd", "codec.up=fp32", "codec.down=fp32", NULL},
                             *const diloco[] = {"codec.up=int8:256", "codec.down=int8:256", NULL},
                             *const wide[] = {"codec.down=int8:256", "outer.state=fp32", NULL},
                             *const staged[] = {"codec.up=int4:256+huff", "codec.down=bf16+lz4", NULL},
                             *const ddp[] = {"train.method=ddp", NULL}, *const async[] = {"train.method=async", NULL},
                             *const rda[] = {"merge.rule=rda", NULL},
                             *const async_topk[] = {"train.method=async", "codec.up=topk:64/4096", NULL},
                             *const topk[] = {"codec.up=topk:64/4096", "outer.optimizer=sgd", "codec.down=union", NULL},
                             *const relay[] = {"codec.up=int8", "outer.optimizer=sgd", "codec.down=relay", NULL};
    for (unsigned threads = LEAST; threads <= MOST; threads++) {
        unsigned n = threads == LEAST ? 1 : threads;
        check_bytes(plain, false, n);
        check_bytes(diloco, false, n);
        check_bytes(wide, false, n);
        check_bytes(staged, false, n);
        check_bytes(ddp, false, n);
        check_bytes(async, false, n);
        check_bytes(async_topk, false, n);
        check_bytes(topk, true, n);
        check_bytes(relay, true, n);
        check_bytes(rda, true, n);
    }
}

static enum status take(struct world *w, uint64_t version, size_t *size_p)
{
    struct outer_step step = {.version = version,
                              .round = version - 1,
                              .steps = 10 * version,
                              .fresh = 1 / (double)(1 + version % 2),
                              .members = 2,
                              .norm = 3};
    return outer_state_step(&w->outer, &step, AT, size_p);
}

/* Mean tensors take the steps of local SGD with rate 1 in fp32, whatever outer.* and codec.* say. */
static void compare_mean(const char *const *settings, const char *const *as_mean)
{
    static struct world mean, plain;
    world_open_as(&mean, settings, 2, LAYOUT_MEAN);
    world_open(&plain, as_mean, 2);
    for (uint64_t version = 1; version <= STEPS; version++) {
        size_t a = 0, b = 0;
        rng_normal_fill(9, RNG_TEST, version << 30, 0.1f, mean.outer.acc, mean.n);
        memcpy(plain.outer.acc, mean.outer.acc, mean.n * sizeof(float));
        assert_int_equal(take(&mean, version, &a), STATUS_OK);
        assert_int_equal(take(&plain, version, &b), STATUS_OK);
        assert_memory_equal(mean.outer.theta, plain.outer.theta, mean.n * sizeof(float));
        assert_memory_equal(mean.outer.payload + AT, plain.outer.payload + AT, a);
    }
    assert_true(mean.outer.lr == 1);
    world_close(&mean);
    world_close(&plain);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_mean_tensors_take_the_plain_mean)
{
    static const char *const diloco[] = {"codec.up=fp32", "codec.down=fp32", NULL},
                             *const sgd[] = {"train.method=local-sgd", "codec.up=fp32", "codec.down=fp32", NULL},
                             *const lossy[] = {"outer.learning_rate=0.3", NULL},
                             *const sparse[] = {"outer.optimizer=sgd", "codec.up=topk:64/4096", "codec.down=union",
                                                NULL},
                             *const async[] = {"train.method=async", NULL},
                             *const async_sgd[] = {"train.method=async", "outer.optimizer=sgd", "codec.up=fp32",
                                                   "codec.down=fp32", NULL};
    compare_mean(diloco, sgd);
    compare_mean(lossy, sgd); /* in fp32 */
    compare_mean(sparse, sgd);
    compare_mean(async, async_sgd);
    static struct world w; /* exactly the mean: the merged parameters themselves */
    size_t size = 0;
    world_open_as(&w, diloco, 2, LAYOUT_MEAN);
    assert_true(w.outer.merger.parameters);
    rng_normal_fill(9, RNG_TEST, 0, 0.1f, w.outer.acc, w.n);
    float *mean = mem_alloc(w.n, sizeof *mean);
    memcpy(mean, w.outer.acc, w.n * sizeof *mean);
    assert_int_equal(take(&w, 1, &size), STATUS_OK);
    assert_memory_equal(w.outer.theta, mean, w.n * sizeof *mean);
    mem_free(mean);
    world_close(&w);
}

static void compare(const char *const *settings)
{
    static struct world one, many;
    for (unsigned threads = LEAST; threads <= MOST; threads++) {
        world_open(&one, settings, 1);
        world_open(&many, settings, threads);
        for (uint64_t version = 1; version <= STEPS; version++) {
            size_t a = 0, b = 0;
            rng_normal_fill(9, RNG_TEST, version << 30, 0.1f, one.outer.acc, one.n);
            memcpy(many.outer.acc, one.outer.acc, one.n * sizeof(float));
            assert_int_equal(take(&one, version, &a), STATUS_OK);
            assert_int_equal(take(&many, version, &b), STATUS_OK);
            assert_int_equal(a, b);
            assert_memory_equal(one.outer.payload + AT, many.outer.payload + AT, a);
            assert_memory_equal(one.outer.theta, many.outer.theta, one.n * sizeof(float));
            assert_true(one.outer.fragments[0].hash == many.outer.fragments[0].hash);
        }
        if (one.outer.m) assert_memory_equal(one.outer.m, many.outer.m, one.n * sizeof(float));
        if (one.outer.v) assert_memory_equal(one.outer.v, many.outer.v, one.n * sizeof(float));
        const float *residual = one.outer.fragments[0].residual.residual;
        if (residual) assert_memory_equal(residual, many.outer.fragments[0].residual.residual, one.n * sizeof(float));
        const uint16_t *owed = one.outer.fragments[0].owed, *m = one.outer.m_half;
        if (owed) assert_memory_equal(owed, many.outer.fragments[0].owed, one.n * sizeof *owed);
        if (m) assert_memory_equal(m, many.outer.m_half, one.n * sizeof *m);
        world_close(&one);
        world_close(&many);
        assert_int_equal(mem_live_bytes(), 0);
    }
}

TEST(test_bits_are_independent_of_threads)
{
    static const char *const settings[][6] = {
        {"train.method=local-sgd", "codec.down=fp32"},
        {"train.method=local-sgd", "codec.up=fp32", "codec.down=fp32"},
        {"train.method=diloco", "codec.down=int8:256"},
        {"train.method=diloco", "codec.down=int8:256", "outer.state=fp32"},
        {"train.method=diloco", "codec.down=bf16+lz4"},
        {"train.method=diloco", "codec.up=topk:64/4096", "codec.down=union", "outer.optimizer=sgd"},
        {"train.method=async", "codec.down=int8:64", "outer.state=bf16"},
        {"train.method=async", "codec.down=int8:64"},
        {"train.method=async", "codec.down=fp32", "outer.optimizer=sgd"},
        {"train.method=ddp"},
        {"train.method=ddp", "inner.optimizer=sgd", "codec.down=int8:256"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) compare(settings[i]);
}

TEST(test_nan_is_detected)
{
    static struct world w;
    static const char *const settings[] = {"train.method=diloco", "codec.down=int8:256", NULL};
    for (int place = 0; place < 5; place++) {
        size_t size;
        world_open(&w, settings, 3);
        memset(w.outer.acc, 0, w.n * sizeof(float));
        w.outer.acc[(w.n - 1) * (size_t)place / 4] = place % 2 ? NAN : INFINITY;
        assert_int_equal(take(&w, 1, &size), STATUS_NONFINITE);
        world_close(&w);
    }
}

/* Bytes per parameter of theta, momentum and residual; the accumulator takes 4 more. */
TEST(test_memory_per_parameter)
{
    static struct world w;
    static const struct {
        const char *settings[5];
        size_t bytes;
    } cases[] = {
        {{"train.method=diloco", "codec.down=fp32", "outer.optimizer=sgd"}, 4},
        {{"train.method=diloco", "codec.down=int8:256"}, 8},
        {{"train.method=diloco", "codec.down=int8:256", "outer.optimizer=sgd"}, 6},
        {{"train.method=diloco", "codec.down=fp32"}, 8},
        {{"train.method=diloco", "codec.down=fp32", "outer.state=bf16"}, 6},
        {{"train.method=diloco", "codec.down=int8:256", "outer.state=fp32"}, 12},
        {{"train.method=async", "codec.down=int8:256"}, 12},
        {{"train.method=ddp", "codec.down=int8:256"}, 16},
    };
    size_t rest = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world_open(&w, cases[i].settings, 1);
        size_t live = mem_live_bytes() - w.outer.payload_cap, state = w.n * cases[i].bytes;
        assert_true((w.outer.v != NULL) == (cases[i].bytes == 16));
        if (!i) rest = live - state;
        double more = ((double)live - (double)state - (double)rest) / (double)w.n;
        if (fabs(more) > 0.05) fail_msg("case %zu: %.2f bytes per parameter more", i, more); /* codecs differ */
        world_close(&w);
    }
}

TEST_MAIN(NULL, NULL)
