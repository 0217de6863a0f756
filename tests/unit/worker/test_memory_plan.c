/* The memory planner. Its plan equals the memory that a replica takes: on the CPU, and to the byte on the emulated
 * CUDA device. It selects the first recompute level that fits, and names the largest batch that would fit. */

#include "common/base/mem.h"
#include "common/config/codec_spec.h"
#include "common/config/gpu_share.h"
#include "common/os/host_memory.h"
#include "gpu/cuda/cuda_impl.h"
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/lib/device/emulated_plugin.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"
#include "worker/outer/outer_loop_impl.h"
#include "worker/outer/outer_memory.h"
#include "worker/replica/replica_impl.h"

enum { N_TOKENS = 4001, KIB = 1024, MIB = KIB * KIB };

static const struct model_config model = {.n_layer = 4, .n_head = 4, .n_embd = 64, .block_size = 64, .vocab_size = 512};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;

static int set_up(void **state)
{
    (void)state;
    setenv("ATOLL_CUDA_PLUGIN", emulated_plugin_path(), 1);
    layout_init(&layout);
    return gpt2_layout(&model, &layout, NULL) == STATUS_OK && layout_split(&layout, 2) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

static struct replica_config config_of(const char *device, uint32_t ranks, enum recompute recompute)
{
    return (struct replica_config){.family = &gpt2_family,
                                   .model = model,
                                   .device = device,
                                   .ranks = ranks,
                                   .threads = 2,
                                   .batch_size = 4,
                                   .grad_accum = 2,
                                   .seed = 5,
                                   .recompute = recompute,
                                   .opt = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
}

static struct replica *make(const struct replica_config *config)
{
    struct replica *r = NULL;
    struct err err = {0};
    if (replica_create(&r, config, &layout, &data, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return r;
}

/* Too little free memory, or too little memory in total. */
static bool lacks(enum status status)
{
    return status == STATUS_NOMEM || status == STATUS_UNSUPPORTED;
}

/* Returns the free memory of a device without a replica. */
static uint64_t bare(const char *device, int threads)
{
    struct device *dev;
    struct err err = {0};
    uint64_t left, all;
    size_t before = mem_live_bytes();
    if (device_open(device, threads, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    dev->ops->memory(dev, &left, &all);
    uint64_t own = dev->host_memory ? mem_live_bytes() - before : left;
    device_close(dev);
    return own;
}

TEST(test_cpu_plan_matches_allocation)
{
    for (uint32_t ranks = 1; ranks <= 2; ranks++)
        for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++) {
            struct replica_config config = config_of("cpu", ranks, (enum recompute)level);
            if (level == RECOMPUTE_ACT) config.opt.kind = OPTIMIZER_MUON; /* at any level */
            config.opt.bf16 = level == RECOMPUTE_NORM;
            size_t before = mem_live_bytes();
            struct replica *r = make(&config);
            const struct memory_plan *plan = replica_memory(r);
            size_t took = mem_live_bytes() - before - ranks * (size_t)bare("cpu", ranks == 1 ? 2 : 1);
            assert_int_equal(plan->level, level);
            assert_true(plan->total <= took && took - plan->total < 128 * KIB); /* additional: tables and handles */
            assert_true(plan->total == plan->levels[level]);
            replica_destroy(r);
        }
}

static uint64_t allocated_by(struct replica *r, uint64_t before)
{
    struct device *dev = replica_device(r);
    uint64_t left, all;
    dev->ops->memory(dev, &left, &all);
    return before - left;
}

/* Returns the pinned memory of its GPUs, which the plugin counts separately. */
static size_t pinned_of(const struct replica *r)
{
    size_t sum = 0;
    for (int i = 0; i < r->n_ranks; i++)
        for (const struct emulated_pinned *p = cuda_of(r->ranks[i].dev)->rt->pinned; p; p = p->next) sum += p->bytes;
    return sum;
}

/* A replica on GPUs takes the planned host memory, including pinned memory, except for tables and handles. */
TEST(test_host_plan_matches_allocation)
{
    setenv("ATOLL_EMULATED_GPUS", "2", 1);
    for (int kind = 0; kind < 10; kind++) {
        bool unread = kind / 2 == 1;
        struct replica_config config = config_of("cuda", kind % 2 ? 2 : 1, RECOMPUTE_AUTO);
        config.opt.bf16 = kind / 2 == 4;
        config.opt.kind = kind / 2 == 2 ? OPTIMIZER_SGD : OPTIMIZER_ADAMW;
        config.opt.unread = unread;
        config.eval_only = kind / 2 == 3;
        config.grad_accum = 64;
        size_t before = mem_live_bytes();
        struct replica *r = make(&config);
        const struct memory_plan *plan = replica_host_memory(r);
        size_t took = mem_live_bytes() - before + pinned_of(r);
        assert_int_equal(plan->bytes[MEMORY_PINNED], pinned_of(r));
        if (plan->total > took || took - plan->total > 128 * KIB)
            fail_msg("%d: %zu allocated, planned %llu", kind, took, (unsigned long long)plan->total);
        const void *m, *v;
        bool moments = config.opt.kind == OPTIMIZER_ADAMW && !config.eval_only;
        assert_int_equal(plan->bytes[MEMORY_MOMENTS],
                         moments && !unread ? 2 * layout.n_params * (config.opt.bf16 ? 2 : sizeof(float)) : 0);
        if (moments) assert_int_equal(inner_opt_read(replica_optimizer(r), &m, &v, NULL), unread ? STATUS_STATE : 0);
        replica_destroy(r);
    }
    unsetenv("ATOLL_EMULATED_GPUS");
    struct replica_config config = config_of("cpu", 1, RECOMPUTE_AUTO);
    struct replica *r = make(&config);
    assert_null(replica_host_memory(r));
    replica_destroy(r);
}

/* A worker beside others that share the host's memory; checks the error text. */
static void host_case(uint64_t host, const char *workers, uint64_t coordinator, const char *error)
{
    struct replica_config config = config_of("cuda", 1, RECOMPUTE_AUTO);
    struct replica *r = NULL;
    struct err err = {0};
    char text[2][32];
    snprintf(text[0], sizeof text[0], "%llu", (unsigned long long)host);
    snprintf(text[1], sizeof text[1], "%llu", (unsigned long long)coordinator);
    setenv(MEMORY_HOST_ENV, text[0], 1);
    setenv(MEMORY_COORDINATOR_ENV, text[1], 1);
    setenv(WORKERS_HERE_ENV, workers, 1);
    enum status status = replica_create(&r, &config, &layout, &data, &err);
    unsetenv(WORKERS_HERE_ENV);
    unsetenv(MEMORY_HOST_ENV);
    unsetenv(MEMORY_COORDINATOR_ENV);
    if (status == STATUS_OK) replica_destroy(r);
    if (!error && status != STATUS_OK) fail_msg("%s", err.msg);
    /* A restarted worker gets the limits of the launch, too: a restart would not help. */
    if (error && (status != STATUS_UNSUPPORTED || !strstr(err.msg, error)))
        fail_msg("no \"%s\" in: %s", error, err.msg);
}

/* The host has too little memory: one error line before any training, with the remedy. */
TEST(test_too_little_host_memory_is_refused)
{
    struct replica_config config = config_of("cuda", 1, RECOMPUTE_AUTO);
    struct replica *r = make(&config);
    const struct memory_plan plan = *replica_host_memory(r);
    uint64_t moments = plan.bytes[MEMORY_MOMENTS];
    replica_destroy(r);
    host_case(plan.total * 3, "3", 0, NULL);
    host_case(plan.total * 3 - 3, "3", 0, "start 2 workers on this machine");
    host_case(plan.total * 3, "3", plan.total + 1, "start 1 worker on this machine");
    host_case(plan.total * 3, "2", plan.total, NULL);
    host_case(plan.total, "1", 1, "checkpoint.worker_every=0 saves 1.8 MiB");
    host_case(plan.total - moments, "2", 0, "use a smaller model");
    host_case(plan.total - 1, "1", 1, "pinned buffers");
    host_case(2000001, "2", 1, "1000000 bytes are free for each of 2 workers beside 1 bytes of the coordinator: ");
    host_case(plan.total * 2 - 2, "2", 0, "MiB are free for each of 2 workers: ");
    setenv(HOST_MEMORY_ENV, "1000", 1); /* less than the system reports */
    host_case(plan.total * 3, "3", 0, "nothing is free for each of 3 workers: ");
    host_case(plan.total * 3, "3", 0, "use a smaller model or a machine with more memory (set ATOLL_HOST_MEMORY");
    setenv(HOST_MEMORY_ENV, "1T", 1);
    struct err err = {0};
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "ATOLL_HOST_MEMORY=1T: expected bytes, 0 to"));
    unsetenv(HOST_MEMORY_ENV);
}

/* Owners of matrices need different amounts: the plan is that of the rank with the largest. */
TEST(test_plan_is_that_of_largest_owner)
{
    uint64_t before = bare("cuda", 1);
    setenv("ATOLL_EMULATED_GPUS", "4", 1);
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            uint64_t most = 0;
            struct replica_config config = config_of("cuda", ranks, RECOMPUTE_NONE);
            config.opt.kind = OPTIMIZER_MUON;
            config.bf16 = config.opt.bf16 = bf16;
            struct replica *r = make(&config);
            for (uint32_t i = 0; i < ranks; i++) {
                uint64_t left, all;
                r->ranks[i].dev->ops->memory(r->ranks[i].dev, &left, &all);
                if (before - left > most) most = before - left;
            }
            assert_int_equal(most, replica_memory(r)->total);
            replica_destroy(r);
        }
    unsetenv("ATOLL_EMULATED_GPUS");
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2) { /* in one memory: the sum of all ranks */
        struct replica_config config = config_of("cpu", ranks, RECOMPUTE_NONE);
        config.opt.kind = OPTIMIZER_MUON;
        config.sharded = true;
        config.threads = ranks;
        size_t had = mem_live_bytes();
        struct replica *r = make(&config);
        size_t took = mem_live_bytes() - had - ranks * (size_t)bare("cpu", 1) - 2 * layout.n_params * sizeof(float);
        uint64_t planned = replica_memory(r)->total; /* plus read buffers, tables and handles */
        assert_true(planned <= took && took - planned < 128 * KIB);
        replica_destroy(r);
    }
}

TEST(test_device_plan_matches_allocation)
{
    uint64_t before = bare("cuda", 1), last = UINT64_MAX;
    for (int i = 0; i < 2 * (RECOMPUTE_BLOCK + 1); i++) {
        int level = RECOMPUTE_NONE + i / 2;
        struct replica_config config = config_of("cuda", 1, (enum recompute)level);
        config.bf16 = i % 2;
        config.opt.bf16 = level == RECOMPUTE_BLOCK;
        struct replica *r = make(&config);
        assert_int_equal(replica_memory(r)->total, allocated_by(r, before));
        assert_int_equal(replica_memory(r)->bytes[MEMORY_MOMENTS],
                         2 * layout.n_params * (config.opt.bf16 ? 2 : sizeof(float)));
        assert_true((replica_memory(r)->bytes[MEMORY_BF16_WEIGHTS] > 0) == config.bf16);
        if (!config.bf16) {
            assert_true(replica_memory(r)->total < last);
            last = replica_memory(r)->total;
        }
        replica_destroy(r);
    }
    setenv("ATOLL_EMULATED_GPUS", "2", 1);
    for (int bf16 = 0; bf16 < 2; bf16++) { /* a shard of the moments each; the collective's memory is not planned */
        struct replica_config two = config_of("cuda:0,1", 2, RECOMPUTE_NONE);
        two.bf16 = two.opt.bf16 = bf16;
        struct replica *pair = make(&two);
        uint64_t took = allocated_by(pair, before), planned = replica_memory(pair)->total;
        assert_true(planned <= took && took - planned < KIB);
        replica_destroy(pair);
    }
    unsetenv("ATOLL_EMULATED_GPUS");
    struct replica_config config = config_of("cuda", 1, RECOMPUTE_AUTO);
    config.opt.kind = OPTIMIZER_MUON;
    struct replica *r = make(&config);
    assert_int_equal(replica_memory(r)->total, allocated_by(r, before));
    replica_destroy(r);
    config.eval_only = true;
    r = make(&config);
    assert_int_equal(replica_memory(r)->total, allocated_by(r, before));
    replica_destroy(r);
}

/* NCCL's buffers are subtracted before planning, and the GPU with the least free memory counts. */
TEST(test_nccl_buffers_are_subtracted)
{
    static const char *const memory[] = {"50000000,40000000", "40000000,50000000"};
    setenv("ATOLL_EMULATED_GPUS", "2", 1);
    for (int kind = 0; kind < 6; kind++) {
        struct replica_config config = config_of("cuda:0,1", 2, RECOMPUTE_NONE);
        config.gradients = kind == 2;
        config.opt.kind = kind == 1 ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
        if (kind == 4) config.eval_only = true;
        if (kind == 5) config.batch_size = 2;
        setenv("ATOLL_EMULATED_MEMORY", memory[kind % 2], 1);
        setenv("ATOLL_EMULATED_NCCL_MEMORY", "0", 1);
        struct replica *r = make(&config);
        uint64_t without = replica_memory(r)->free_bytes;
        assert_in_range(without, 30000000, 40000000); /* a device takes some memory for itself */
        replica_destroy(r);
        setenv("ATOLL_EMULATED_NCCL_MEMORY", "1000000", 1);
        r = make(&config);
        assert_int_equal(replica_memory(r)->free_bytes, config.eval_only ? without : without - 1000000);
        replica_destroy(r);
    }
    unsetenv("ATOLL_EMULATED_GPUS");
    unsetenv("ATOLL_EMULATED_MEMORY");
    unsetenv("ATOLL_EMULATED_NCCL_MEMORY");
}

static void give(uint64_t room)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)room);
    setenv("ATOLL_EMULATED_MEMORY", text, 1);
}

