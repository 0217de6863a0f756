/* Tests gpu/cuda/cudnn on stubs of cuDNN and the CUDA runtime (cudnn_stub.c, cudart_stub.h): accepted versions, the
 * selected engine, and the execution of the described graph. ctest: timeout=60 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <dlfcn.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cuda/cudnn/cuda_cudnn_plan.h"
#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"
#include "gpu/cuda/rt/cuda_rt_impl.h"
#include "tests/cuda/emulator/graph_run.h"
#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/cuda/stubs/stub_faults.h"
#include "tests/lib/device/emulated_plugin.h"

enum { WORKSPACE = 1 << 16, FLOATS = 4096 }; /* larger than any tensor of this test */

static struct cuda_rt *rt;
static const char *stub_path;

static int set_up(void **state)
{
    (void)state;
    char name[64];
    struct err err;
    stub_path = beside_program("libcudnn_stub.so");
    alarm(20); /* turns a hang into a failure */
    (void)setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    return cuda_rt_open(0, &rt, name, sizeof name, &err) == STATUS_OK ? 0 : -1;
}

static struct stub_faults *faults(void)
{
    void *stub = dlopen(stub_path, RTLD_NOW), *found = stub ? dlsym(stub, "cudnn_faults") : NULL;
    if (!found) fail_msg("%s has no faults", stub_path);
    return found;
}

/* Check that no descriptor or handle is left. */
static int tear_down(void **state)
{
    (void)state;
    cuda_rt_close(rt);
    return faults()->left || mem_live_bytes() || cudart_stub_left() ? -1 : 0;
}

static struct cudnn_rt *open_library(const char *version, const char *want)
{
    char name[64] = "";
    struct cudnn_rt *dnn = NULL;
    struct err err = {.code = STATUS_OK};
    (void)setenv("ATOLL_CUDNN_LIBRARY", stub_path, 1);
    (void)setenv("ATOLL_STUB_CUDNN_VERSION", version, 1);
    if (cudnn_rt_open(rt, &dnn, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_string_equal(name, want);
    return dnn;
}

static void refused(const char *library, const char *version, const char *line)
{
    char name[64];
    struct cudnn_rt *dnn = NULL;
    struct err err = {.code = STATUS_OK};
    (void)setenv("ATOLL_CUDNN_LIBRARY", library, 1);
    (void)setenv("ATOLL_STUB_CUDNN_VERSION", version, 1);
    assert_int_equal(cudnn_rt_open(rt, &dnn, name, sizeof name, &err), STATUS_UNSUPPORTED);
    if (!strstr(err.msg, line)) fail_msg("%s", err.msg);
}

static void test_libraries(void **state)
{
    (void)state;
    refused("/nowhere/libcudnn.so.9", "", "cannot load cuDNN (/nowhere/libcudnn.so.9: cannot open");
    refused("libm.so.6", "", "libm.so.6 has no cudnnGetVersion: cuDNN 9.6 or newer is needed");
    refused(stub_path, "90501", "libcudnn_stub.so is version 9.5: cuDNN 9.6 or newer is needed");
    refused(stub_path, "91000", "cuDNN 9.10.0 computes attention wrongly: install 9.10.2 or newer");
    refused(stub_path, "91001", "cuDNN 9.10.1 computes attention wrongly: install 9.10.2 or newer");
    cudnn_rt_close(open_library("90600", "cuDNN 9.6.0"));
    cudnn_rt_close(open_library("91002", "cuDNN 9.10.2"));
    cudnn_rt_close(open_library("91912", "cuDNN 9.19.12"));
    cudnn_rt_close(NULL);
}

/* ---- execution --------------------------------------------------------------------------------------------------- */

static const struct attn_graph_shape shape = {
    .batch = 2, .heads = 4, .kv_heads = 2, .seq = 7, .head_dim = 8, .type = ATTN_BF16};

static void fill(void *p, size_t bytes, uint64_t seed)
{
    for (size_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)p)[i] = graph_bf16((float)(rng_u64(seed, RNG_TEST, i) % 2001) / 1000 - 1);
}

/* Run twice on different memory: both results have the bits of graph_run. */
static void check_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, const struct attn_graph *graph)
{
    void *workspace = cuda_rt_alloc(rt, WORKSPACE);
    for (uint64_t again = 0; again < 2; again++) {
        void *memory[ATTN_ROLES], *copies[ATTN_ROLES];
        struct graph_memory bound[ATTN_ROLES];
        struct err err = {.code = STATUS_OK};
        for (int role = 0; role < ATTN_ROLES; role++) {
            memory[role] = cuda_rt_alloc(rt, FLOATS * sizeof(float));
            copies[role] = mem_alloc(FLOATS, sizeof(float));
            bound[role] = (struct graph_memory){copies[role], FLOATS};
        }
        assert_int_equal(cuda_rt_sync(rt, &err), STATUS_OK);
        for (int role = 0; role < ATTN_ROLES; role++) {
            fill(memory[role], FLOATS * sizeof(float), again * ATTN_ROLES + (uint64_t)role);
            memcpy(copies[role], memory[role], FLOATS * sizeof(float));
        }
        cudnn_rt_run(dnn, kernel, memory, workspace);
        if (cuda_rt_sync(rt, &err) != STATUS_OK) fail_msg("%s", err.msg);
        if (graph_run(graph, bound, &err) != STATUS_OK) fail_msg("%s", err.msg);
        for (int role = ATTN_Q; role < ATTN_ROLES; role++)
            if (memcmp(memory[role], copies[role], FLOATS * sizeof(float)) != 0) fail_msg("role %d differs", role);
        for (int role = 0; role < ATTN_ROLES; role++) {
            cuda_rt_release(rt, memory[role]);
            mem_free(copies[role]);
        }
    }
    cuda_rt_release(rt, workspace);
}

