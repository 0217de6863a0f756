/* What the CUDA device needs from a runtime: memory, queues, matrix products. gpu/cuda/rt/cuda_rt.c does it with the
 * CUDA runtime and cuBLASLt, tests/cuda/emulator/emulate_rt.c on the CPU; everything above is the same code.
 *
 * Calls are asynchronous, in the order of their queue; calls that name none go to CUDA_MAIN. Queues run beside each
 * other: what one must not do before another is done needs an event between. The first error sticks and comes back from
 * cuda_rt_sync. One thread at a time calls into one runtime, but for what says otherwise. */
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

/* OUT[m,n] = A[m,k] B[k,n] + C[m,n] + bias[n], all row-major with leading dimensions, sums in fp32. Several of one
 * shape go together: the next one's operands begin step_a, step_b and step_c elements later. */
struct cuda_gemm_shape {
    size_t m, n, k, lda, ldb, ldc; /* ldc: of C and OUT */
    bool a_trans, b_trans;         /* stored [k,m], [n,k] */
    bool bf16, bf16_out;           /* A and B; OUT, C and bias. Not so: fp32 */
    /* The epilogue: at most one of these three, and only with batch 0. */
    bool bias;                     /* bias[n] is added */
    bool dgelu;                    /* OUT is multiplied by gelu'(aux[m,n]), tanh form; aux is laid out as OUT; no C */
    bool bias_grad;                /* bias_grad[n] becomes the column sums of B; fp32, as OUT is */
    size_t batch;                  /* number of products of one call; 0: one */
    size_t step_a, step_b, step_c; /* step_c: of C and OUT */
};

static inline size_t gemm_number_bytes(bool bf16)
{
    return bf16 ? 2 : sizeof(float);
}

static inline size_t gemm_products(const struct cuda_gemm_shape *s)
{
    return s->batch ? s->batch : 1;
}

struct cuda_gemm_call {
    const void *a, *b;
    const void *c; /* NULL: zero; may be out */
    void *out;
    const void *bias, *aux;
    float *bias_grad;
};

/* An operation, done on what `call` names by a product and whatever kernels that leaves to be done. */
struct cuda_gemm_user {
    void (*run)(void *ctx, const struct cuda_gemm *gemm, const struct cuda_gemm_call *call);
    void *ctx;
};

/* Whether dgelu and bias_grad go into a product or into kernels of their own (ATOLL_EPILOGUE). */
enum cuda_epilogue {
    CUDA_EPILOGUE_TIMED,   /* unset or "timed": the faster of the two */
    CUDA_EPILOGUE_FUSED,   /* "fused": into the product where the library can */
    CUDA_EPILOGUE_SEPARATE /* "separate": kernels */
};

enum cuda_direction { CUDA_UPLOAD, CUDA_DOWNLOAD, CUDA_INSIDE };

/* COMM: between the GPUs of a worker. COPY: between device and host, beside the rest. */
enum cuda_queue { CUDA_MAIN, CUDA_COMM, CUDA_COPY, CUDA_QUEUES };

/* A place in a queue. Recording it again moves it; a wait is for the place where it was last recorded before that wait,
 * and for nothing when it never was. */
struct cuda_event;

/* Devices that can be used. UNSUPPORTED with one line when there is no driver, or one too old. */
enum status cuda_rt_count(int *count, struct err *err) MUST_CHECK;
/* name (e.g. "NVIDIA H200") is for people. INVALID: no such device; UNSUPPORTED: too old; NOMEM. */
enum status cuda_rt_open(int index, struct cuda_rt **out, char *name, size_t name_size, struct err *err) MUST_CHECK;
void cuda_rt_close(struct cuda_rt *rt);

/* Bytes that can still be had, and of all of it; 0: not known. */
void cuda_rt_memory(struct cuda_rt *rt, uint64_t *free_p, uint64_t *total_p);
/* Zeroed, aligned to 256 bytes; NULL when there is none. */
void *cuda_rt_alloc(struct cuda_rt *rt, size_t bytes) MUST_CHECK;
void cuda_rt_release(struct cuda_rt *rt, void *p);
void cuda_rt_copy(struct cuda_rt *rt, void *dst, const void *src, size_t bytes, enum cuda_direction direction);

void cuda_rt_copy_on(struct cuda_rt *rt, enum cuda_queue queue, void *dst, const void *src, size_t bytes,
                     enum cuda_direction direction);

/* Pinned memory of the host, zeroed; NULL when there is none. */
void *cuda_rt_host_alloc(struct cuda_rt *rt, size_t bytes) MUST_CHECK;
void cuda_rt_host_release(struct cuda_rt *rt, void *p);

