/* Attention of bf16 activations through cuDNN (gpu/cuda/cudnn/cuda_attn_graph.h says what is computed): plans, scratch
 * memory, and the batch cut into parts where scratch would be too large. */
#ifndef GPU_CUDA_CUDNN_H
#define GPU_CUDA_CUDNN_H

#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"
#include "gpu/device.h"

struct cuda_cudnn;      /* cuDNN on one device */
struct cuda_cudnn_attn; /* a plan */

/* ATOLL_ATTENTION says what computes attention on a GPU. AUTO (not set): cuDNN where it is and takes the shape, else
 * the own kernel. */
enum cuda_attention {
    CUDA_ATTENTION_AUTO,
    CUDA_ATTENTION_OWN,   /* "own": the own kernel */
    CUDA_ATTENTION_CUDNN, /* "cudnn": cuDNN or an error */
    CUDA_ATTENTION_EXACT  /* "exact": as AUTO, but same inputs give the same bits: cuDNN's dq is summed in a fixed
                             order, with scratch of T*T, or the own kernel is taken */
};

/* INVALID, with one line, for another word. */
enum status cuda_attention_wish(enum cuda_attention *out, struct err *err) MUST_CHECK;

/* `scratch_max`: bytes that one plan may have beside activations; 0: 1 GiB, for one sequence an eighth of the GPU's
 * memory where that is more. Errors of cudnn_rt_open. */
enum status cuda_cudnn_open(struct cuda_rt *rt, bool exact, size_t scratch_max, struct cuda_cudnn **out, char *name,
                            size_t name_size, struct err *err) MUST_CHECK;
/* After its plans. NULL is allowed. */
void cuda_cudnn_close(struct cuda_cudnn *dnn);

/* Bytes beside activations that a plan will take, about: cuDNN says it only when it has compiled. 0: there will be none
 * of that shape. */
size_t cuda_cudnn_attn_bytes(const struct cuda_cudnn *dnn, const struct attn_shape *shape);
/* UNSUPPORTED with one line: cuDNN does not take the shape, or not within the scratch memory; NOMEM. */
enum status cuda_cudnn_attn_create(struct cuda_cudnn *dnn, const struct attn_shape *shape, struct cuda_cudnn_attn **out,
                                   struct err *err) MUST_CHECK;
void cuda_cudnn_attn_free(struct cuda_cudnn_attn *plan); /* NULL is allowed */
/* Parts that the batch is cut into, and bytes beside activations. */
size_t cuda_cudnn_attn_parts(const struct cuda_cudnn_attn *plan);
size_t cuda_cudnn_attn_scratch(const struct cuda_cudnn_attn *plan);

/* As attn_fwd and attn_bwd of gpu/device.h, activations in bf16. lse may be NULL in plans for inference. */
void cuda_cudnn_attn_fwd(struct cuda_cudnn_attn *plan, const void *qkv, void *o, float *lse);
void cuda_cudnn_attn_bwd(struct cuda_cudnn_attn *plan, const void *qkv, const void *o, const float *lse,
                         const void *d_o, void *dqkv);

#endif