/* Memory of other programs may become free; more memory than the device has never will. */
TEST(test_total_memory_decides_about_retry)
{
    const struct replica_config config = config_of("cpu", 1, RECOMPUTE_NONE);
    struct memory_request ask = {.family = config.family,
                                 .model = &config.model,
                                 .seq = config.model.block_size,
                                 .ranks = 1,
                                 .batch_size = 4,
                                 .batch_unit = 1,
                                 .uses = MODEL_LOSS | MODEL_TRAIN,
                                 .free_bytes = 1000};
    struct memory_plan plan;
    struct err err = {0};
    assert_int_equal(device_open("cpu", 1, &ask.dev, &err), STATUS_OK);
    ask.total_bytes = UINT64_C(1) << 40;
    assert_int_equal(memory_plan_make(&plan, &ask, RECOMPUTE_AUTO, &err), STATUS_NOMEM);
    ask.total_bytes = 2000;
    assert_int_equal(memory_plan_make(&plan, &ask, RECOMPUTE_AUTO, &err), STATUS_UNSUPPORTED);
    device_close(ask.dev);
}

/* Two workers on one machine: each plans with half of a GPU's memory, and half of the host's free memory at their
 * start. The error line names the share. */
TEST(test_workers_share_memory)
{
    const struct replica_config config = config_of("cpu", 1, RECOMPUTE_NONE);
    struct memory_request ask = {.family = config.family,
                                 .model = &config.model,
                                 .seq = config.model.block_size,
                                 .ranks = 1,
                                 .batch_size = 4,
                                 .batch_unit = 1,
                                 .uses = MODEL_LOSS | MODEL_TRAIN};
    struct memory_plan plan;
    struct err err = {0};
    static const struct {
        const char *workers, *host, *coordinator;
        uint64_t free, part, total; /* of 1000 bytes */
    } cases[] = {
        {"", "", "100", 900, 900, 1000},    {"1", "100", "", 900, 900, 1000},   {"0", "1", "100", 900, 900, 1000},
        {"4", "", "", 900, 250, 250},       {"2", "800", "", 800, 400, 400},    {"2", "800", "0", 300, 300, 400},
        {"1", "800", "100", 800, 700, 700}, {"2", "800", "2000", 800, 1, 1},    {"2", "", "100", 800, 450, 450},
        {"2", "5000", "", 900, 500, 500},   {"2", "800", "100", 800, 350, 350},
    };
    assert_int_equal(device_open("cpu", 1, &ask.dev, &err), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ask.free_bytes = cases[i].free;
        ask.total_bytes = 1000;
        setenv(WORKERS_HERE_ENV, cases[i].workers, 1);
        setenv(MEMORY_HOST_ENV, cases[i].host, 1);
        setenv(MEMORY_COORDINATOR_ENV, cases[i].coordinator, 1);
        assert_int_equal(memory_request_share(&ask, true, 0, &err), STATUS_OK);
        assert_int_equal(ask.free_bytes, cases[i].part);
        assert_int_equal(ask.total_bytes, cases[i].total);
    }
    setenv(MEMORY_HOST_ENV, "18446744073709551616", 1);                          /* 2^64 */
    assert_int_equal(memory_request_share(&ask, true, 0, &err), STATUS_INVALID); /* and ask is unchanged */
    assert_non_null(strstr(err.msg, "ATOLL_HOST_FREE=18446744073709551616: expected bytes, 0 to 18446744073709551615"));
    assert_int_equal(memory_plan_make(&plan, &ask, RECOMPUTE_AUTO, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "are free for each of 2 workers beside 100 bytes of the coordinator: "));
    device_close(ask.dev);
    unsetenv(MEMORY_HOST_ENV);
    unsetenv(MEMORY_COORDINATOR_ENV);
    setenv(WORKERS_HERE_ENV, "6", 1); /* three of these are on this GPU */
    struct replica_config on_gpu = config_of("cuda", 1, RECOMPUTE_NONE);
    on_gpu.sharers = 3;
    struct replica *r = make(&on_gpu);
    assert_int_equal(replica_memory(r)->free_bytes, (UINT64_C(1) << 40) / 3 - (640 << 20)); /* each is a process */
    replica_destroy(r);
    unsetenv(WORKERS_HERE_ENV);
    ask = (struct memory_request){.free_bytes = 900, .total_bytes = 1000}; /* a small GPU: little driver memory */
    assert_int_equal(memory_request_share(&ask, false, 2, &err), STATUS_OK);
    assert_int_equal(ask.free_bytes, 475);
}

