/* Tests the gradient of each model family against finite differences, tensor by tensor, along the gradient and along a
 * random direction. Sizes are odd on purpose. The loss is summed in double. The central difference at two step sizes is
 * extrapolated, so that only the fp32 rounding of the forward pass remains. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { BATCH = 3, SEQ = 7, ROWS = BATCH * SEQ };

/* Llama with grouped key/value heads, and with eps and angles large enough to matter. */
static const struct subject {
    const char *name;
    const struct model_family *family;
    struct model_config config;
} subjects[] = {
    {"gpt2", &gpt2_family, {.n_layer = 2, .n_head = 3, .n_embd = 15, .block_size = 9, .vocab_size = 37}},
    {"llama",
     &llama_family,
     {.n_layer = 2,
      .n_head = 4,
      .n_embd = 24,
      .block_size = 9,
      .vocab_size = 37,
      .n_kv_head = 2,
      .ffn = 19,
      .rope_theta = 5,
      .norm_eps = 0.1,
      .tied = true}},
    {"llama, untied",
     &llama_family,
     {.n_layer = 2,
      .n_head = 3,
      .n_embd = 18,
      .block_size = 7,
      .vocab_size = 37,
      .n_kv_head = 1,
      .ffn = 21,
      .rope_theta = 10000,
      .norm_eps = 0.05}},
};
enum { SUBJECTS = sizeof subjects / sizeof *subjects };

struct probe {
    const struct subject *of;
    struct device *dev;
    struct model *model;
    struct layout layout;
    float *theta, *grad, *loss, *direction;
    float *moved; /* host copy of theta with one tensor moved */
    float *base;  /* host copy of theta */
    float *host_grad;
    int32_t *tokens, *targets;
};

static double loss_at(struct probe *p, const struct tensor *t, double step)
{
    float loss[ROWS];
    double sum = 0;
    memcpy(p->moved, p->base, p->layout.n_params * sizeof *p->moved);
    for (uint64_t i = 0; i < t->count; i++)
        p->moved[t->offset + i] = (float)(p->base[t->offset + i] + step * p->direction[i]);
    p->dev->ops->upload(p->dev, p->theta, p->moved, p->layout.n_params * sizeof *p->moved);
    decoder_run(p->model, p->theta, p->tokens, p->targets, 1, p->loss, NULL, false, NULL);
    p->dev->ops->download(p->dev, loss, p->loss, sizeof loss);
    assert_int_equal(p->dev->ops->sync(p->dev, NULL), STATUS_OK);
    for (int i = 0; i < ROWS; i++) sum += loss[i];
    return sum;
}

/* Compare d(sum of losses) along p->direction (norm 1) with the analytic value, relative to the gradient's norm. */
static void check_direction(struct probe *p, const struct tensor *t, const char *kind)
{
    const float *g = p->host_grad + t->offset;
    double norm = 0, along = 0, size = 0;
    for (uint64_t i = 0; i < t->count; i++) {
        norm += (double)g[i] * g[i];
        along += (double)g[i] * p->direction[i];
        size += (double)p->direction[i] * p->direction[i];
    }
    norm = sqrt(norm);
    assert_true(norm > 1e-3); /* a zero gradient would make the comparison meaningless */
    assert_true(fabs(sqrt(size) - 1) < 1e-3);
    double h = 0.02;
    double wide = (loss_at(p, t, h) - loss_at(p, t, -h)) / (2 * h);
    double narrow = (loss_at(p, t, h / 2) - loss_at(p, t, -h / 2)) / h;
    double numeric = (4 * narrow - wide) / 3;
    if (!(fabs(numeric - along) < 2e-3 * norm))
        fail_msg("%s: %s along %s: finite difference %.6f, gradient %.6f (norm %.6f)", p->of->name, t->name, kind,
                 numeric, along, norm);
}

static void normalise(float *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    for (uint64_t i = 0; i < n; i++) x[i] = (float)(x[i] / sqrt(sum));
}