static void test_execution(void **state)
{
    (void)state;
    struct cudnn_rt *dnn = open_library("91900", "cuDNN 9.19.0");
    for (int which = 0; which < 3; which++) { /* forward, backward, backward exact */
        size_t workspace = 0;
        struct attn_graph graph;
        struct cudnn_kernel *kernel = NULL;
        struct err err = {.code = STATUS_OK};
        struct attn_graph_shape s = shape;
        s.exact = which == 2;
        if (which)
            attn_graph_backward(&graph, &s);
        else
            attn_graph_forward(&graph, &s);
        if (cudnn_rt_compile(dnn, &graph, WORKSPACE, s.exact, &kernel, &workspace, &err) != STATUS_OK)
            fail_msg("%s", err.msg);
        assert_true(workspace && workspace <= WORKSPACE);
        check_run(dnn, kernel, &graph);
        cudnn_rt_free(kernel);
        assert_int_equal(cudnn_rt_compile(dnn, &graph, 1, s.exact, &kernel, &workspace, &err), STATUS_LIMIT);
        assert_non_null(strstr(err.msg, "bytes of workspace, but at most 1 are allowed"));
    }
    cudnn_rt_free(NULL);
    cudnn_rt_close(dnn);
}

/* A version with wrong gradients is refused, except for whole tiles, where they are right. */
static void test_known_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *version, *name;
        size_t seq;
        bool backward, taken;
    } cases[] = {{"91500", "cuDNN 9.15.0", 7, true, false},  {"91500", "cuDNN 9.15.0", 200, true, false},
                 {"91500", "cuDNN 9.15.0", 128, true, true}, {"91500", "cuDNN 9.15.0", 7, false, true},
                 {"91600", "cuDNN 9.16.0", 200, true, true}, {"90900", "cuDNN 9.9.0", 7, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t workspace;
        struct attn_graph graph;
        struct cudnn_kernel *kernel = NULL;
        struct err err = {.code = STATUS_OK};
        struct attn_graph_shape s = shape;
        struct cudnn_rt *dnn = open_library(cases[i].version, cases[i].name);
        s.seq = cases[i].seq;
        if (cases[i].backward)
            attn_graph_backward(&graph, &s);
        else
            attn_graph_forward(&graph, &s);
        enum status status = cudnn_rt_compile(dnn, &graph, WORKSPACE, false, &kernel, &workspace, &err);
        assert_int_equal(status, cases[i].taken ? STATUS_OK : STATUS_UNSUPPORTED);
        if (!cases[i].taken)
            assert_string_equal(err.msg,
                                "cuDNN 9.15 computes wrong gradients for a sequence length that is no multiple of "
                                "128: install 9.16 or newer");
        cudnn_rt_free(kernel);
        cudnn_rt_close(dnn);
    }
}

