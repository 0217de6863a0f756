/* Benchmark of a worker's inner steps without a run: its replica on a synthetic language. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/gpu_share.h"
#include "common/config/model_flops.h"
#include "tests/gpu/bench_gpu.h"
#include "worker/replica/memory_plan.h"
#include "worker/replica/replica.h"

enum { WINDOWS_A_SEQUENCE = 64, LOSSES_MAX = 200 };

struct job {
    struct replica_config config;
    struct layout layout;
    struct token_shard shard;
    struct tokens data;
    uint32_t *tokens;
    uint64_t *counters; /* [step] */
    uint32_t step;      /* sequences per step */
    uint64_t done;      /* sequences so far */
    struct replica *replica;
};

static double flops_per_token(const struct model_config *c)
{
    const struct config config = {.model = {.n_layer = c->n_layer,
                                            .n_head = c->n_head,
                                            .n_embd = c->n_embd,
                                            .block_size = c->block_size,
                                            .vocab_size = c->vocab_size,
                                            .n_kv_head = c->n_kv_head,
                                            .ffn = c->ffn}};
    return model_flops_per_token(&config);
}

static enum status parse(struct job *j, const char *device, const char *precision, int n, char **v, struct err *err)
{
    uint32_t number[8], listed = gpu_share_count_listed(device);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 0; i < 8; i++) number[i] = (uint32_t)strtoul(v[i + 1], NULL, 10);
    const struct model_config model = {.n_layer = number[0],
                                       .n_head = number[1],
                                       .n_kv_head = number[2],
                                       .n_embd = number[3],
                                       .ffn = number[4],
                                       .block_size = number[5],
                                       .vocab_size = number[7],
                                       .rope_theta = 10000,
                                       .norm_eps = 1e-5,
                                       .tied = true};
    j->config = (struct replica_config){.family = model_family_find(v[0]),
                                        .model = model,
                                        .device = device,
                                        .bf16 = !strcmp(precision, "bf16"),
                                        .ranks = listed ? listed : 1,
                                        .threads = cores > 0 ? (uint32_t)cores : 1,
                                        .batch_size = number[6],
                                        .grad_accum = 1,
                                        .seed = 1,
                                        .recompute = RECOMPUTE_AUTO,
                                        .opt = {.kind = OPTIMIZER_ADAMW,
                                                .beta1 = 0.9,
                                                .beta2 = 0.95,
                                                .eps = 1e-8,
                                                .weight_decay = 0.1,
                                                .grad_clip = 1.0,
                                                .unread = true}}; /* nothing is saved */
    if (!j->config.family) return err_set(err, STATUS_INVALID, "unknown model family %s", v[0]);
    if (n < 10) return STATUS_OK;
    uint32_t parts = (uint32_t)strtoul(v[9], NULL, 10); /* 0: a name of RECOMPUTE */
    if (parts) j->config.grad_accum = parts;
    for (int level = RECOMPUTE_NONE; level <= RECOMPUTE_BLOCK; level++)
        if (!strcmp(v[9], memory_level_name((enum recompute)level))) j->config.recompute = (enum recompute)level;
    return STATUS_OK;
}

/* Each token has four equally likely successors, so the loss can fall to log 4. */
static enum status make_data(struct job *j, struct err *err)
{
    uint32_t vocab = j->config.model.vocab_size;
    size_t n = (size_t)WINDOWS_A_SEQUENCE * j->config.batch_size * j->config.model.block_size + 1;
    j->step = j->config.batch_size * j->config.grad_accum;
    j->tokens = mem_alloc(n, sizeof *j->tokens);
    j->counters = mem_alloc(j->step, sizeof *j->counters);
    if (!j->tokens || !j->counters || !vocab) return err_set(err, STATUS_NOMEM, "no memory for %zu tokens", n);
    for (size_t i = 1; i < n; i++)
        j->tokens[i] = (uint32_t)((5ULL * j->tokens[i - 1] + 1 + rng_u64(1, RNG_TEST, i) % 4) % vocab);
    j->shard = (struct token_shard){.tokens = (const uint8_t *)j->tokens, .n_tokens = n, .width = sizeof *j->tokens};
    j->data = (struct tokens){.shards = &j->shard, .n_shards = 1, .n_tokens = n};
    return STATUS_OK;
}