/* The emulated device has less and less memory. auto selects the next level as soon as the previous one does not
 * fit, and the replica fits. Finally it refuses: the named batch fits, and one more does not. */
TEST(test_auto_selects_first_level_that_fits)
{
    struct replica_config config = config_of("cuda", 1, RECOMPUTE_NONE);
    struct replica *r = make(&config);
    const struct memory_plan all = *replica_memory(r);
    struct err err = {0};
    uint64_t base = (UINT64_C(1) << 40) - bare("cuda", 1); /* the device's own memory */
    replica_destroy(r);
    config.recompute = RECOMPUTE_AUTO;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++)
        for (int room = 1; room >= 0; room--) { /* just enough, or a 50th and a page too little */
            uint64_t want = all.levels[level] + base + 1;
            give(want + want / 49 - (room ? 0 : want / 40));
            enum status status = replica_create(&r, &config, &layout, &data, &err);
            if (room || level < RECOMPUTE_BLOCK) {
                if (status != STATUS_OK) fail_msg("%s", err.msg);
                assert_true(room ? replica_memory(r)->level == (enum model_recompute)level
                                 : replica_memory(r)->level > (enum model_recompute)level);
                replica_destroy(r);
                continue;
            }
            assert_true(lacks(status));
            unsigned batch = 0;
            const char *at = strstr(err.msg, "that fits is ");
            assert_true(at && sscanf(at, "that fits is %u", &batch) == 1 && batch >= 1 && batch < 4);
            config.batch_size = batch;
            assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_OK);
            replica_destroy(r);
            config.batch_size = batch + 1;
            assert_true(lacks(replica_create(&r, &config, &layout, &data, &err)));
            config.batch_size = 4;
            config.recompute = RECOMPUTE_NORM;
            assert_true(lacks(replica_create(&r, &config, &layout, &data, &err)));
            assert_non_null(strstr(err.msg, "train.recompute=auto"));
        }
    give(base + MIB);
    assert_true(lacks(replica_create(&r, &config, &layout, &data, &err)));
    assert_non_null(strstr(err.msg, "even train.batch_size=1 does not fit"));
    config.recompute = RECOMPUTE_NORM;
    assert_true(lacks(replica_create(&r, &config, &layout, &data, &err)));
    assert_null(strstr(err.msg, "train.recompute=auto")); /* which would not fit either */
    unsetenv("ATOLL_EMULATED_MEMORY");
}