/* The first of two engines is nondeterministic. */
static void test_engines(void **state)
{
    (void)state;
    struct cudnn_lib lib;
    struct attn_graph graph;
    struct err err = {.code = STATUS_OK};
    struct cudnn_target target = {0};
    (void)setenv("ATOLL_CUDNN_LIBRARY", stub_path, 1);
    (void)setenv("ATOLL_STUB_CUDNN_VERSION", "91900", 1);
    assert_int_equal(cudnn_lib_open(&lib, &err), STATUS_OK);
    assert_int_equal(lib.create(&target.handle), CUDNN_STATUS_SUCCESS);
    attn_graph_backward(&graph, &shape);
    for (int exact = 0; exact < 2; exact++) {
        struct cudnn_plan *plan = NULL;
        if (cudnn_plan_create(&lib, &target, &graph, WORKSPACE, exact, &plan, &err) != STATUS_OK)
            fail_msg("%s", err.msg);
        struct cudnn_plan_facts facts = cudnn_plan_facts(plan);
        assert_int_equal(facts.engines, 2);
        assert_int_equal(facts.chosen, exact);
        cudnn_plan_free(plan);
    }
    (void)setenv("ATOLL_STUB_CUDNN_ENGINES", "1", 1); /* only the first engine */
    struct cudnn_plan *none = NULL;
    assert_int_equal(cudnn_plan_create(&lib, &target, &graph, WORKSPACE, true, &none, &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, "cuDNN has no kernel with a fixed order of sums");
    assert_int_equal(cudnn_plan_create(&lib, &target, &graph, WORKSPACE, false, &none, &err), STATUS_OK);
    cudnn_plan_free(none);
    none = NULL;
    (void)setenv("ATOLL_STUB_CUDNN_ENGINES", "0", 1);
    assert_int_equal(cudnn_plan_create(&lib, &target, &graph, WORKSPACE, false, &none, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "cuDNN 9.19.0: no engine for this shape: "));
    assert_null(none);
    (void)unsetenv("ATOLL_STUB_CUDNN_ENGINES");
    graph.tensors[0].dim[0] = 0; /* the stub refuses such a tensor */
    assert_int_equal(cudnn_plan_create(&lib, &target, &graph, WORKSPACE, false, &none, &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, "cuDNN 9.19.0: graph rejected: CUDNN_STATUS_BAD_PARAM as the stub found");
    assert_int_equal(lib.destroy(target.handle), CUDNN_STATUS_SUCCESS);
    cudnn_lib_close(&lib);
}

/* Open, compile, run twice, close. */
static enum status live(bool backward, bool exact, struct err *err)
{
    char name[64];
    size_t workspace;
    struct attn_graph graph;
    struct cudnn_rt *dnn = NULL;
    struct cudnn_kernel *kernel = NULL;
    void *memory[ATTN_ROLES], *p = cuda_rt_alloc(rt, WORKSPACE);
    for (int role = 0; role < ATTN_ROLES; role++) memory[role] = cuda_rt_alloc(rt, FLOATS * sizeof(float));
    if (backward)
        attn_graph_backward(&graph, &shape);
    else
        attn_graph_forward(&graph, &shape);
    enum status status = cudnn_rt_open(rt, &dnn, name, sizeof name, err);
    if (status == STATUS_OK) status = cudnn_rt_compile(dnn, &graph, WORKSPACE, exact, &kernel, &workspace, err);
    for (int i = 0; i < 2 && status == STATUS_OK; i++) {
        cudnn_rt_run(dnn, kernel, memory, p);
        status = cuda_rt_sync(rt, err);
    }
    cudnn_rt_free(kernel);
    cudnn_rt_close(dnn);
    for (int role = 0; role < ATTN_ROLES; role++) cuda_rt_release(rt, memory[role]);
    cuda_rt_release(rt, p);
    rt->error = (struct err){.code = STATUS_OK}; /* like a device opened again */
    return status;
}

/* Every failed call gives an error of the library or another engine, and leaves no object. */
static void test_each_fails(void **state)
{
    (void)state;
    struct stub_faults *f = faults();
    (void)setenv("ATOLL_CUDNN_LIBRARY", stub_path, 1);
    (void)setenv("ATOLL_STUB_CUDNN_VERSION", "91900", 1);
    f->status = CUDNN_STATUS_INTERNAL_ERROR;
    for (int exact = 0; exact < 2; exact++) { /* forward, and backward in a fixed order */
        unsigned lives = 0, ended = 0;
        bool reached = true;
        for (unsigned long nth = 1; reached; nth++, lives++) {
            struct err err = {.code = STATUS_OK};
            alarm(20);
            f->after = nth;
            enum status status = live(exact, exact, &err);
            reached = !f->after;
            if (f->left) fail_msg("call %lu (%s): %zu objects left", nth, f->failed_in, f->left);
            if (status != STATUS_OK && (!reached || strncmp(err.msg, "cuDNN ", 6) != 0) && status != STATUS_IO)
                fail_msg("call %lu (%s): %s", nth, f->failed_in, err.msg);
            if (status == STATUS_IO && !strstr(err.msg, "device cuda:0 Stub 0: cuDNN ")) fail_msg("%s", err.msg);
            ended += status != STATUS_OK;
        }
        f->after = 0;
        assert_true(lives > 100 && ended > 100 && ended + 10 < lives);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_libraries), cmocka_unit_test(test_execution),
                                       cmocka_unit_test(test_known_wrong), cmocka_unit_test(test_engines),
                                       cmocka_unit_test(test_each_fails)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
