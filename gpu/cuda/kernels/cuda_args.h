/* Kernels of the CUDA back end and their arguments.
 *
 * - A launch is asynchronous. Pointers are device memory; rows are contiguous.
 * - `float *` is fp32. `void *` is activations: bf16 if the struct's `bf16` is set, else fp32.
 * - The comment of a kernel names the grid that covers the work: x blocks, or x by y blocks.
 * - "wide" blocks take CUDA_WIDE numbers per thread if the row length is a multiple of it (rows then begin at 16
 *   bytes), else one number per thread. */
#ifndef GPU_CUDA_ARGS_H
#define GPU_CUDA_ARGS_H

#include <stddef.h>
#include <stdint.h>

#include "common/tensor/delta_format.h"
#include "gpu/moment_rules.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    CUDA_BLOCK = 256,          /* threads per block of an elementwise kernel */
    CUDA_WIDE = 8,             /* numbers per wide load: 16 bytes of bf16 */
    CUDA_COLUMN_THREADS = 128, /* threads per block of a kernel that sums columns over rows */
    CUDA_FUSED_THREADS = 256,  /* threads per block of cuda_norm_fused; the short variant has half */
    CUDA_FUSED_WIDE = 2,       /* wide loads of one row per thread of cuda_norm_fused, at most */
    CUDA_COLUMN_GROUPS = 16,   /* groups of partial sums in cuda_columns_end, which takes 32 columns per block */
    CUDA_EMBED_ROWS = 8192,    /* tokens per launch of cuda_embed_sort, at most: it compares each with all others */
    CUDA_ADAMW_EACH = 4,       /* elements per thread of cuda_adamw */
    CUDA_XENT_THREADS = 512,   /* threads per block of cuda_xent */
    CUDA_ROW_WARPS = 8,        /* rows per block of a row kernel, one warp each */
    CUDA_GRID_Y_MAX = 65535,   /* limit of grid y of any launch; for attention: heads of all sequences */
    CUDA_SEGMENTS = 1024,      /* segments of a scalar reduction, at most; the length alone decides */
    CUDA_ATTN_ROWS = 8,        /* queries (in backward: keys) per block of attention, one warp each */
    CUDA_ATTN_HEAD_MAX = 128,  /* columns of a head, at most: limit of shared memory */
    CUDA_CHUNK_THREADS = 128,  /* threads per block of cuda_delta_chunk */
    CUDA_CHUNK_MAX = 4096,     /* values of a chunk, at most: 32 in the registers of each thread */
    CUDA_CHOSEN_MAX = 1024     /* values sent of a chunk, at most: their magnitudes lie in shared memory */
};

/* An entry of the kernel list, a section of the plugin. cuda_rt.c loads all of them when it opens a GPU. Compilers may
 * align an entry to 16 bytes, so it is as long: gaps between entries would be read as entries. */
struct cuda_known_kernel {
    const void *kernel;
} __attribute__((aligned(16)));

struct cuda_grid {
    unsigned x, y;
    void *stream;
};

/* --- cuda_element.cu: ceil(n / CUDA_BLOCK) blocks ----------------------------------------------------------------- */

struct cuda_vector_args {
    size_t n;
    float alpha;
    const float *x;
    float *y;
};
void cuda_fill(const struct cuda_grid *grid, const struct cuda_vector_args *a); /* y = alpha */
void cuda_axpy(const struct cuda_grid *grid, const struct cuda_vector_args *a); /* y += alpha x */

struct cuda_round_args {
    size_t n, width; /* width: CUDA_WIDE if n is a multiple of it and x and y are aligned to 16 bytes, else 1 */
    const float *x;
    uint16_t *y;
};
void cuda_round(const struct cuda_grid *grid, const struct cuda_round_args *a); /* y = x as bf16; n / width threads */

