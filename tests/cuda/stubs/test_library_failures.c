/* Tests that every call of cuBLASLt, cuDNN and NCCL may fail in a replica's life, on the whole plugin with stubs of the
 * libraries (stub_faults.h). If there is an alternative, the life continues with the right results; otherwise it ends
 * with a line that names device and library. It does not hang and leaves no object.
 * ATOLL_EVERY_CALL=1: fail all calls of each function, not only a few. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <cublasLt.h>

#include "tests/cuda/stubs/stubbed_life.h"
#include "tests/lib/device/emulated_plugin.h"

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
    if (stubbed.left() != left) return "objects of the runtime left";
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
    size_t left = stubbed.left();
    f->faults->call = call;
    f->faults->status = status;
    f->faults->after = nth;
    stubbed_live(&f->life, &end);
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
    stubbed_live(life, out);
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
    if (!stubbed_find(library, "cudnn_faults", &f.faults)) fail_msg("%s has no faults", library);
    undisturbed(&f.life, &without);
    for (int i = 0; i < 3; i++) {
        if (i == 1 && !getenv("ATOLL_EVERY_CALL")) continue; /* test_cuda_cudnn_rt covers these */
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
        stubbed_live(&f.life, &end);
        assert_int_equal(end.status, STATUS_OK);
        if (!strstr(end.note, "attention computes in plain loops")) fail_msg("\"%s\"", end.note);
    }
    setenv("ATOLL_ATTENTION", "plain", 1);
}

static void test_collectives(void **state)
{
    (void)state;
    static const int statuses[] = {NCCL_SYSTEM_ERROR, NCCL_REMOTE_ERROR, NCCL_IN_PROGRESS, 0};
    struct failures f = {.life = {.device = "cuda:0,1", .ranks = 2}, .whose = "NCCL", .statuses = statuses};
    const char *library = getenv("ATOLL_NCCL_LIBRARY");
    if (access(library, R_OK)) skip();
    if (!stubbed_find(library, "nccl_faults", &f.faults)) fail_msg("%s has no faults", library);
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

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_collectives),
    };
    return cmocka_run_group_tests(tests, stubbed_set_up, stubbed_tear_down);
}
