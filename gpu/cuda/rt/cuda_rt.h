/* Runtime of the CUDA device: memory, queues, matrix products. gpu/cuda/rt/cuda_rt.c implements it with the CUDA
 * runtime and cuBLASLt, tests/cuda/emulator/emulate_rt.c on the CPU. Everything above is the same code.
 *
 * - Calls are asynchronous and keep the order of their queue. Calls without a queue argument go to CUDA_MAIN.
 * - Queues run concurrently. An event orders work of one queue after work of another.
 * - The first error sticks, and cuda_rt_sync returns it.
 * - One thread at a time calls into one runtime, except where a function says otherwise. */
#ifndef GPU_CUDA_RT_H
#define GPU_CUDA_RT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu/cuda/kernels/cuda_args.h"

struct cuda_rt;
struct cuda_gemm;

/* OUT[m,n] = A[m,k] B[k,n] + C[m,n] + bias[n], all row-major with leading dimensions, summed in fp32. A batch computes
 * several products of one shape: the operands of the next product begin step_a, step_b and step_c elements later. */
struct cuda_gemm_shape {
    size_t m, n, k, lda, ldb, ldc; /* ldc: of C and OUT; 0: dense */
    bool a_trans, b_trans;         /* A is stored as [k,m], B as [n,k] */
    bool bf16, bf16_out;           /* type of A and B; type of OUT, C and bias; false: fp32 */
    /* The epilogue: at most one of these two, and only with batch 0. */
    bool bias;                     /* bias[n] is added */
    bool dgelu;                    /* OUT is multiplied by gelu'(aux[m,n]), tanh form; aux has OUT's layout; no C */
    size_t batch;                  /* number of products in one call; 0: one */
    size_t step_a, step_b, step_c; /* step_c: of C and OUT; 0: one product behind the other */
};

static inline size_t gemm_number_bytes(bool bf16)
{
    return bf16 ? 2 : sizeof(float);
}

static inline size_t gemm_products(const struct cuda_gemm_shape *s)
{
    return s->batch ? s->batch : 1;
}

/* The shape with the numbers of dense matrices in place of zeros. */
static inline struct cuda_gemm_shape gemm_dense(struct cuda_gemm_shape s)
{
    if (!s.lda) s.lda = s.a_trans ? s.m : s.k;
    if (!s.ldb) s.ldb = s.b_trans ? s.k : s.n;
    if (!s.ldc) s.ldc = s.n;
    if (s.batch && !s.step_a) s.step_a = s.m * s.k;
    if (s.batch && !s.step_b) s.step_b = s.k * s.n;
    if (s.batch && !s.step_c) s.step_c = s.m * s.n;
    return s;
}

struct cuda_gemm_call {
    const void *a, *b;
    const void *c; /* NULL: zero; may be out */
    void *out;
    const void *bias, *aux;
};

enum cuda_direction { CUDA_UPLOAD, CUDA_DOWNLOAD, CUDA_INSIDE };

/* COMM: collectives between the GPUs of a worker. COPY: copies between device and host, concurrent with the others. */
enum cuda_queue { CUDA_MAIN, CUDA_COMM, CUDA_COPY, CUDA_QUEUES };

/* A position in a queue. Recording it again moves it. A wait refers to the last record before that wait, and returns at
 * once if there is none. */
struct cuda_event;

/* Number of usable devices. UNSUPPORTED, with a one-line message: no driver, or the driver is too old. */
enum status cuda_rt_count(int *count, struct err *err) MUST_CHECK;
/* Opens device `index`; `name` gets its name for messages (e.g. "NVIDIA H200"). Errors: INVALID: no such device;
 * UNSUPPORTED: the device is too old; NOMEM. */
enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err) MUST_CHECK;
void cuda_rt_close(struct cuda_rt *rt);

/* Free and total memory of the device, in bytes; 0: unknown. */
void cuda_rt_memory(struct cuda_rt *rt, uint64_t *free_p, uint64_t *total_p);
/* Zeroed, aligned to 256 bytes; NULL if the device has no room. */
void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes) MUST_CHECK;
void cuda_rt_release(struct cuda_rt *rt, void *p);
void cuda_rt_copy_on(struct cuda_rt *rt, enum cuda_queue queue, void *dst, const void *src, size_t bytes,
                     enum cuda_direction direction);