struct cuda_gelu_args {
    size_t n;
    int bf16;
    const void *z;
    void *y;
};
void cuda_gelu_fwd(const struct cuda_grid *grid, const struct cuda_gelu_args *a); /* y = gelu(z); wide */
void cuda_gelu_bwd(const struct cuda_grid *grid, const struct cuda_gelu_args *a); /* y *= gelu'(z); wide */

/* --- cuda_embed.cu ------------------------------------------------------------------------------------------------ */

struct cuda_embed_args {
    size_t n, seq, c;
    int accumulate, bf16;
    const int32_t *tokens;
    const float *wte, *wpe;
    const void *dout;
    void *out;
    float *dwte, *dwpe;
    int32_t *order, *keys; /* [n] */
};
void cuda_embed_fwd(const struct cuda_grid *grid, const struct cuda_embed_args *a);   /* n*c elements, wide */
void cuda_embed_place(const struct cuda_grid *grid, const struct cuda_embed_args *a); /* dwpe; min(n,seq)*c, wide */
void cuda_embed_sort(const struct cuda_grid *grid, const struct cuda_embed_args *a);  /* order, keys; ceil(n / 32) */
/* dwte, after cuda_embed_sort: ceil(n / CUDA_ROW_WARPS) by ceil(c / 32) blocks, wide */
void cuda_embed_word(const struct cuda_grid *grid, const struct cuda_embed_args *a);

/* --- cuda_norm.cu ------------------------------------------------------------------------------------------------- */

struct cuda_norm_args { /* RMS norm has no b and no mean */
    size_t n, c, block; /* block: rows per partial sum */
    int bf16;
    float eps;
    const void *x, *dy, *dres;
    const float *w, *b, *mean, *rstd;
    void *y, *dx;
    float *mean_out, *rstd_out;
    float *partials; /* [blocks][2][c], dw then db; for RMS norm [blocks][c] */
};
void cuda_norm_fwd(const struct cuda_grid *grid, const struct cuda_norm_args *a); /* ceil(n / CUDA_ROW_WARPS) */
void cuda_norm_bwd(const struct cuda_grid *grid, const struct cuda_norm_args *a); /* the same */
void cuda_rms_fwd(const struct cuda_grid *grid, const struct cuda_norm_args *a);  /* the same */
void cuda_rms_bwd(const struct cuda_grid *grid, const struct cuda_norm_args *a);  /* the same */
/* wide blocks of CUDA_COLUMN_THREADS over c, by blocks of rows */
void cuda_norm_columns(const struct cuda_grid *grid, const struct cuda_norm_args *a);
void cuda_rms_columns(const struct cuda_grid *grid, const struct cuda_norm_args *a);

/* --- cuda_norm_fused.cu: blocks of rows; c a multiple of CUDA_WIDE, <= CUDA_FUSED_COLUMNS ------------------------- */

enum {
    CUDA_FUSED_COLUMNS = CUDA_FUSED_THREADS * CUDA_FUSED_WIDE * CUDA_WIDE,
    CUDA_FUSED_SHORT = CUDA_FUSED_THREADS / 2 * CUDA_WIDE /* longest row for half the threads */
};

void cuda_norm_fused(const struct cuda_grid *grid, const struct cuda_norm_args *a);
void cuda_norm_fused_short(const struct cuda_grid *grid, const struct cuda_norm_args *a);
void cuda_rms_fused(const struct cuda_grid *grid, const struct cuda_norm_args *a);
void cuda_rms_fused_short(const struct cuda_grid *grid, const struct cuda_norm_args *a);

struct cuda_columns_args {
    size_t n, c, block, blocks, stride; /* stride: floats from one partial to the next */
    int accumulate, bf16;
    const void *x;   /* [n,c] */
    float *partials; /* [blocks][stride] */
    float *out;      /* [c] */
};
void cuda_columns(const struct cuda_grid *grid, const struct cuda_columns_args *a);     /* as cuda_norm_columns */
void cuda_columns_end(const struct cuda_grid *grid, const struct cuda_columns_args *a); /* ceil(c / 32) */

