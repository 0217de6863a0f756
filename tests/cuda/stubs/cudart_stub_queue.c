/* Streams, events, copies and launches of the stub (cudart_stub.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpu/cuda/kernels/cuda_kernel.h"
#include "tests/cuda/emulator/emulate_launch.h"
#include "tests/cuda/stubs/cudart_stub_impl.h"

enum { LARGE = 1 << 20 /* bytes */, HOLD_NS = 5000000 };

struct operation {
    struct operation *next;
    void (*run)(void *args, bool dead);
    bool counts; /* counts for stub_at; false for events and waits */
    max_align_t args[];
};

struct stream {
    struct CUstream_st seen;
    struct operation *first, **last; /* the first one is running */
    struct stream *next;
    bool destroyed; /* kept after its destruction, to detect later use */
};

struct CUevent_st {
    struct CUevent_st *next; /* list of destroyed events, kept to detect later use */
    int device;
    bool destroyed;
    unsigned long recorded, reached; /* numbers of records and completions */
    float ms;
};

static struct stream *streams; /* all streams, destroyed ones included */
static cudaEvent_t graves;

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Start an operation. Returns whether its device has failed. */
static bool fails(int device)
{
    struct stub_gpu *gpu = &stub_gpus[device];
    pthread_mutex_lock(&stub_lock);
    unsigned long n = ++gpu->operations;
    if (cudart_stub.fail.device == device && cudart_stub.fail.operation == n) gpu->error = cudaErrorIllegalAddress;
    while (cudart_stub.hang.device == device && cudart_stub.hang.operation == n)
        pthread_cond_wait(&stub_moved, &stub_lock);
    bool failed = gpu->error != cudaSuccess;
    pthread_mutex_unlock(&stub_lock);
    return failed;
}

static void *work(void *arg)
{
    struct stream *s = arg;
    for (;;) {
        pthread_mutex_lock(&stub_lock);
        while (!s->first && !s->destroyed) pthread_cond_wait(&stub_moved, &stub_lock);
        struct operation *op = s->first;
        pthread_mutex_unlock(&stub_lock);
        if (!op) break;
        op->run(op->args, op->counts && fails(s->seen.device));
        pthread_mutex_lock(&stub_lock);
        s->first = op->next;
        if (!s->first) s->last = &s->first;
        pthread_cond_broadcast(&stub_moved);
        pthread_mutex_unlock(&stub_lock);
        free(op);
    }
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
    pthread_cond_broadcast(&stub_moved);
    pthread_mutex_unlock(&stub_lock);
}

static void submit(cudaStream_t stream, void (*run)(void *args, bool dead), const void *args, size_t bytes)
{
    append(stream, true, run, args, bytes);
}

/* The default stream is refused, because it synchronizes with all other streams. */
static cudaError_t usable(cudaStream_t stream)
{
    return stream && !((struct stream *)stream)->destroyed && stream->device == stub_current()
               ? cudaSuccess
               : cudaErrorInvalidResourceHandle;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    pthread_t thread;
    STUB_BEGIN();
    struct stream *s = calloc(1, sizeof *s);
    if (flags != cudaStreamNonBlocking || !s) {
        free(s);
        return stub_end(cudaErrorInvalidValue);
    }
    s->seen = (struct CUstream_st){.submit = submit, .device = stub_current()};
    s->last = &s->first;
    if (pthread_create(&thread, NULL, work, s)) abort();
    pthread_detach(thread);
    pthread_mutex_lock(&stub_lock);
    s->next = streams;
    streams = s;
    stub_left++;
    pthread_mutex_unlock(&stub_lock);
    *out = &s->seen;
    return cudaSuccess;
}

/* Queued operations still run. */
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    struct stream *s = (struct stream *)stream;
    if (usable(stream) != cudaSuccess) return stub_end(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stub_lock);
    s->destroyed = true;
    stub_left--;
    pthread_cond_broadcast(&stub_moved);
    pthread_mutex_unlock(&stub_lock);
    return cudaSuccess;
}

/* Requires the lock. Let operations that the device holds back continue. */
static void looked(int device)
{
    stub_gpus[device].looks++;
    pthread_cond_broadcast(&stub_moved);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess) return stub_end(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stub_lock);
    looked(stream->device);
    while (((struct stream *)stream)->first) pthread_cond_wait(&stub_moved, &stub_lock);
    cudaError_t code = stub_gpus[stream->device].error;
    pthread_mutex_unlock(&stub_lock);
    return stub_end(code);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess) return stub_end(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stub_lock);
    looked(stream->device);
    cudaError_t code = ((struct stream *)stream)->first ? cudaErrorNotReady : stub_gpus[stream->device].error;
    pthread_mutex_unlock(&stub_lock);
    return stub_end(code);
}

void stub_settle(int device)
{
    pthread_mutex_lock(&stub_lock);
    looked(device);
    for (struct stream *s = streams; s; s = s->next)
        while (s->seen.device == device && s->first) pthread_cond_wait(&stub_moved, &stub_lock);
    pthread_mutex_unlock(&stub_lock);
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
    place->event->ms = cudart_stub.now_ms;
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

static cudaError_t created(cudaEvent_t *out)
{
    *out = calloc(1, sizeof **out);
    if (!*out) return cudaErrorMemoryAllocation;
    (*out)->device = stub_current();
    pthread_mutex_lock(&stub_lock);
    stub_left++;
    pthread_mutex_unlock(&stub_lock);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    STUB_BEGIN();
    const unsigned quiet = cudaEventDisableTiming | cudaEventBlockingSync; /* other flags make waits slow or spin */
    if ((flags & quiet) != quiet) return stub_end(cudaErrorInvalidValue);
    return stub_end(created(out));
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    STUB_BEGIN();
    return stub_end(created(out));
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event || event->destroyed) return stub_end(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stub_lock);
    event->destroyed = true;
    event->next = graves;
    graves = event;
    stub_left--;
    pthread_mutex_unlock(&stub_lock);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess || event->destroyed || event->device != stream->device)
        return stub_end(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&stub_lock);
    struct place place = {.event = event, .nth = ++event->recorded};
    pthread_mutex_unlock(&stub_lock);
    append(stream, false, reach, &place, sizeof place);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess || event->destroyed) return stub_end(cudaErrorInvalidResourceHandle);
    if (flags) return stub_end(cudaErrorInvalidValue);
    pthread_mutex_lock(&stub_lock);
    struct place place = {.event = event, .nth = event->recorded};
    pthread_mutex_unlock(&stub_lock);
    if (place.nth) append(stream, false, await, &place, sizeof place);
    return cudaSuccess;
}