static struct config run_config(const char *up, enum train_method method)
{
    struct config config;
    struct config_sources sources;
    config_defaults(&config, &sources);
    snprintf(config.codec.up, sizeof config.codec.up, "%s", up);
    config.train.method = method;
    return config;
}

/* Updates with the deltas of three workers of maximum length. */
static void fill_with_deltas(struct outer_loop *loop)
{
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        size_t update = WIRE_NAMED_MAX * (size_t)24 + 3 * (f->payload_cap + sizeof(uint64_t));
        assert_int_equal(outer_reserve_object(f, update), STATUS_OK);
    }
}

/* The outer path: allocations of outer_memory_init, and later relayed deltas. */
TEST(test_outer_plan_matches_allocation)
{
    static const char *const codecs[] = {"int8:256", "topk:64/4096", "fp32", "int4", "topk:64/4096"};
    for (size_t c = 0; c < 5; c++)
        for (int on_device = 0; on_device < 2; on_device++) {
            struct config config = run_config(codecs[c], c ? METHOD_DILOCO : METHOD_ASYNC);
            if (c > 2) snprintf(config.codec.down, sizeof config.codec.down, "%s", c == 3 ? "relay" : "auto");
            struct replica_config rc = config_of(on_device ? "cuda" : "cpu", 1, RECOMPUTE_AUTO);
            struct err err = {0};
            if (outer_memory_bytes(&rc.outer, &config, &layout, 3, false, &err) != STATUS_OK) fail_msg("%s", err.msg);
            uint64_t bare_left = bare(rc.device, 2);
            size_t all = mem_live_bytes();
            struct replica *r = make(&rc);
            struct outer_loop *loop = mem_alloc(1, sizeof *loop);
            loop->model = (struct outer_model){.config = &config, .layout = &layout};
            size_t before = mem_live_bytes();
            if (on_device) {
                loop->model.device = replica_device(r);
                loop->model.device_theta = replica_params(r);
            }
            if (outer_memory_init(loop, &err) != STATUS_OK) fail_msg("%s", err.msg);
            if (c > 2) fill_with_deltas(loop);
            if (on_device) {
                assert_int_equal(replica_memory(r)->total, allocated_by(r, bare_left));
                size_t host = mem_live_bytes() - all + pinned_of(r) + rc.outer.inbox;
                uint64_t planned = replica_host_memory(r)->total;
                assert_int_equal(replica_host_memory(r)->bytes[MEMORY_PINNED], pinned_of(r));
                const float *values; /* available on the host too, in case the device does not make the deltas */
                assert_int_equal(replica_host_memory(r)->bytes[MEMORY_PARAMS] > 0, codec_spec_lossless(codecs[c]));
                assert_int_equal(replica_get_params(r, &values, &err), STATUS_OK);
                if (planned > host + 16 * KIB || host > planned + 320 * KIB)
                    fail_msg("%s: %zu of the host, planned %llu", codecs[c], host, (unsigned long long)planned);
            } else {
                const struct memory_outer *o = &rc.outer.host;
                double took = (double)(mem_live_bytes() - before);
                double planned = (double)(o->anchor + o->residual + o->messages);
                if (took > 1.05 * planned || took < 0.95 * planned)
                    fail_msg("%s: %.0f, planned %.0f", codecs[c], took, planned);
            }
            outer_memory_finish(loop);
            mem_free(loop);
            replica_destroy(r);
        }
}