/* --- cuda_rope.cu, cuda_glu.cu ------------------------------------------------------------------------------------ */

struct cuda_rope_args {
    size_t n, seq, heads, head_dim, ld;
    int bf16, back, wide; /* wide: head_dim/2 and ld are multiples of CUDA_WIDE */
    const float *table;   /* [seq][head_dim] */
    void *x;
};
void cuda_rope(const struct cuda_grid *grid, const struct cuda_rope_args *a); /* n * heads * head_dim/2 pairs, wide */

struct cuda_glu_args {
    size_t n, f;
    int bf16;
    const void *gu, *dh; /* [n,2f], [n,f] */
    void *h, *dgu;       /* h: forward; dgu: backward, may be gu */
};
void cuda_glu_fwd(const struct cuda_grid *grid, const struct cuda_glu_args *a); /* n*f elements, wide */
void cuda_glu_bwd(const struct cuda_grid *grid, const struct cuda_glu_args *a); /* the same */

/* --- cuda_loss.cu ------------------------------------------------------------------------------------------------- */

struct cuda_xent_args {
    size_t v, ld; /* logits[rows][ld]; the first v of a row count, the rest becomes zero */
    float dscale;
    int loss_only, bf16;
    void *logits;
    float *loss;
    const int32_t *targets;
};
void cuda_xent(const struct cuda_grid *grid, const struct cuda_xent_args *a); /* one block per row */

struct cuda_reduce_args {
    size_t n, segment, segments; /* segment: floats per segment, a multiple of CUDA_BLOCK * CUDA_WIDE */
    int square, wide;            /* wide: x is aligned to 16 bytes */
    const float *x;
    double *sums; /* [CUDA_SEGMENTS] */
    float *out;
};
void cuda_reduce(const struct cuda_grid *grid, const struct cuda_reduce_args *a);     /* `segments` blocks */
void cuda_reduce_end(const struct cuda_grid *grid, const struct cuda_reduce_args *a); /* 1 block */

/* --- cuda_optim.cu ------------------------------------------------------------------------------------------------ */

struct cuda_clip_args {
    const float *sumsq;
    float max_norm;
    float *scale, *norm;
};
void cuda_clip(const struct cuda_grid *grid, const struct cuda_clip_args *a); /* 1 block */

struct cuda_count_args {
    const float *scale;
    float beta1, beta2;
    struct step_count *count;
};
void cuda_count_step(const struct cuda_grid *grid, const struct cuda_count_args *a); /* 1 block */

struct cuda_sgd_args {
    size_t n;
    float *theta;
    const float *grad, *scale; /* scale: one float or NULL */
    float lr, keep;
};
void cuda_sgd(const struct cuda_grid *grid, const struct cuda_sgd_args *a); /* ceil(n / CUDA_BLOCK) */

/* A range of theta with one weight-decay factor. `block` is the index of its first block. */
struct cuda_adamw_span {
    uint64_t offset, count, block, skipped; /* its moments begin at offset - skipped */
    int decay;
};

struct cuda_adamw_args {
    size_t n_spans;
    const struct cuda_adamw_span *spans;
    float *theta;
    void *m, *v;
    int bf16;        /* m and v are bf16, not fp32; needs `count` */
    uint16_t *image; /* bf16 image of theta, or NULL */
    const float *grad, *scale;
    float lr, beta1, beta2, eps;
    float keep, correct1, correct2; /* 1 - lr * weight_decay; 1 / (1 - beta^step) */
    const struct step_count *count; /* replaces correct1 and correct2, or NULL */
};
/* ceil(count / (CUDA_BLOCK * CUDA_ADAMW_EACH)) blocks per span */
void cuda_adamw(const struct cuda_grid *grid, const struct cuda_adamw_args *a);