static cudaError_t look(cudaEvent_t event, bool wait)
{
    if (event->destroyed) return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&stub_lock);
    looked(event->device);
    while (wait && event->reached < event->recorded) pthread_cond_wait(&stub_moved, &stub_lock);
    cudaError_t code = event->reached < event->recorded ? cudaErrorNotReady : stub_gpus[event->device].error;
    pthread_mutex_unlock(&stub_lock);
    return code;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    STUB_BEGIN();
    return stub_end(look(event, true));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    STUB_BEGIN();
    return stub_end(look(event, false));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    STUB_BEGIN();
    *ms = end->ms - begin->ms;
    return cudaSuccess;
}

/* ---- copies and launches ----------------------------------------------------------------------------------------- */

struct copy {
    void *to;
    const void *from;
    void *own; /* copy of pageable memory at the time of the call */
    int value; /* value of all bytes if `from` is NULL */
    size_t bytes;
    int device;
    unsigned long looks; /* value of the device's `looks` at the call */
};

/* CUDA may read pageable memory before the call returns or when the host waits ("API synchronization behavior"). The
 * stub delays the read for a while, but not longer, because the host may wait for another device. The memory must not
 * change until then. */
static void hold(const struct copy *c)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += HOLD_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&stub_lock);
    while (stub_gpus[c->device].looks == c->looks &&
           pthread_cond_timedwait(&stub_moved, &stub_lock, &until) != ETIMEDOUT)
        continue;
    pthread_mutex_unlock(&stub_lock);
    if (memcmp(c->own, c->from, c->bytes) == 0) return;
    fprintf(stderr, "cudart_stub: pageable memory changed before its copy\n");
    abort();
}

/* Return whole pages to the system, which provides new zero pages on access; few pages of a large block are used. */
static void clear(unsigned char *p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), head = (page - (uintptr_t)p % page) % page;
    if (bytes < LARGE || madvise(p + head, (bytes - head) / page * page, MADV_DONTNEED) != 0) head = bytes;
    memset(p, 0, head);
    size_t tail = (bytes - head) % page;
    memset(p + bytes - tail, 0, tail);
}

static void run_copy(void *args, bool dead)
{
    const struct copy *c = args;
    if (!dead && c->own) hold(c);
    if (!dead && c->from)
        memcpy(c->to, c->from, c->bytes);
    else if (!dead && c->value)
        memset(c->to, c->value, c->bytes);
    else if (!dead)
        clear(c->to, c->bytes);
    free(c->own);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess) return stub_end(cudaErrorInvalidResourceHandle);
    struct copy c = {.to = to, .from = from, .bytes = bytes, .device = stream->device};
    int source = stub_owner(from, bytes), target = stub_owner(to, bytes);
    bool of_device = kind != cudaMemcpyHostToDevice, to_device = kind != cudaMemcpyDeviceToHost;
    if ((source >= 0) != of_device || (target >= 0) != to_device) return stub_end(cudaErrorInvalidValue);
    if ((of_device && source != stream->device) || (to_device && target != stream->device))
        return stub_end(cudaErrorInvalidValue);
    if (source == STUB_PAGEABLE) {
        c.own = malloc(bytes);
        if (!c.own) abort();
        memcpy(c.own, from, bytes);
        pthread_mutex_lock(&stub_lock);
        c.looks = stub_gpus[c.device].looks;
        pthread_mutex_unlock(&stub_lock);
    }
    append(stream, true, run_copy, &c, sizeof c);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    STUB_BEGIN();
    if (usable(stream) != cudaSuccess) return stub_end(cudaErrorInvalidResourceHandle);
    if (bytes && stub_owner(p, bytes) != stream->device) return stub_end(cudaErrorInvalidValue);
    struct copy c = {.to = p, .value = value, .bytes = bytes};
    append(stream, true, run_copy, &c, sizeof c);
    return cudaSuccess;
}

static void run_launch(void *args, bool dead)
{
    if (!dead) emulate_launch_run(args);
}

static cudaError_t launch(const struct cuda_grid *grid, const char *name, void (*thread)(const void *args),
                          const void *args, size_t bytes, unsigned threads)
{
    if (usable(grid->stream) != cudaSuccess) return cudaErrorInvalidResourceHandle;
    if (!grid->x || !grid->y) return cudaErrorInvalidConfiguration;
    size_t size;
    struct emulated_launch *l = emulate_launch_keep(grid, name, thread, args, bytes, threads, &size);
    append(grid->stream, true, run_launch, l, size);
    free(l);
    return cudaSuccess;
}

void cuda_emulated_launch(const struct cuda_grid *grid, const char *name, void (*thread)(const void *args),
                          const void *args, size_t bytes, unsigned threads)
{
    cudaError_t code = stub_begin("cudaLaunchKernel");
    (void)stub_end(code != cudaSuccess ? code : launch(grid, name, thread, args, bytes, threads));
}
