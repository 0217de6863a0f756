/* Each call of CUDA's runtime fails once in a replica's life, on the whole plugin with stubs of the libraries
 * (cudart_stub.h): the device is dead from then on, or has no memory for what is made. It ends with a line that names
 * the device, or goes on; it never waits for what will not come, and leaves nothing behind. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/rng.h"
#include "tests/cuda/cudart_stub.h"
#include "tests/lib/emulated_plugin.h"
#include "worker/gpt2.h"
#include "worker/replica.h"

enum { N_TOKENS = 2001, BATCH = 2, STEPS = 2, HANGS_S = 60 };

static const struct model_config model = {.n_layer = 1, .n_head = 1, .n_embd = 8, .block_size = 6, .vocab_size = 32};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;

/* The plugin's, which has its own copies of what programs have. */
static struct cudart_stub *stub;
static size_t (*stub_left)(void), (*plugin_live)(void);
static void (*stub_heal)(void);

static struct err why;

struct life {
    const char *device;
    uint32_t ranks;
    cudaError_t code;
    const char *call; /* NULL: any of those of cudart_stub.h */
    unsigned stride;
};

static enum status train(struct replica *r, struct err *err)
{
    float values[2048];
    const float *params;
    struct step_result result;
    double loss;
    uint64_t tokens, counters[BATCH];
    assert_true(layout.n_params <= sizeof values / sizeof *values);
    layout_fill(&layout, 0, 9, values);
    TRY(replica_set_params(r, values, err));
    for (uint64_t s = 0; s < STEPS; s++) {
        for (uint64_t i = 0; i < BATCH; i++) counters[i] = s * BATCH + i;
        TRY(replica_train_step(r, counters, BATCH, 1e-3, &result, err));
    }
    TRY(replica_flush(r, &result, err));
    TRY(replica_get_params(r, &params, err));
    return replica_eval(r, &data, 0, 2, &loss, &tokens, err);
}

/* Its `nth` call fails. How it ended; *reached_p: there was such a call. */
static enum status live_once(const struct life *l, unsigned nth, bool *reached_p)
{
    struct replica_config config = {.family = &gpt2_family, .model = model, .device = l->device, .ranks = l->ranks,
                                    .threads = 1, .batch_size = BATCH, .grad_accum = 1, .seed = 5, .bf16 = nth % 2,
                                    .opt = {.kind = OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8,
                                            .grad_clip = 1}};
    struct replica *r = NULL;
    why = (struct err){0};
    stub_heal();
    stub->call = l->call;
    stub->code = l->code;
    if (l->call)
        stub->after = nth;
    else
        stub->any = nth;
    alarm(HANGS_S);
    enum status status = replica_create(&r, &config, &layout, &data, &why);
    if (status == STATUS_OK) status = train(r, &why);
    *reached_p = !stub->any && !stub->after;
    stub->any = stub->after = 0;
    replica_destroy(r);
    alarm(0);
    return status;
}

static void each_fails(const struct life *l, unsigned least)
{
    unsigned nth = 1, lives = 0, ended = 0;
    size_t live = mem_live_bytes(), left = stub_left();
    bool dead = l->code != cudaErrorMemoryAllocation;
    for (bool reached = true; reached; nth += l->stride, lives++) {
        enum status status = live_once(l, nth, &reached);
        const char *call = !reached ? "none" : l->call ? l->call : stub->failed_in;
        bool told = strstr(why.msg, "cuda:") || strstr(why.msg, "CUDA:") || (!dead && strstr(why.msg, "memory"));
        if (status != STATUS_OK && (!told || !reached)) fail_msg("call %u (%s): %s", nth, call, why.msg);
        if (mem_live_bytes() != live || plugin_live())
            fail_msg("call %u (%s): %zu and %zu bytes stay", nth, call, mem_live_bytes() - live, plugin_live());
        if (!dead && stub_left() != left) fail_msg("call %u (%s): %zu objects stay", nth, call, stub_left() - left);
        ended += status != STATUS_OK;
    }
    print_message("%s: %u of %u lives ended early\n", l->device, ended, lives);
    assert_true(ended > least && ended < lives);
}

static const char events[] = "cudaEventCreateWithFlags";

static void test_one_gpu(void **state)
{
    static const struct life dead = {"cuda:0", 1, cudaErrorIllegalAddress, NULL, 1};
    static const struct life no_memory = {"cuda:0", 1, cudaErrorMemoryAllocation, NULL, 1};
    static const struct life no_event = {"cuda:0", 1, cudaErrorMemoryAllocation, events, 1};
    (void)state;
    each_fails(&dead, 100);
    each_fails(&no_memory, 10);
    each_fails(&no_event, 3);
}

/* Each has an event for everything that may be under way, hundreds of them. */
static void test_two_gpus(void **state)
{
    static const struct life dead = {"cuda:0,1", 2, cudaErrorIllegalAddress, NULL, 3};
    static const struct life no_memory = {"cuda:0,1", 2, cudaErrorMemoryAllocation, NULL, 1};
    static const struct life no_event = {"cuda:0,1", 2, cudaErrorMemoryAllocation, events, 97};
    (void)state;
    if (access(getenv("ATOLL_NCCL_LIBRARY"), R_OK)) skip();
    each_fails(&dead, 100);
    each_fails(&no_memory, 40);
    each_fails(&no_event, 10);
}

static bool find(void *plugin, const char *name, void *out)
{
    void *found = dlsym(plugin, name);
    memcpy(out, &found, sizeof found);
    return found;
}

static void quiet(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level, (void)line;
}

static int set_up(void **state)
{
    (void)state;
    log_set_sink(quiet, NULL);
    setenv("ATOLL_NCCL_LIBRARY", beside_program("libnccl_stub.so"), 1);
    setenv("ATOLL_CUDA_PLUGIN", beside_program("atoll_cuda_stubbed.so"), 1);
    setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    setenv("ATOLL_STUB_GPUS", "2", 1);
    void *plugin = dlopen(getenv("ATOLL_CUDA_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    if (!plugin || !find(plugin, "cudart_stub", &stub) || !find(plugin, "cudart_stub_left", &stub_left) ||
        !find(plugin, "cudart_stub_heal", &stub_heal) || !find(plugin, "mem_live_bytes", &plugin_live))
        return -1;
    for (uint32_t i = 0; i < N_TOKENS; i++) bytes[2 * i] = (uint8_t)(rng_u64(1, RNG_TEST, i) % model.vocab_size);
    layout_init(&layout);
    return gpt2_layout(&model, &layout, NULL) == STATUS_OK && layout_split(&layout, 1) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    layout_finish(&layout);
    return mem_live_bytes() ? -1 : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_gpu),
        cmocka_unit_test(test_two_gpus),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
