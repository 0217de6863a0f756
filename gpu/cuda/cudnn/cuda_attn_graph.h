/* Causal self-attention as a graph of small operations, for a library that fuses such a graph into one kernel (cuDNN).
 * This file only describes the graph. gpu/cuda/cudnn/cuda_cudnn_plan.c turns it into cuDNN descriptors;
 * tests/cuda/emulator/graph_run.c executes it on the CPU.
 *
 * All tensors have four dimensions, with strides in elements. Forward is softmax(scale q k^T) v and keeps the
 * log-sum-exp of each row. Backward recomputes the probabilities from it (Dao et al., arXiv 2205.14135):
 *     p = exp(scale q k^T - lse),  dv = p^T do,  ds = scale p (do v^T - dot),  dq = ds k,  dk = ds^T q
 * where dot = the row sums of do * o. If kv_heads < heads, query head h uses key head h / (heads / kv_heads), and dk
 * and dv are sums over the query heads of one key head. */
#ifndef GPU_CUDA_ATTN_GRAPH_H
#define GPU_CUDA_ATTN_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum attn_graph_type { ATTN_F32, ATTN_BF16, ATTN_I32, ATTN_BOOL };

/* Memory that a tensor is bound to. Q, K, V lie in one packed [B,T,(H+2G)*hd]; DQ, DK, DV lie in another. */
enum attn_graph_role {
    ATTN_INSIDE, /* virtual: an intermediate result without memory */
    ATTN_VALUE,  /* one float, a constant of the graph */
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_O,
    ATTN_LSE, /* fp32 [B,H,T] */
    ATTN_DO,
    ATTN_DQ,
    ATTN_DK,
    ATTN_DV,
    ATTN_DOT,    /* fp32 [B,H,T], scratch */
    ATTN_DQ_SUM, /* fp32 [B,H,T,hd], scratch; not in exact graphs */
    ATTN_ROLES
};

struct attn_graph_tensor {
    enum attn_graph_type type;
    enum attn_graph_role role;
    float value;
    int64_t dim[4], stride[4];
};

enum attn_graph_kind {
    ATTN_MATMUL, /* y[b,h,i,j] = sum over k of x[b,h,i,k] b[b,h',k,j], h' = h / (heads / kv_heads) */
    ATTN_MUL,    /* y = x b; here and below, b may have dimensions of 1 */
    ATTN_ADD,
    ATTN_SUB,
    ATTN_DIV,
    ATTN_EXP,
    ATTN_LOG,
    ATTN_COPY,   /* y = x, converted to y's type */
    ATTN_INDEX,  /* y = the index along `axis` */
    ATTN_GE,     /* y = x >= b */
    ATTN_SELECT, /* y = t ? x : b */
    ATTN_MAX,    /* reductions along the dimensions in which y is smaller; heads fold in groups of neighbours */
    ATTN_SUM,
    ATTN_TRANSPOSE /* y[..,i,j] = x[..,j,i]; the strides describe the layout */
};

struct attn_graph_op {
    enum attn_graph_kind kind;
    int axis;
    int x, b, t, y; /* tensors; -1: none */
};

enum { ATTN_GRAPH_TENSORS = 48, ATTN_GRAPH_OPS = 28 };

struct attn_graph {
    struct attn_graph_tensor tensors[ATTN_GRAPH_TENSORS];
    struct attn_graph_op ops[ATTN_GRAPH_OPS];
    int n_tensors, n_ops;
};

struct attn_graph_shape {
    size_t batch, heads, kv_heads, seq, head_dim; /* kv_heads divides heads */
    bool exact;                /* backward: dq is one matrix product with a fixed order of sums; needs scratch of T*T */
    enum attn_graph_type type; /* of activations: ATTN_BF16; ATTN_F32 for tests of the mathematics */
    int capability;            /* compute capability of the GPU; 90: 9.0 */
};

void attn_graph_forward(struct attn_graph *graph, const struct attn_graph_shape *shape);
void attn_graph_backward(struct attn_graph *graph, const struct attn_graph_shape *shape);

/* Masks with the lowest finite number instead of -infinity. NVIDIA's front end does so for libraries before 9.10; the
 * results are the same. */
void attn_graph_finite_mask(struct attn_graph *graph);

/* Bytes of scratch memory for `role` (ATTN_DOT, ATTN_DQ_SUM); 0 for other roles, and if the graph has no such
 * tensor. */
size_t attn_graph_scratch(const struct attn_graph *graph, enum attn_graph_role role);
/* Estimated bytes of workspace of backward: exact for cuDNN 9.8 to 9.28 on sm_90, at most 256 too many on other
 * GPUs. */
size_t attn_graph_workspace(const struct attn_graph_shape *shape);
/* Offset in elements of a tensor of `role` in the packed [B,T,(H+2G)*hd] or in its own memory. */
size_t attn_graph_offset(const struct attn_graph_shape *shape, enum attn_graph_role role);

#endif