static enum status job_open(struct job *j, struct err *err)
{
    const struct model_family *family = j->config.family;
    layout_init(&j->layout);
    TRY(family->layout(&j->config.model, &j->layout, err));
    TRY(layout_split(&j->layout, 1));
    TRY(make_data(j, err));
    TRY(replica_create(&j->replica, &j->config, &j->layout, &j->data, err));
    float *theta = mem_alloc(j->layout.n_params, sizeof *theta);
    if (!theta) return err_set(err, STATUS_NOMEM, "no memory for the parameters");
    layout_fill(&j->layout, 0, 1, theta);
    enum status status = replica_set_params(j->replica, theta, err);
    mem_free(theta);
    return status;
}

static void job_close(struct job *j)
{
    replica_destroy(j->replica);
    layout_finish(&j->layout);
    mem_free(j->tokens);
    mem_free(j->counters);
}

/* Add a reported step to *seen and *sum; the first LOSSES_MAX losses go to losses[LOSSES_MAX]. */
static void note(struct step_result result, long *seen, double *sum, double *losses)
{
    if (!result.tokens) return;
    double loss = result.loss_sum / (double)result.tokens;
    if (*seen < LOSSES_MAX) losses[*seen] = loss;
    ++*seen;
    *sum += loss;
}

static enum status answer(struct job *j, long count, struct err *err)
{
    double sum = 0, losses[LOSSES_MAX];
    long seen = 0;
    struct step_result result;
    uint64_t start = clock_monotonic_us();
    for (long i = 0; i < count; i++) {
        for (uint32_t k = 0; k < j->step; k++) j->counters[k] = j->done++;
        TRY(replica_train_step(j->replica, j->counters, j->step, 3e-4, &result, err));
        note(result, &seen, &sum, losses);
    }
    TRY(replica_flush(j->replica, &result, err));
    note(result, &seen, &sum, losses);
    double seconds = (double)(clock_monotonic_us() - start) * 1e-6;
    double tokens = (double)count * j->step * j->config.model.block_size;
    printf("{\"tokens_per_s\": %.6g, \"loss\": %.7g, \"losses\": [", tokens / seconds, sum / (double)(seen ? seen : 1));
    for (long i = 0; i < seen && i < LOSSES_MAX; i++) printf("%s%.7g", i ? ", " : "", losses[i]);
    printf("]}\n");
    fflush(stdout);
    return STATUS_OK;
}

static enum status serve(struct job *j, struct device *dev, struct err *err)
{
    char line[64], name[BENCH_TEXT], note[BENCH_TEXT];
    uint64_t before = 0, after = 0, total = 0;
    struct step_result result;
    dev->ops->memory(dev, &before, &total);
    TRY(job_open(j, err));
    /* Libraries allocate their memory in the first step. The learning rate 0 keeps the parameters. */
    for (uint32_t k = 0; k < j->step; k++) j->counters[k] = k;
    TRY(replica_train_step(j->replica, j->counters, j->step, 0, &result, err));
    TRY(replica_flush(j->replica, &result, err));
    const struct memory_plan *plan = replica_memory(j->replica);
    struct device *at = replica_device(j->replica);
    at->ops->memory(at, &after, &total);
    printf("{\"device\": \"%s\", \"note\": \"%s\", \"params\": %llu, \"flops_per_token\": %.0f, \"step_tokens\": %zu, "
           "\"recompute\": \"%s\", \"planned_mb\": %.6g, \"taken_mb\": %.6g, \"used_gb\": %.6g}\n",
           bench_text(at->name, name), bench_text(at->note, note), (unsigned long long)j->layout.n_params,
           flops_per_token(&j->config.model), (size_t)j->step * j->config.model.block_size,
           memory_level_name((enum recompute)(RECOMPUTE_NONE + (int)plan->level)), (double)plan->total * 1e-6,
           (double)(before - after) * 1e-6, (double)(total - after) * 1e-9);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) TRY(answer(j, strtol(line, NULL, 10), err));
    return STATUS_OK;
}

enum status bench_train_steps(struct device *dev, const char *name, const char *precision, int n, char **v,
                              struct err *err)
{
    struct job j = {.done = 0};
    enum status status = parse(&j, name, precision, n, v, err);
    if (status == STATUS_OK) status = serve(&j, dev, err);
    job_close(&j);
    return status;
}