static void probe_open(struct probe *p, const struct subject *of, const char *level)
{
    struct err err = {0};
    memset(p, 0, sizeof *p);
    p->of = of;
    setenv("ATOLL_CPU", level, 1);
    enum status status = device_open("cpu", 1, &p->dev, &err);
    if (status == STATUS_UNSUPPORTED) skip();
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    layout_init(&p->layout);
    assert_int_equal(p->of->family->layout(&p->of->config, &p->layout, &err), STATUS_OK);
    status =
        decoder_create(p->of->family, &p->of->config, p->dev, BATCH, SEQ, MODEL_TRAIN | MODEL_LOSS, &p->model, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    size_t bytes = p->layout.n_params * sizeof(float);
    p->theta = p->dev->ops->alloc(p->dev, bytes);
    p->grad = p->dev->ops->alloc(p->dev, bytes);
    p->loss = p->dev->ops->alloc(p->dev, ROWS * sizeof(float));
    p->tokens = p->dev->ops->alloc(p->dev, ROWS * sizeof(int32_t));
    p->targets = p->dev->ops->alloc(p->dev, ROWS * sizeof(int32_t));
    p->base = mem_alloc(1, bytes);
    p->moved = mem_alloc(1, bytes);
    p->direction = mem_alloc(1, bytes);
    p->host_grad = mem_alloc(1, bytes);
    rng_normal_fill(3, RNG_TEST, 0, 0.3f, p->base, p->layout.n_params);
    for (uint32_t i = 0; i < p->layout.n_tensors; i++) {
        const struct tensor *t = &p->layout.tensors[i];
        for (uint64_t k = 0; t->init == LAYOUT_INIT_ONES && k < t->count; k++) p->base[t->offset + k] += 1;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        p->tokens[i] = (int32_t)(rng_u64(1, RNG_TEST, i) % p->of->config.vocab_size);
        p->targets[i] = i == 4 ? -1 : (int32_t)(rng_u64(2, RNG_TEST, i) % p->of->config.vocab_size);
    }
}

static void probe_close(struct probe *p)
{
    void *pieces[] = {p->theta, p->grad, p->loss, p->tokens, p->targets};
    decoder_destroy(p->model);
    for (size_t i = 0; i < 5; i++) p->dev->ops->release(p->dev, pieces[i]);
    device_close(p->dev);
    mem_free(p->base);
    mem_free(p->moved);
    mem_free(p->direction);
    mem_free(p->host_grad);
    layout_finish(&p->layout);
    assert_int_equal(mem_live_bytes(), 0);
}

static void run_subject(const struct subject *of, const char *level)
{
    struct probe p;
    probe_open(&p, of, level);
    size_t bytes = p.layout.n_params * sizeof(float);
    p.dev->ops->upload(p.dev, p.theta, p.base, bytes);
    decoder_run(p.model, p.theta, p.tokens, p.targets, 1, p.loss, p.grad, false, NULL);
    p.dev->ops->download(p.dev, p.host_grad, p.grad, bytes);
    assert_int_equal(p.dev->ops->sync(p.dev, NULL), STATUS_OK);
    for (uint32_t i = 0; i < p.layout.n_tensors; i++) {
        const struct tensor *t = &p.layout.tensors[i];
        memcpy(p.direction, p.host_grad + t->offset, t->count * sizeof(float));
        normalise(p.direction, t->count);
        check_direction(&p, t, "the gradient");
        rng_normal_fill(5, RNG_TEST, (uint64_t)i << 32, 1, p.direction, t->count);
        normalise(p.direction, t->count);
        check_direction(&p, t, "a random direction");
    }
    probe_close(&p);
}

static void run_level(const char *level)
{
    for (size_t i = 0; i < SUBJECTS; i++) run_subject(&subjects[i], level);
}

/* Hooks of test_hooks: upload a range of parameters, and read a range of gradients. */
static void bring(void *ctx, uint64_t offset, uint64_t count)
{
    struct probe *p = ctx;
    memcpy(p->theta + offset, p->base + offset, count * sizeof(float));
}

static void take(void *ctx, uint64_t offset, uint64_t count)
{
    struct probe *p = ctx;
    for (uint64_t i = offset; i < offset + count; i++) {
        p->moved[i] = p->grad[i]; /* reading a range twice would give NaN */
        p->grad[i] = NAN;
    }
}

/* Parameters are uploaded only when the model requests them, and gradients are read when the model reports them: every
 * gradient is read once, with the same value. */
static void check_hooks(const struct subject *of)
{
    struct probe p;
    probe_open(&p, of, "portable");
    uint64_t n = p.layout.n_params;
    const struct model_hooks hooks = {.needs = bring, .ready = take, .ctx = &p};
    for (int steps = 1; steps <= 2; steps++) {
        memcpy(p.theta, p.base, n * sizeof(float));
        for (int i = 0; i < steps; i++)
            decoder_run(p.model, p.theta, p.tokens, p.targets, 1, p.loss, p.grad, i > 0, NULL);
        memcpy(p.host_grad, p.grad, n * sizeof(float));
        for (int i = 0; i < steps; i++) {
            for (uint64_t k = 0; k < n; k++) p.theta[k] = NAN;
            memset(p.moved, 0, n * sizeof(float));
            decoder_run(p.model, p.theta, p.tokens, p.targets, 1, p.loss, p.grad, i > 0,
                        &(struct model_hooks){bring, i + 1 == steps ? take : NULL, &p});
        }
        assert_memory_equal(p.moved, p.host_grad, n * sizeof(float));
        for (uint64_t k = 0; k < n; k++) assert_true(isnan(p.grad[k]));
    }
    for (uint64_t k = 0; k < n; k++) p.theta[k] = NAN;
    decoder_run(p.model, p.theta, p.tokens, p.targets, 1, p.loss, NULL, false, &hooks);
    for (int i = 0; i < ROWS; i++) assert_true(isfinite(p.loss[i]));
    probe_close(&p);
}

TEST(test_hooks)
{
    for (size_t i = 0; i < SUBJECTS; i++) check_hooks(&subjects[i]);
}

#define LEVEL_TEST(level)                                                                                              \
    TEST(test_##level)                                                                                                 \
    {                                                                                                                  \
        run_level(#level);                                                                                             \
    }

LEVEL_TEST(portable)
LEVEL_TEST(avx2)
LEVEL_TEST(avx512)

TEST_MAIN(NULL, NULL)