/* The same if the program lends theta and change: it counts as theta, and as the residuals that it adds to. */
TEST(test_lent_outer_plan_matches_allocation)
{
    static const char *const codecs[] = {"int8:256", "topk:64/4096", "fp32", "int4"};
    for (int c = 0; c < 8; c++) {
        struct config config = run_config(codecs[c / 2], c & 1 ? METHOD_ASYNC : METHOD_DILOCO);
        struct replica_outer plan;
        struct err err = {0};
        bool adds = outer_loop_adds(&config);
        assert_int_equal(adds, c != 4 && !(c & 1));
        if (c == 6) snprintf(config.codec.down, sizeof config.codec.down, "relay");
        if (outer_memory_bytes(&plan, &config, &layout, 3, true, &err) != STATUS_OK) fail_msg("%s", err.msg);
        struct outer_loop *loop = mem_alloc(1, sizeof *loop);
        size_t theta = layout.n_params * sizeof(float);
        loop->model = (struct outer_model){.config = &config,
                                           .layout = &layout,
                                           .theta = mem_alloc(layout.n_params, sizeof(float)),
                                           .change = mem_alloc(layout.n_params, sizeof(float))};
        size_t before = mem_live_bytes();
        if (outer_memory_init(loop, &err) != STATUS_OK) fail_msg("%s", err.msg);
        if (c == 6) fill_with_deltas(loop);
        double took = (double)(mem_live_bytes() - before + theta + (adds ? theta : 0));
        double planned = (double)(plan.host.anchor + plan.host.residual + plan.host.messages);
        if (took > 1.05 * planned || took < 0.95 * planned)
            fail_msg("%s: %.0f, planned %.0f", codecs[c / 2], took, planned);
        outer_memory_finish(loop);
        mem_free(loop->model.theta);
        mem_free(loop->model.change);
        mem_free(loop);
    }
}