/* --- cuda_muon.cu: ceil(elements of a matrix / CUDA_BLOCK) by matrices of the batch ------------------------------- */

struct cuda_muon_place { /* position of a matrix in theta; its momentum begins `skipped` earlier */
    uint64_t offset, ld, skipped;
    int decay;
};

struct cuda_muon_args {
    size_t rows, cols; /* of each matrix of the batch */
    const struct cuda_muon_place *places;
    float mu, decay, step; /* decay: lr * weight_decay; step: factor of x in the update */
    const float *scale, *grad;
    float *theta;
    void *momentum;
    const struct step_count *count; /* not NULL: the momentum is bf16 */
    void *x;                        /* [batch][rows * cols] */
    int bf16;                       /* x is bf16 */
};
void cuda_muon_momentum(const struct cuda_grid *grid, const struct cuda_muon_args *a);
void cuda_muon_apply(const struct cuda_grid *grid, const struct cuda_muon_args *a);

struct cuda_muon_poly_args {
    size_t side;
    int first;    /* gram belongs to a matrix that is not yet divided by its norm */
    int bf16;     /* factors are bf16 */
    float *gram;  /* [batch][side * side], as the next three */
    void *factor; /* gram as a factor of products; with fp32 factors it is gram itself */
    void *poly, *mult;
    float *inverse; /* [batch], 1 / norm, written by cuda_muon_norm */
};
void cuda_muon_norm(const struct cuda_grid *grid, const struct cuda_muon_poly_args *a); /* 1 by matrices of the batch */
void cuda_muon_poly(const struct cuda_grid *grid, const struct cuda_muon_poly_args *a); /* side*side by matrices */

/* --- cuda_attention.cu: ceil(seq / CUDA_ATTN_ROWS) by batch*heads blocks, bwd_kv batch*kv_heads ------------------- */

struct cuda_attn_args {
    size_t seq, heads, kv_heads, head_dim; /* head_dim <= CUDA_ATTN_HEAD_MAX */
    int bf16;
    float scale;
    const void *qkv, *o_in, *d_o;
    const float *lse;
    void *o;
    float *lse_out; /* forward; may be NULL */
    float *dot;     /* [B,H,T]: row sums of o * d_o, written by cuda_attn_dot */
    void *dqkv;
};
void cuda_attn_fwd(const struct cuda_grid *grid, const struct cuda_attn_args *a);
void cuda_attn_dot(const struct cuda_grid *grid, const struct cuda_attn_args *a);
void cuda_attn_bwd_q(const struct cuda_grid *grid, const struct cuda_attn_args *a);
void cuda_attn_bwd_kv(const struct cuda_grid *grid, const struct cuda_attn_args *a);

/* --- cuda_delta_chunk.cu, cuda_delta_block.cu --------------------------------------------------------------------- */

struct cuda_delta_args {
    enum piece_kind kind;
    float decay;
    size_t n_pieces;
    const struct piece_range *pieces;
    const float *theta, *anchor, *residual; /* at the fragment's first float; anchor and residual may be NULL */
    float *rest;                            /* the new residual, or NULL; may be `residual` */
    struct quantized_delta out;
};
void cuda_delta_chunk(const struct cuda_grid *grid, const struct cuda_delta_args *a); /* top-k: n_pieces blocks */
void cuda_delta_block(const struct cuda_grid *grid, const struct cuda_delta_args *a); /* ceil(n_pieces / 8) */

/* --- cuda_delta_add.cu: ceil(n_pieces / CUDA_ROW_WARPS) ----------------------------------------------------------- */

struct cuda_add_args {
    enum piece_kind kind;
    size_t n_pieces;
    const struct piece_range *pieces;
    struct quantized_delta in;
    float *theta; /* at the fragment's first float */
};
void cuda_delta_add(const struct cuda_grid *grid, const struct cuda_add_args *a);

#ifdef __cplusplus
}
#endif

#endif
