/* Tests that every call of CUDA's runtime, cuBLASLt, cuDNN and NCCL may fail in a replica's life, on the whole plugin
 * with stubs of the libraries (stub_faults.h). If there is an alternative, the life continues with the right results;
 * otherwise it ends with a line that names device and library. It does not hang and leaves no object.
 * ATOLL_EVERY_CALL=1: fail all calls of each function of a library, not only a few. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cuda/rt/cuda_rt.h"
#include "tests/cuda/stubs/stub_faults.h"
#include "tests/lib/device/emulated_plugin.h"
#include "worker/model/gpt2.h"
#include "worker/replica/replica.h"

/* ---- the life of a replica --------------------------------------------------------------------------------------- */

enum { LIFE_STEPS = 2, LIFE_PARAMS = 2048, N_TOKENS = 2001, BATCH = 2, HANGS_S = 60 };

/* Symbols of the plugin, which has its own copies of the program's. */
static struct {
    struct stub_faults *cudart, *cublaslt;
    void (*heal)(void);
    size_t (*live)(void); /* live bytes of memory */
} stubbed;

struct life {
    const char *device;
    uint32_t ranks;
    bool bf16;
    enum optimizer optimizer;
    bool gradients; /* compute gradients instead of steps */
};

struct life_end {
    enum status status;
    struct err why;
    char note[200];                                   /* note of the device */
    double losses[LIFE_STEPS + 1], norms[LIFE_STEPS]; /* per step, and at the end */
    float params[LIFE_PARAMS];                        /* parameters, or the last gradient */
    size_t stays;                                     /* bytes not freed */
};

static const struct model_config model = {.n_layer = 1, .n_head = 1, .n_embd = 8, .block_size = 6, .vocab_size = 32};
static uint8_t bytes[N_TOKENS * 2];
static struct token_shard shard = {.tokens = bytes, .n_tokens = N_TOKENS, .width = 2};
static const struct tokens data = {.shards = &shard, .n_shards = 1, .n_tokens = N_TOKENS};
static struct layout layout;

/* Find a symbol in a stub library, or in the plugin (NULL). Returns false if it is missing. */
static bool find(const char *library, const char *name, void *out)
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

static int set_up(void **state)
{
    (void)state;
    log_set_sink(quiet, NULL);
    setenv("ATOLL_NCCL_LIBRARY", beside_program("libnccl_stub.so"), 1);
    setenv("ATOLL_CUDA_PLUGIN", beside_program("atoll_cuda_stubbed.so"), 0);
    setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    setenv("ATOLL_ATTENTION", "plain", 1);
    setenv("ATOLL_STUB_GPUS", "2", 1);
    if (!find(NULL, "cudart_faults", &stubbed.cudart) || !find(NULL, "cublaslt_faults", &stubbed.cublaslt) ||
        !find(NULL, "cudart_stub_heal", &stubbed.heal) || !find(NULL, "mem_live_bytes", &stubbed.live))
        return -1;
    for (uint32_t i = 0; i < N_TOKENS; i++) bytes[2 * i] = (uint8_t)(rng_u64(1, RNG_TEST, i) % model.vocab_size);
    layout_init(&layout);
    if (gpt2_layout(&model, &layout, NULL) != STATUS_OK || layout_split(&layout, 1) != STATUS_OK) return -1;
    return layout.n_params <= LIFE_PARAMS ? 0 : -1;
}

static int tear_down(void **state)
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

/* Create a replica, train for a few steps, read its state, destroy it. If it hangs, the process ends. */
static void live(const struct life *life, struct life_end *end)
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
    if (end->status == STATUS_OK) {
        snprintf(end->note, sizeof end->note, "%s", replica_note(r));
        end->status = train(r, life->gradients, end);
    }
    replica_destroy(r);
    alarm(0);
    end->stays = mem_live_bytes() + stubbed.live() - before;
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Values from nccl.h and cudnn_graph.h, which a build may lack. */
enum { NCCL_SYSTEM_ERROR = 2, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 };
enum { CUDNN_BAD_PARAM = 2000, CUDNN_NOT_SUPPORTED = 3000, CUDNN_NO_HOST_MEMORY = 4003, CUDNN_EXECUTION_FAILED = 5000 };

