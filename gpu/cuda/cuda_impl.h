/* Internals of the CUDA device. Each part is a pair of files in this folder. It fills its operations of gpu/device.h in
 * when the device is opened, and owns one member of struct cuda_device: no other file looks into it.
 *
 * A part calls only parts further down in this list.
 *
 *     cuda_device.c        opens and closes a device
 *     cuda_collective.c    sums and copies between the GPUs of a worker
 *     cuda_outer.c         deltas and updates
 *     cuda_lin.c           matrix products
 *     cuda_muon.c          Muon
 *     cuda_head.c          logits and loss
 *     cuda_attn.c          attention
 *     cuda_rows.c          norms, embedding, elementwise operations
 *     cuda_vectors.c       sums, optimizers but Muon
 *     cuda_stage.c         unpinned host memory
 *     cuda_bf16_weights.c  the parameters that products read
 *     cuda_plans.c         what an operation needs for one shape */
#ifndef GPU_CUDA_IMPL_H
#define GPU_CUDA_IMPL_H

#include "gpu/cuda/rt/cuda_rt.h"
#include "gpu/device.h"

struct cuda_device {
    struct device base;
    struct device_ops ops; /* base.ops */
    struct cuda_rt *rt;
    bool bf16;
    struct cuda_plan *plans;         /* cuda_plans.c: what an operation needs for one shape */
    struct cuda_bf16_weights *image; /* cuda_bf16_weights.c: the parameters that products read */
    struct cuda_stage *stage;        /* cuda_stage.c: unpinned host memory */
    struct cuda_vectors *vectors;    /* cuda_vectors.c: sums, optimizers but Muon */
    struct cuda_rows *rows;          /* cuda_rows.c: norms, embedding, elementwise operations, column sums */
    struct cuda_attn *attn;          /* cuda_attn.c: attention */
    struct cuda_head *head;          /* cuda_head.c: logits and loss */
    struct cuda_muon *muon;          /* cuda_muon.c: Muon */
};

/* Each part sets its operations and allocates its member, or closes that, also if it was opened in part. */
enum status cuda_outer_open(struct cuda_device *cuda) MUST_CHECK;
enum status cuda_lin_open(struct cuda_device *cuda) MUST_CHECK;
enum status cuda_muon_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_muon_close(struct cuda_device *cuda);
enum status cuda_head_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_head_close(struct cuda_device *cuda);
enum status cuda_attn_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_attn_close(struct cuda_device *cuda);
enum status cuda_rows_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_rows_close(struct cuda_device *cuda);
enum status cuda_vectors_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_vectors_close(struct cuda_device *cuda);
enum status cuda_stage_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_stage_close(struct cuda_device *cuda);
enum status cuda_bf16_weights_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_bf16_weights_close(struct cuda_device *cuda);
enum status cuda_plans_open(struct cuda_device *cuda) MUST_CHECK;
void cuda_plans_close(struct cuda_device *cuda);

/* `collective` of gpu/device.h. */
enum status cuda_collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                                 struct collective *out, struct err *err) MUST_CHECK;
/* Opens cuDNN for attention in bf16, if it is available. Appends to the device's name what computes attention. Errors:
 * INVALID: ATOLL_ATTENTION has an unknown value; those of cuDNN if it is required. */
enum status cuda_attn_use_bf16(struct cuda_device *cuda, struct err *err) MUST_CHECK;

static inline struct cuda_device *cuda_of(struct device *dev)
{
    return (struct cuda_device *)dev;
}

static inline size_t blocks_of(size_t n, size_t each)
{
    return (n + each - 1) / each;
}

/* Number of blocks for n numbers in rows of c in a "wide" kernel (gpu/cuda/kernels/cuda_args.h). */
static inline size_t wide_blocks(size_t n, size_t c, size_t threads)
{
    return blocks_of(c % CUDA_WIDE ? n : n / CUDA_WIDE, threads);
}

/* Launches `kernel` on a grid of x by y blocks. */
#define LAUNCH_ARGS(cuda, kernel, x, y, args)                                                                          \
    do {                                                                                                               \
        struct cuda_grid grid_ = cuda_rt_grid((cuda)->rt, (x), (y));                                                   \
        kernel(&grid_, (args));                                                                                        \
        cuda_rt_launched((cuda)->rt, #kernel);                                                                         \
    } while (0)
/* The same with the arguments as a struct initialiser. */
#define LAUNCH(cuda, kernel, x, y, args_type, ...) LAUNCH_ARGS(cuda, kernel, x, y, (&(struct args_type){__VA_ARGS__}))

#endif
