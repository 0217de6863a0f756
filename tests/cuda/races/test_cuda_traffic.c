/* Tests the memory traffic of kernels, counted byte by byte on the emulated device:
 * - kernels of a layer in bf16, forward and backward: bytes per token and layer, in units of the model's width C.
 * Products and attention do not count, because cuBLASLt and cuDNN compute them.
 * - AdamW: bytes per parameter. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "gpu/cuda_plugin.h"
#include "gpu/moment_rules.h"
#include "tests/cuda/races/traffic.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { SEQ = 16, ROWS = 1024, C = 32, F = 64, BLOCKS = 512 };

/* Minimum traffic of a kernel in a layer: bytes per token over C, and values over C that each block of rows writes for
 * the gradients of biases and norms. The latter do not grow with the batch. */
struct budget {
    const char *kernel;
    double read, written, sums_read, sums_written;
};

static const double SMALL = 0.6; /* bound for the statistics of rows and the gradients of a layer */

static const struct budget gpt2_budget[] = {
    {"cuda_norm_fwd_bf16", 4, 4, 0, 0},          /* two norms: x; y */
    {"cuda_norm_fused_short_bf16", 12, 4, 0, 4}, /* x, dy, dres; dx */
    {"cuda_gelu_fwd_bf16", 8, 8, 0, 0},          /* 4C: z; y */
    {"cuda_gelu_bwd_bf16", 16, 8, 0, 0},         /* z, dy; dz */
    {"cuda_columns_bf16", 18, 0, 0, 9},          /* gradients of four biases, 9C */
    {"cuda_columns_end", 0, 0, 13, 0},           {NULL, 0, 0, 0, 0},
};

/* Products with fused dgelu and bias_grad (gpu/cuda/cuda_lin.c), which read z, 8 C. */
static const struct budget fused_budget[] = {
    {"cuda_norm_fwd_bf16", 4, 4, 0, 0},
    {"cuda_norm_fused_short_bf16", 12, 4, 0, 4},
    {"cuda_gelu_fwd_bf16", 8, 8, 0, 0},
    {"cuda_columns_end", 0, 0, 4, 0},
    {NULL, 0, 0, 0, 0},
};

static const struct budget llama_budget[] = {
    {"cuda_rms_fwd_bf16", 4, 4, 0, 0},
    {"cuda_rms_fused_short_bf16", 12, 4, 0, 2},
    {"cuda_rope_bf16", 8, 8, 0, 0},                        /* queries and keys, forward and back, in place */
    {"cuda_glu_fwd_bf16", 4.0 * F / C, 2.0 * F / C, 0, 0}, /* gate, up; h */
    {"cuda_glu_bwd_bf16", 6.0 * F / C, 4.0 * F / C, 0, 0}, /* gate, up, dh; both */
    {"cuda_columns_end", 0, 0, 2, 0},
    {NULL, 0, 0, 0, 0},
};

