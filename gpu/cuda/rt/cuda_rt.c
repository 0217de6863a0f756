#include "gpu/cuda/rt/cuda_rt_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "gpu/cuda/kernels/cuda_args.h"

enum {
    OLDEST_CAPABILITY = ATOLL_CUDA_ARCH_OLDEST, /* set by gpu/cuda.cmake: oldest compute capability that this build has
                                                   code for, times 10 */
    OLDEST_TOOLKIT = ATOLL_CUDA_OLDEST * 1000,  /* and the oldest toolkit, as the driver encodes versions */
    GRID_X_MAX = 0x7fffffff,
    EVENT_FLAGS = cudaEventDisableTiming | cudaEventBlockingSync,
    POLLS_MAX = 1000, /* polls before the first pause, a few microseconds each */
    PAUSE_NS = 20000
};

struct cuda_event {
    cudaEvent_t event;
};

int cuda_rt_capability(const struct cuda_rt *rt)
{
    return rt->capability;
}

const char *cuda_rt_name(const struct cuda_rt *rt)
{
    return rt->name;
}

void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what)
{
    assert(code != STATUS_OK);
    if (rt->error.code == STATUS_OK) err_set(&rt->error, code, "%s: %s", rt->name, what);
}

static void check(struct cuda_rt *rt, cudaError_t code, const char *what)
{
    if (code == cudaSuccess || rt->error.code != STATUS_OK) return;
    enum status status = code == cudaErrorMemoryAllocation ? STATUS_NOMEM : STATUS_IO;
    err_set(&rt->error, status, "%s: %s: %s (%s)", rt->name, what, cudaGetErrorString(code), cudaGetErrorName(code));
}

static enum status first_error(const struct cuda_rt *rt, struct err *err)
{
    return rt->error.code == STATUS_OK ? STATUS_OK : err_set(err, rt->error.code, "%s", rt->error.msg);
}

/* A busy GPU or a machine that is still starting may recover: IO. Other errors do not. */
static enum status opening_failed(cudaError_t code)
{
    if (code == cudaErrorMemoryAllocation) return STATUS_NOMEM;
    return code == cudaErrorDevicesUnavailable || code == cudaErrorSystemNotReady ? STATUS_IO : STATUS_UNSUPPORTED;
}

enum status cuda_rt_count(int *count, struct err *err)
{
    int driver = 0, runtime = 0;
    cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaSuccess && *count > 0) return STATUS_OK;
    (void)cudaDriverGetVersion(&driver); /* 0 without a driver */
    (void)cudaRuntimeGetVersion(&runtime);
    if (!driver)
        return err_set(err, STATUS_UNSUPPORTED,
                       "no NVIDIA driver on this machine: install a driver for CUDA %d.%d or newer", runtime / 1000,
                       runtime % 1000 / 10);
    if (code == cudaErrorInsufficientDriver) {
        int major = runtime / 1000, minor = runtime % 1000 / 10;
        char alternatives[128] = ""; /* cuda-compat replaces a newer driver (CUDA Compatibility, "Forward") */
        if (driver >= OLDEST_TOOLKIT)
            snprintf(alternatives, sizeof alternatives,
                     ", rebuild with a toolkit of its version, or on a data-centre GPU install cuda-compat-%d-%d",
                     major, minor);
        return err_set(err, STATUS_UNSUPPORTED,
                       "the NVIDIA driver supports CUDA %d.%d, but this build needs %d.%d: update the driver%s",
                       driver / 1000, driver % 1000 / 10, major, minor, alternatives);
    }
    if (code == cudaSuccess || code == cudaErrorNoDevice)
        return err_set(err, STATUS_UNSUPPORTED,
                       "the NVIDIA driver shows no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES");
    return err_set(err, opening_failed(code), "cannot start the NVIDIA driver: %s", cudaGetErrorString(code));
}

/* The driver loads a kernel at its first launch, and may wait for the GPU then. If that GPU waits in a collective for
 * another GPU whose thread also loads a kernel, both hang (CUDA C++ Programming Guide, "Lazy Loading", "Concurrent
 * Execution"). Therefore all kernels are loaded at open. This also detects code that the GPU cannot run. */
