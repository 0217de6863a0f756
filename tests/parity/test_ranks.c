/* Tests ranks with separate memory (several emulated GPUs, or groups of CPU threads in the same mode):
 * - Steps, gradients, evaluations and saved moments equal those of one rank, up to rounding.
 * - Every order of the queues gives the same bits.
 * - The error names a failed GPU, and the waits of the other ranks end. ctest: timeout=240 */
#include <math.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/emulated_plugin.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"
#include "worker/replica/replica_impl.h"

enum { N_TOKENS = 2001, BATCH = 12, STEPS = 3, SAMPLES_MAX = 2 * BATCH };

/* A small model with odd sizes. */
static const struct model_config model = {.n_layer = 2, .n_head = 3, .n_embd = 9, .block_size = 6, .vocab_size = 29};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;
static bool bf16_moments;

struct outcome { /* each [n_params] */
    float *theta, *m, *v;
    double loss;
};

static int set_up(void **state)
{
    (void)state;
    setenv("ATOLL_CUDA_PLUGIN", emulated_plugin_path(), 0); /* the environment may name another plugin */
    setenv("ATOLL_EMULATED_GPUS", "4", 1);
    for (uint32_t i = 0; i < N_TOKENS; i++)
        bytes[2 * i] = (uint8_t)((i % 5 * 7 + rng_u64(1, RNG_TEST, i) % 3) % model.vocab_size);
    layout_init(&layout);
    if (gpt2_layout(&model, &layout, NULL) != STATUS_OK || layout_split(&layout, 1) != STATUS_OK) return -1;
    return layout.n_params % 2 ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

static struct replica_config config_of(const char *device, uint32_t ranks)
{
    return (struct replica_config){.family = &gpt2_family,
                                   .model = model,
                                   .device = device,
                                   .ranks = ranks,
                                   .threads = 1,
                                   .batch_size = BATCH,
                                   .grad_accum = 2,
                                   .seed = 5,
                                   .sharded = true,
                                   .bucket = ranks == 3              ? 900
                                             : strcmp(device, "cpu") ? 0
                                                                     : 200, /* buckets cut tensors anywhere */
                                   .opt = {.kind = OPTIMIZER_ADAMW,
                                           .beta1 = 0.9,
                                           .beta2 = 0.95,
                                           .eps = 1e-8,
                                           .weight_decay = 0.1,
                                           .grad_clip = 0.5,
                                           .muon_momentum = 0.9,
                                           .muon_steps = 2,
                                           .bf16 = bf16_moments,
                                           .seed = 5}};
}

static struct replica *open_replica(const struct replica_config *config)
{
    struct replica *r = NULL;
    struct err err = {0};
    float *values = mem_alloc(layout.n_params, sizeof *values);
    if (replica_create(&r, config, &layout, &data, &err) != STATUS_OK) fail_msg("%s", err.msg);
    inner_opt_set_worker(replica_optimizer(r), 3);
    layout_fill(&layout, 0, 9, values);
    for (uint64_t i = 0; i < layout.n_params; i++) values[i] += 0.01f * (float)(i % 7);
    assert_int_equal(replica_set_params(r, values, NULL), STATUS_OK);
    mem_free(values);
    return r;
}

static enum status step(struct replica *r, uint64_t at, struct step_result *result, struct err *err)
{
    uint64_t counters[SAMPLES_MAX];
    uint32_t n = replica_step_samples(r);
    for (uint32_t i = 0; i < n; i++) counters[i] = at * n + i;
    return replica_train_step(r, counters, n - (at % 3 == 1), 3e-3, result, err); /* some ranks get fewer rows */
}

static void steps(struct replica *r, int from, int to, double *loss)
{
    struct step_result result;
    struct err err = {0};
    for (int at = from; at < to; at++) {
        if (step(r, (uint64_t)at, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
        if (loss) *loss += result.loss_sum;
    }
    if (replica_flush(r, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (loss) *loss += result.loss_sum;
}

static float *copy_of(const float *values)
{
    float *copy = mem_alloc(layout.n_params, sizeof *copy);
    assert_non_null(copy);
    return values ? memcpy(copy, values, layout.n_params * sizeof *copy) : copy;
}

/* Moments as floats: bf16 moments become the upper half of a float. */
static float *widened(const void *moments)
{
    float *wide = copy_of(bf16_moments ? NULL : moments);
    for (uint64_t i = 0; bf16_moments && i < layout.n_params; i++)
        wide[i] = rule_bf16_value(((const uint16_t *)moments)[i]);
    return wide;
}

static enum status write_moments(struct replica *r, const float *m, const float *v)
{
    uint16_t *half = mem_alloc(2 * layout.n_params, sizeof *half), *half_v = half + layout.n_params;
    for (uint64_t i = 0; i < layout.n_params; i++) {
        half[i] = (uint16_t)(rule_bits(m[i]) >> 16);
        half_v[i] = (uint16_t)(rule_bits(v[i]) >> 16);
    }
    struct inner_opt *opt = replica_optimizer(r);
    enum status status = bf16_moments ? inner_opt_write(opt, half, half_v, NULL) : inner_opt_write(opt, m, v, NULL);
    mem_free(half);
    return status;
}

static void read_state(struct replica *r, struct outcome *o)
{
    const float *theta;
    const void *m, *v;
    assert_int_equal(replica_get_params(r, &theta, NULL), STATUS_OK);
    o->theta = copy_of(theta);
    assert_int_equal(inner_opt_read(replica_optimizer(r), &m, &v, NULL), STATUS_OK);
    o->m = widened(m);
    o->v = widened(v);
}

static struct outcome train(const struct replica_config *config)
{
    struct outcome o = {0};
    struct replica *r = open_replica(config);
    steps(r, 0, STEPS, &o.loss);
    read_state(r, &o);
    assert_int_equal(replica_optimizer(r)->steps, STEPS);
    replica_destroy(r);
    return o;
}

static void drop(struct outcome *o)
{
    mem_free(o->theta);
    mem_free(o->m);
    mem_free(o->v);
}

static double distance(const float *a, const float *b)
{
    double diff = 0, norm = 0;
    for (uint64_t i = 0; i < layout.n_params; i++) {
        diff += pow((double)a[i] - b[i], 2);
        norm += pow(b[i], 2);
    }
    return norm ? sqrt(diff / norm) : diff;
}

static void near(const char *what, const float *a, const float *b)
{
    double d = distance(a, b);
    /* If a moment differs in its last bit, its rounding to bf16 may differ by 2^-8. This affects few moments. */
    if (!(d < (bf16_moments ? 1e-3 : 2e-5))) fail_msg("%s is off by %g", what, d);
}

static void same(const char *what, const float *a, const float *b)
{
    if (memcmp(a, b, layout.n_params * sizeof *a)) fail_msg("%s differs, by %g", what, distance(a, b));
}

static void compare(const char *what, struct outcome *got, const struct outcome *want, bool exactly)
{
    char text[96];
    const float *const pairs[][2] = {{got->theta, want->theta}, {got->m, want->m}, {got->v, want->v}};
    static const char *const names[] = {"theta", "m", "v"};
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%s: %s", what, names[i]);
        (exactly ? same : near)(text, pairs[i][0], pairs[i][1]);
    }
    if (!(fabs(got->loss - want->loss) < 1e-5 * fabs(want->loss))) fail_msg("%s: loss %g", what, got->loss);
}

/* A training on several ranks. Muon shards whole matrices: the shares differ in size, and buckets cut them anywhere. */
static const struct training {
    const char *device;
    enum optimizer kind;
    int seeds;
} trainings[] = {{"cuda", OPTIMIZER_ADAMW, 3},
                 {"cuda", OPTIMIZER_SGD, 1},
                 {"cuda", OPTIMIZER_MUON, 2},
                 {"cpu", OPTIMIZER_ADAMW, 1},
                 {"cpu", OPTIMIZER_MUON, 1}};

/* Compare every number of ranks and every order of the queues with one rank. */
static void check_training(const struct training *training)
{
    const char *device = training->device;
    const enum optimizer kind = training->kind;
    const int seeds = training->seeds;
    char what[64], seed[16];
    struct replica_config config = config_of(device, 1);
    config.opt.kind = kind;
    struct outcome one = train(&config);
    for (uint32_t ranks = kind == OPTIMIZER_SGD ? 4 : 2; ranks <= 4; ranks++) {
        struct outcome first = {0};
        config.ranks = ranks;
        config.bucket = config_of(device, ranks).bucket;
        for (int i = 0; i < (ranks == 3 ? seeds : 1); i++) {
            snprintf(seed, sizeof seed, "%d", i);
            snprintf(what, sizeof what, "%s, %u ranks, seed %d", device, ranks, i);
            setenv("ATOLL_EMULATED_SEED", seed, 1);
            struct outcome o = train(&config);
            compare(what, &o, i ? &first : &one, i > 0);
            if (i)
                drop(&o);
            else
                first = o;
        }
        drop(&first);
    }
    drop(&one);
    unsetenv("ATOLL_EMULATED_SEED");
}

/* The bf16 weights follow parameters from other ranks. */
static void check_bf16(enum optimizer kind)
{
    struct replica_config config = config_of("cuda", 1);
    config.bf16 = true;
    config.opt.kind = kind;
    struct outcome one = train(&config);
    config.ranks = 2;
    struct outcome two = train(&config);
    double d = distance(two.theta, one.theta), g = distance(two.m, one.m);
    if (!(d < 1e-4 && g < 2e-3)) fail_msg("off by %g, moments by %g", d, g);
    drop(&one);
    drop(&two);
}

TEST(test_gpus_bf16)
{
    check_bf16(OPTIMIZER_ADAMW);
}

TEST(test_gpus_bf16_muon)
{
    check_bf16(OPTIMIZER_MUON);
}

static void gradient(const struct replica_config *config, float *out, double *loss)
{
    struct replica *r = open_replica(config);
    struct step_result result;
    struct err err = {0};
    const float *grad;
    uint64_t counters[SAMPLES_MAX];
    for (uint64_t i = 0; i < SAMPLES_MAX; i++) counters[i] = i;
    for (int i = 0; i < 3; i++) /* the first call takes another path, see shard_exchange_finish */
        if (replica_gradient(r, counters, SAMPLES_MAX, &grad, &result, &err) != STATUS_OK) fail_msg("%s", err.msg);
    memcpy(out, grad, layout.n_params * sizeof *out);
    *loss = result.loss_sum;
    replica_destroy(r);
}

TEST(test_gradient)
{
    double loss, want_loss;
    float *want = copy_of(NULL), *got = copy_of(NULL);
    struct replica_config config = config_of("cuda", 1);
    gradient(&config, want, &want_loss);
    config.bucket = 900;
    for (config.ranks = 2; config.ranks <= 4; config.ranks += 2) {
        gradient(&config, got, &loss);
        near("the gradient", got, want);
        assert_true(fabs(loss - want_loss) < 1e-5 * want_loss);
    }
    mem_free(want);
    mem_free(got);
}

/* Evaluate the parameters right after a step, then others from the host. */
static void evaluate(const struct replica_config *config, const float *other, double *live, double *given)
{
    struct replica *r = open_replica(config);
    uint64_t tokens;
    double again;
    steps(r, 0, 1, NULL);
    struct step_result result;
    assert_int_equal(step(r, 2, &result, NULL), STATUS_OK); /* the all-gather of the parameters is still in flight */
    assert_int_equal(replica_eval(r, &data, 0, 50, live, &tokens, NULL, NULL), STATUS_OK);
    assert_int_equal(step(r, 3, &result, NULL), STATUS_OK);
    assert_int_equal(replica_eval(r, &data, 0, 50, &again, &tokens, NULL, NULL), STATUS_OK);
    assert_true(again < *live); /* after one more step */
    assert_int_equal(replica_set_params(r, other, NULL), STATUS_OK);
    assert_int_equal(replica_eval(r, &data, 3, 50, given, &tokens, NULL, NULL), STATUS_OK);
    replica_destroy(r);
}

TEST(test_eval)
{
    double live[2], given[2];
    float *other = copy_of(NULL);
    layout_fill(&layout, 0, 3, other);
    struct replica_config config = config_of("cuda", 1);
    evaluate(&config, other, &live[0], &given[0]);
    config.ranks = 3;
    evaluate(&config, other, &live[1], &given[1]);
    assert_true(fabs(live[0] - live[1]) < 1e-5 * live[0]);
    assert_true(fabs(given[0] - given[1]) < 1e-6 * given[0]);
    mem_free(other);
}

/* A run saved with some number of ranks continues with another number. */
static void check_other_number_of_ranks(enum optimizer kind)
{
    struct replica_config config = config_of("cuda", 1);
    config.opt.kind = kind;
    struct outcome one = train(&config);
    for (uint32_t ranks = 1; ranks <= 3; ranks += 2) { /* 1 and 4, 3 and 2 */
        struct outcome half = {0}, back = {0}, end = {0};
        config.ranks = ranks;
        struct replica *r = open_replica(&config);
        steps(r, 0, 2, &end.loss);
        read_state(r, &half);
        replica_destroy(r);
        config.ranks = 5 - ranks;
        r = open_replica(&config);
        replica_optimizer(r)->steps = 2;
        assert_int_equal(replica_set_params(r, half.theta, NULL), STATUS_OK);
        assert_int_equal(write_moments(r, half.m, half.v), STATUS_OK);
        read_state(r, &back);
        same("theta written", back.theta, half.theta);
        same("m written", back.m, half.m);
        same("v written", back.v, half.v);
        steps(r, 2, STEPS, &end.loss);
        read_state(r, &end);
        compare("continued", &end, &one, false);
        assert_int_equal(inner_opt_write(replica_optimizer(r), NULL, NULL, NULL), STATUS_OK);
        drop(&back);
        read_state(r, &back);
        for (uint64_t i = 0; i < layout.n_params; i++) assert_true(back.m[i] == 0 && back.v[i] == 0);
        replica_destroy(r);
        drop(&half);
        drop(&back);
        drop(&end);
    }
    drop(&one);
}

/* The rounding of bf16 moments does not depend on the rank that holds them. */
TEST(test_bf16_moments)
{
    bf16_moments = true;
    for (int i = 3; i < 5; i++) check_training(&trainings[i]);
    check_other_number_of_ranks(OPTIMIZER_MUON);
    bf16_moments = false;
}

/* A step whose gradient is not finite changes nothing, on any rank. */
static void check_refused(enum optimizer kind)
{
    struct replica_config config = config_of("cuda", 2);
    config.opt.kind = kind;
    struct replica *r = open_replica(&config);
    struct outcome before = {0}, after = {0};
    steps(r, 0, 2, NULL);
    read_state(r, &before);
    before.theta[layout.n_params - 1] = NAN; /* in the last rank's share */
    assert_int_equal(replica_set_params(r, before.theta, NULL), STATUS_OK);
    steps(r, 2, 3, NULL);
    read_state(r, &after);
    same("theta", after.theta, before.theta);
    same("m", after.m, before.m);
    same("v", after.v, before.v);
    assert_int_equal(replica_optimizer(r)->steps, 2);
    assert_int_equal(replica_optimizer(r)->skipped, 1);
    replica_destroy(r);
    drop(&before);
    drop(&after);
}

/* A GPU fails at any operation: the error names it, and no rank hangs. */
TEST(test_failure)
{
    struct replica_config config = config_of("cuda", 3);
    int failed = 0;
    config.bucket = 1500;
    for (int at = 100; at < 700; at += 280) {
        char fails[24];
        struct step_result result;
        struct err err = {0};
        enum status status = STATUS_OK;
        snprintf(fails, sizeof fails, "1:%d", at);
        setenv("ATOLL_EMULATED_FAIL", fails, 1);
        struct replica *r = open_replica(&config);
        for (int i = 0; i < 4 && status == STATUS_OK; i++) status = step(r, (uint64_t)i, &result, &err);
        if (status == STATUS_OK) status = replica_flush(r, &result, &err);
        if (status != STATUS_OK) {
            assert_int_equal(status, STATUS_IO);
            if (!strstr(err.msg, "device cuda:1 emulated") || !strstr(err.msg, "the other ranks of this worker were"))
                fail_msg("%s", err.msg);
            assert_int_not_equal(step(r, 9, &result, &err), STATUS_OK);
            failed++;
        }
        replica_destroy(r);
    }
    unsetenv("ATOLL_EMULATED_FAIL");
    assert_true(failed > 1);
}

static const struct err *given_up(struct collective *coll)
{
    static const struct err why = {STATUS_IO, "it hung for a while"};
    (void)coll;
    return &why;
}

/* A single GPU that continues after its abort: the replica refuses further steps. */
TEST(test_back_too_late)
{
    struct replica_config config = config_of("cuda", 1);
    struct replica *r = open_replica(&config);
    struct step_result result;
    struct err err = {0};
    steps(r, 0, 1, NULL);
    struct collective_ops collective = *r->ranks[0].coll.ops;
    collective.failure = given_up;
    r->ranks[0].coll.ops = &collective;
    assert_int_equal(step(r, 1, &result, &err), STATUS_IO);
    assert_string_equal(err.msg, "it hung for a while");
    replica_destroy(r);
}

/* --- no rank submits a step before a late rank */

static const struct collective_ops *true_collective;
static const struct device_ops *true_device;
static atomic_int measured, too_soon;

static enum status start_late(struct collective *coll, enum collective_op op, float *buf, size_t n, unsigned ticket)
{
    bool measures = ticket == COLLECTIVE_TICKETS - 1;
    if (measures && coll->rank == 1) usleep(20000);
    enum status status = true_collective->start(coll, op, buf, n, ticket);
    if (measures) atomic_fetch_add(&measured, 1);
    return status;
}

static void adamw_looks(struct device *dev, const struct adamw_span *spans, size_t n, float *theta, const float *grad,
                        void *m, void *v, const struct adamw_hyper *hyper, const float *scale)
{
    if (atomic_load(&measured) % 2) atomic_fetch_add(&too_soon, 1);
    true_device->adamw(dev, spans, n, theta, grad, m, v, hyper, scale);
}

TEST(test_late_rank)
{
    struct replica_config config = config_of("cuda", 2);
    struct replica *r = open_replica(&config);
    true_collective = r->ranks[0].coll.ops;
    true_device = r->ranks[0].dev->ops;
    struct collective_ops collective = *true_collective;
    struct device_ops device = *true_device;
    collective.start = start_late;
    device.adamw = adamw_looks;
    for (int i = 0; i < 2; i++) {
        r->ranks[i].coll.ops = &collective;
        r->ranks[i].dev->ops = &device;
    }
    steps(r, 0, 3, NULL);
    assert_int_equal(atomic_load(&measured), 6);
    assert_int_equal(atomic_load(&too_soon), 0);
    for (int i = 0; i < 2; i++) {
        r->ranks[i].coll.ops = true_collective;
        r->ranks[i].dev->ops = true_device;
    }
    replica_destroy(r);
}

TEST(test_refusals)
{
    struct replica *r = NULL;
    struct err err = {0};
    struct replica_config config = config_of("cuda:0,9", 2);
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "device cuda:9"));
    config = config_of("cuda:3,1", 2);
    setenv("ATOLL_EMULATED_NO_NCCL", "1", 1);
    assert_int_equal(replica_create(&r, &config, &layout, &data, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "NCCL"));
    unsetenv("ATOLL_EMULATED_NO_NCCL");
    struct outcome o = train(&config);
    drop(&o);
    config = config_of("auto", 5); /* more ranks than GPUs */
    config.batch_size = 10;
    o = train(&config);
    drop(&o);
}

TEST(test_gpus)
{
    check_training(&trainings[0]);
}

TEST(test_gpus_sgd)
{
    check_training(&trainings[1]);
}

TEST(test_gpus_muon)
{
    check_training(&trainings[2]);
}

TEST(test_cpu)
{
    check_training(&trainings[3]);
}

TEST(test_cpu_muon)
{
    check_training(&trainings[4]);
}

TEST(test_other_number_of_ranks)
{
    check_other_number_of_ranks(OPTIMIZER_ADAMW);
}

TEST(test_other_ranks_muon)
{
    check_other_number_of_ranks(OPTIMIZER_MUON);
}

TEST(test_refused)
{
    check_refused(OPTIMIZER_ADAMW);
}

TEST(test_refused_muon)
{
    check_refused(OPTIMIZER_MUON);
}

TEST_MAIN(set_up, tear_down)
