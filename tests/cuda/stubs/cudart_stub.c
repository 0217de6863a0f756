/* Devices, errors and memory of the stub (cudart_stub.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/cuda/kernels/cuda_args.h"
#include "tests/cuda/stubs/cudart_stub_impl.h"

enum { ALIGN = 256, GARBAGE = 0xa5, GARBAGE_BYTES = 1 << 18 /* at either end */ };

struct cudart_stub cudart_stub = {.gpus = 1, .driver = CUDART_VERSION, .capability = 90, .memory = (size_t)1 << 36};
struct stub_gpu stub_gpus[STUB_GPUS_MAX];
pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t stub_moved = PTHREAD_COND_INITIALIZER;
size_t stub_left;

static _Thread_local int current;
static _Thread_local cudaError_t last;

/* gpu/cuda/rt/cuda_rt.c loads the kernels in this section, which nvcc fills in a real build. */
static const char kernel;
__attribute__((section("atoll_kernels"), used)) static struct cuda_known_kernel known[] = {{&kernel}, {&kernel}};

__attribute__((constructor)) static void from_environment(void)
{
    static const struct {
        const char *name;
        int *value;
    } numbers[] = {{"ATOLL_STUB_GPUS", &cudart_stub.gpus},
                   {"ATOLL_STUB_DRIVER", &cudart_stub.driver},
                   {"ATOLL_STUB_CAPABILITY", &cudart_stub.capability}};
    const char *set;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((set = getenv(numbers[i].name))) *numbers[i].value = atoi(set);
    if ((set = getenv("ATOLL_STUB_MEMORY"))) cudart_stub.memory = strtoull(set, NULL, 10);
    if ((set = getenv("ATOLL_STUB_FAIL")))
        (void)sscanf(set, "%d:%lu", &cudart_stub.fail.device, &cudart_stub.fail.operation);
    if ((set = getenv("ATOLL_STUB_HANG")))
        (void)sscanf(set, "%d:%lu", &cudart_stub.hang.device, &cudart_stub.hang.operation);
}

size_t cudart_stub_left(void)
{
    pthread_mutex_lock(&stub_lock);
    size_t left = stub_left;
    pthread_mutex_unlock(&stub_lock);
    return left;
}

