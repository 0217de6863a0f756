/* Tests GPT-2 and Llama against PyTorch's values (tests/golden/make_model_golden.py) on every instruction-set level of
 * the CPU: logits, loss and every gradient tensor to 1e-5 of its norm, then five AdamW steps with decay groups and
 * clipping. */
#include <math.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"
#include "worker/inner/inner_opt.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

enum { MAGIC_GPT2 = 0x31444C47, MAGIC_LLAMA = 0x32444C47, STEPS_MAX = 16 };

struct golden {
    const struct model_family *family;
    struct model_config config;
    uint32_t batch, seq, steps;
    uint64_t n_params, n_counted;
    float *theta, *logits, *grad, loss, losses[STEPS_MAX];
    double norms[STEPS_MAX];
    int32_t *tokens, *targets;
    struct layout layout;
};

static struct golden golden;

static float *get_floats(struct reader *r, size_t n)
{
    float *out = mem_alloc(n, sizeof *out);
    for (size_t i = 0; i < n; i++) out[i] = get_f32(r);
    return out;
}

static int load(const char *path)
{
    struct golden *g = &golden;
    struct err err = {0};
    void *bytes;
    size_t size;
    if (file_read(path, 1 << 20, &bytes, &size, &err) != STATUS_OK) {
        print_error("%s\n", err.msg);
        return -1;
    }
    struct reader r = reader_of(bytes, size);
    uint32_t magic = get_u32(&r);
    if (magic != MAGIC_GPT2 && magic != MAGIC_LLAMA) return -1;
    *g = (struct golden){.family = magic == MAGIC_LLAMA ? &llama_family : &gpt2_family};
    g->config.vocab_size = get_u32(&r);
    g->config.n_embd = get_u32(&r);
    g->config.n_layer = get_u32(&r);
    g->config.n_head = get_u32(&r);
    g->seq = g->config.block_size = get_u32(&r);
    g->batch = get_u32(&r);
    g->steps = get_u32(&r);
    g->n_params = get_u64(&r);
    if (magic == MAGIC_LLAMA) {
        g->config.n_kv_head = get_u32(&r);
        g->config.ffn = get_u32(&r);
        g->config.tied = get_u32(&r);
        g->config.rope_theta = get_f64(&r);
        g->config.norm_eps = get_f64(&r);
    }
    size_t n = (size_t)g->batch * g->seq;
    layout_init(&g->layout);
    if (g->steps > STEPS_MAX || g->family->layout(&g->config, &g->layout, &err) != STATUS_OK ||
        g->layout.n_params != g->n_params)
        return -1;
    g->theta = get_floats(&r, g->n_params);
    g->tokens = mem_alloc(n, sizeof *g->tokens);
    g->targets = mem_alloc(n, sizeof *g->targets);
    for (size_t i = 0; i < n; i++) g->tokens[i] = (int32_t)get_u32(&r);
    for (size_t i = 0; i < n; i++) g->n_counted += (g->targets[i] = (int32_t)get_u32(&r)) >= 0;
    g->logits = get_floats(&r, n * g->config.vocab_size);
    g->loss = get_f32(&r);
    g->grad = get_floats(&r, g->n_params);
    for (uint32_t i = 0; i < g->steps; i++) g->losses[i] = get_f32(&r);
    for (uint32_t i = 0; i < g->steps; i++) g->norms[i] = get_f64(&r);
    mem_free(bytes);
    return reader_done(&r) ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    mem_free(golden.theta);
    mem_free(golden.tokens);
    mem_free(golden.targets);
    mem_free(golden.logits);
    mem_free(golden.grad);
    layout_finish(&golden.layout);
    return mem_live_bytes() ? -1 : 0;
}

static void check_close(const char *what, const float *got, const float *want, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += pow((double)got[i] - want[i], 2);
        norm += pow(want[i], 2);
    }
    if (!(sqrt(diff) <= 1e-5 * sqrt(norm))) fail_msg("%s: relative error %.3g", what, sqrt(diff / norm));
}

struct instance {
    struct device *dev;
    struct model *model;
    float *theta, *grad, *loss;
    int32_t *tokens, *targets;
};