/* No space for anchor and residuals on the device: activations come first, the outer path stays on the host. */
TEST(test_outer_path_stays_on_host_without_space)
{
    struct config config = run_config("int8:256", METHOD_DILOCO);
    struct replica_config rc = config_of("cuda", 1, RECOMPUTE_BLOCK);
    struct err err = {0};
    assert_int_equal(outer_memory_bytes(&rc.outer, &config, &layout, 1, false, &err), STATUS_OK);
    struct replica *r = make(&rc);
    assert_false(replica_memory(r)->outer_left_out);
    uint64_t want = replica_memory(r)->total - rc.outer.device.residual;
    replica_destroy(r);
    want += (UINT64_C(1) << 40) - bare("cuda", 1);
    give(want + want / 49);
    r = make(&rc);
    assert_true(replica_memory(r)->outer_left_out);
    assert_int_equal(replica_memory(r)->bytes[MEMORY_ANCHOR], 0);
    replica_destroy(r);
    unsetenv("ATOLL_EMULATED_MEMORY");
}

TEST(test_text_lists_parts_and_total)
{
    struct memory_plan plan = {.bytes = {[MEMORY_PARAMS] = 3 * MIB / 2, [MEMORY_LOGITS] = 20 * MIB},
                               .total = 43 * MIB / 2,
                               .free_bytes = 100 * MIB};
    char text[512], small[16];
    assert_string_equal(memory_plan_text(&plan, text, sizeof text),
                        "parameters 1.5, logits 20, total 22 MiB of 100 free");
    assert_int_equal(strlen(memory_plan_text(&plan, small, sizeof small)), sizeof small - 1);
}

TEST_MAIN(set_up, tear_down)