/* Lives without a failure, with and without use of the library, and the current life. */
static struct life_end calm, without, end;

struct failures {
    struct life life;
    struct stub_faults *faults;
    const char *whose;   /* library name in error lines */
    const int *statuses; /* statuses of the failed calls, ended by 0 */
    unsigned most;       /* number of calls that fail per function */
    const char *note;    /* note of the device if it works without the library; NULL: no note */
    double near;         /* relative tolerance of losses and norms; 0: equal bits, also of parameters */
};

static bool alike(const struct life_end *a, const struct life_end *b, double near)
{
    if (near == 0)
        return !memcmp(a->params, b->params, sizeof a->params) && !memcmp(a->losses, b->losses, sizeof a->losses) &&
               !memcmp(a->norms, b->norms, sizeof a->norms);
    bool all = true;
    for (int s = 0; s <= LIFE_STEPS; s++) all = all && fabs(a->losses[s] - b->losses[s]) <= near * fabs(b->losses[s]);
    for (int s = 0; s < LIFE_STEPS; s++) all = all && fabs(a->norms[s] - b->norms[s]) <= near * fabs(b->norms[s]);
    return all;
}

static bool right_numbers(const struct failures *f)
{
    if (!f->note) return alike(&end, &calm, f->near) || alike(&end, &without, f->near);
    return end.note[0] ? strstr(end.note, f->note) && alike(&end, &without, 0) : alike(&end, &calm, 0);
}

static const char *wrong_end(const struct failures *f, size_t left)
{
    const char *line = end.why.msg;
    if (end.stays) return "memory left";
    if (stubbed.cudart->left != left) return "objects of the runtime left";
    if (stubbed.cublaslt->left || f->faults->left) return "objects of the library left";
    if (end.status == STATUS_OK) return right_numbers(f) ? NULL : "other numbers";
    if (f->faults->after) return "ended with an error without a failed call";
    if (strchr(line, '\n')) return "more than one line";
    bool device = strstr(line, "cuda:") || strstr(line, "GPUs of this worker");
    return device && strstr(line, f->whose) ? NULL : "the line lacks the device or the library";
}

/* Run a life whose nth call of `call` fails. Returns whether that call occurred. */
static bool live_once(const struct failures *f, const char *call, int status, unsigned long nth)
{
    size_t left = stubbed.cudart->left;
    f->faults->call = call;
    f->faults->status = status;
    f->faults->after = nth;
    live(&f->life, &end);
    const char *wrong = wrong_end(f, left);
    if (wrong) fail_msg("%s, call %lu, status %d: %s: %s (%s)", call, nth, status, wrong, end.why.msg, end.note);
    f->faults->after = 0;
    return end.status == STATUS_OK;
}

/* Only ncclCommGetAsyncError can report ncclInProgress as a failure. */
static bool fits(const char *call, int status)
{
    return status != NCCL_IN_PROGRESS || !strcmp(call, "ncclCommGetAsyncError");
}

static void call_fails(const struct failures *f, const char *call, unsigned long n)
{
    bool every = getenv("ATOLL_EVERY_CALL");
    unsigned long most = every || n < f->most ? n : f->most;
    unsigned lives = 0, ended = 0, statuses = 0;
    while (f->statuses[statuses] && fits(call, f->statuses[statuses])) statuses++;
    for (unsigned long j = 0; j < most; j++)
        for (unsigned s = 0; s < statuses; s++) {
            if (!every && s != j % statuses) continue;
            ended += !live_once(f, call, f->statuses[s], most > 1 ? 1 + j * (n - 1) / (most - 1) : 1);
            lives++;
        }
    print_message("%s %s: %lu calls, %u of %u lives ended with an error\n", f->life.device, call, n, ended, lives);
}

