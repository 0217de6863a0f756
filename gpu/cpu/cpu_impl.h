/* Internals of the CPU device: shared by cpu_device.c (open, memory, plans) and cpu_*.c (operations). */
#ifndef GPU_CPU_IMPL_H
#define GPU_CPU_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/pool.h"
#include "gpu/cpu/cpu.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"

enum {
    NORM_BLOCKS = 32,            /* norm_bwd sums dw and db over this many fixed blocks of rows, then over the blocks */
    PARTIAL_FLOATS = 256 * 1024, /* room for those sums */
    SUM_SEGMENTS = 256,          /* sum and sumsq cut their vector into this many segments, for any number of threads */
    HEAD_BYTES = 128 << 20,      /* logits in memory at one time */
};

enum cpu_plan_kind { CPU_PLAN_LIN, CPU_PLAN_ATTN, CPU_PLAN_HEAD, CPU_PLAN_DELTA, CPU_PLAN_MUON };

struct cpu_plan {
    struct cpu_plan *next;
    enum cpu_plan_kind kind;
    union {
        struct lin_shape lin;
        struct attn_shape attn;
        struct {
            struct head_shape shape;
            size_t rows, ld; /* of one chunk of logits */
        } head;
        struct {
            struct delta_format shape;
            struct piece_range *pieces;
            float *x; /* [longest], one piece */
        } delta;
        struct {
            struct muon_matrix *matrices;
            size_t n;
            float *x, *y;              /* [largest rows * cols] */
            float *gram, *poly, *mult; /* [largest side * side] */
        } muon;
    } as;
};

struct cpu_device {
    struct device base;
    const struct cpu_kernels *kernels;
    struct pool *pool;
    struct cpu_plan *plans;
    void **scratch; /* [threads], scratch_bytes each */
    size_t scratch_bytes;
    float *logits;
    size_t logits_floats;
    float *partials;
    double segments[SUM_SEGMENTS];
    struct err error; /* the first error; code OK: none */
};

static inline struct cpu_device *cpu_of(struct device *dev)
{
    return (struct cpu_device *)dev;
}

/* Records an error of an operation; the first one stays. */
void cpu_fail(struct cpu_device *cpu, enum status code, const char *what);
/* Returns `plan`. If it has another kind, returns NULL and records an error of the device. */
const struct cpu_plan *cpu_plan_of(struct cpu_device *cpu, const void *plan, enum cpu_plan_kind kind);

/* cpu_muon.c: fills a plan of kind CPU_PLAN_MUON; frees its buffers; bytes of its buffers. */
enum status cpu_muon_fill(struct cpu_plan *plan, const struct muon_matrix *matrices, size_t n) MUST_CHECK;
void cpu_muon_free(struct cpu_plan *plan);
size_t cpu_muon_bytes(struct device *dev, const struct muon_matrix *matrices, size_t n);

/* The operations, see device.h. */
void cpu_embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                   const float *wpe, void *out);
void cpu_embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                   float *dwte, float *dwpe, bool accumulate);
void cpu_norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                  float *mean, float *rstd);
void cpu_norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                  const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                  bool accumulate);
void cpu_rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                 float *rstd);
void cpu_rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                 const float *rstd, const void *dres, void *dx, float *dw, bool accumulate);
void cpu_rope(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back);
void cpu_glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h);
void cpu_glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu);
void cpu_lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                 const void *res, void *y, void *aux);
void cpu_act_recompute(struct device *dev, const struct lin_plan *plan, const void *aux, void *y);
void cpu_lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                   void *dx, bool accumulate);
void cpu_lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw, float *db,
                   bool accumulate);
void cpu_attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse);
void cpu_attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o, const float *lse,
                  const void *d_o, void *dqkv);
void cpu_head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte, const int32_t *targets,
              float dscale, float *loss, void *dx, float *dwte, bool accumulate);
void cpu_sum(struct device *dev, size_t n, const float *x, float *out);
void cpu_sumsq(struct device *dev, size_t n, const float *x, float *out);
void cpu_clip_scale(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm);
void cpu_adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
               void *m, void *v, const struct adamw_hyper *hyper, const float *scale);
void cpu_muon(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
              const struct muon_hyper *hyper, const float *scale);
void cpu_count_step(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count);
void cpu_sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep, const float *scale);
void cpu_axpy(struct device *dev, size_t n, float a, const float *x, float *y);
void cpu_delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor, float decay,
               const float *residual, float *rest, void *quantized);
void cpu_delta_add(struct device *dev, const struct delta_plan *plan, void *quantized, float *theta);

#endif