static inline void cuda_rt_copy(struct cuda_rt *rt, void *dst, const void *src, size_t bytes,
                                enum cuda_direction direction)
{
    cuda_rt_copy_on(rt, CUDA_MAIN, dst, src, bytes, direction);
}

/* Pinned host memory, zeroed; NULL if there is no room. */
void *cuda_rt_host_alloc(struct cuda_rt *rt, size_t bytes) MUST_CHECK;
void cuda_rt_host_release(struct cuda_rt *rt, void *p);

/* mark records the current position of CUDA_MAIN in slot < DEVICE_MARKS. reached blocks the host until the queue has
 * passed the slot's last mark; it returns at once without a mark. */
void cuda_rt_mark(struct cuda_rt *rt, int slot);
enum status cuda_rt_reached(struct cuda_rt *rt, int slot, struct err *err) MUST_CHECK;

/* Errors: NOMEM, IO. Free events before the runtime is closed and after all waits for them have ended. NULL is
 * allowed. */
enum status cuda_rt_event_create(struct cuda_rt *rt, struct cuda_event **out) MUST_CHECK;
void cuda_rt_event_free(struct cuda_rt *rt, struct cuda_event *event);
void cuda_rt_event_record(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *event);
/* Work submitted to the queue from now on runs after the event. */
void cuda_rt_queue_wait(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *event);
/* Blocks the host until the event has happened. Returns the first error since open, or OK. */
enum status cuda_rt_event_wait(struct cuda_rt *rt, struct cuda_event *event, struct err *err) MUST_CHECK;
/* True if the event has happened. Any thread may call it. */
bool cuda_rt_event_done(struct cuda_rt *rt, const struct cuda_event *event);
/* Waits of the host poll `stopped` and end when it returns an error (CLOSED then sticks): the GPU waits for another GPU
 * that will never come. stopped NULL: the host waits for the GPU without polling. Other calls may block in the library
 * (a full queue, unpinned memory) and do not poll. */
void cuda_rt_watch(struct cuda_rt *rt, const struct err *(*stopped)(void *ctx), void *ctx);
/* Polls `stopped` for waits outside of the runtime. True: end the wait; CLOSED sticks. */
bool cuda_rt_stopped(struct cuda_rt *rt);

/* Progress counters that other threads may read. */
struct cuda_progress {
    atomic_ulong moves; /* calls begun and waits ended */
    atomic_int waits;   /* waits of the host in progress */
};
struct cuda_progress *cuda_rt_progress(struct cuda_rt *rt);

/* The queue as a cudaStream_t, for libraries that launch kernels themselves. Makes the device current in the calling
 * thread. */
void *cuda_rt_stream(struct cuda_rt *rt, enum cuda_queue queue);

/* Grid for a launch of x by y blocks; x and y at least 1. */
struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y);
/* Call after a launch: records its error. */
void cuda_rt_launched(struct cuda_rt *rt, const char *what);
void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what);
/* "device cuda:1 NVIDIA H200": for messages. */
const char *cuda_rt_name(const struct cuda_rt *rt);
/* Compute capability: 90 for 9.0. */
int cuda_rt_capability(const struct cuda_rt *rt);
/* Blocks the host until all queues are empty. Returns the first error since open, or OK. */
enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err) MUST_CHECK;

/* Creates a matrix product. Errors: UNSUPPORTED: no algorithm for the shape, or the reason in cuda_rt_gemm_refusal;
 * NOMEM. A shape with dgelu needs rows aligned to 16 bytes. */
enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape,
                                struct cuda_gemm **out) MUST_CHECK;
/* cuBLASLt's reason why the last product could not be created. */
const char *cuda_rt_gemm_refusal(const struct cuda_rt *rt);
/* True if a product with dgelu accepts these operands, which must be aligned to 16 bytes. NULL accepts none. */
bool cuda_rt_gemm_takes(const struct cuda_gemm *gemm, const struct cuda_gemm_call *call);
void cuda_rt_gemm_free(struct cuda_gemm *gemm);
void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *gemm, const struct cuda_gemm_call *call);

#endif
