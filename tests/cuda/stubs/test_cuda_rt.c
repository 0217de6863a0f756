/* Tests gpu/cuda/rt/cuda_rt.c on a stub of the CUDA runtime (cudart_stub.h): opening devices and its errors; the order
 * of copies, queues, events and waits; permanent and temporary errors. ctest: timeout=60 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "gpu/cuda/rt/cuda_rt_impl.h"
#include "tests/cuda/stubs/cublaslt_stub.h"
#include "tests/cuda/stubs/cudart_stub.h"

enum { N = 4096 };

static struct cudart_stub as_found;

static int set_up(void **state)
{
    (void)state;
    alarm(20); /* turns a hang into a failure */
    as_found = cudart_stub;
    (void)setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    return 0;
}

/* Check that a test leaves no memory and no object. */
static int leaves_nothing(void **state)
{
    (void)state;
    cudart_stub = as_found;
    stub = (struct stub){0};
    if (mem_live_bytes()) print_error("%zu bytes are left\n", mem_live_bytes());
    if (cudart_stub_left()) print_error("%zu objects of the runtime are left\n", cudart_stub_left());
    return mem_live_bytes() || cudart_stub_left();
}

static struct cuda_rt *open_one(int index)
{
    char name[64];
    struct cuda_rt *rt = NULL;
    struct err err = {.code = STATUS_OK};
    if (cuda_rt_open(index, &rt, name, sizeof name, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return rt;
}

static void refused(int index, enum status code, const char *line)
{
    char name[64];
    struct cuda_rt *rt = NULL;
    struct err err = {.code = STATUS_OK};
    assert_int_equal(cuda_rt_open(index, &rt, name, sizeof name, &err), code);
    assert_null(rt);
    assert_string_equal(err.msg, line);
}

static void settled(struct cuda_rt *rt)
{
    struct err err = {.code = STATUS_OK};
    if (cuda_rt_sync(rt, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void failed(struct cuda_rt *rt, enum status code, const char *line)
{
    struct err err = {.code = STATUS_OK};
    assert_int_equal(cuda_rt_sync(rt, &err), code);
    assert_string_equal(err.msg, line);
}

/* Make the `nth` call of a function from now on fail. */
static void fails(const char *call, unsigned nth, cudaError_t code)
{
    cudart_stub.call = call;
    cudart_stub.after = nth;
    cudart_stub.code = code;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void test_drivers(void **state)
{
    (void)state;
    int count = 0;
    char line[256];
    struct err err = {.code = STATUS_OK};
    const int needed = CUDART_VERSION / 1000, minor = CUDART_VERSION % 1000 / 10;
    assert_int_equal(cuda_rt_count(&count, &err), STATUS_OK);
    assert_int_equal(count, 1);

    cudart_stub.driver = 0;
    snprintf(line, sizeof line, "no NVIDIA driver on this machine: install a driver for CUDA %d.%d or newer", needed,
             minor);
    refused(0, STATUS_UNSUPPORTED, line);
    cudart_stub.driver = 11040;
    snprintf(line, sizeof line, "the NVIDIA driver supports CUDA 11.4, but this build needs %d.%d: update the driver",
             needed, minor);
    refused(0, STATUS_UNSUPPORTED, line);
    if (needed > 12) {
        cudart_stub.driver = 12080;
        snprintf(line, sizeof line,
                 "the NVIDIA driver supports CUDA 12.8, but this build needs %d.%d: update the driver, "
                 "rebuild with a toolkit of its version, or on a data-centre GPU install cuda-compat-%d-%d",
                 needed, minor, needed, minor);
        refused(0, STATUS_UNSUPPORTED, line);
    }
    cudart_stub.driver = CUDART_VERSION;
    cudart_stub.gpus = 0;
    refused(0, STATUS_UNSUPPORTED, "the NVIDIA driver shows no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES");
    cudart_stub.gpus = 1;
    fails("cudaGetDeviceCount", 1, cudaErrorSystemNotReady);
    assert_int_equal(cuda_rt_count(&count, &err), STATUS_IO); /* temporary error */
}

static void test_devices(void **state)
{
    (void)state;
    cudart_stub.gpus = 2;
    refused(2, STATUS_INVALID, "device cuda:2: not on this machine, which has cuda:0 to cuda:1");
    refused(-1, STATUS_INVALID, "device cuda:-1: not on this machine, which has cuda:0 to cuda:1");
    cudart_stub.capability = 75;
    refused(1, STATUS_UNSUPPORTED,
            "device cuda:1: Stub 1 has compute capability 7.5, but this build needs 8.0 or newer");
    cudart_stub.capability = 80;
    cudart_stub.loaded = 0;
    struct cuda_rt *rt = open_one(1);
    assert_string_equal(cuda_rt_name(rt), "device cuda:1 Stub 1");
    assert_true(cudart_stub.sleeps[1]);
    cuda_rt_close(rt);
    cuda_rt_close(NULL);
    assert_int_equal(cudart_stub.loaded, 2); /* all kernels are loaded at the start */
}

/* Every failure of opening a device gives one line; its code tells whether a retry makes sense. */
/* Name of a function that the header may define as a macro, as in CUDA 12. */
#define CALLED(function) TEXT(function)
#define TEXT(name) #name

static void test_opening_fails(void **state)
{
    (void)state;
    fails(CALLED(cudaGetDeviceProperties), 1, cudaErrorDevicesUnavailable);
    refused(0, STATUS_IO, "device cuda:0: CUDA-capable device(s) is/are busy or unavailable");
    fails("cudaFuncGetAttributes", 1, cudaErrorNoKernelImageForDevice);
    refused(0, STATUS_IO,
            "device cuda:0 Stub 0: cannot load the kernels of this build: no kernel image is available "
            "for execution on the device (cudaErrorNoKernelImageForDevice)");
    fails("cudaStreamCreateWithFlags", 1, cudaErrorMemoryAllocation);
    refused(0, STATUS_NOMEM, "device cuda:0 Stub 0: cannot create a stream: out of memory (cudaErrorMemoryAllocation)");
    fails("cudaEventCreateWithFlags", 2, cudaErrorMemoryAllocation);
    refused(0, STATUS_NOMEM, "device cuda:0 Stub 0: cannot create an event: out of memory (cudaErrorMemoryAllocation)");
    cudart_stub.call = NULL;
    cudart_stub.memory = 1 << 20;
    refused(0, STATUS_NOMEM,
            "device cuda:0 Stub 0: cannot allocate cuBLASLt's workspace: out of memory "
            "(cudaErrorMemoryAllocation)");
    cudart_stub.memory = as_found.memory;
    stub.no_library = true;
    char name[64];
    struct cuda_rt *rt = NULL;
    struct err err = {.code = STATUS_OK};
    assert_int_equal(cuda_rt_open(0, &rt, name, sizeof name, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "device cuda:0: cannot start cuBLASLt: "));
    (void)setenv("ATOLL_ALGO_TIMING", "perhaps", 1);
    assert_int_equal(cuda_rt_open(0, &rt, name, sizeof name, &err), STATUS_INVALID);
    (void)unsetenv("ATOLL_ALGO_TIMING");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void test_memory(void **state)
{
    (void)state;
    uint64_t before, left, all;
    struct cuda_rt *rt = open_one(0);
    cuda_rt_memory(rt, &before, &all);
    assert_int_equal(all, cudart_stub.memory);
    unsigned char *p = cuda_rt_alloc(rt, N), *pinned = cuda_rt_host_alloc(rt, N), none[N] = {0};
    assert_non_null(p);
    assert_non_null(pinned);
    assert_int_equal((uintptr_t)p % 256, 0);
    settled(rt);
    assert_memory_equal(p, none, N);
    assert_memory_equal(pinned, none, N);
    cuda_rt_memory(rt, &left, &all);
    assert_int_equal(left, before - N);

    assert_null(cuda_rt_alloc(rt, cudart_stub.memory)); /* lack of memory is not an error of the device, */
    cuda_rt_launched(rt, "a launch after it");          /* nor of the next launch */
    settled(rt);
    void *empty = cuda_rt_alloc(rt, 0);
    assert_non_null(empty);
    cuda_rt_release(rt, empty);
    fails("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
    assert_null(cuda_rt_host_alloc(rt, N));
    settled(rt);
    fails("cudaMemGetInfo", 1, cudaErrorInvalidValue);
    cuda_rt_memory(rt, &left, &all);
    assert_int_equal(left | all, 0);
    settled(rt);

    cuda_rt_host_release(rt, pinned);
    cuda_rt_release(rt, p);
    cuda_rt_host_release(rt, NULL);
    cuda_rt_release(rt, NULL);
    cuda_rt_memory(rt, &left, &all);
    assert_int_equal(left, before);
    cuda_rt_close(rt);
}

/* cudaMalloc may return an earlier asynchronous error; this is permanent, unlike lack of memory. */
static void test_error_from_before(void **state)
{
    (void)state;
    struct cuda_rt *rt = open_one(0);
    fails("cudaMalloc", 1, cudaErrorIllegalAddress);
    assert_null(cuda_rt_alloc(rt, N));
    failed(rt, STATUS_IO,
           "device cuda:0 Stub 0: an earlier error, noticed while allocating memory: an illegal memory "
           "access was encountered (cudaErrorIllegalAddress)");
    cuda_rt_close(rt);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

static void wait_a_little(void *args, bool dead)
{
    (void)args, (void)dead;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* Keep a queue busy, so that a missing wait shows. */
static void hold(struct cuda_rt *rt, enum cuda_queue queue)
{
    cudaStream_t stream = cuda_rt_stream(rt, queue);
    stream->submit(stream, wait_a_little, "", 1);
}

static atomic_bool open_now;

static void wait_for_gate(void *args, bool dead)
{
    while (!atomic_load(&open_now)) wait_a_little(args, dead);
}

/* Block the queue until open_now. */
static void stop(struct cuda_rt *rt, enum cuda_queue queue)
{
    cudaStream_t stream = cuda_rt_stream(rt, queue);
    atomic_store(&open_now, false);
    stream->submit(stream, wait_for_gate, "", 1);
}

static unsigned asked;

/* Poll function of a wait: opens the gate after several polls. */
static const struct err *opens(void *ctx)
{
    (void)ctx;
    if (++asked == 5) atomic_store(&open_now, true);
    return NULL;
}

/* Block the queue until the host waits for it. */
static void stop_until_waited_for(struct cuda_rt *rt, enum cuda_queue queue)
{
    asked = 0;
    stop(rt, queue);
    cuda_rt_watch(rt, opens, NULL);
}

/* After a wait the caller may reuse its host memory, pinned or pageable. */
static void test_copies(void **state)
{
    (void)state;
    struct cuda_rt *rt = open_one(0);
    unsigned char *p = cuda_rt_alloc(rt, N), *q = cuda_rt_alloc(rt, N), *pinned = cuda_rt_host_alloc(rt, N);
    unsigned char here[N], back[N] = {0};
    memset(here, 7, N);
    hold(rt, CUDA_MAIN);
    cuda_rt_copy(rt, p, here, N, CUDA_UPLOAD);
    cuda_rt_copy(rt, q, p, N, CUDA_INSIDE);
    cuda_rt_copy(rt, pinned, q, N, CUDA_DOWNLOAD);
    cuda_rt_copy(rt, back, q, N / 2, CUDA_DOWNLOAD);
    cuda_rt_copy(rt, back, q, 0, CUDA_DOWNLOAD);
    settled(rt);
    assert_int_equal(pinned[0] + pinned[N - 1], 14);
    assert_int_equal(back[0] + back[N / 2 - 1] + back[N / 2], 14);
    cuda_rt_copy(rt, here, p, N, CUDA_UPLOAD); /* wrong direction */
    failed(rt, STATUS_IO, "device cuda:0 Stub 0: copying: invalid argument (cudaErrorInvalidValue)");
    cuda_rt_host_release(rt, pinned);
    cuda_rt_release(rt, p);
    cuda_rt_release(rt, q);
    cuda_rt_close(rt);
}

/* Events order the queues, and the host after one queue; sync and release wait for all. */
static void test_order(void **state)
{
    (void)state;
    struct err err = {.code = STATUS_OK};
    struct cuda_rt *rt = open_one(0);
    struct cuda_event *uploaded, *gone;
    unsigned char *p = cuda_rt_alloc(rt, N), *pinned = cuda_rt_host_alloc(rt, N), *other = cuda_rt_host_alloc(rt, N);
    assert_int_equal(cuda_rt_event_create(rt, &uploaded), STATUS_OK);
    assert_int_equal(cuda_rt_event_create(rt, &gone), STATUS_OK);
    settled(rt);
    for (int round = 1; round < 4; round++) {
        memset(pinned, round, N);
        stop(rt, CUDA_COPY);
        cuda_rt_copy_on(rt, CUDA_COPY, p, pinned, N, CUDA_UPLOAD);
        cuda_rt_event_record(rt, CUDA_COPY, uploaded);
        cuda_rt_queue_wait(rt, CUDA_MAIN, uploaded);
        cuda_rt_copy(rt, other, p, N, CUDA_DOWNLOAD);
        cuda_rt_event_record(rt, CUDA_MAIN, gone);
        for (int look = 0; look < (round == 1 ? 10 : 1); look++) { /* gives MAIN time to run ahead */
            assert_false(cuda_rt_event_done(rt, uploaded) || cuda_rt_event_done(rt, gone));
            wait_a_little(NULL, false);
        }
        assert_false(cuda_rt_event_done(rt, gone));
        atomic_store(&open_now, true);
        assert_int_equal(cuda_rt_event_wait(rt, gone, &err), STATUS_OK);
        assert_true(cuda_rt_event_done(rt, uploaded) && cuda_rt_event_done(rt, gone));
        assert_int_equal(other[0], round);
    }
    for (int slot = 0; slot < DEVICE_MARKS; slot++) {
        assert_int_equal(cuda_rt_reached(rt, slot, &err), STATUS_OK); /* never recorded */
        memset(pinned, 50 + slot, N);
        stop_until_waited_for(rt, CUDA_MAIN);
        cuda_rt_copy(rt, p, pinned, N, CUDA_UPLOAD);
        cuda_rt_copy(rt, other, p, N, CUDA_DOWNLOAD);
        cuda_rt_mark(rt, slot);
        assert_int_equal(cuda_rt_reached(rt, slot, &err), STATUS_OK);
        assert_int_equal(other[N - 1], 50 + slot);
    }
    cuda_rt_watch(rt, NULL, NULL);
    memset(pinned, 98, N);
    stop(rt, CUDA_MAIN); /* the other queues continue */
    cuda_rt_copy_on(rt, CUDA_COPY, p, pinned, N, CUDA_UPLOAD);
    cuda_rt_event_record(rt, CUDA_COPY, uploaded);
    assert_int_equal(cuda_rt_event_wait(rt, uploaded, &err), STATUS_OK);
    assert_int_equal(p[0], 98);
    atomic_store(&open_now, true);
    memset(pinned, 99, N);
    settled(rt);
    stop_until_waited_for(rt, CUDA_COPY);
    cuda_rt_copy_on(rt, CUDA_COPY, p, pinned, N, CUDA_UPLOAD);
    settled(rt);
    assert_int_equal(p[0], 99);
    stop_until_waited_for(rt, CUDA_COMM);
    cuda_rt_copy_on(rt, CUDA_COMM, other, p, N, CUDA_DOWNLOAD);
    cuda_rt_release(rt, p); /* waits in a way that can be stopped, unlike cudaFree */
    assert_int_equal(other[0], 99);
    cuda_rt_watch(rt, NULL, NULL);
    cuda_rt_event_free(rt, uploaded);
    cuda_rt_event_free(rt, gone);
    cuda_rt_event_free(rt, NULL);
    cuda_rt_host_release(rt, pinned);
    cuda_rt_host_release(rt, other);
    cuda_rt_close(rt);
}

/* One thread uses two devices in turn, while another thread has used none. */
static void *use_both(void *args)
{
    struct cuda_rt **rt = args;
    struct err err = {.code = STATUS_OK};
    unsigned char *p[2], byte[2] = {1, 2}, back[2] = {0};
    struct cuda_event *event[2];
    for (int i = 0; i < 2; i++) p[i] = cuda_rt_alloc(rt[i], 1);
    for (int i = 0; i < 2; i++)
        if (cuda_rt_event_create(rt[i], &event[i]) != STATUS_OK) return "no event";
    for (int i = 0; i < 2; i++) cuda_rt_copy(rt[i], p[i], &byte[i], 1, CUDA_UPLOAD);
    for (int i = 0; i < 2; i++) cuda_rt_event_record(rt[i], CUDA_MAIN, event[i]);
    for (int i = 0; i < 2; i++) cuda_rt_queue_wait(rt[i], CUDA_COPY, event[i]);
    for (int i = 0; i < 2; i++) cuda_rt_copy_on(rt[i], CUDA_COPY, &back[i], p[i], 1, CUDA_DOWNLOAD);
    for (int i = 0; i < 2; i++) cuda_rt_mark(rt[i], 0);
    for (int i = 0; i < 2; i++)
        if (cuda_rt_reached(rt[i], 0, &err) != STATUS_OK || cuda_rt_event_wait(rt[i], event[i], &err) != STATUS_OK)
            return "failed";
    for (int i = 0; i < 2; i++) cuda_rt_event_free(rt[i], event[i]);
    for (int i = 0; i < 2; i++) cuda_rt_release(rt[i], p[i]);
    return back[0] == 1 && back[1] == 2 ? NULL : "bytes of the other device";
}

static void test_threads(void **state)
{
    (void)state;
    pthread_t thread;
    void *wrong = NULL;
    cudart_stub.gpus = 2;
    struct cuda_rt *rt[2] = {open_one(0), open_one(1)};
    assert_null(use_both(rt));
    assert_int_equal(pthread_create(&thread, NULL, use_both, rt), 0);
    assert_int_equal(pthread_join(thread, &wrong), 0);
    for (int i = 0; i < 2; i++) settled(rt[i]);
    assert_null(wrong);
    for (int i = 0; i < 2; i++) cuda_rt_close(rt[i]);
}

/* ---- stopped waits ----------------------------------------------------------------------------------------------- */

struct watch {
    unsigned asked, ends_at; /* 0: never */
    struct err why;
};

static const struct err *stopped(void *ctx)
{
    struct watch *w = ctx;
    if (w->asked == 5) atomic_store(&open_now, true);
    return ++w->asked >= w->ends_at && w->ends_at ? &w->why : NULL;
}

/* A polling wait ends with its queue and leaves no error. It ends earlier, with the given reason, if it is stopped. */
static void test_watched(void **state)
{
    (void)state;
    struct watch w = {0};
    struct err err = {.code = STATUS_OK};
    struct cuda_rt *rt = open_one(0);
    struct cuda_progress *progress = cuda_rt_progress(rt);
    err_set(&w.why, STATUS_CLOSED, "another GPU is gone");
    cuda_rt_watch(rt, stopped, &w);
    unsigned long moves = atomic_load(&progress->moves);
    stop(rt, CUDA_MAIN);
    settled(rt);
    assert_true(w.asked > 5);
    assert_true(atomic_load(&progress->moves) > moves);
    assert_int_equal(atomic_load(&progress->waits), 0);
    cuda_rt_launched(rt, "a launch after a wait"); /* no "not ready" from the polls */
    settled(rt);

    struct cuda_event *event;
    assert_int_equal(cuda_rt_event_create(rt, &event), STATUS_OK);
    w.asked = 0;
    w.ends_at = 3;
    stop(rt, CUDA_MAIN);
    cuda_rt_event_record(rt, CUDA_MAIN, event);
    assert_int_equal(cuda_rt_event_wait(rt, event, &err), STATUS_CLOSED);
    assert_string_equal(err.msg, "device cuda:0 Stub 0: stopped: another GPU is gone");
    assert_false(cuda_rt_event_done(rt, event));
    assert_true(cuda_rt_stopped(rt));
    failed(rt, STATUS_CLOSED, "device cuda:0 Stub 0: stopped: another GPU is gone");
    atomic_store(&open_now, true);
    cuda_rt_watch(rt, NULL, NULL);
    assert_false(cuda_rt_stopped(rt));
    failed(rt, STATUS_CLOSED, "device cuda:0 Stub 0: stopped: another GPU is gone"); /* the error is permanent */
    cuda_rt_event_free(rt, event);
    cuda_rt_close(rt);
}

/* A wait that is stopped although its queue ended still returns the error. */
static void test_ended_well_and_stopped(void **state)
{
    (void)state;
    struct watch w = {.ends_at = 1};
    struct cuda_rt *rt = open_one(0);
    err_set(&w.why, STATUS_CLOSED, "aborted");
    settled(rt);
    cuda_rt_watch(rt, stopped, &w);
    failed(rt, STATUS_CLOSED, "device cuda:0 Stub 0: stopped: aborted");
    cuda_rt_close(rt);
}

/* The first error stays, with its call; later errors are ignored. */
static void test_failing_device(void **state)
{
    (void)state;
    struct err err = {.code = STATUS_OK};
    struct cuda_rt *rt = open_one(0);
    fails("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
    static const char line[] = "device cuda:0 Stub 0: a kernel failed: an illegal memory access was encountered "
                               "(cudaErrorIllegalAddress)";
    failed(rt, STATUS_IO, line);
    cuda_rt_fail(rt, STATUS_LIMIT, "something else");
    failed(rt, STATUS_IO, line);
    cuda_rt_mark(rt, 0);
    assert_int_equal(cuda_rt_reached(rt, 0, &err), STATUS_IO);
    assert_string_equal(err.msg, line);
    cuda_rt_close(rt);
}

static void test_grids(void **state)
{
    (void)state;
    struct cuda_rt *rt = open_one(0);
    struct cuda_grid grid = cuda_rt_grid(rt, 0x7fffffff, 65535);
    assert_true(grid.x == 0x7fffffff && grid.y == 65535 && grid.stream == rt->stream);
    grid = cuda_rt_grid_on(rt, CUDA_COPY, 1, 1);
    assert_true(grid.stream == cuda_rt_stream(rt, CUDA_COPY) && grid.stream != rt->stream);
    assert_true(cuda_rt_stream(rt, CUDA_COMM) != grid.stream);
    settled(rt);
    grid = cuda_rt_grid(rt, 1, 65536);
    assert_int_equal(grid.x | grid.y, 0); /* a launch refuses this grid */
    failed(rt, STATUS_LIMIT, "device cuda:0 Stub 0: operation too large for one launch");
    cuda_rt_close(rt);
    rt = open_one(0);
    assert_int_equal(cuda_rt_grid(rt, (size_t)1 << 31, 1).x, 0);
    failed(rt, STATUS_LIMIT, "device cuda:0 Stub 0: operation too large for one launch");
    cuda_rt_close(rt);
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_drivers, leaves_nothing),
                                       cmocka_unit_test_teardown(test_devices, leaves_nothing),
                                       cmocka_unit_test_teardown(test_opening_fails, leaves_nothing),
                                       cmocka_unit_test_teardown(test_memory, leaves_nothing),
                                       cmocka_unit_test_teardown(test_error_from_before, leaves_nothing),
                                       cmocka_unit_test_teardown(test_copies, leaves_nothing),
                                       cmocka_unit_test_teardown(test_order, leaves_nothing),
                                       cmocka_unit_test_teardown(test_threads, leaves_nothing),
                                       cmocka_unit_test_teardown(test_watched, leaves_nothing),
                                       cmocka_unit_test_teardown(test_ended_well_and_stopped, leaves_nothing),
                                       cmocka_unit_test_teardown(test_failing_device, leaves_nothing),
                                       cmocka_unit_test_teardown(test_grids, leaves_nothing)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
