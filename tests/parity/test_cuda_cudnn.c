/* Tests attention through the emulated cuDNN (tests/cuda/emulator/emulate_cudnn.c) against the CPU device on inputs
 * rounded to bf16: pointers into packed memory, workspace, parts of the batch, grouped key heads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "gpu/cuda/cudnn/cuda_cudnn.h"
#include "tests/cuda/emulator/graph_run.h"
#include "tests/lib/device/device_case.h"

static struct device *cpu;
static struct cuda_rt *rt;

/* Upload n random bf16 values and write them to rounded[n]; NULL: upload NaN. */
static void *upload_bf16(size_t n, float *rounded)
{
    uint16_t *half = mem_alloc(n, sizeof *half);
    void *p = cuda_rt_alloc(rt, n * sizeof *half);
    assert_true(half && p);
    for (size_t i = 0; i < n; i++) {
        half[i] = rounded ? graph_bf16(rounded[i]) : 0xffff;
        if (rounded) rounded[i] = graph_float(half[i]);
    }
    cuda_rt_copy(rt, p, half, n * sizeof *half, CUDA_UPLOAD);
    assert_int_equal(cuda_rt_sync(rt, NULL), STATUS_OK);
    mem_free(half);
    return p;
}

static void close_bf16(const char *what, void *p, const float *wanted, size_t n, double tol)
{
    uint16_t *half = mem_alloc(n, sizeof *half);
    float *got = mem_alloc(n, sizeof *got);
    double *want = case_widen(wanted, n);
    assert_true(half && got);
    cuda_rt_copy(rt, half, p, n * sizeof *half, CUDA_DOWNLOAD);
    assert_int_equal(cuda_rt_sync(rt, NULL), STATUS_OK);
    for (size_t i = 0; i < n; i++) got[i] = graph_float(half[i]);
    case_close(what, got, want, n, tol);
    mem_free(half);
    mem_free(got);
    mem_free(want);
    cuda_rt_release(rt, p);
}

static void close_lse(void *p, const float *wanted, size_t n)
{
    float *got = mem_alloc(n, sizeof *got);
    double *want = case_widen(wanted, n);
    assert_non_null(got);
    cuda_rt_copy(rt, got, p, n * sizeof *got, CUDA_DOWNLOAD);
    assert_int_equal(cuda_rt_sync(rt, NULL), STATUS_OK);
    case_close("lse", got, want, n, 3e-6);
    mem_free(got);
    mem_free(want);
    cuda_rt_release(rt, p);
}

struct wanted {
    float *qkv, *d_o, *o, *lse, *dqkv;
};

static void reference(const struct attn_shape *shape, const struct wanted *w)
{
    struct attn_plan *plan;
    assert_int_equal(cpu->ops->attn_plan(cpu, shape, &plan), STATUS_OK);
    cpu->ops->attn_fwd(cpu, plan, w->qkv, w->o, w->lse);
    cpu->ops->attn_bwd(cpu, plan, w->qkv, w->o, w->lse, w->d_o, w->dqkv);
    assert_int_equal(cpu->ops->sync(cpu, NULL), STATUS_OK);
    cpu->ops->plan_free(cpu, plan);
}

