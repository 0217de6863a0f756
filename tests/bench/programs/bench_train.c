/* The program of `./run bench train`: the worker's model and optimizer on one CPU device, on random tokens.
 *
 * Usage: bench_train layers heads width seq batch vocab threads [muon] [profile]
 *
 * - Prints one JSON line: device, params, flops_per_token, fma_peak_gflops.
 * - Reads step counts from standard input, one per line, and answers each with the tokens per second of these steps.
 * - "muon": the inner optimizer is Muon instead of AdamW.
 * - "profile": prints the share of each operation on standard error at the end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/layout.h"
#include "gpu/cpu/cpu_impl.h"
#include "tests/bench/lib/fma_peak.h"
#include "tests/bench/lib/op_timer.h"
#include "worker/inner/inner_opt.h"
#include "worker/model/decoder.h"
#include "worker/model/model.h"

struct trainer {
    struct model_config config;
    enum optimizer optimizer;
    size_t seq, batch;
    struct device *dev;
    struct layout layout;
    struct model *model;
    struct inner_opt *opt;
    float *theta, *grad, *loss;
    int32_t *tokens, *targets;
};

/* FLOPs of one token, forward and backward: 2 per multiply-add; causal attention counts once (llm.c's convention). */
static double flops_per_token(const struct model_config *c, size_t seq)
{
    double width = c->n_embd, layers = c->n_layer;
    return 6 * (12 * layers * width * width + (double)c->vocab_size * width) + 6 * layers * width * (double)seq;
}

static enum status trainer_open(struct trainer *t, int threads, struct err *err)
{
    TRY(device_open("cpu", threads, &t->dev, err));
    layout_init(&t->layout);
    const struct model_family *family = model_family_find("gpt2");
    TRY(family->layout(&t->config, &t->layout, err));
    TRY(layout_split(&t->layout, 1));
    TRY(decoder_create(family, &t->config, t->dev, t->batch, t->seq, MODEL_TRAIN, &t->model, err));
    struct inner_opt_config opt = {.kind = t->optimizer,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .weight_decay = 0.1,
                                   .grad_clip = 1.0,
                                   .muon_momentum = 0.95,
                                   .muon_steps = 5,
                                   .hidden_blocks = family->hidden_blocks};
    TRY(inner_opt_create(&t->opt, &opt, &t->layout, &t->dev, 1, err));
    size_t n = t->batch * t->seq;
    t->theta = t->dev->ops->alloc(t->dev, t->layout.n_params * sizeof *t->theta);
    t->grad = t->dev->ops->alloc(t->dev, t->layout.n_params * sizeof *t->grad);
    t->loss = t->dev->ops->alloc(t->dev, n * sizeof *t->loss);
    t->tokens = t->dev->ops->alloc(t->dev, n * sizeof *t->tokens);
    t->targets = t->dev->ops->alloc(t->dev, n * sizeof *t->targets);
    if (!t->theta || !t->grad || !t->loss || !t->tokens || !t->targets) return err_set(err, STATUS_NOMEM, "no memory");
    layout_fill(&t->layout, 0, 1, t->theta);
    for (size_t i = 0; i < n; i++) {
        t->tokens[i] = (int32_t)(rng_u64(1, RNG_TEST, i) % t->config.vocab_size);
        t->targets[i] = (int32_t)(rng_u64(1, RNG_TEST, i + 1) % t->config.vocab_size);
    }
    return STATUS_OK;
}

static enum status trainer_step(struct trainer *t, double *loss, struct err *err)
{
    size_t n = t->batch * t->seq;
    float norm;
    decoder_run(t->model, t->theta, t->tokens, t->targets, 1.0f / (float)n, t->loss, t->grad, false, NULL);
    inner_opt_apply(t->opt, 0, t->theta, t->grad, 1e-3);
    inner_opt_download_norm(t->opt, &norm);
    TRY(t->dev->ops->sync(t->dev, err));
    inner_opt_finish(t->opt, norm);
    *loss = 0;
    for (size_t i = 0; i < n; i++) *loss += t->loss[i] / (double)n;
    return t->dev->ops->sync(t->dev, err);
}

static enum status serve(struct trainer *t, struct err *err)
{
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long steps = strtol(line, NULL, 10);
        double loss = 0;
        uint64_t start = clock_monotonic_us();
        for (long i = 0; i < steps; i++) TRY(trainer_step(t, &loss, err));
        double seconds = (double)(clock_monotonic_us() - start) * 1e-6;
        printf("%.2f\n", (double)steps * (double)(t->batch * t->seq) / seconds);
        fflush(stdout);
        fprintf(stderr, "loss %.4f\n", loss);
    }
    return STATUS_OK;
}

int main(int argc, char **argv)
{
    if (argc < 8) {
        fprintf(stderr, "usage: bench_train layers heads width seq batch vocab threads [muon] [profile]\n");
        return 2;
    }
    unsigned v[7];
    for (int i = 0; i < 7; i++) v[i] = (unsigned)strtoul(argv[i + 1], NULL, 10);
    struct trainer t = {
        .config = {.n_layer = v[0], .n_head = v[1], .n_embd = v[2], .block_size = v[3], .vocab_size = v[5]},
        .seq = v[3],
        .batch = v[4]};
    bool profile = false;
    t.optimizer = OPTIMIZER_ADAMW;
    for (int i = 8; i < argc; i++) {
        if (!strcmp(argv[i], "muon")) t.optimizer = OPTIMIZER_MUON;
        if (!strcmp(argv[i], "profile")) profile = true;
    }
    struct err err = {0};
    enum status status = trainer_open(&t, (int)v[6], &err);
    if (status == STATUS_OK) {
        const struct cpu_device *cpu = cpu_of(t.dev);
        printf("{\"device\": \"%s\", \"params\": %llu, \"flops_per_token\": %.0f, \"fma_peak_gflops\": %.1f}\n",
               t.dev->name, (unsigned long long)t.layout.n_params, flops_per_token(&t.config, t.seq),
               fma_peak_pool(cpu->kernels, cpu->pool));
        fflush(stdout);
        if (profile) op_timer_install(t.dev);
        status = serve(&t, &err);
        if (profile) op_timer_print(stderr);
    }
    if (status != STATUS_OK) fprintf(stderr, "bench_train: %s\n", err.msg);
    return status == STATUS_OK ? 0 : 1;
}
