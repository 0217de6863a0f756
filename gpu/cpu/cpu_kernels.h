/* The compute kernels of the CPU back end, one table for each instruction-set level. All take row-major fp32 and run on
 * one thread; the operations (cpu_*.c) split the work between threads. */
#ifndef GPU_CPU_KERNELS_H
#define GPU_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The epilogue of a tile of C; pointers are at the tile. */
struct gemm_tile {
    float *c;
    size_t ldc, rows, cols;
    const float *add, *bias; /* NULL: none; leading dimension of add, aux_* is ldc */
    bool gelu;
    float *aux_out;      /* input of the GELU */
    const float *aux_in; /* input of the previous layer's GELU: C is multiplied by its derivative */
    const float *next;   /* start of the next panel of A, to prefetch; laid out like A; NULL: none */
};

struct adamw_step {
    float lr, beta1, beta2, eps, decay; /* decay = lr * weight_decay, or 0 for a span without decay */
    float correct1, correct2;           /* 1 / (1 - beta^step) */
    float scale;                        /* of the gradient */
    uint32_t noise[2];                  /* for bf16 moments (gpu/moment_rules.h) */
};

struct attn_dims {
    size_t seq, head_dim, ld_qkv, ld_o; /* leading dimensions of q, k, v (and their gradients) and of o, d_o */
    size_t group;                       /* backward: adjacent query heads that share k and v */
    float scale;
};

struct rope_shape;

struct cpu_kernels {
    const char *name;

    /* Register-only multiply-adds, `rounds` of them on every accumulator: the peak for benchmarks. Returns the number
     * of floating-point operations. */
    double (*fma_burn)(size_t rounds);

    /* gemm_body.h. Panels: a[k][mr], b[k][nr], both zero-padded. */
    size_t mr, nr;
    /* Packs `rows` <= mr rows of A from row-major [m,k] (trans: from [k,m]), k of them. */
    void (*pack_a)(size_t rows, size_t k, const float *a, size_t lda, float *panel);
    void (*pack_a_trans)(size_t rows, size_t k, const float *a, size_t lda, float *panel);
    /* Packs `cols` <= nr columns of B from row-major [k,n] (trans: from [n,k]); adds column sums to colsum[cols] unless
     * it is NULL (trans: does not: only dw = x^T dy has column sums, those of dy). */
    void (*pack_b)(size_t cols, size_t k, const float *b, size_t ldb, float *panel, float *colsum);
    void (*pack_b_trans)(size_t cols, size_t k, const float *b, size_t ldb, float *panel);
    /* One tile of C from k steps of A and a panel of B. Element i,k of A is a[i * rs + k * cs]: rs 1 for a packed panel
     * (cs = mr) or A stored [k,m] (cs = lda), cs 1 for A stored [m,k] (rs = lda). Fewer than mr rows: packed only. */
    void (*gemm_tile)(size_t k, const float *a, size_t rs, size_t cs, const float *b, const struct gemm_tile *tile);

    /* rows_body.h. embed_rows: rows first .. first + n_rows of the batch. norm_bwd adds into dw[c], db[c]; dres may be
     * NULL or equal dx. Norms with mean, b and db NULL: RMS norm. xent_rows: logits[n_rows][ld], the first v columns
     * count; see device_ops.head. */
    void (*embed_rows)(size_t first, size_t n_rows, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                       const float *wpe, float *out);
    void (*add_row)(size_t c, const float *x, float *y);
    void (*norm_fwd)(size_t n_rows, size_t c, float eps, const float *x, const float *w, const float *b, float *y,
                     float *mean, float *rstd);
    void (*norm_bwd)(size_t n_rows, size_t c, const float *dy, const float *x, const float *w, const float *mean,
                     const float *rstd, const float *dres, float *dx, float *dw, float *db);
    void (*xent_rows)(size_t n_rows, size_t v, size_t ld, float *logits, const int32_t *targets, float dscale,
                      float *loss, bool loss_only);

    /* llama_body.h: n_rows rows each. rope_rows: rows first .. first + n_rows of the batch, x at the start of the
     * batch. */
    void (*rope_rows)(const struct rope_shape *shape, size_t first, size_t n_rows, const float *table, float *x,
                      bool back);
    void (*glu_fwd)(size_t n_rows, size_t f, const float *gu, float *h);
    void (*glu_bwd)(size_t n_rows, size_t f, const float *gu, const float *dh, float *dgu);

    /* attn_body.h: one head of one sequence; backward: all heads that share its keys and values. q, k, v, o and
     * lse[group][seq] start at the first of these heads; forward, lse may be NULL. */
    size_t (*attn_scratch_floats)(const struct attn_dims *d, bool backward);
    void (*attn_fwd_head)(const struct attn_dims *d, const float *q, const float *k, const float *v, float *o,
                          float *lse, float *scratch);
    void (*attn_bwd_group)(const struct attn_dims *d, const float *q, const float *k, const float *v, const float *o,
                           const float *lse, const float *d_o, float *dq, float *dk, float *dv, float *scratch);

    /* optim_body.h */
    double (*sum_run)(size_t n, const float *x, bool square); /* square: of the squares */
    void (*adamw_run)(size_t n, float *theta, const float *grad, float *m, float *v, const struct adamw_step *step);
    /* m = mu m + (1 - mu) scale g; x = mu m + (1 - mu) scale g. */
    void (*muon_momentum)(size_t n, const float *grad, float *m, float *x, float mu, float scale);
    /* Same with moments in bf16; index: of the first element in theta. Every level gives the same bits. */
    void (*adamw_bf16)(size_t n, uint64_t index, float *theta, const float *grad, uint16_t *m, uint16_t *v,
                       const struct adamw_step *step);
    void (*muon_momentum_bf16)(size_t n, uint64_t index, const float *grad, uint16_t *m, float *x, float mu,
                               float scale, const uint32_t noise[2]);
    void (*axpy_run)(size_t n, float *y, const float *x, float keep, float a); /* y = y keep + a x */
    void (*gelu_run)(size_t n, const float *z, float *y);
};

extern const struct cpu_kernels cpu_kernels_portable, cpu_kernels_avx2, cpu_kernels_avx512; /* AVX: only for x86-64 */

/* The best level that this CPU runs, by feature bits (never by model number), or the level `wanted` (ATOLL_CPU). NULL:
 * `wanted` is unknown, or the CPU cannot run it. */
const struct cpu_kernels *cpu_kernels_select(const char *wanted);

#endif