/* Fail every function that a life without a failure calls. */
static void each_fails(const struct failures *f)
{
    memset(f->faults->seen, 0, sizeof f->faults->seen);
    assert_true(live_once(f, "none", 1, 1));
    struct stub_faults calls = *f->faults;
    for (int i = 0; i < STUB_CALLS && calls.seen[i].call; i++) call_fails(f, calls.seen[i].call, calls.seen[i].n);
}

static void undisturbed(const struct life *life, struct life_end *out)
{
    live(life, out);
    if (out->status != STATUS_OK) fail_msg("%s", out->why.msg);
}

/* After a refused algorithm the next proposal is used; without a product with the GELU's derivative, a kernel. */
static void test_products(void **state)
{
    (void)state;
    static const int statuses[] = {CUBLAS_STATUS_NOT_SUPPORTED, CUBLAS_STATUS_ALLOC_FAILED,
                                   CUBLAS_STATUS_EXECUTION_FAILED, 0};
    struct failures f = {.life = {.device = "cuda:0", .ranks = 1, .optimizer = OPTIMIZER_MUON},
                         .faults = stubbed.cublaslt,
                         .whose = "cuBLASLt",
                         .statuses = statuses,
                         .most = 2};
    undisturbed(&f.life, &calm);
    undisturbed(&f.life, &without);
    assert_true(alike(&calm, &without, 0));
    each_fails(&f);
    f.life.bf16 = true;
    f.near = 2e-3; /* rounding between a product and a separate kernel */
    undisturbed(&f.life, &calm);
    without = calm;
    each_fails(&f);
}

/* The choice of an algorithm by timing leaves nothing, whichever call fails. */
static void test_timing(void **state)
{
    (void)state;
    __typeof__(cuda_rt_open) *begin = NULL;
    __typeof__(cuda_rt_gemm_create) *create = NULL;
    __typeof__(cuda_rt_gemm_free) *destroy = NULL;
    __typeof__(cuda_rt_close) *finish = NULL;
    const struct cuda_gemm_shape shape = {.m = 1, .n = 4, .k = 1 << 20, .lda = 1 << 20, .ldb = 4, .ldc = 4};
    assert_true(find(NULL, "cuda_rt_open", &begin) && find(NULL, "cuda_rt_gemm_create", &create) &&
                find(NULL, "cuda_rt_gemm_free", &destroy) && find(NULL, "cuda_rt_close", &finish));
    for (int which = 0; which < 2; which++) {
        struct stub_faults *f = which ? stubbed.cublaslt : stubbed.cudart;
        size_t left = stubbed.cudart->left, bytes_before = stubbed.live();
        unsigned nth = 1;
        for (bool reached = true; reached; nth++) {
            struct cuda_rt *rt = NULL;
            struct cuda_gemm *g = NULL;
            char name[64];
            stubbed.heal();
            f->call = NULL;
            f->status = which ? (int)CUBLAS_STATUS_EXECUTION_FAILED : (int)cudaErrorIllegalAddress;
            f->after = nth;
            alarm(HANGS_S);
            if (begin(0, &rt, name, sizeof name, &end.why) == STATUS_OK && create(rt, &shape, &g) == STATUS_OK)
                destroy(g);
            finish(rt);
            alarm(0);
            reached = !f->after;
            f->after = 0;
            if (stubbed.live() != bytes_before || stubbed.cudart->left != left || stubbed.cublaslt->left)
                fail_msg("call %u (%s): memory or objects left", nth, f->failed_in);
        }
        print_message("timing: %u calls\n", nth);
        assert_true(nth > 60);
    }
}

