/* bf16 attention through cuDNN: plans, scratch memory, and a batch cut into parts if its scratch would be too large.
 * gpu/cuda/cudnn/cuda_attn_graph.h defines the mathematics. */
#ifndef GPU_CUDA_CUDNN_H
#define GPU_CUDA_CUDNN_H

#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"
#include "gpu/device.h"

struct cuda_cudnn;      /* cuDNN on one device */
struct cuda_cudnn_attn; /* a plan */

/* What computes attention in bf16 (ATOLL_ATTENTION). AUTO (not set): cuDNN if it is available and supports the shape,
 * else the plain loops of cuda_attention.cu. */
enum cuda_attention {
    CUDA_ATTENTION_AUTO,
    CUDA_ATTENTION_PLAIN, /* "plain": the plain loops */
    CUDA_ATTENTION_CUDNN, /* "cudnn": cuDNN or an error */
    CUDA_ATTENTION_EXACT  /* "exact": as AUTO, but equal inputs give equal bits: cuDNN sums dq in a fixed order, with
                             scratch of T*T, or the plain loops are used */
};

/* Reads ATOLL_ATTENTION. INVALID, with a one-line message, for an unknown value and for "own", which is gone. */
enum status cuda_attention_wish(enum cuda_attention *out, struct err *err) MUST_CHECK;

/* scratch_max: limit of one plan's scratch memory in bytes. 0: 1 GiB; for a single sequence, an eighth of the GPU's
 * memory if that is more. Errors: those of cudnn_rt_open. */
enum status cuda_cudnn_open(struct cuda_rt *rt, bool exact, size_t scratch_max, struct cuda_cudnn **out, char *name,
                            size_t name_size, struct err *err) MUST_CHECK;
/* Call it after its plans are freed. NULL is allowed. */
void cuda_cudnn_close(struct cuda_cudnn *dnn);

/* Estimated bytes of a plan's scratch memory; cuDNN knows the exact size only after compiling. 0: cuDNN does not
 * support the shape. */
size_t cuda_cudnn_attn_bytes(const struct cuda_cudnn *dnn, const struct attn_shape *shape);
/* Creates a plan. Errors: UNSUPPORTED, with a one-line message: cuDNN does not support the shape, or needs too much
 * scratch memory; NOMEM. */
enum status cuda_cudnn_attn_create(struct cuda_cudnn *dnn, const struct attn_shape *shape, struct cuda_cudnn_attn **out,
                                   struct err *err) MUST_CHECK;
void cuda_cudnn_attn_free(struct cuda_cudnn_attn *plan); /* NULL is allowed */
/* Number of parts of the batch, and bytes of scratch memory. */
size_t cuda_cudnn_attn_parts(const struct cuda_cudnn_attn *plan);
size_t cuda_cudnn_attn_scratch(const struct cuda_cudnn_attn *plan);

/* Like attn_fwd and attn_bwd of gpu/device.h, with activations in bf16. lse may be NULL in plans for inference. */
void cuda_cudnn_attn_fwd(struct cuda_cudnn_attn *plan, const void *qkv, void *o, float *lse);
void cuda_cudnn_attn_bwd(struct cuda_cudnn_attn *plan, const void *qkv, const void *o, const float *lse,
                         const void *d_o, void *dqkv);

#endif
