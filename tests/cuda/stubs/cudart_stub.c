#include <sys/mman.h>

#include "gpu/cuda/kernels/cuda_kernel.h"
#include "tests/cuda/emulator/emulate_launch.h"
#include "tests/cuda/stubs/cudart_stub.h"

enum { PAGE = 4096, GARBAGE = 0xa5, GARBAGE_BYTES = 1 << 16 };

struct cudart_stub cudart_stub = {.gpus = 1, .driver = CUDART_VERSION, .capability = 90, .memory = (size_t)1 << 36};
struct stub_faults cudart_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct {
    cudaError_t error; /* permanent: all later calls return it, and nothing runs */
    size_t taken;      /* bytes allocated */
    unsigned long operations;
    unsigned long queued; /* operations that have not ended */
} stub_gpus[STUB_GPUS_MAX];
static pthread_mutex_t stub_lock = PTHREAD_MUTEX_INITIALIZER; /* protects all state */
static pthread_cond_t stub_moved = PTHREAD_COND_INITIALIZER; /* an operation was queued or ended, or an event reached */

static _Thread_local int current;
static _Thread_local cudaError_t last;

/* gpu/cuda/rt/cuda_rt.c loads the kernels in this section, which nvcc fills in a real build. */
static const char kernel;
__attribute__((section("atoll_kernels"), used)) static struct cuda_known_kernel known[] = {{&kernel}, {&kernel}};

__attribute__((constructor)) static void from_environment(void)
{
    const char *set;
    if ((set = getenv("ATOLL_STUB_GPUS"))) cudart_stub.gpus = atoi(set);
    if ((set = getenv("ATOLL_STUB_DRIVER"))) cudart_stub.driver = atoi(set);
    if ((set = getenv("ATOLL_STUB_CAPABILITY"))) cudart_stub.capability = atoi(set);
    if ((set = getenv("ATOLL_STUB_MEMORY"))) cudart_stub.memory = strtoull(set, NULL, 10);
    if ((set = getenv("ATOLL_STUB_FAIL")))
        (void)sscanf(set, "%d:%lu", &cudart_stub.fail.device, &cudart_stub.fail.operation);
    if ((set = getenv("ATOLL_STUB_HANG")))
        (void)sscanf(set, "%d:%lu", &cudart_stub.hang.device, &cudart_stub.hang.operation);
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */

void cudart_stub_heal(void)
{
    pthread_mutex_lock(&stub_lock);
    for (int i = 0; i < STUB_GPUS_MAX; i++) stub_gpus[i].error = cudaSuccess;
    pthread_mutex_unlock(&stub_lock);
    last = cudaSuccess;
}

static bool counts(const char *call)
{
    static const char *const others[] = {"cudaFree", "Destroy", "Query", "EventCreate"};
    if (cudart_faults.call) return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(call, others[i])) return false;
    return cudart_faults.status != cudaErrorMemoryAllocation || strstr(call, "lloc") || strstr(call, "Create");
}

static cudaError_t stub_begin(const char *call)
{
    bool fails = counts(call) && stub_fault(&cudart_faults, call);
    cudaError_t status = (cudaError_t)cudart_faults.status;
    pthread_mutex_lock(&stub_lock);
    if (fails && status != cudaErrorMemoryAllocation) stub_gpus[current].error = status;
    cudaError_t code = fails ? status : stub_gpus[current].error;
    pthread_mutex_unlock(&stub_lock);
    return code;
}

static cudaError_t stub_end(cudaError_t code)
{
    if (code != cudaSuccess) last = code;
    return code;
}

#define STUB_BEGIN()                                                                                                   \
    do {                                                                                                               \
        cudaError_t refused = stub_begin(__func__);                                                                    \
        if (refused != cudaSuccess) return stub_end(refused);                                                          \
    } while (0)

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last;
    pthread_mutex_lock(&stub_lock);
    if (code == cudaSuccess) code = stub_gpus[current].error;
    pthread_mutex_unlock(&stub_lock);
    last = cudaSuccess;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "out of memory"
           : code == cudaErrorIllegalAddress ? "an illegal memory access was encountered"
                                             : "another error";
}

