/* Tests a model on the emulated CUDA device in bf16: loss and gradient are close to the CPU's in fp32, and the bf16
 * weights equal the rounded parameters after every operation that changes them. ctest: labels=asan timeout=120 */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/kernels/cuda_act.h"
#include "gpu/cuda/rt/cuda_peak.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"

enum { BATCH = 2, SEQ = 12, ROWS = BATCH * SEQ };

static const struct model_config shape = {.n_layer = 2, .n_head = 2, .n_embd = 48, .block_size = SEQ, .vocab_size = 70};

/* One device with a model on it. */
struct side {
    struct device *dev;
    struct model *model;
    float *theta, *grad, *loss, *m, *v;
    int32_t *tokens, *targets;
    size_t n;
};

static float *start_of(size_t n)
{
    return case_normal(n, 1, 0.05f);
}

static struct side side_open(bool cuda)
{
    struct side s = {.n = gpt2_offsets_of(&shape).n_params};
    struct err err = {0};
    int32_t tokens[ROWS], targets[ROWS];
    if (cuda)
        s.dev = cuda_begin(true);
    else if (device_open("cpu", 1, &s.dev, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(s.dev->act_bytes, cuda ? 2 : 4);
    enum status status =
        decoder_create(&gpt2_family, &shape, s.dev, BATCH, SEQ, MODEL_TRAIN | MODEL_LOSS, &s.model, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (7 * i * i + 3 * i) % 70;
        targets[i] = i % 9 == 8 ? -1 : (5 * i + 1) % 70;
    }
    float *theta = start_of(s.n);
    s.theta = case_put(s.dev, theta, s.n * sizeof *theta);
    s.grad = case_put(s.dev, NULL, s.n * sizeof *theta);
    s.m = case_put(s.dev, NULL, s.n * sizeof *theta);
    s.v = case_put(s.dev, NULL, s.n * sizeof *theta);
    s.loss = case_put(s.dev, NULL, ROWS * sizeof *theta);
    s.tokens = case_put(s.dev, tokens, sizeof tokens);
    s.targets = case_put(s.dev, targets, sizeof targets);
    mem_free(theta);
    return s;
}

static void side_close(struct side *s)
{
    decoder_destroy(s->model);
    void *all[] = {s->theta, s->grad, s->m, s->v, s->loss, s->tokens, s->targets};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) s->dev->ops->release(s->dev, all[i]);
    device_close(s->dev);
}

static float *host_of(struct side *s, const float *p, size_t n)
{
    float *host = mem_alloc(n, sizeof *host);
    assert_non_null(host);
    case_get(s->dev, host, p, n * sizeof *host);
    return host;
}

static void run(struct side *s, bool train)
{
    decoder_run(s->model, s->theta, s->tokens, s->targets, 1.0f / ROWS, s->loss, train ? s->grad : NULL, false, NULL);
}

static void near(const char *what, struct side *cpu, struct side *cuda, const float *want_p, const float *got_p,
                 size_t n, double tol)
{
    float *want = host_of(cpu, want_p, n), *got = host_of(cuda, got_p, n);
    double *wide = case_widen(want, n);
    case_close(what, got, wide, n, tol);
    mem_free(want);
    mem_free(got);
    mem_free(wide);
}

static void adamw(struct side *s, uint64_t step)
{
    const struct adamw_span spans[] = {{.offset = 0, .count = s->n / 3, .decay = true},
                                       {.offset = s->n / 3, .count = s->n - s->n / 3, .decay = false}};
    struct adamw_hyper h = {
        .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = step};
    s->dev->ops->adamw(s->dev, spans, 2, s->theta, s->grad, s->m, s->v, &h, NULL);
}

/* The tolerances allow the rounding of bf16 (at most 2^-9) through forward and backward of two blocks. */
TEST(test_model)
{
    struct side cpu = side_open(false), cuda = side_open(true);
    for (uint64_t step = 1; step <= 3; step++) {
        run(&cpu, true);
        run(&cuda, true);
        near("loss", &cpu, &cuda, cpu.loss, cuda.loss, ROWS, 4e-3);
        near("gradient", &cpu, &cuda, cpu.grad, cuda.grad, cpu.n, 3e-2);
        adamw(&cpu, step);
        adamw(&cuda, step);
    }
    side_close(&cpu);
    side_close(&cuda);
    assert_int_equal(mem_live_bytes(), 0);
}

/* --- bf16 weights ------------------------------------------------------------------------------------------------- */

/* Check that every bf16 weight in use is the rounded parameter. */
static void image_is_true(struct side *s, const char *after)
{
    run(s, false);
    struct cuda_bf16_weights *image = cuda_of(s->dev)->image;
    float *theta = host_of(s, s->theta, s->n);
    uint16_t *half = mem_alloc(s->n, sizeof *half);
    assert_non_null(half);
    case_get(s->dev, half, image->values, s->n * sizeof *half);
    assert_ptr_equal(image->theta, s->theta);
    assert_int_equal(image->n_stale, 0);
    for (size_t i = 0; i < s->n; i++)
        if (half[i] != bf16_of(theta[i])) fail_msg("after %s: parameter %zu is not what its image shows", after, i);
    mem_free(half);
    mem_free(theta);
}

TEST(test_writers)
{
    struct side s = side_open(true);
    const struct device_ops *ops = s.dev->ops;
    float *values = start_of(64);
    image_is_true(&s, "the start");
    run(&s, true);
    adamw(&s, 1);
    assert_int_equal(cuda_of(s.dev)->image->n_stale, 0); /* adamw writes theta and the bf16 weights */
    image_is_true(&s, "adamw");
    ops->upload(s.dev, s.theta + 101, values, 64 * sizeof *values);
    assert_int_equal(cuda_of(s.dev)->image->n_stale, 1);
    image_is_true(&s, "upload");
    device_send(s.dev, s.theta + 31, values, 64 * sizeof *values);
    image_is_true(&s, "send");
    ops->copy(s.dev, s.theta + 7, s.grad + 7, 1000 * sizeof *values);
    image_is_true(&s, "copy");
    ops->fill(s.dev, s.theta + s.n - 3, 3, 0.25f);
    image_is_true(&s, "fill");
    ops->axpy(s.dev, 17, 0.5f, s.grad, s.theta + 3);
    image_is_true(&s, "axpy");
    ops->sgd(s.dev, s.n / 2, s.theta + 11, s.grad, 0.1f, 0.99f, NULL);
    image_is_true(&s, "sgd");
    ops->upload(s.dev, s.theta, values, 64 * sizeof *values); /* stale weights, then a step that writes both */
    adamw(&s, 2);
    image_is_true(&s, "upload and adamw");
    mem_free(values);
    side_close(&s);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Random changes and random refreshes: refreshed ranges equal theta, and no other range changes. */
TEST(test_ranges)
{
    enum { N = 400 };
    struct side s = side_open(true);
    float *x = case_put(s.dev, NULL, N * sizeof *x), now[N] = {0};
    uint16_t half[N];
    bool fresh[N] = {false};
    device_params(s.dev, x, N, 0, 0);
    for (uint64_t round = 0; round < 6000; round++) {
        uint32_t bits[4];
        rng_block(9, RNG_TEST, round, bits);
        size_t begin = bits[0] % N, n = 1 + bits[1] % (bits[2] % 64 ? 3 : N - begin);
        if (n > N - begin) n = N - begin;
        if (bits[3] % 9) {
            s.dev->ops->fill(s.dev, x + begin, n, (float)round);
            for (size_t i = begin; i < begin + n; i++) now[i] = (float)round;
            for (size_t i = begin; i < begin + n; i++) fresh[i] = false;
            continue;
        }
        device_params(s.dev, x, N, begin, n);
        for (size_t i = begin; i < begin + n; i++) fresh[i] = true;
        case_get(s.dev, half, cuda_of(s.dev)->image->values, sizeof half);
        for (size_t i = 0; i < N; i++)
            if (fresh[i] && half[i] != bf16_of(now[i])) fail_msg("round %d: %zu is stale", (int)round, i);
    }
    s.dev->ops->release(s.dev, x);
    side_close(&s);
}

TEST(test_refusals)
{
    struct side s = side_open(true);
    struct err err = {0};
    device_params(s.dev, s.theta, s.n + 1, 0, 1);
    assert_int_equal(s.dev->ops->sync(s.dev, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "more parameters"));
    side_close(&s);
    s = side_open(true);
    run(&s, false);
    assert_int_equal(s.dev->ops->sync(s.dev, &err), STATUS_OK);
    device_params(s.dev, s.grad, s.n, 0, s.n); /* other parameters than theta */
    assert_null(cuda_weights(cuda_of(s.dev), s.theta));
    assert_int_equal(s.dev->ops->sync(s.dev, &err), STATUS_INVALID);
    side_close(&s);
    struct device *cpu;
    assert_int_equal(device_open("cpu", 1, &cpu, &err), STATUS_OK);
    assert_int_equal(device_use_bf16(cpu, &err), STATUS_UNSUPPORTED);
    assert_int_equal(cpu->act_bytes, sizeof(float));
    device_close(cpu);
    assert_int_equal(mem_live_bytes(), 0);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* The bits of a sum do not depend on the alignment of its operands: the order is fixed, whether loads are wide or not.
 */
TEST(test_sums_anywhere)
{
    enum { N = 20011 };
    struct device *dev = cuda_begin(false);
    float *values = case_normal(N, 5, 1), results[4] = {0};
    double want[2] = {0, 0};
    float *p = dev->ops->alloc(dev, (N + 1) * sizeof *p), *out = dev->ops->alloc(dev, sizeof results);
    assert_true(p && out);
    for (size_t i = 0; i < N; i++) {
        want[0] += (double)values[i];
        want[1] += (double)values[i] * (double)values[i];
    }
    for (size_t at = 0; at < 2; at++) {
        dev->ops->upload(dev, p + at, values, N * sizeof *p);
        dev->ops->sum(dev, N, p + at, out + 2 * at);
        dev->ops->sumsq(dev, N, p + at, out + 2 * at + 1);
        assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    }
    case_get(dev, results, out, sizeof results);
    assert_memory_equal(results, results + 2, 2 * sizeof *results);
    for (int i = 0; i < 2; i++) assert_true(fabs((double)results[i] - want[i]) < 1e-6 * want[1]);
    dev->ops->release(dev, p);
    dev->ops->release(dev, out);
    mem_free(values);
    cuda_end(dev);
}

/* Peaks for MFU: names match by whole words, variants have their own peak, and unknown names have none. */
TEST(test_peaks)
{
    static const struct {
        const char *name;
        double tflops;
    } peaks[] = {{"cuda:0 NVIDIA H200 bf16, cuDNN 9.19", 989.4},
                 {"NVIDIA H100 80GB HBM3", 989.4},
                 {"NVIDIA H100 PCIe", 756},
                 {"NVIDIA H100 NVL", 835.5},
                 {"NVIDIA H200 NVL", 835.5},
                 {"NVIDIA GH200 480GB", 989.4},
                 {"NVIDIA A100-SXM4-80GB", 312},
                 {"NVIDIA A10", 125},
                 {"NVIDIA L4", 121},
                 {"NVIDIA L40S", 362},
                 {"NVIDIA GeForce RTX 4090", 165.2},
                 {"NVIDIA RTX A6000", 154.8},
                 {"NVIDIA H20", 148},
                 {"NVIDIA B200", 2250},
                 {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
                 {"NVIDIA GeForce RTX 4090 D", 0},
                 {"NVIDIA H100 80GB HBM3 MIG 1g.10gb", 0},
                 {"NVIDIA RTX A4000", 0},
                 {"NVIDIA A10G", 0},
                 {"Tesla T4", 0},
                 {"", 0}};
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        if (fabs(cuda_peak_bf16(peaks[i].name) * 1e-12 - peaks[i].tflops) > 1e-6)
            fail_msg("%s: %g", peaks[i].name, cuda_peak_bf16(peaks[i].name));
    struct device *dev = cuda_begin(true);
    assert_true(dev->peak_flops == 0); /* the emulator has no peak */
    cuda_end(dev);
}

TEST_MAIN(NULL, NULL)