/* Mark this place of CUDA_MAIN, slot < DEVICE_MARKS; the host waits until the queue got to the slot's last mark, for
 * nothing when there is none. */
void cuda_rt_mark(struct cuda_rt *rt, int slot);
enum status cuda_rt_reached(struct cuda_rt *rt, int slot, struct err *err) MUST_CHECK;

/* NOMEM, or IO. Freed before the runtime is closed, when no wait for it is open; NULL is allowed. */
enum status cuda_rt_event_create(struct cuda_rt *rt, struct cuda_event **out) MUST_CHECK;
void cuda_rt_event_free(struct cuda_rt *rt, struct cuda_event *event);
void cuda_rt_event_record(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *event);
/* What is submitted to the queue from now on runs after the event. */
void cuda_rt_queue_wait(struct cuda_rt *rt, enum cuda_queue queue, struct cuda_event *event);
/* The host waits for the event alone; the first error since open, or OK. */
enum status cuda_rt_event_wait(struct cuda_rt *rt, struct cuda_event *event, struct err *err) MUST_CHECK;
/* By any thread: the host would not wait for the event now. */
bool cuda_rt_event_done(struct cuda_rt *rt, const struct cuda_event *event);
/* Waits of the host ask `stopped` again and again and end when it says why (CLOSED sticks then): the GPU waits for
 * another one that will never come. NULL: they wait for the GPU alone. Other calls may block in the library below
 * (a full queue, memory that is not pinned) and do not ask. */
void cuda_rt_watch(struct cuda_rt *rt, const struct err *(*stopped)(void *ctx), void *ctx);
/* Asks it, for waits of the host that are not the runtime's own; true: end the wait, CLOSED sticks. */
bool cuda_rt_stopped(struct cuda_rt *rt);

/* What other threads may look at: */
struct cuda_progress {
    atomic_ulong moves; /* calls that were begun, waits that are over */
    atomic_int waits;   /* the host waits */
};
struct cuda_progress *cuda_rt_progress(struct cuda_rt *rt);

/* The queue as the runtime below knows it (cudaStream_t), for libraries that launch by themselves; the device is the
 * calling thread's after it. */
void *cuda_rt_stream(struct cuda_rt *rt, enum cuda_queue queue);

/* The grid of a launch; x and y at least 1. */
struct cuda_grid cuda_rt_grid(struct cuda_rt *rt, size_t x, size_t y);
struct cuda_grid cuda_rt_grid_on(struct cuda_rt *rt, enum cuda_queue queue, size_t x, size_t y);
/* After a launch: takes note of its error. */
void cuda_rt_launched(struct cuda_rt *rt, const char *what);
void cuda_rt_fail(struct cuda_rt *rt, enum status code, const char *what);
/* "device cuda:1 NVIDIA H200": for messages. */
const char *cuda_rt_name(const struct cuda_rt *rt);
/* Its compute capability: 90 for 9.0. */
int cuda_rt_capability(const struct cuda_rt *rt);
/* Waits for all queues; the first error since open, or OK. */
enum status cuda_rt_sync(struct cuda_rt *rt, struct err *err) MUST_CHECK;

/* UNSUPPORTED: no algorithm for the shape, or what cuda_rt_gemm_refusal says; NOMEM. A shape with dgelu or
 * bias_grad needs rows that begin at multiples of 16 bytes. */
enum status cuda_rt_gemm_create(struct cuda_rt *rt, const struct cuda_gemm_shape *shape,
                                struct cuda_gemm **out) MUST_CHECK;
/* Of the last product that was not made: the library's word for it. */
const char *cuda_rt_gemm_refusal(const struct cuda_rt *rt);
/* Make the product of `shape`, which has dgelu or bias_grad, if the caller should use it in place of `separate`, the
 * same product without. With TIMED the faster one for `user` wins. *out stays NULL: use `separate`. NOMEM. */
enum status cuda_rt_gemm_fuse(struct cuda_rt *rt, const struct cuda_gemm_shape *shape, enum cuda_epilogue wish,
                              const struct cuda_gemm *separate, const struct cuda_gemm_user *user,
                              struct cuda_gemm **out) MUST_CHECK;
/* Whether that product takes these operands: they begin at 16 bytes. NULL takes none. */
bool cuda_rt_gemm_takes(const struct cuda_gemm *fused, const struct cuda_gemm_call *call);
void cuda_rt_gemm_free(struct cuda_gemm *gemm);
void cuda_rt_gemm(struct cuda_rt *rt, const struct cuda_gemm *gemm, const struct cuda_gemm_call *call);

#endif
