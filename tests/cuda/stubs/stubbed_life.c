#include "tests/cuda/stubs/stubbed_life.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/lib/device/emulated_plugin.h"
#include "worker/model/gpt2.h"
#include "worker/replica/replica.h"

enum { N_TOKENS = 2001, BATCH = 2, HANGS_S = 60 };

static const struct model_config model = {.n_layer = 1, .n_head = 1, .n_embd = 8, .block_size = 6, .vocab_size = 32};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;

struct stubbed_plugin stubbed;

bool stubbed_find(const char *library, const char *name, void *out)
{
    void *object = dlopen(library ? library : getenv("ATOLL_CUDA_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    void *found = object ? dlsym(object, name) : NULL;
    memcpy(out, &found, sizeof found);
    return found;
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

int stubbed_set_up(void **state)
{
    (void)state;
    log_set_sink(quiet, NULL);
    setenv("ATOLL_NCCL_LIBRARY", beside_program("libnccl_stub.so"), 1);
    setenv("ATOLL_CUDA_PLUGIN", beside_program("atoll_cuda_stubbed.so"),
           0); /* the environment may name another plugin */
    setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    setenv("ATOLL_ATTENTION", "plain", 1);
    setenv("ATOLL_STUB_GPUS", "2", 1);
    if (!stubbed_find(NULL, "cudart_stub", &stubbed.cudart) || !stubbed_find(NULL, "cudart_stub_left", &stubbed.left) ||
        !stubbed_find(NULL, "cudart_stub_heal", &stubbed.heal) ||
        !stubbed_find(NULL, "mem_live_bytes", &stubbed.live) ||
        !stubbed_find(NULL, "cublaslt_faults", &stubbed.cublaslt))
        return -1;
    for (uint32_t i = 0; i < N_TOKENS; i++) bytes[2 * i] = (uint8_t)(rng_u64(1, RNG_TEST, i) % model.vocab_size);
    layout_init(&layout);
    if (gpt2_layout(&model, &layout, NULL) != STATUS_OK || layout_split(&layout, 1) != STATUS_OK) return -1;
    return layout.n_params <= LIFE_PARAMS ? 0 : -1;
}

int stubbed_tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

static void note_step(const struct step_result *result, uint64_t step, struct life_end *end)
{
    if (!result->tokens) return;
    end->losses[step] = result->loss_sum / (double)result->tokens;
    end->norms[step] = result->grad_norm;
}

static enum status train(struct replica *r, bool gradients, struct life_end *end)
{
    float values[LIFE_PARAMS];
    const float *params = NULL;
    struct step_result result;
    uint64_t tokens, counters[BATCH];
    layout_fill(&layout, 0, 9, values);
    TRY(replica_set_params(r, values, &end->why));
    for (uint64_t s = 0; s < LIFE_STEPS; s++) {
        for (uint64_t i = 0; i < BATCH; i++) counters[i] = s * BATCH + i;
        if (gradients)
            TRY(replica_gradient(r, counters, BATCH, &params, &result, &end->why));
        else
            TRY(replica_train_step(r, counters, BATCH, 1e-3, &result, &end->why));
        note_step(&result, result.late ? s - 1 : s, end);
    }
    if (!gradients) {
        TRY(replica_flush(r, &result, &end->why));
        note_step(&result, LIFE_STEPS - 1, end);
        TRY(replica_get_params(r, &params, &end->why));
    }
    memcpy(end->params, params, layout.n_params * sizeof *params);
    return replica_eval(r, &data, 0, 2, &end->losses[LIFE_STEPS], &tokens, NULL, &end->why);
}

void stubbed_live(const struct life *life, struct life_end *end)
{
    struct replica_config config = {.family = &gpt2_family,
                                    .model = model,
                                    .device = life->device,
                                    .ranks = life->ranks,
                                    .threads = 1,
                                    .batch_size = BATCH,
                                    .grad_accum = 1,
                                    .seed = 5,
                                    .bf16 = life->bf16,
                                    .gradients = life->gradients,
                                    .opt = {.kind = life->optimizer,
                                            .beta1 = 0.9,
                                            .beta2 = 0.95,
                                            .eps = 1e-8,
                                            .grad_clip = 1,
                                            .muon_momentum = 0.95,
                                            .muon_steps = 2,
                                            .hidden_blocks = gpt2_hidden_blocks}};
    struct replica *r = NULL;
    size_t before = mem_live_bytes() + stubbed.live();
    *end = (struct life_end){0};
    stubbed.heal();
    alarm(HANGS_S);
    end->status = replica_create(&r, &config, &layout, &data, &end->why);
    end->created = end->status == STATUS_OK;
    if (end->created) snprintf(end->note, sizeof end->note, "%s", replica_note(r));
    if (end->created) end->status = train(r, life->gradients, end);
    replica_destroy(r);
    alarm(0);
    end->stays = mem_live_bytes() + stubbed.live() - before;
}