/* If cuDNN has no plan, Atoll's kernels run, with a note. If cuDNN is required, this is an error. */
static void test_attention(void **state)
{
    (void)state;
    static const char *const wishes[] = {"", "exact", "cudnn"};
    static const int statuses[] = {CUDNN_NOT_SUPPORTED, CUDNN_NO_HOST_MEMORY, CUDNN_EXECUTION_FAILED, CUDNN_BAD_PARAM,
                                   0};
    struct failures f = {.life = {.device = "cuda:0", .ranks = 1, .bf16 = true, .optimizer = OPTIMIZER_ADAMW},
                         .whose = "cuDNN",
                         .statuses = statuses,
                         .most = 3,
                         .note = "attention computes in plain loops"};
    const char *library = beside_program("libcudnn_stub.so");
    if (access(library, R_OK)) skip();
    setenv("ATOLL_CUDNN_LIBRARY", library, 1);
    if (!find(library, "cudnn_faults", &f.faults)) fail_msg("%s has no faults", library);
    undisturbed(&f.life, &without);
    for (int i = 0; i < 3; i++) {
        setenv("ATOLL_ATTENTION", wishes[i], 1);
        undisturbed(&f.life, &calm);
        assert_false(alike(&calm, &without, 0));
        if (i == 2) f.note = "no note: cuDNN is required";
        f.most = i ? 2 : 3;
        each_fails(&f);
    }
    setenv("ATOLL_ATTENTION", "", 1);
    if (!access(getenv("ATOLL_NCCL_LIBRARY"), R_OK)) { /* only the second of two GPUs fails: the note appears, too */
        f.faults->call = "cudnnCreate";
        f.faults->after = 2;
        f.life.device = "cuda:0,1";
        f.life.ranks = 2;
        live(&f.life, &end);
        assert_int_equal(end.status, STATUS_OK);
        if (!strstr(end.note, "attention computes in plain loops")) fail_msg("\"%s\"", end.note);
    }
    setenv("ATOLL_ATTENTION", "plain", 1);
}

/* Versions of cuDNN that compute wrong numbers are refused; those before 9.16 only for sequences that are no multiple
 * of 128, like those of this life. */
static void test_versions(void **state)
{
    (void)state;
    static const struct {
        const char *version, *line; /* NULL: it is used */
    } cases[] = {{"90501", "is version 9.5: cuDNN 9.6 or newer is needed"},
                 {"91001", "cuDNN 9.10.1 computes attention wrongly: install 9.10.2 or newer"},
                 {"91002", "cuDNN 9.10 computes wrong gradients for a sequence length that is no multiple of 128"},
                 {"91500", "cuDNN 9.15 computes wrong gradients for a sequence length that is no multiple of 128"},
                 {"91600", NULL}};
    const struct life life = {.device = "cuda:0", .ranks = 1, .bf16 = true, .optimizer = OPTIMIZER_ADAMW};
    const char *library = beside_program("libcudnn_stub.so");
    if (access(library, R_OK)) skip();
    setenv("ATOLL_CUDNN_LIBRARY", library, 1);
    setenv("ATOLL_ATTENTION", "cudnn", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("ATOLL_STUB_CUDNN_VERSION", cases[i].version, 1);
        live(&life, &end);
        bool right = cases[i].line ? end.status == STATUS_UNSUPPORTED && strstr(end.why.msg, cases[i].line)
                                   : end.status == STATUS_OK;
        if (!right) fail_msg("%s: %s", cases[i].version, end.why.msg);
    }
    unsetenv("ATOLL_STUB_CUDNN_VERSION");
    setenv("ATOLL_ATTENTION", "plain", 1);
}