static void load_kernels(struct cuda_rt *rt)
{
    extern struct cuda_known_kernel __start_atoll_kernels[] __attribute__((visibility("hidden")));
    extern struct cuda_known_kernel __stop_atoll_kernels[] __attribute__((visibility("hidden")));
    struct cudaFuncAttributes attributes;
    for (struct cuda_known_kernel *k = __start_atoll_kernels; k < __stop_atoll_kernels; k++)
        check(rt, cudaFuncGetAttributes(&attributes, k->kernel), "cannot load the kernels of this build");
}

static enum status open_in(struct cuda_rt *rt, const char *gpu, struct err *err)
{
    TRY(cuda_gemm_timing(&rt->timing, err));
    TRY(first_error(rt, err));
    load_kernels(rt);
    check(rt, cudaStreamCreateWithFlags(&rt->stream, cudaStreamNonBlocking), "cannot create a stream");
    for (int i = 0; i < DEVICE_MARKS; i++)
        check(rt, cudaEventCreateWithFlags(&rt->marks[i], EVENT_FLAGS), "cannot create an event");
    check(rt, cudaMalloc(&rt->workspace, CUDA_WORKSPACE_BYTES + CUDA_BIAS_BYTES),
          "cannot allocate cuBLASLt's workspace");
    TRY(first_error(rt, err));
    cublasLtHandle_t handle;
    cublasStatus_t blas = cublasLtCreate(&handle);
    if (blas != CUBLAS_STATUS_SUCCESS)
        return err_set(err, STATUS_UNSUPPORTED, "device cuda:%d: cannot start cuBLASLt: %s", rt->index,
                       cublasLtGetStatusString(blas));
    rt->blas = handle;
    if (algo_cache_open(&rt->algos, gpu, (unsigned)cublasLtGetVersion()) == STATUS_OK) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", rt->index);
}

enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err)
{
    int count = 0;
    struct cudaDeviceProp prop;
    TRY(cuda_rt_count(&count, err));
    if (index < 0 || index >= count)
        return err_set(err, STATUS_INVALID, "device cuda:%d: not on this machine, which has cuda:0 to cuda:%d", index,
                       count - 1);
    cudaError_t code = cudaGetDeviceProperties(&prop, index);
    if (code == cudaSuccess) code = cudaSetDevice(index);
    /* Blocking waits sleep instead of spinning, here for streams and below for events: other threads need the cores. */
    if (code == cudaSuccess) code = cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    if (code != cudaSuccess)
        return err_set(err, opening_failed(code), "device cuda:%d: %s", index, cudaGetErrorString(code));
    if (prop.major * 10 + prop.minor < OLDEST_CAPABILITY)
        return err_set(err, STATUS_UNSUPPORTED,
                       "device cuda:%d: %s has compute capability %d.%d, but this build needs %d.%d or newer", index,
                       prop.name, prop.major, prop.minor, OLDEST_CAPABILITY / 10, OLDEST_CAPABILITY % 10);
    struct cuda_rt *rt = mem_alloc(1, sizeof *rt);
    if (!rt) return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", index);
    rt->index = index;
    rt->capability = prop.major * 10 + prop.minor;
    snprintf(name, name_size, "%s", prop.name);
    snprintf(rt->name, sizeof rt->name, "device cuda:%d %.80s", index, prop.name);
    enum status status = open_in(rt, prop.name, err);
    if (status == STATUS_OK)
        *out = rt;
    else
        cuda_rt_close(rt);
    return status;
}

void cuda_rt_close(struct cuda_rt *rt)
{
    if (!rt) return;
    (void)cudaSetDevice(rt->index);
    if (rt->stream) (void)cudaStreamSynchronize(rt->stream);
    for (int q = 0; q < CUDA_QUEUES; q++)
        if (rt->beside[q]) (void)cudaStreamDestroy(rt->beside[q]); /* pending work still finishes */
    if (rt->blas) (void)cublasLtDestroy(rt->blas);
    algo_cache_close(&rt->algos);
    (void)cudaFree(rt->workspace);
    for (int i = 0; i < DEVICE_MARKS; i++)
        if (rt->marks[i]) (void)cudaEventDestroy(rt->marks[i]);
    if (rt->stream) (void)cudaStreamDestroy(rt->stream);
    mem_free(rt);
}

