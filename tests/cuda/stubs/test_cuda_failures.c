/* Tests that every call of CUDA's runtime may fail in a replica's life, on the whole plugin with stubs of the libraries
 * (cudart_stub.h). From the failure on the device is dead, or it lacks memory. The life ends with a line that names the
 * device, or continues. It does not hang and leaves no object. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/cuda/stubs/stubbed_life.h"

struct failure {
    struct life life;
    cudaError_t code;
    const char *call; /* NULL: any call, see cudart_stub.h */
    unsigned stride;
};

/* Run a life whose `nth` call fails. *reached_p: the call occurred. */
static void live_once(const struct failure *f, unsigned nth, struct life_end *end, bool *reached_p)
{
    struct life life = f->life;
    life.bf16 = nth % 2;
    life.optimizer = OPTIMIZER_ADAMW;
    stubbed.cudart->call = f->call;
    stubbed.cudart->code = f->code;
    if (f->call)
        stubbed.cudart->after = nth;
    else
        stubbed.cudart->any = nth;
    stubbed_live(&life, end);
    *reached_p = !stubbed.cudart->any && !stubbed.cudart->after;
    stubbed.cudart->any = stubbed.cudart->after = 0;
}

static void each_fails(const struct failure *f, unsigned least)
{
    static struct life_end end;
    unsigned nth = 1, lives = 0, ended = 0;
    size_t left = stubbed.left();
    bool dead = f->code != cudaErrorMemoryAllocation;
    for (bool reached = true; reached; nth += f->stride, lives++) {
        live_once(f, nth, &end, &reached);
        const char *call = !reached ? "none" : f->call ? f->call : stubbed.cudart->failed_in;
        const char *line = end.why.msg;
        bool is_named = strstr(line, "cuda:") || strstr(line, "CUDA:") || (!dead && strstr(line, "memory"));
        if (end.status != STATUS_OK && (!is_named || !reached)) fail_msg("call %u (%s): %s", nth, call, line);
        if (end.stays) fail_msg("call %u (%s): %zu bytes left", nth, call, end.stays);
        if (!dead && stubbed.left() != left)
            fail_msg("call %u (%s): %zu objects left", nth, call, stubbed.left() - left);
        if (stubbed.cublaslt->left)
            fail_msg("call %u (%s): %zu objects of cuBLASLt left", nth, call, stubbed.cublaslt->left);
        ended += end.status != STATUS_OK;
    }
    print_message("%s: %u of %u lives ended with an error\n", f->life.device, ended, lives);
    assert_true(ended > least && ended < lives);
}

static const char events[] = "cudaEventCreateWithFlags";

static void test_one_gpu(void **state)
{
    static const struct failure dead = {{.device = "cuda:0", .ranks = 1}, cudaErrorIllegalAddress, NULL, 1};
    static const struct failure no_memory = {{.device = "cuda:0", .ranks = 1}, cudaErrorMemoryAllocation, NULL, 1};
    static const struct failure no_event = {{.device = "cuda:0", .ranks = 1}, cudaErrorMemoryAllocation, events, 1};
    (void)state;
    each_fails(&dead, 100);
    each_fails(&no_memory, 10);
    each_fails(&no_event, 3);
}

/* Each GPU has hundreds of events, one per operation that may be in flight. */
static void test_two_gpus(void **state)
{
    static const struct failure dead = {{.device = "cuda:0,1", .ranks = 2}, cudaErrorIllegalAddress, NULL, 4};
    static const struct failure no_memory = {{.device = "cuda:0,1", .ranks = 2}, cudaErrorMemoryAllocation, NULL, 1};
    static const struct failure no_event = {{.device = "cuda:0,1", .ranks = 2}, cudaErrorMemoryAllocation, events, 97};
    (void)state;
    if (access(getenv("ATOLL_NCCL_LIBRARY"), R_OK)) skip();
    each_fails(&dead, 80);
    each_fails(&no_memory, 40);
    each_fails(&no_event, 10);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_gpu),
        cmocka_unit_test(test_two_gpus),
    };
    return cmocka_run_group_tests(tests, stubbed_set_up, stubbed_tear_down);
}