static struct device *open_device(void)
{
    struct device *dev;
    struct err err = {0};
    if (atoll_cuda_plugin.open(0, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(device_use_bf16(dev, &err), STATUS_OK);
    return dev;
}

/* Count the traffic of one micro-step with `layers` layers. */
static size_t count(const struct model_family *family, uint32_t layers, struct traffic *out)
{
    struct model_config config = {.n_layer = layers,
                                  .n_head = 1,
                                  .n_embd = C,
                                  .block_size = SEQ,
                                  .vocab_size = 16,
                                  .n_kv_head = 1,
                                  .ffn = F,
                                  .rope_theta = 10000,
                                  .norm_eps = 1e-5};
    struct device *dev = open_device();
    struct layout layout;
    struct model *model;
    struct err err = {0};
    layout_init(&layout);
    if (family->layout(&config, &layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (decoder_create(family, &config, dev, ROWS / SEQ, SEQ, MODEL_TRAIN, &model, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    size_t n = layout.n_params;
    float *theta = dev->ops->alloc(dev, n * sizeof *theta), *grad = dev->ops->alloc(dev, n * sizeof *grad);
    float *loss = dev->ops->alloc(dev, ROWS * sizeof *loss);
    int32_t *tokens = dev->ops->alloc(dev, ROWS * sizeof *tokens); /* zeros: the traffic does not depend on tokens */
    assert_true(theta && grad && loss && tokens);
    assert_int_equal(device_params_plan(dev, n), STATUS_OK);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    traffic_reset();
    decoder_run(model, theta, tokens, tokens, 1, loss, grad, false, NULL);
    if (dev->ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    size_t kernels = traffic_of(out);
    decoder_destroy(model);
    layout_finish(&layout);
    device_close(dev);
    return kernels;
}

static const struct traffic *find(const struct traffic *list, size_t n, const char *kernel)
{
    static const struct traffic none;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].kernel, kernel)) return &list[i];
    return &none;
}

static const struct budget *budget_of(const struct budget *list, const char *kernel)
{
    while (list->kernel && strcmp(list->kernel, kernel) != 0) list++;
    return list;
}

static bool near(double got, double want, double sums)
{
    double most = want + sums * BLOCKS * sizeof(float) / ROWS;
    return got >= want && got < most + SMALL;
}

/* Compare the traffic of one more layer with the budget. */
static void check(const struct model_family *family, const struct budget *budget)
{
    struct traffic one[TRAFFIC_KERNELS], two[TRAFFIC_KERNELS];
    size_t n_one = count(family, 1, one), n_two = count(family, 2, two), checked = 0;
    double sum = 0, per = 1.0 / ((double)ROWS * C);
    bool good = true;
    printf("%s: bytes per token and layer, in units of C\n%-24s %8s %8s %8s\n", family->name, "kernel", "launches",
           "read", "written");
    for (size_t i = 0; i < n_two; i++) {
        const struct traffic *first = find(one, n_one, two[i].kernel);
        const struct budget *b = budget_of(budget, two[i].kernel);
        double read = (double)(two[i].read - first->read) * per;
        double written = (double)(two[i].written - first->written) * per;
        unsigned long launches = two[i].launches - first->launches;
        if (!launches || !strcmp(two[i].kernel, "cuda_round"))
            continue; /* cuda_round works on parameters, not on a layer */
        bool fits = b->kernel && near(read, b->read, b->sums_read) && near(written, b->written, b->sums_written);
        printf("%-24s %8lu %8.2f %8.2f%s\n", two[i].kernel, launches, read, written,
               fits ? "" : "   DIFFERS FROM THE BUDGET");
        sum += b->read + b->written;
        checked++;
        good = good && fits;
    }
    printf("%-24s %8s %17.2f and sums of columns\n", "all", "", sum);
    assert_true(good);
    assert_null(budget[checked].kernel); /* every kernel of the budget ran */
}

static void test_gpt2(void **state)
{
    (void)state;
    check(&gpt2_family, gpt2_budget);
}

static void test_gpt2_fused(void **state)
{
    (void)state;
    setenv("ATOLL_EPILOGUE", "fused", 1);
    check(&gpt2_family, fused_budget);
    unsetenv("ATOLL_EPILOGUE");
}

static void test_llama(void **state)
{
    (void)state;
    check(&llama_family, llama_budget);
}

/* AdamW moves gradient, theta, bf16 weights and both moments (fp32 or bf16) once each. */
static void test_adamw(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    const struct adamw_span span = {.count = N, .decay = true};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct traffic all[TRAFFIC_KERNELS];
        struct device *dev = open_device();
        size_t moments = N * (bf16 ? sizeof(uint16_t) : sizeof(float));
        float *theta = dev->ops->alloc(dev, N * sizeof *theta), *grad = dev->ops->alloc(dev, N * sizeof *grad);
        void *m = dev->ops->alloc(dev, moments), *v = dev->ops->alloc(dev, moments);
        struct step_count *count = dev->ops->alloc(dev, sizeof *count);
        assert_true(theta && grad && m && v && count);
        assert_int_equal(device_params_plan(dev, N), STATUS_OK);
        device_params(dev, theta, N, 0, N);
        assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
        traffic_reset();
        struct adamw_hyper hyper = {.lr = 1e-3f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .count = count,
                                    .bf16_moments = bf16};
        dev->ops->adamw(dev, &span, 1, theta, grad, m, v, &hyper, NULL);
        assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
        const struct traffic *adamw = find(all, traffic_of(all), bf16 ? "cuda_adamw_bf16" : "cuda_adamw_fp32");
        double read = (double)adamw->read / N, written = (double)adamw->written / N;
        printf("AdamW, moments in %s: bytes per parameter: read %.2f, written %.2f\n", bf16 ? "bf16" : "fp32", read,
               written);
        assert_true(read >= (bf16 ? 12 : 16) && read < (bf16 ? 12 : 16) + 0.01);
        assert_true(written == (bf16 ? 10 : 14));
        device_close(dev);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gpt2), cmocka_unit_test(test_gpt2_fused),
                                       cmocka_unit_test(test_llama), cmocka_unit_test(test_adamw)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