static void instance_open(struct instance *in, const char *level)
{
    const struct golden *g = &golden;
    struct err err = {0};
    size_t n = (size_t)g->batch * g->seq;
    setenv("ATOLL_CPU", level, 1);
    enum status status = device_open("cpu", 2, &in->dev, &err);
    if (status == STATUS_UNSUPPORTED) skip();
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    status = decoder_create(g->family, &g->config, in->dev, g->batch, g->seq, MODEL_TRAIN | MODEL_LOSS | MODEL_LOGITS,
                            &in->model, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    in->theta = case_put(in->dev, g->theta, g->n_params * 4);
    in->grad = case_put(in->dev, NULL, g->n_params * 4);
    in->loss = case_put(in->dev, NULL, n * 4);
    in->tokens = case_put(in->dev, g->tokens, n * 4);
    in->targets = case_put(in->dev, g->targets, n * 4);
}

static void instance_close(struct instance *in)
{
    void *pieces[] = {in->theta, in->grad, in->loss, in->tokens, in->targets};
    decoder_destroy(in->model);
    for (size_t i = 0; i < 5; i++) in->dev->ops->release(in->dev, pieces[i]);
    device_close(in->dev);
}

static double mean_loss(const struct instance *in)
{
    size_t n = (size_t)golden.batch * golden.seq;
    float *loss = mem_alloc(n, sizeof *loss);
    double sum = 0;
    case_get(in->dev, loss, in->loss, n * sizeof *loss);
    for (size_t i = 0; i < n; i++) sum += loss[i];
    mem_free(loss);
    return sum / (double)golden.n_counted;
}

static void check_gradient(const struct instance *in, float times)
{
    float *grad = mem_alloc(golden.n_params, sizeof *grad);
    case_get(in->dev, grad, in->grad, golden.n_params * sizeof *grad);
    for (uint64_t i = 0; i < golden.n_params; i++) grad[i] /= times;
    for (uint32_t i = 0; i < golden.layout.n_tensors; i++) {
        const struct tensor *t = &golden.layout.tensors[i];
        check_close(t->name, grad + t->offset, golden.grad + t->offset, t->count);
    }
    mem_free(grad);
}

static void run_level(const char *level)
{
    const struct golden *g = &golden;
    struct instance in;
    struct err err = {0};
    size_t n = (size_t)g->batch * g->seq;
    float dscale = 1.0f / (float)g->n_counted;
    instance_open(&in, level);

    float *logits = mem_alloc(n * g->config.vocab_size, sizeof *logits);
    if (decoder_logits(in.model, in.theta, in.tokens, 0, n, logits, &err) != STATUS_OK) fail_msg("%s", err.msg);
    check_close("logits", logits, g->logits, n * g->config.vocab_size);
    mem_free(logits);

    decoder_run(in.model, in.theta, in.tokens, in.targets, 1, in.loss, NULL, false, NULL);
    assert_true(fabs(mean_loss(&in) - g->loss) < 1e-5 * g->loss);
    for (int twice = 0; twice < 2; twice++) { /* overwrite, then accumulate */
        decoder_run(in.model, in.theta, in.tokens, in.targets, dscale, in.loss, in.grad, twice, NULL);
        assert_true(fabs(mean_loss(&in) - g->loss) < 1e-5 * g->loss);
        check_gradient(&in, twice ? 2 : 1);
    }

    struct inner_opt_config config = {
        .kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .grad_clip = 1.0};
    struct inner_opt *opt;
    assert_int_equal(inner_opt_create(&opt, &config, &g->layout, &in.dev, 1, &err), STATUS_OK);
    for (uint32_t step = 0; step < g->steps; step++) {
        float norm;
        decoder_run(in.model, in.theta, in.tokens, in.targets, dscale, in.loss, in.grad, false, NULL);
        double loss = mean_loss(&in);
        if (!(fabs(loss - g->losses[step]) < 1e-5 * g->losses[step]))
            fail_msg("loss before step %u: %.7f, PyTorch has %.7f", step, loss, (double)g->losses[step]);
        inner_opt_apply(opt, 0, in.theta, in.grad, 3e-3);
        inner_opt_download_norm(opt, &norm);
        assert_int_equal(in.dev->ops->sync(in.dev, &err), STATUS_OK);
        assert_true(inner_opt_finish(opt, norm));
        if (!(fabs(norm - g->norms[step]) < 1e-5 * g->norms[step]))
            fail_msg("gradient norm of step %u: %.7f, PyTorch has %.7f", step, norm, g->norms[step]);
    }
    inner_opt_destroy(opt);
    instance_close(&in);
}

static void test_level(void **state)
{
    run_level(*state);
}

static int load_gpt2(void **state)
{
    (void)state;
    return load("tests/golden/gpt2_small.bin");
}

static int load_llama(void **state)
{
    (void)state;
    return load("tests/golden/llama_small.bin");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"test_portable", test_level, NULL, NULL, "portable"},
        {"test_avx2", test_level, NULL, NULL, "avx2"},
        {"test_avx512", test_level, NULL, NULL, "avx512"},
    };
    int failed = cmocka_run_group_tests_name("gpt2", tests, load_gpt2, unload);
    return cmocka_run_group_tests_name("llama", tests, load_llama, unload) || failed;
}