void cuda_rt_use(struct cuda_rt *rt)
{
    atomic_fetch_add_explicit(&rt->progress.moves, 1, memory_order_relaxed);
    check(rt, cudaSetDevice(rt->index), "cannot select the device");
}

static cudaStream_t stream_of(struct cuda_rt *rt, enum cuda_queue queue)
{
    assert(queue < CUDA_QUEUES);
    cuda_rt_use(rt);
    if (queue == CUDA_MAIN) return rt->stream;
    if (!rt->beside[queue])
        check(rt, cudaStreamCreateWithFlags(&rt->beside[queue], cudaStreamNonBlocking), "cannot create a stream");
    return rt->beside[queue] ? rt->beside[queue] : rt->stream;
}

void *cuda_rt_stream(struct cuda_rt *rt, enum cuda_queue queue)
{
    return stream_of(rt, queue);
}

static void pause_briefly(int polls)
{
    if (polls > POLLS_MAX) nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

bool cuda_rt_stopped(struct cuda_rt *rt)
{
    char what[sizeof rt->error.msg];
    const struct err *why = rt->stopped ? rt->stopped(rt->stopped_ctx) : NULL;
    if (!why) return false;
    snprintf(what, sizeof what, "stopped: %.400s", why->msg);
    cuda_rt_fail(rt, STATUS_CLOSED, what);
    return true;
}

/* Blocks the host until the event, or with event NULL the stream, is done. */
static void wait_here(struct cuda_rt *rt, cudaStream_t stream, cudaEvent_t event)
{
    static const char what[] = "a kernel failed";
    cudaError_t code = cudaErrorNotReady;
    assert(stream || event);
    atomic_fetch_add(&rt->progress.waits, 1);
    if (!rt->stopped) code = event ? cudaEventSynchronize(event) : cudaStreamSynchronize(stream);
    for (int polls = 0; code == cudaErrorNotReady; polls++) {
        code = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (code != cudaErrorNotReady) break;
        (void)cudaGetLastError(); /* otherwise the next launch would report "not ready" */
        if (cuda_rt_stopped(rt)) break;
        pause_briefly(polls);
    }
    atomic_fetch_sub(&rt->progress.waits, 1);
    assert(atomic_load(&rt->progress.waits) >= 0);
    atomic_fetch_add(&rt->progress.moves, 1);
    if (code == cudaSuccess)
        (void)cuda_rt_stopped(rt); /* an aborted collective ends with success but without a result */
    if (code != cudaErrorNotReady) check(rt, code, what);
}

static void wait_for_all(struct cuda_rt *rt)
{
    cuda_rt_use(rt);
    wait_here(rt, rt->stream, NULL);
    for (int q = 0; q < CUDA_QUEUES; q++)
        if (rt->beside[q]) wait_here(rt, rt->beside[q], NULL);
}

void cuda_rt_memory(struct cuda_rt *rt, uint64_t *free_p, uint64_t *total_p)
{
    size_t left = 0, all = 0;
    cuda_rt_use(rt);
    if (cudaMemGetInfo(&left, &all) != cudaSuccess) {
        (void)cudaGetLastError();
        left = all = 0;
    }
    *free_p = left;
    *total_p = all;
}

void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes)
{
    void *p = NULL;
    cuda_rt_use(rt);
    cudaError_t code = cudaMalloc(&p, bytes ? bytes : 1);
    if (code != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller reports missing memory; it does not stick */
        if (code != cudaErrorMemoryAllocation) check(rt, code, "an earlier error, noticed while allocating memory");
        return NULL;
    }
    check(rt, cudaMemsetAsync(p, 0, bytes, rt->stream), "clearing memory");
    return p;
}

void cuda_rt_release(struct cuda_rt *rt, void *p)
{
    if (!p) return;
    wait_for_all(rt);
    check(rt, cudaFree(p), "freeing memory");
}