const char *cudaGetErrorName(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
           : code == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                             : "cudaErrorUnknown";
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
    *count = cudart_stub.gpus;
    return stub_end(cudart_stub.gpus ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    STUB_BEGIN();
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
    (void)flags;
    STUB_BEGIN();
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    STUB_BEGIN();
    memset(attributes, 0, sizeof *attributes);
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Describes an allocation, in the page before it. */
struct block {
    size_t bytes;
    int owner; /* device; -1: pinned memory of the host */
};

static cudaError_t take(void **out, size_t bytes, int owner)
{
    size_t room = PAGE + (bytes + PAGE - 1) / PAGE * PAGE;
    struct block *b = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b == MAP_FAILED) return cudaErrorMemoryAllocation;
    *b = (struct block){.bytes = bytes, .owner = owner};
    *out = (char *)b + PAGE;
    memset(*out, GARBAGE, bytes < GARBAGE_BYTES ? bytes : GARBAGE_BYTES);
    pthread_mutex_lock(&stub_lock);
    if (owner >= 0) stub_gpus[owner].taken += bytes;
    pthread_mutex_unlock(&stub_lock);
    stub_made(&cudart_faults, 1);
    return cudaSuccess;
}

/* The functions that free wait, as documented. A failed call frees all the same: a dead device keeps no memory. */
static cudaError_t give(void *p, cudaError_t code)
{
    if (!p) return stub_end(code);
    struct block *b = (struct block *)((char *)p - PAGE);
    pthread_mutex_lock(&stub_lock);
    while (stub_gpus[current].queued) pthread_cond_wait(&stub_moved, &stub_lock);
    if (b->owner >= 0) stub_gpus[b->owner].taken -= b->bytes;
    pthread_mutex_unlock(&stub_lock);
    stub_made(&cudart_faults, -1);
    (void)munmap(b, PAGE + (b->bytes + PAGE - 1) / PAGE * PAGE);
    return stub_end(code);
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
    return stub_end(bytes > left_of(current) ? cudaErrorMemoryAllocation : take(p, bytes, current));
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    (void)flags;
    *p = NULL;
    STUB_BEGIN();
    return stub_end(take(p, bytes, -1));
}

cudaError_t cudaFree(void *p)
{
    return give(p, stub_begin(__func__));
}

cudaError_t cudaFreeHost(void *p)
{
    return give(p, stub_begin(__func__));
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    STUB_BEGIN();
    *all = cudart_stub.memory;
    *left = left_of(current);
    return cudaSuccess;
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

struct operation {
    struct operation *next;
    void (*run)(void *args, bool dead);
    bool counts; /* counts for stub_at; false for events and waits */
    max_align_t args[];
};

struct stream {
    struct CUstream_st seen;
    struct operation *first, **last; /* the first one is running */
    bool destroyed;
};

struct CUevent_st {
    struct CUevent_st *next;         /* list of destroyed events: operations may still use them */
    unsigned long recorded, reached; /* numbers of records and completions */
    int device;
};

static cudaEvent_t graves;

/* Start an operation. Returns whether its device has failed. */
static bool fails(int device)
{
    const struct stub_at *fail = &cudart_stub.fail, *hang = &cudart_stub.hang;
    pthread_mutex_lock(&stub_lock);
    unsigned long n = ++stub_gpus[device].operations;
    if (fail->device == device && fail->operation == n) stub_gpus[device].error = cudaErrorIllegalAddress;
    while (hang->device == device && hang->operation == n) pthread_cond_wait(&stub_moved, &stub_lock);
    bool failed = stub_gpus[device].error != cudaSuccess;
    pthread_mutex_unlock(&stub_lock);
    return failed;
}

/* The thread of a stream: it runs the queued operations, also after the stream's destruction. */
static void *work(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&stub_lock);
    for (;;) {
        while (!s->first && !s->destroyed) pthread_cond_wait(&stub_moved, &stub_lock);
        struct operation *op = s->first;
        if (!op) break;
        pthread_mutex_unlock(&stub_lock);
        op->run(op->args, op->counts && fails(s->seen.device));
        pthread_mutex_lock(&stub_lock);
        s->first = op->next;
        if (!s->first) s->last = &s->first;
        stub_gpus[s->seen.device].queued--;
        pthread_cond_broadcast(&stub_moved);
        free(op);
    }
    pthread_mutex_unlock(&stub_lock);
    free(s);
    return NULL;
}

static void append(cudaStream_t stream, bool counts, void (*run)(void *args, bool dead), const void *args, size_t bytes)
{
    struct stream *s = (struct stream *)stream;
    struct operation *op = calloc(1, sizeof *op + bytes);
    if (!op) abort();
    op->run = run;
    op->counts = counts;
    memcpy(op->args, args, bytes);
    pthread_mutex_lock(&stub_lock);
    *s->last = op;
    s->last = &op->next;
    stub_gpus[stream->device].queued++;
    pthread_cond_broadcast(&stub_moved);
    pthread_mutex_unlock(&stub_lock);
}

static void submit(cudaStream_t stream, void (*run)(void *args, bool dead), const void *args, size_t bytes)
{
    append(stream, true, run, args, bytes);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    pthread_t thread;
    (void)flags;
    STUB_BEGIN();
    struct stream *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->seen = (struct CUstream_st){.submit = submit, .device = current};
    s->last = &s->first;
    if (pthread_create(&thread, NULL, work, s)) abort();
    pthread_detach(thread);
    stub_made(&cudart_faults, 1);
    *out = &s->seen;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    pthread_mutex_lock(&stub_lock);
    ((struct stream *)stream)->destroyed = true;
    pthread_cond_broadcast(&stub_moved);
    pthread_mutex_unlock(&stub_lock);
    stub_made(&cudart_faults, -1);
    return cudaSuccess;
}

static cudaError_t look_at_stream(cudaStream_t stream, bool wait)
{
    struct stream *s = (struct stream *)stream;
    pthread_mutex_lock(&stub_lock);
    while (wait && s->first) pthread_cond_wait(&stub_moved, &stub_lock);
    cudaError_t code = s->first ? cudaErrorNotReady : stub_gpus[stream->device].error;
    pthread_mutex_unlock(&stub_lock);
    return code;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    STUB_BEGIN();
    return stub_end(look_at_stream(stream, true));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    STUB_BEGIN();
    return stub_end(look_at_stream(stream, false));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

struct place {
    cudaEvent_t event;
    unsigned long nth;
};

static void reach(void *args, bool dead)
{
    (void)dead;
    const struct place *place = args;
    pthread_mutex_lock(&stub_lock);
    place->event->reached = place->nth;
    pthread_cond_broadcast(&stub_moved);
    pthread_mutex_unlock(&stub_lock);
}

static void await(void *args, bool dead)
{
    (void)dead;
    const struct place *place = args;
    pthread_mutex_lock(&stub_lock);
    while (place->event->reached < place->nth) pthread_cond_wait(&stub_moved, &stub_lock);
    pthread_mutex_unlock(&stub_lock);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    STUB_BEGIN();
    *out = calloc(1, sizeof **out);
    if (!*out) abort();
    (*out)->device = current;
    stub_made(&cudart_faults, 1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    pthread_mutex_lock(&stub_lock);
    event->next = graves;
    graves = event;
    pthread_mutex_unlock(&stub_lock);
    stub_made(&cudart_faults, -1);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    STUB_BEGIN();
    pthread_mutex_lock(&stub_lock);
    struct place place = {.event = event, .nth = ++event->recorded};
    pthread_mutex_unlock(&stub_lock);
    append(stream, false, reach, &place, sizeof place);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    STUB_BEGIN();
    pthread_mutex_lock(&stub_lock);
    struct place place = {.event = event, .nth = event->recorded};
    pthread_mutex_unlock(&stub_lock);
    append(stream, false, await, &place, sizeof place);
    return cudaSuccess;
}

static cudaError_t look_at_event(cudaEvent_t event, bool wait)
{
    pthread_mutex_lock(&stub_lock);
    while (wait && event->reached < event->recorded) pthread_cond_wait(&stub_moved, &stub_lock);
    cudaError_t code = event->reached < event->recorded ? cudaErrorNotReady : stub_gpus[event->device].error;
    pthread_mutex_unlock(&stub_lock);
    return code;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    STUB_BEGIN();
    return stub_end(look_at_event(event, true));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    STUB_BEGIN();
    return stub_end(look_at_event(event, false));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    (void)begin, (void)end;
    STUB_BEGIN();
    *ms = 1;
    return cudaSuccess;
}

/* ---- copies and launches ----------------------------------------------------------------------------------------- */

struct copy {
    void *to;
    const void *from; /* NULL: set all bytes to 0 */
    size_t bytes;
};

static void run_copy(void *args, bool dead)
{
    const struct copy *c = args;
    if (dead) return;
    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    const struct copy c = {.to = to, .from = from, .bytes = bytes};
    (void)kind;
    STUB_BEGIN();
    append(stream, true, run_copy, &c, sizeof c);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const struct copy c = {.to = p, .bytes = bytes};
    STUB_BEGIN();
    if (value) return stub_end(cudaErrorInvalidValue);
    append(stream, true, run_copy, &c, sizeof c);
    return cudaSuccess;
}

static void run_launch(void *args, bool dead)
{
    if (!dead) emulate_launch_run(args);
}

void cuda_emulated_launch(const struct cuda_grid *grid, const char *name, void (*thread)(const void *args),
                          const void *args, size_t bytes, unsigned threads)
{
    size_t size;
    if (stub_end(stub_begin("cudaLaunchKernel")) != cudaSuccess) return;
    if (!grid->x || !grid->y) { /* as cuda_rt_grid refuses it */
        (void)stub_end(cudaErrorInvalidConfiguration);
        return;
    }
    struct emulated_launch *l = emulate_launch_keep(grid, name, thread, args, bytes, threads, &size);
    append(grid->stream, true, run_launch, l, size);
    free(l);
}