static void test_collectives(void **state)
{
    (void)state;
    static const int statuses[] = {NCCL_SYSTEM_ERROR, NCCL_REMOTE_ERROR, NCCL_IN_PROGRESS, 0};
    struct failures f = {.life = {.device = "cuda:0,1", .ranks = 2}, .whose = "NCCL", .statuses = statuses};
    const char *library = getenv("ATOLL_NCCL_LIBRARY");
    if (access(library, R_OK)) skip();
    if (!find(library, "nccl_faults", &f.faults)) fail_msg("%s has no faults", library);
    for (int i = 0; i < 3; i++) { /* each mode uses other collectives */
        f.life.optimizer = i ? OPTIMIZER_MUON : OPTIMIZER_ADAMW;
        f.life.gradients = i == 2;
        f.most = i == 1 ? 3 : 2;
        undisturbed(&f.life, &calm);
        without = calm;
        each_fails(&f);
    }
    f.life.gradients = false;
    setenv("ATOLL_STUB_NCCL_REFUSE", "1:3", 1); /* aborts all ranks */
    for (unsigned long nth = 1; nth < 3; nth++) assert_false(live_once(&f, "ncclCommAbort", NCCL_SYSTEM_ERROR, nth));
    unsetenv("ATOLL_STUB_NCCL_REFUSE");
}

/* ---- CUDA's runtime ---------------------------------------------------------------------------------------------- */

/* Fail every `stride`th call, each in a life of its own: of all calls (NULL, see cudart_stub.h), or of one function.
 * With any code but lack of memory the device is dead from then on. More than `least` lives end with an error. */
static void runtime_fails(struct life life, cudaError_t code, const char *call, unsigned stride, unsigned least)
{
    struct stub_faults *f = stubbed.cudart;
    unsigned nth = 1, lives = 0, ended = 0;
    size_t left = f->left;
    for (bool reached = true; reached; nth += stride, lives++) {
        life.bf16 = nth % 2;
        f->call = call;
        f->status = (int)code;
        f->after = nth;
        live(&life, &end);
        reached = !f->after;
        f->after = 0;
        const char *line = end.why.msg, *in = reached ? f->failed_in : "none";
        bool no_memory = code == cudaErrorMemoryAllocation && strstr(line, "memory");
        bool is_named = strstr(line, "cuda:") || strstr(line, "CUDA:") || no_memory;
        if (end.status != STATUS_OK && (!is_named || !reached)) fail_msg("call %u (%s): %s", nth, in, line);
        if (end.stays || f->left != left || stubbed.cublaslt->left)
            fail_msg("call %u (%s): %zu bytes, %zu objects, %zu objects of cuBLASLt left", nth, in, end.stays,
                     f->left - left, stubbed.cublaslt->left);
        ended += end.status != STATUS_OK;
    }
    print_message("%s: %u of %u lives ended with an error\n", life.device, ended, lives);
    assert_true(ended > least && ended < lives);
}

/* Each GPU has hundreds of events, one per operation that may be in flight. */
static void test_runtime(void **state)
{
    (void)state;
    static const char events[] = "cudaEventCreateWithFlags";
    const struct life one = {.device = "cuda:0", .ranks = 1, .optimizer = OPTIMIZER_ADAMW};
    const struct life two = {.device = "cuda:0,1", .ranks = 2, .optimizer = OPTIMIZER_ADAMW};
    runtime_fails(one, cudaErrorIllegalAddress, NULL, 1, 100);
    runtime_fails(one, cudaErrorMemoryAllocation, NULL, 1, 10);
    runtime_fails(one, cudaErrorMemoryAllocation, events, 1, 3);
    if (access(getenv("ATOLL_NCCL_LIBRARY"), R_OK)) return;
    runtime_fails(two, cudaErrorIllegalAddress, NULL, 4, 80);
    runtime_fails(two, cudaErrorMemoryAllocation, NULL, 1, 40);
    runtime_fails(two, cudaErrorMemoryAllocation, events, 97, 10);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_timing),      cmocka_unit_test(test_products),
                                       cmocka_unit_test(test_attention),   cmocka_unit_test(test_versions),
                                       cmocka_unit_test(test_collectives), cmocka_unit_test(test_runtime)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