static void one(struct attn_shape shape, bool exact, size_t scratch_max, size_t parts)
{
    size_t kv = shape.kv_heads ? shape.kv_heads : shape.heads, n = shape.batch * shape.seq;
    size_t c = n * shape.heads * shape.head_dim, packed = n * (shape.heads + 2 * kv) * shape.head_dim;
    size_t stats = n * shape.heads;
    struct wanted w = {.qkv = case_normal(packed, 1, 1.3f),
                       .d_o = case_normal(c, 2, 1),
                       .o = case_poisoned(c),
                       .lse = case_poisoned(stats),
                       .dqkv = case_poisoned(packed)};
    void *qkv = upload_bf16(packed, w.qkv), *d_o = upload_bf16(c, w.d_o), *o = upload_bf16(c, NULL);
    void *o2 = upload_bf16(c, NULL), *dqkv = upload_bf16(packed, NULL), *lse = upload_bf16(2 * stats, NULL);
    struct cuda_cudnn *dnn;
    struct cuda_cudnn_attn *plan, *infer;
    struct err err = {0};
    char name[32];
    reference(&shape, &w);
    if (cuda_cudnn_open(rt, exact, scratch_max, &dnn, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (cuda_cudnn_attn_create(dnn, &shape, &plan, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(cuda_cudnn_attn_parts(plan), parts);
    if (scratch_max) assert_true(cuda_cudnn_attn_scratch(plan) <= scratch_max);
    assert_int_equal(cuda_cudnn_attn_bytes(dnn, &shape), cuda_cudnn_attn_scratch(plan)); /* the memory plan uses it */
    shape.inference = true;
    if (cuda_cudnn_attn_create(dnn, &shape, &infer, &err) != STATUS_OK) fail_msg("%s", err.msg);
    cuda_cudnn_attn_fwd(plan, qkv, o, lse);
    cuda_cudnn_attn_fwd(infer, qkv, o2, NULL);
    cuda_cudnn_attn_bwd(plan, qkv, o, lse, d_o, dqkv);
    if (cuda_rt_sync(rt, &err) != STATUS_OK) fail_msg("%s", err.msg);
    cuda_cudnn_attn_free(plan);
    cuda_cudnn_attn_free(infer);
    cuda_cudnn_close(dnn);
    close_bf16("o", o, w.o, c, 4e-3);
    close_bf16("o, inference", o2, w.o, c, 4e-3);
    close_bf16("dqkv", dqkv, w.dqkv, packed, 1e-2);
    close_lse(lse, w.lse, stats);
    cuda_rt_release(rt, qkv);
    cuda_rt_release(rt, d_o);
    float *all[] = {w.qkv, w.d_o, w.o, w.lse, w.dqkv};
    for (size_t i = 0; i < 5; i++) mem_free(all[i]);
}

static void test_attention(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        one((struct attn_shape){.batch = 2, .seq = 5, .heads = 3, .head_dim = 8}, exact, 0, 1);
        one((struct attn_shape){.batch = 3, .seq = 18, .heads = 2, .head_dim = 64}, exact, 0, 1);
        one((struct attn_shape){.batch = 2, .seq = 20, .heads = 4, .kv_heads = 2, .head_dim = 16}, exact, 0, 1);
    }
}

/* The planned workspace equals the library's on GPUs of other generations. */
static void test_generations(void **state)
{
    (void)state;
    for (int capability = 80; capability <= 120; capability += 20) {
        char number[16];
        snprintf(number, sizeof number, "%d", capability);
        setenv("ATOLL_EMULATED_CAPABILITY", number, 1);
        for (int exact = 0; exact < 2; exact++)
            one((struct attn_shape){.batch = 2, .seq = 20, .heads = 4, .kv_heads = 2, .head_dim = 16}, exact, 0, 1);
    }
    unsetenv("ATOLL_EMULATED_CAPABILITY");
}

static void test_parts(void **state)
{
    (void)state;
    const struct attn_shape plain = {.batch = 6, .seq = 12, .heads = 2, .head_dim = 16};
    const struct attn_shape shared = {.batch = 4, .seq = 8, .heads = 4, .kv_heads = 1, .head_dim = 8};
    one(plain, false, 5000, 3);
    one(plain, true, 70000, 3);
    one(shared, false, 3500, 4);
    one(shared, true, 140000, 2);
}

/* One sequence cannot be split: its workspace may take an eighth of a large GPU. Without a plan, no memory is planned.
 */
static void test_one_sequence(void **state)
{
    (void)state;
    static const struct {
        const char *memory; /* GiB */
        size_t seq;
        bool exact;
        size_t parts; /* 0: no plan */
    } cases[] = {{"7", 4096, true, 0},   {"10", 4096, true, 4},  {"141", 4096, true, 4},   {"10", 8192, true, 0},
                 {"141", 8192, true, 4}, {"7", 4096, false, 1},  {"7", 1 << 16, false, 0}, {"24", 1 << 16, false, 4},
                 {"141", 512, true, 1},  {"141", 2048, true, 2}, {"141", 1 << 16, true, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct attn_shape shape = {.batch = 4, .seq = cases[i].seq, .heads = 32, .kv_heads = 8, .head_dim = 128};
        struct cuda_cudnn *dnn;
        struct cuda_cudnn_attn *plan;
        struct err err = {0};
        char name[32], bytes[32];
        snprintf(bytes, sizeof bytes, "%lld", atoll(cases[i].memory) << 30);
        setenv("ATOLL_EMULATED_MEMORY", bytes, 1);
        assert_int_equal(cuda_cudnn_open(rt, cases[i].exact, 0, &dnn, name, sizeof name, &err), STATUS_OK);
        enum status status = cuda_cudnn_attn_create(dnn, &shape, &plan, &err);
        assert_int_equal(status, cases[i].parts ? STATUS_OK : STATUS_UNSUPPORTED);
        size_t planned = cuda_cudnn_attn_bytes(dnn, &shape);
        assert_int_equal(planned, cases[i].parts ? cuda_cudnn_attn_scratch(plan) : 0);
        if (cases[i].parts) assert_int_equal(cuda_cudnn_attn_parts(plan), cases[i].parts);
        if (cases[i].parts) cuda_cudnn_attn_free(plan);
        cuda_cudnn_close(dnn);
    }
    unsetenv("ATOLL_EMULATED_MEMORY");
}

static void test_refusals(void **state)
{
    (void)state;
    struct cuda_cudnn *dnn;
    struct cuda_cudnn_attn *plan;
    struct err err = {0};
    char name[32];
    enum cuda_attention wish;
    static const char *const words[] = {"plain", "cudnn", "exact"};
    assert_int_equal(cuda_cudnn_open(rt, false, 2000, &dnn, name, sizeof name, &err), STATUS_OK);
    struct attn_shape shape = {.batch = 2, .seq = 12, .heads = 2, .head_dim = 12};
    assert_int_equal(cuda_cudnn_attn_create(dnn, &shape, &plan, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "12"));
    shape.head_dim = 64;
    assert_int_equal(cuda_cudnn_attn_create(dnn, &shape, &plan, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "scratch"));
    shape.head_dim = 8;
    for (long nth = 1; nth < 8; nth++) {
        size_t live = mem_live_bytes();
        mem_fail_after(nth);
        enum status status = cuda_cudnn_attn_create(dnn, &shape, &plan, &err);
        mem_fail_after(0);
        if (status == STATUS_OK)
            cuda_cudnn_attn_free(plan);
        else
            assert_int_equal(status, STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), live);
    }
    cuda_cudnn_close(dnn);
    unsetenv("ATOLL_ATTENTION");
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_OK);
    assert_int_equal(wish, CUDA_ATTENTION_AUTO);
    for (int i = 0; i < 3; i++) {
        setenv("ATOLL_ATTENTION", words[i], 1);
        assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_OK);
        assert_int_equal(wish, i + 1);
    }
    setenv("ATOLL_ATTENTION", "flash", 1);
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_INVALID);
    setenv("ATOLL_ATTENTION", "own", 1); /* an earlier value */
    assert_int_equal(cuda_attention_wish(&wish, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "those kernels are gone: set it to exact"));
    unsetenv("ATOLL_ATTENTION");
    unsetenv("ATOLL_EMULATE_CUDNN");
    assert_int_equal(cuda_cudnn_open(rt, false, 0, &dnn, name, sizeof name, &err), STATUS_UNSUPPORTED);
    setenv("ATOLL_EMULATE_CUDNN", "1", 1);
}

static int open_all(void **state)
{
    struct err err = {0};
    char name[32];
    (void)state;
    setenv("ATOLL_EMULATE_CUDNN", "1", 1);
    return device_open("cpu", 1, &cpu, &err) != STATUS_OK || cuda_rt_open(0, &rt, name, sizeof name, &err) != STATUS_OK;
}

static int close_all(void **state)
{
    (void)state;
    cuda_rt_close(rt);
    device_close(cpu);
    return mem_live_bytes() != 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention), cmocka_unit_test(test_generations),
                                       cmocka_unit_test(test_parts), cmocka_unit_test(test_one_sequence),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
