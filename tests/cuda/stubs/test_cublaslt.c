/* Tests gpu/cuda/rt/cuda_gemm.c and cuda_gemm_time.c with the real descriptors of cuBLASLt and no GPU
 * (cublaslt_stub.h): the requested product is the one that cuda_rt.h specifies; the fastest algorithm is selected and
 * cached. */
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

#include "common/base/mem.h"
#include "gpu/cuda/rt/cuda_gemm_impl.h"
#include "gpu/cuda/rt/cuda_rt_impl.h"
#include "tests/cuda/stubs/cublaslt_stub.h"
#include "tests/cuda/stubs/cudart_stub.h"

static struct cuda_rt *rt;
static char cache[] = "/tmp/atoll_cublaslt_XXXXXX";

/* Simulate a start of the program with the current cache. */
static void start(void)
{
    char name[64];
    struct err err = {.code = STATUS_OK};
    cuda_rt_close(rt);
    rt = NULL;
    stub = (struct stub){.idle = false};
    if (cuda_rt_open(0, &rt, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void settle(void)
{
    struct err err = {.code = STATUS_OK};
    if (cuda_rt_sync(rt, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static int set_up(void **state)
{
    (void)state;
    int fd = mkstemp(cache);
    if (fd < 0) return -1;
    (void)close(fd);
    (void)setenv("ATOLL_ALGO_CACHE", cache, 1);
    (void)unsetenv("ATOLL_ALGO_TIMING");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    cuda_rt_close(rt);
    return unlink(cache) || mem_live_bytes() || cudart_stub_left() || cublaslt_faults.left;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Allocate n different values on the device; the host can read them. */
static void *numbers(size_t n, bool bf16, unsigned seed)
{
    void *p = cuda_rt_alloc(rt, n * sizeof(float));
    assert_non_null(p);
    settle();
    for (size_t i = 0; i < n; i++) {
        float x = (float)((i * 2654435761u + seed * 40503u) % 1009) / 504 - 1;
        if (bf16)
            ((uint16_t *)p)[i] = stub_bf16_of(x);
        else
            ((float *)p)[i] = x;
    }
    return p;
}

static double at(const void *p, size_t i, bool bf16)
{
    return bf16 ? (double)stub_bf16_value(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static double dgelu_at(double z)
{
    double h = 1e-5, y[2];
    for (int i = 0; i < 2; i++) {
        double x = i ? z + h : z - h;
        y[i] = 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    }
    return (y[1] - y[0]) / (2 * h);
}

static double sum_of(const struct cuda_gemm_shape *s, const struct cuda_gemm_call *call, size_t i, size_t j)
{
    double sum = 0;
    for (size_t k = 0; k < s->k; k++)
        sum += at(call->a, s->a_trans ? k * s->lda + i : i * s->lda + k, s->bf16) *
               at(call->b, s->b_trans ? j * s->ldb + k : k * s->ldb + j, s->bf16);
    return sum;
}

/* Check one shape with one epilogue. Every leading dimension is longer than its rows. later: offset of the bias from an
 * alignment of 16 bytes, in elements. */
static void product_one(struct cuda_gemm_shape s, bool accumulate, size_t later)
{
    struct cuda_gemm *g = NULL;
    start();
    s.m = 9, s.n = 24, s.k = 17;
    s.lda = s.a_trans ? 16 : 32, s.ldb = s.b_trans ? 32 : 40, s.ldc = 48;
    void *a = numbers(32 * s.lda, s.bf16, 1), *b = numbers(32 * s.ldb, s.bf16, 2);
    void *out = numbers(s.m * s.ldc, s.bf16_out, 3), *had = numbers(s.m * s.ldc, s.bf16_out, 3);
    void *aux = numbers(s.m * s.ldc, s.bf16_out, 4), *biases = numbers(s.n + later, s.bf16_out, 5);
    const char *bias = (const char *)biases + later * gemm_number_bytes(s.bf16_out);
    struct cuda_gemm_call call = {.a = a, .b = b, .c = accumulate ? out : NULL, .out = out, .bias = bias, .aux = aux};
    assert_int_equal(cuda_rt_gemm_create(rt, &s, &g), STATUS_OK);
    cuda_rt_gemm(rt, g, &call);
    settle();
    for (size_t i = 0; i < s.m; i++)
        for (size_t j = 0; j < s.ldc; j++) {
            double want = j < s.n ? sum_of(&s, &call, i, j) : at(had, i * s.ldc + j, s.bf16_out);
            if (j < s.n && accumulate) want += at(had, i * s.ldc + j, s.bf16_out);
            if (j < s.n && s.bias) want += at(bias, j, s.bf16_out);
            if (j < s.n && s.dgelu) want *= dgelu_at(at(aux, i * s.ldc + j, s.bf16_out));
            double got = at(out, i * s.ldc + j, s.bf16_out);
            if (!(fabs(got - want) <= (s.bf16_out ? 4e-3 : 1e-5) * (1 + fabs(want))))
                fail_msg("%zu,%zu is %g, expected %g", i, j, got, want);
        }
    bool rounds = stub.schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE; /* split-K reduction in bf16 */
    if (s.bf16_out && rounds) fail_msg("the proposal allows a split-K reduction in bf16");
    if (stub.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE)
        fail_msg("the proposal allows a split-K reduction in any order");
    if (!(stub.schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) fail_msg("the proposal does not allow split-K");
    cuda_rt_gemm_free(g);
    void *all[] = {a, b, out, had, aux, biases};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda_rt_release(rt, all[i]);
}

static void test_products(void **state)
{
    (void)state;
    for (int trans = 0; trans < 4; trans++) {
        struct cuda_gemm_shape s = {.a_trans = trans & 1, .b_trans = trans & 2, .bf16 = true};
        product_one(s, true, 0);
        s = (struct cuda_gemm_shape){.a_trans = trans & 1, .b_trans = trans & 2, .bf16 = true, .bf16_out = true};
        product_one(s, false, 0);
        s.bias = true;
        product_one(s, false, 0);
        product_one(s, false, 1);
        product_one(s, false, 8); /* aligned to 16 bytes and not more */
        s.bias = false;
        s.dgelu = true;
        product_one(s, false, 0);
        s = (struct cuda_gemm_shape){.a_trans = trans & 1, .b_trans = trans & 2, .bias = true};
        product_one(s, true, 0);
        product_one(s, true, 3);
        product_one(s, true, 4);
    }
}

/* --- selection of the algorithm ----------------------------------------------------------------------------------- */

static const struct cuda_gemm_shape with_dgelu = {.m = 1024,
                                                  .n = 512,
                                                  .k = 128,
                                                  .lda = 128,
                                                  .ldb = 128,
                                                  .b_trans = true,
                                                  .ldc = 512,
                                                  .bf16 = true,
                                                  .bf16_out = true,
                                                  .dgelu = true};
static const struct cuda_gemm_shape of_weights = {
    .m = 512, .n = 128, .k = 1024, .lda = 512, .a_trans = true, .ldb = 128, .ldc = 128, .bf16 = true};

/* Create a product. Returns the number of its algorithm (0: the fastest); *timed: products were run. */
static uint64_t chosen(const struct cuda_gemm_shape *shape, bool *timed)
{
    struct cuda_gemm *g = NULL;
    size_t before = stub.products;
    assert_int_equal(cuda_rt_gemm_create(rt, shape, &g), STATUS_OK);
    *timed = stub.products > before;
    settle();
    uint64_t algorithm = g->algo[GEMM_VECTOR].data[0];
    cuda_rt_gemm_free(g);
    return algorithm;
}

static void forget(void)
{
    assert_int_equal(truncate(cache, 0), 0);
    start();
    stub.idle = true;
}

static void check_fastest(const struct cuda_gemm_shape *shape)
{
    bool timed;
    forget();
    assert_int_equal(chosen(shape, &timed), 0);
    assert_true(timed);
    assert_int_equal(stub.alike, 0); /* timed on varied values, like those of a model */
    start();
    assert_int_equal(chosen(shape, &timed), 0);
    assert_false(timed);
}

static void test_fastest(void **state)
{
    (void)state;
    bool timed;
    check_fastest(&with_dgelu);
    check_fastest(&of_weights);
    forget();
    (void)setenv("ATOLL_ALGO_TIMING", "off", 1);
    assert_int_equal(chosen(&with_dgelu, &timed), STUB_ALGORITHMS - 1);
    assert_false(timed);
    (void)unsetenv("ATOLL_ALGO_TIMING");
}

/* Values of ATOLL_ALGO_TIMING; with another value, opening a device fails. */
static void test_timing_words(void **state)
{
    (void)state;
    static const char *const words[] = {"on", "", "off", "of", "OFF", "0"};
    for (int i = 0; i < 6; i++) {
        bool timing;
        struct err err = {.code = STATUS_OK};
        (void)setenv("ATOLL_ALGO_TIMING", words[i], 1);
        assert_int_equal(cuda_gemm_timing(&timing, &err), i < 3 ? STATUS_OK : STATUS_INVALID);
        if (i < 3)
            assert_int_equal(timing, i < 2);
        else
            assert_non_null(strstr(err.msg, "set it to on or off"));
    }
    (void)unsetenv("ATOLL_ALGO_TIMING");
}

/* The library has no product, or rows of a product with dgelu are not aligned. */
static void test_none(void **state)
{
    (void)state;
    struct cuda_gemm_shape odd = with_dgelu;
    odd.ldc = 516;
    struct cuda_gemm_shape biased = {.m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .bias = true};
    struct cuda_gemm *none = NULL;
    forget();
    assert_int_equal(cuda_rt_gemm_create(rt, &odd, &none), STATUS_UNSUPPORTED);
    stub.unknown = CUBLASLT_EPILOGUE_DGELU;
    assert_int_equal(cuda_rt_gemm_create(rt, &with_dgelu, &none), STATUS_UNSUPPORTED);
    stub.unknown = CUBLASLT_EPILOGUE_BIAS;
    assert_int_equal(cuda_rt_gemm_create(rt, &biased, &none), STATUS_UNSUPPORTED);
    assert_null(none);
}

/* Without memory to time, the first proposal is used and not cached. */
static void test_no_memory(void **state)
{
    (void)state;
    bool timed;
    forget();
    size_t memory = cudart_stub.memory;
    cudart_stub.memory = 0;
    assert_int_equal(chosen(&of_weights, &timed), STUB_ALGORITHMS - 1);
    cudart_stub.memory = memory;
    assert_int_equal(chosen(&of_weights, &timed), 0);
}

/* A worker that shares the GPU and read the cache before it had entries. */
static void test_shared(void **state)
{
    (void)state;
    struct cuda_rt *other = NULL;
    struct err err = {.code = STATUS_OK};
    char name[64];
    bool timed;
    forget();
    if (cuda_rt_open(0, &other, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(chosen(&of_weights, &timed), 0);
    struct cuda_rt *first = rt;
    rt = other;
    assert_int_equal(chosen(&of_weights, &timed), 0);
    assert_false(timed); /* the cached choice, not its own measurement */
    cuda_rt_close(rt);
    rt = first;
}

/* Operands must be aligned to 16 bytes. */
static void test_takes(void **state)
{
    (void)state;
    struct cuda_gemm *g = NULL;
    forget();
    char *p = cuda_rt_alloc(rt, 64);
    assert_int_equal(cuda_rt_gemm_create(rt, &with_dgelu, &g), STATUS_OK);
    struct cuda_gemm_call call = {.a = p, .b = p + 16, .out = p, .aux = p + 32};
    assert_true(cuda_rt_gemm_takes(g, &call));
    assert_false(cuda_rt_gemm_takes(NULL, &call));
    call.aux = p + 34;
    assert_false(cuda_rt_gemm_takes(g, &call));
    call.aux = p;
    call.b = p + 2;
    assert_false(cuda_rt_gemm_takes(g, &call));
    cuda_rt_gemm(rt, g, &call); /* refused */
    assert_int_equal(rt->error.code, STATUS_UNSUPPORTED);
    cuda_rt_gemm_free(g);
    cuda_rt_release(rt, p);
}

/* --- one call fails ----------------------------------------------------------------------------------------------- */

static const struct cuda_gemm_shape small_dgelu = {
    .m = 256, .n = 256, .k = 256, .lda = 256, .ldb = 256, .ldc = 256, .bf16 = true, .bf16_out = true, .dgelu = true};
static const struct cuda_gemm_shape small_weights = {
    .m = 256, .n = 256, .k = 256, .lda = 256, .a_trans = true, .ldb = 256, .ldc = 256, .bf16 = true};

/* Create, time and run a product with one failed call. Returns whether that call occurred; *ended: device error. */
static bool fails_once(const struct cuda_gemm_shape *shape, unsigned long nth, int status, bool *ended)
{
    struct cuda_gemm *g = NULL;
    char *p = cuda_rt_alloc(rt, 1 << 18);
    struct cuda_gemm_call call = {.a = p, .b = p, .out = p, .aux = p};
    settle();
    cublaslt_faults.status = status;
    cublaslt_faults.after = nth;
    if (cuda_rt_gemm_create(rt, shape, &g) == STATUS_OK)
        cuda_rt_gemm(rt, g, &call);
    else if (g)
        fail_msg("a failed create returned a product");
    bool reached = !cublaslt_faults.after;
    *ended = rt->error.code != STATUS_OK;
    if (*ended && !strstr(rt->error.msg, "device cuda:0 Stub 0: cuBLASLt refused a matrix product: "))
        fail_msg("%s", rt->error.msg);
    cublaslt_faults.after = 0;
    cuda_rt_gemm_free(g);
    cuda_rt_release(rt, p);
    assert_int_equal(cublaslt_faults.left, 1); /* the handle */
    return reached;
}

/* After any failure the next start selects the fastest algorithm. */
static void each_fails(const struct cuda_gemm_shape *shape, int status)
{
    unsigned lives = 0, ended = 0;
    bool reached = true, dead, timed;
    for (unsigned long nth = 1; reached; nth++, lives++) {
        forget();
        reached = fails_once(shape, nth, status, &dead);
        ended += dead;
        if (!reached) assert_false(dead);
        start();
        stub.idle = true;
        if (chosen(shape, &timed))
            fail_msg("call %lu (%s): a slow algorithm is cached", nth, cublaslt_faults.failed_in);
    }
    assert_true(lives > 50 && ended >= 1 && ended < lives);
}

static void test_each_fails(void **state)
{
    (void)state;
    each_fails(&small_dgelu, CUBLAS_STATUS_NOT_SUPPORTED);
    each_fails(&small_weights, CUBLAS_STATUS_EXECUTION_FAILED);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_products),     cmocka_unit_test(test_fastest),
                                       cmocka_unit_test(test_timing_words), cmocka_unit_test(test_none),
                                       cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_shared),
                                       cmocka_unit_test(test_takes),        cmocka_unit_test(test_each_fails)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