void cudart_stub_heal(void)
{
    for (int i = 0; i < STUB_GPUS_MAX; i++) {
        if (stub_gpus[i].error == cudaSuccess) continue;
        stub_settle(i); /* drop queued work: half of it was skipped by the failure */
        stub_gpus[i].error = cudaSuccess;
    }
    last = cudaSuccess;
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

int stub_current(void)
{
    return current;
}

/* Whether `any` covers this call. Lack of memory only affects calls that create something. Events do not count, because
 * there are thousands of them. */
static bool may_fail(const char *call)
{
    static const char *const others[] = {"cudaFree", "Destroy", "Query", "EventCreate"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(call, others[i])) return false;
    return cudart_stub.code != cudaErrorMemoryAllocation || strstr(call, "lloc") || strstr(call, "Create");
}

/* Any error except lack of memory also kills the device. */
static bool any_fails(const char *call)
{
    if (!cudart_stub.any || !may_fail(call) || --cudart_stub.any) return false;
    cudart_stub.failed_in = call;
    if (cudart_stub.code != cudaErrorMemoryAllocation) stub_gpus[current].error = cudart_stub.code;
    return true;
}

cudaError_t stub_begin(const char *call)
{
    cudaError_t code = cudaSuccess;
    pthread_mutex_lock(&stub_lock);
    if (any_fails(call))
        code = cudart_stub.code;
    else if (cudart_stub.call && !strcmp(cudart_stub.call, call) && cudart_stub.after && --cudart_stub.after == 0)
        code = cudart_stub.code;
    else
        code = stub_gpus[current].error;
    pthread_mutex_unlock(&stub_lock);
    return code;
}

cudaError_t stub_end(cudaError_t code)
{
    if (code != cudaSuccess) last = code;
    return code;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last;
    pthread_mutex_lock(&stub_lock);
    if (code == cudaSuccess) code = stub_gpus[current].error;
    pthread_mutex_unlock(&stub_lock);
    last = cudaSuccess;
    return code;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"}};

static size_t error_at(cudaError_t code)
{
    size_t i = 0;
    while (i < sizeof errors / sizeof *errors - 1 && errors[i].code != code) i++;
    return i;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return errors[error_at(code)].text;
}

const char *cudaGetErrorName(cudaError_t code)
{
    return errors[error_at(code)].name;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = cudart_stub.driver;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    STUB_BEGIN();
    if (cudart_stub.driver / 1000 < CUDART_VERSION / 1000) return stub_end(cudaErrorInsufficientDriver);
    if (!cudart_stub.gpus) return stub_end(cudaErrorNoDevice);
    *count = cudart_stub.gpus;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    STUB_BEGIN();
    if (device < 0 || device >= cudart_stub.gpus) return stub_end(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof *prop);
    snprintf(prop->name, sizeof prop->name, "Stub %d", device);
    prop->major = cudart_stub.capability / 10;
    prop->minor = cudart_stub.capability % 10;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= cudart_stub.gpus) return stub_end(cudaErrorInvalidDevice);
    current = device; /* later calls report an error of the device */
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    STUB_BEGIN();
    cudart_stub.sleeps[current] = (flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync;
    return stub_end(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    STUB_BEGIN();
    if (function != &kernel) return stub_end(cudaErrorInvalidValue);
    memset(attributes, 0, sizeof *attributes);
    cudart_stub.loaded++;
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* An allocation, followed by a guard page. */
static struct block {
    struct block *next;
    unsigned char *base, *p;
    size_t bytes, pages;
    int owner;
} * blocks;

int stub_owner(const void *p, size_t bytes)
{
    const unsigned char *at = p;
    int owner = STUB_PAGEABLE;
    pthread_mutex_lock(&stub_lock);
    for (const struct block *b = blocks; b; b = b->next)
        if (at >= b->p && at + bytes <= b->p + b->bytes) owner = b->owner;
    pthread_mutex_unlock(&stub_lock);
    return owner;
}

static cudaError_t take(void **out, size_t bytes, int owner)
{
    struct block *b = calloc(1, sizeof *b);
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!b) return cudaErrorMemoryAllocation;
    b->pages = (inside + page - 1) / page * page;
    b->base = mmap(NULL, b->pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->base == MAP_FAILED) {
        free(b);
        return cudaErrorMemoryAllocation;
    }
    (void)mprotect(b->base + b->pages, page, PROT_NONE);
    b->p = b->base + b->pages - inside;
    b->bytes = bytes;
    b->owner = owner;
    size_t rubbish = b->pages < GARBAGE_BYTES ? b->pages : GARBAGE_BYTES;
    memset(b->base, GARBAGE, rubbish);
    memset(b->base + b->pages - rubbish, GARBAGE, rubbish);
    pthread_mutex_lock(&stub_lock);
    b->next = blocks;
    blocks = b;
    stub_left++;
    if (owner >= 0) stub_gpus[owner].taken += bytes;
    pthread_mutex_unlock(&stub_lock);
    *out = b->p;
    return cudaSuccess;
}

static cudaError_t give(void *p, bool of_device)
{
    struct block *b = NULL;
    if (!p) return cudaSuccess;
    pthread_mutex_lock(&stub_lock);
    for (struct block **at = &blocks; *at && !b; at = b ? at : &(*at)->next) {
        if ((*at)->p != p || ((*at)->owner >= 0) != of_device) continue;
        b = *at;
        *at = b->next;
        stub_left--;
        if (of_device) stub_gpus[b->owner].taken -= b->bytes;
    }
    pthread_mutex_unlock(&stub_lock);
    if (!b) return cudaErrorInvalidValue;
    (void)munmap(b->base, b->pages + (size_t)sysconf(_SC_PAGESIZE));
    free(b);
    return cudaSuccess;
}

static size_t left_of(int device)
{
    pthread_mutex_lock(&stub_lock);
    size_t taken = stub_gpus[device].taken, left = cudart_stub.memory > taken ? cudart_stub.memory - taken : 0;
    pthread_mutex_unlock(&stub_lock);
    return left;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    *p = NULL;
    STUB_BEGIN();
    if (!bytes) return cudaSuccess;
    return stub_end(bytes > left_of(current) ? cudaErrorMemoryAllocation : take(p, bytes, current));
}

cudaError_t cudaFree(void *p)
{
    STUB_BEGIN();
    stub_settle(current); /* cudaFree waits, as documented */
    return stub_end(give(p, true));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    *p = NULL;
    STUB_BEGIN();
    if (flags != cudaHostAllocPortable) return stub_end(cudaErrorInvalidValue); /* all devices use it */
    return stub_end(take(p, bytes, STUB_PINNED));
}

cudaError_t cudaFreeHost(void *p)
{
    STUB_BEGIN();
    stub_settle(current);
    return stub_end(give(p, false));
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    STUB_BEGIN();
    *all = cudart_stub.memory;
    *left = left_of(current);
    return cudaSuccess;
}