void cuda_rt_copy_on(struct cuda_rt *rt, enum cuda_queue queue, void *dst, const void *src, size_t bytes,
                     enum cuda_direction direction)
{
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    assert(direction <= CUDA_INSIDE);
    assert(!bytes || (dst && src));
    if (bytes) check(rt, cudaMemcpyAsync(dst, src, bytes, kinds[direction], stream_of(rt, queue)), "copying");
}

void *cuda_rt_host_alloc(struct cuda_rt *rt, size_t bytes)
{
    void *p = NULL;
    cuda_rt_use(rt);
    if (cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocPortable) != cudaSuccess) {
        (void)cudaGetLastError(); /* the caller reports it; it does not stick */
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}

void cuda_rt_host_release(struct cuda_rt *rt, void *p)
{
    if (!p) return;
    wait_for_all(rt);
    check(rt, cudaFreeHost(p), "freeing memory");
}

void cuda_rt_mark(struct cuda_rt *rt, int slot)
{
    assert(slot >= 0 && slot < DEVICE_MARKS && rt->marks[slot]);
    cuda_rt_use(rt);
    check(rt, cudaEventRecord(rt->marks[slot], rt->stream), "recording a mark");
}

enum status cuda_rt_reached(struct cuda_rt *rt, int slot, struct err *err)
{
    assert(slot >= 0 && slot < DEVICE_MARKS && rt->marks[slot]);
    cuda_rt_use(rt);
    wait_here(rt, NULL, rt->marks[slot]);
    return first_error(rt, err);
}

enum status cuda_rt_event_create(struct cuda_rt *rt, struct cuda_event **out)
{
    struct cuda_event *e = mem_alloc(1, sizeof *e);
    if (!e) return STATUS_NOMEM;
    cuda_rt_use(rt);
    if (cudaEventCreateWithFlags(&e->event, EVENT_FLAGS) != cudaSuccess) {
        (void)cudaGetLastError();
        mem_free(e);
        return STATUS_IO;
    }
    *out = e;
    return STATUS_OK;
}

void cuda_rt_event_free(struct cuda_rt *rt, struct cuda_event *e)
{
    if (!e) return;
    cuda_rt_use(rt);
    (void)cudaEventDestroy(e->event);
    mem_free(e);
}

void cuda_rt_event_record(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *e)
{
    assert(e);
    check(rt, cudaEventRecord(e->event, stream_of(rt, queue)), "recording an event");
}

void cuda_rt_queue_wait(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *e)
{
    assert(e);
    check(rt, cudaStreamWaitEvent(stream_of(rt, queue), e->event, 0), "waiting for an event");
}

enum status cuda_rt_event_wait(struct cuda_rt *rt, struct cuda_event *e, struct err *err)
{
    cuda_rt_use(rt);
    wait_here(rt, NULL, e->event);
    return first_error(rt, err);
}

bool cuda_rt_event_done(struct cuda_rt *rt, const struct cuda_event *e)
{
    if (cudaSetDevice(rt->index) != cudaSuccess) return false;
    cudaError_t code = cudaEventQuery(e->event);
    if (code != cudaSuccess) (void)cudaGetLastError(); /* clears the error of this thread */
    return code == cudaSuccess;
}

void cuda_rt_watch(struct cuda_rt *rt, const struct err *(*stopped)(void *ctx), void *ctx)
{
    assert(stopped || !ctx);
    rt->stopped = stopped;
    rt->stopped_ctx = ctx;
}

struct cuda_progress *cuda_rt_progress(struct cuda_rt *rt)
{
    return &rt->progress;
}

struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y)
{
    cudaStream_t stream = stream_of(rt, CUDA_MAIN);
    if (x <= GRID_X_MAX && y <= CUDA_GRID_Y_MAX) return (struct cuda_grid){(unsigned)x, (unsigned)y, stream};
    cuda_rt_fail(rt, STATUS_LIMIT, "operation too large for one launch");
    return (struct cuda_grid){0, 0, stream}; /* a launch with this grid fails, too */
}

void cuda_rt_launched(struct cuda_rt *rt, const char *what)
{
    check(rt, cudaGetLastError(), what);
}

enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err)
{
    wait_for_all(rt);
    return first_error(rt, err);
}
