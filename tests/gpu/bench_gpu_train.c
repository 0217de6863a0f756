/* The worker's model and optimizer on one device, fed with random tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/layout.h"
#include "common/mem.h"
#include "common/rng.h"
#include "tests/gpu/bench_gpu.h"
#include "worker/inner_opt.h"
#include "worker/model.h"

struct job {
    const struct model_family *family;
    struct model_config config;
    size_t seq, batch;
    struct layout layout;
    struct model *model;
    struct inner_opt *opt;
    float *theta, *grad, *loss, norm;
    int32_t *tokens, *targets;
};

/* Multiply-adds of one token, times 2, forward and backward: matrix products of the layers and the head, and causal
 * attention counted once, as llm.c counts. */
static double flops_per_token(const struct job *j)
{
    const struct model_config *c = &j->config;
    double width = c->n_embd, layers = c->n_layer, products = 12 * width * width;
    if (c->ffn) products = width * (2 * width + 2 * width * c->n_kv_head / c->n_head + 3.0 * c->ffn);
    return 6 * (layers * products + (double)c->vocab_size * width) + 6 * layers * width * (double)j->seq;
}

static enum status put(struct device *dev, const void *host, size_t bytes, void *out, struct err *err)
{
    void *p = dev->ops->alloc(dev, bytes);
    if (!p) return err_set(err, STATUS_NOMEM, "no memory for %zu bytes", bytes);
    if (host) dev->ops->upload(dev, p, host, bytes);
    *(void **)out = p;
    return dev->ops->sync(dev, err);
}

static enum status job_fill(struct job *j, struct device *dev, struct err *err)
{
    size_t n = j->batch * j->seq, bytes = j->layout.n_params * sizeof(float);
    float *theta = mem_alloc(j->layout.n_params, sizeof *theta);
    int32_t *tokens = mem_alloc(n + 1, sizeof *tokens);
    enum status status = theta && tokens ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory on the host");
    for (size_t i = 0; i <= n && status == STATUS_OK; i++)
        tokens[i] = (int32_t)(rng_u64(1, RNG_TEST, i) % j->config.vocab_size);
    if (status == STATUS_OK) layout_fill(&j->layout, 0, 1, theta);
    if (status == STATUS_OK) status = put(dev, theta, bytes, &j->theta, err);
    if (status == STATUS_OK) status = put(dev, NULL, bytes, &j->grad, err);
    if (status == STATUS_OK) status = put(dev, NULL, n * sizeof(float), &j->loss, err);
    if (status == STATUS_OK) status = put(dev, tokens, n * sizeof *tokens, &j->tokens, err);
    if (status == STATUS_OK) status = put(dev, tokens + 1, n * sizeof *tokens, &j->targets, err);
    mem_free(theta);
    mem_free(tokens);
    return status;
}

static enum status job_open(struct job *j, struct device *dev, char **v, struct err *err)
{
    const struct inner_opt_config opt = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                                         .weight_decay = 0.1, .grad_clip = 1.0};
    uint32_t n[8];
    for (int i = 0; i < 8; i++) n[i] = (uint32_t)strtoul(v[i + 1], NULL, 10);
    j->family = model_family_find(v[0]);
    if (!j->family) return err_set(err, STATUS_INVALID, "no family of models is called %s", v[0]);
    j->config = (struct model_config){.n_layer = n[0], .n_head = n[1], .n_kv_head = n[2], .n_embd = n[3], .ffn = n[4],
                                      .block_size = n[5], .vocab_size = n[7], .rope_theta = 10000, .norm_eps = 1e-5,
                                      .tied = true};
    j->seq = n[5];
    j->batch = n[6];
    layout_init(&j->layout);
    TRY(j->family->layout(&j->config, &j->layout, err));
    TRY(layout_split(&j->layout, 1));
    TRY(j->family->create(&j->config, dev, j->batch, j->seq, MODEL_TRAIN, &j->model, err));
    TRY(inner_opt_create(&j->opt, &opt, &j->layout, &dev, 1, err));
    return job_fill(j, dev, err);
}

/* The losses are read when the next step has been submitted, as in a run. */
static enum status steps(struct job *j, struct device *dev, long count, double *loss, struct err *err)
{
    size_t n = j->batch * j->seq;
    for (long i = 0; i < count; i++) {
        j->family->run(j->model, j->theta, j->tokens, j->targets, 1.0f / (float)n, j->loss, j->grad, false, NULL);
        inner_opt_apply(j->opt, 0, j->theta, j->grad, 3e-4);
        inner_opt_norm(j->opt, &j->norm);
        dev->ops->sum(dev, n, j->loss, j->loss);
    }
    float sum = 0;
    dev->ops->download(dev, &sum, j->loss, sizeof sum);
    TRY(dev->ops->sync(dev, err));
    for (long i = 0; i < count; i++) (void)inner_opt_finish(j->opt, j->norm);
    *loss = (double)sum / (double)n;
    return STATUS_OK;
}

enum status bench_train_steps(struct device *dev, char **v, struct err *err)
{
    struct job j = {.norm = 0};
    char line[64];
    double loss = 0;
    uint64_t left = 0, total = 0;
    TRY(job_open(&j, dev, v, err));
    dev->ops->memory(dev, &left, &total);
    printf("{\"device\": \"%s\", \"note\": \"%s\", \"params\": %llu, \"flops_per_token\": %.0f, \"used_gb\": %.6g}\n",
           dev->name, dev->note, (unsigned long long)j.layout.n_params, flops_per_token(&j),
           (double)(total - left) * 1e-9);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long count = strtol(line, NULL, 10);
        uint64_t start = clock_monotonic_us();
        TRY(steps(&j, dev, count, &loss, err));
        double seconds = (double)(clock_monotonic_us() - start) * 1e-6;
        printf("{\"tokens_per_s\": %.6g, \"loss\": %.5f}\n", (double)count * (double)(j.batch * j.seq) / seconds, loss);
        fflush(stdout);
    }
    inner_opt_destroy(j.opt);
    j.family->destroy(j.model);
    layout_finish(&j.layout);
    return STATUS_OK;
}
