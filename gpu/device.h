/* A device computes: one rank's model, inner optimizer and vector work run on it through one table of operations. "cpu"
 * is the reference (gpu/cpu); "cuda" is a shared object loaded at run time (gpu/cuda).
 *
 * Queue order:
 * - Operations take effect in the order of the calls. Before `sync`, the caller must not read device memory or change
 *   host memory that it gave to upload or download.
 * - Operations return nothing. The device keeps the first error, and `sync` returns it.
 * - A plan fixes the shapes, so no operation allocates.
 * - One operation is a fused layer. A back end without the fused kernel issues several kernels; a back end with it pays
 *   nothing extra.
 *
 * Pointers: `float *` is always fp32 (parameters, gradients, optimizer state, statistics, losses). `void *` is an
 * activation, row-major, `device->act_bytes` bytes an element (4: fp32, 2: bf16); only the device reads it.
 *
 * Shapes: N = B*T rows (tokens), C model width, V vocabulary, H heads of hd columns, G of them with their own keys and
 * values. A linear layer maps K to M; a gated one has F units. Weights have the layout of the Hugging Face checkpoint,
 * so theta is never transposed: GPT-2's linear [K,M] (y = x w + b), Llama's [M,K] (a plan with `out_in`, y = x w^T),
 * wte [V,C].
 *
 * Gradients: the sum over tokens of the derivative of the loss times `dscale`. The caller sets dscale = 1 / (tokens of
 * the whole step) once, in `head`. No other operation divides.
 *
 * Determinism: the same inputs give the same bits with any number of threads, on one instruction-set level (except dq
 * of attention through cuDNN, gpu/cuda/cudnn/cuda_cudnn.h).
 *
 * Threads: one thread at a time may call into a device; different devices are independent. */
#ifndef GPU_DEVICE_H
#define GPU_DEVICE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/delta_format.h"

struct collective;
struct device_ops;
struct pool;

struct device {
    const struct device_ops *ops;
    size_t act_bytes;  /* bytes of one activation element */
    int threads;       /* CPU threads; 1 for a GPU */
    bool host_memory;  /* alloc returns memory that the host may use, and operations take host memory */
    double peak_flops; /* FLOP/s of the data sheet for products in its precision; 0: unknown; set before any plan */
    char name[96];     /* "cpu avx512 x2", for logs */
    char note[200];    /* for logs: a missing faster path and why, or why a plan is UNSUPPORTED; set by the plans */
};

enum lin_act { LIN_ACT_NONE, LIN_ACT_GELU };

struct lin_shape {
    size_t n, k, m;   /* y[n,m] from x[n,k] */
    enum lin_act act; /* GELU: the tanh form, 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) */
    bool bias;        /* lin_fwd gets one if true, and none if false */
    bool after_act;   /* x comes from an activation, so lin_bwd_x gets aux; false: it may get one, and be slower */
    bool out_in;      /* w is [m,k] */
    bool inference;   /* the caller uses lin_fwd only */
};

struct attn_shape {
    size_t batch, seq, heads, head_dim; /* causal self-attention, scale 1/sqrt(head_dim) */
    size_t kv_heads; /* G, divides heads: query head h reads keys and values h / (heads / G). 0: heads */
    bool inference;
};

/* Rotary positions (Su et al., arXiv 2104.09864) of `heads` heads side by side at the start of rows of `ld` elements.
 * Row r is at position r % seq. Element i of a head turns with element i + head_dim/2, as in Hugging Face's models. */
struct rope_shape {
    size_t n, seq, heads, head_dim, ld; /* head_dim is even */
};

struct head_shape {
    size_t n, c, v;
    bool inference; /* losses only, no gradients */
};

/* Plans are opaque to callers; each back end has its own struct. */
struct lin_plan;
struct attn_plan;
struct head_plan;
struct delta_plan;
struct muon_plan;
struct step_count; /* gpu/moment_rules.h */

/* A range of theta with one weight-decay rule. */
struct adamw_span {
    uint64_t offset, count;
    bool decay;
    uint64_t skipped; /* m and v omit this much before it: its state is at offset - skipped */
};

/* Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected moments. */
struct adamw_hyper {
    float lr, beta1, beta2, eps, weight_decay;
    uint64_t step;                  /* 1 for the first step */
    const struct step_count *count; /* not NULL: device memory, set by count_step; replaces `step` */
    bool bf16_moments;              /* needs `count`; m and v are bf16, rounded by gpu/moment_rules.h */
};

/* A matrix of theta, or some columns of a wider one. Element r,c is theta[offset + r * ld + c]. */
struct muon_matrix {
    uint64_t offset;
    size_t rows, cols, ld;
    bool decay;
    uint64_t skipped; /* the momentum omits this much before it: its state is at offset - skipped */
};

struct muon_hyper {
    float lr, momentum, weight_decay;
    uint32_t steps;                 /* rounds of the Newton-Schulz iteration, >= 1 */
    const struct step_count *count; /* as AdamW's; read only with bf16_moments, which need it */
    bool bf16_moments;
};

/* Positions in the queue that can be waited for at one time. */
enum { DEVICE_MARKS = 4 };
/* Pinned buffers that send and fetch use in turn. */
enum { DEVICE_STAGES = 2 };

/* Callers use a slot as dev->ops->copy(dev, ...). A slot marked (optional) may be NULL: callers then use the function
 * of the same name at the end of this file, such as device_mark(dev, ...). The slot's comment gives the default for
 * NULL. */
struct device_ops {
    void (*close)(struct device *dev);

    /* (optional) Makes collectives between devices of this kind; see gpu/collective.h, which handles NULL: ranks then
     * read each other's memory. */
    enum status (*collective)(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                              struct collective *out, struct err *err);

    /* Free and total bytes of device memory; 0: unknown. */
    void (*memory)(struct device *dev, uint64_t *free_p, uint64_t *total_p);
    /* Device memory, zeroed, 64-byte aligned; NULL if there is none. release takes NULL. */
    void *(*alloc)(struct device *dev, size_t bytes);
    void (*release)(struct device *dev, void *p);
    void (*upload)(struct device *dev, void *dst, const void *host_src, size_t bytes);
    void (*download)(struct device *dev, void *host_dst, const void *src, size_t bytes);
    void (*copy)(struct device *dev, void *dst, const void *src, size_t bytes); /* must not overlap */
    void (*fill)(struct device *dev, float *p, size_t n, float value);
    /* Waits for all submitted operations. Returns the first error since open, or OK. err may be NULL. */
    enum status (*sync)(struct device *dev, struct err *err) MUST_CHECK;
    /* (optional, both or none) Host memory that upload and download use without waiting (pinned, if there is a GPU);
     * zeroed. NULL if there is none. host_release takes NULL. NULL slots: alloc and release. */
    void *(*host_alloc)(struct device *dev, size_t bytes);
    void (*host_release)(struct device *dev, void *p);
    /* (optional) Allocates DEVICE_STAGES pinned buffers of `bytes` for send and fetch, once. The threads of `pool` copy
     * from and to them. The caller keeps the pool as long as the device and uses it only in the thread that calls send
     * and fetch. pool NULL: that thread copies alone. NOMEM: send and fetch work without buffers and wait. NULL slot:
     * does nothing. */
    enum status (*stage_plan)(struct device *dev, size_t bytes, struct pool *pool) MUST_CHECK;
    /* (optional) As upload, but host_src may change once the call returns. The host waits for buffers only; the last
     * pieces may still be in flight. NULL: upload, for devices that copy at once. */
    void (*send)(struct device *dev, void *dst, const void *host_src, size_t bytes);
    /* (optional) As download, but host_dst is complete when the call returns; errors as sync. NULL: download, then
     * sync. */
    enum status (*fetch)(struct device *dev, void *host_dst, const void *src, size_t bytes, struct err *err) MUST_CHECK;
    /* (optional, both or none) mark: marks this position in the queue, slot < DEVICE_MARKS. reached: waits until all
     * operations before the slot's last mark are done; later ones go on. Returns as sync. NULL: mark does nothing,
     * reached is sync. */
    void (*mark)(struct device *dev, int slot);
    enum status (*reached)(struct device *dev, int slot, struct err *err) MUST_CHECK;

    /* Plans. INVALID for a zero dimension, NOMEM. The device owns them; plan_free or close ends them. */
    enum status (*lin_plan)(struct device *dev, const struct lin_shape *shape, struct lin_plan **out) MUST_CHECK;
    enum status (*attn_plan)(struct device *dev, const struct attn_shape *shape, struct attn_plan **out) MUST_CHECK;
    enum status (*head_plan)(struct device *dev, const struct head_shape *shape, struct head_plan **out) MUST_CHECK;
    /* A plan for fragments with this format; `pieces` [shape->n_pieces] is copied. UNSUPPORTED: the device does not
     * support pieces of this size (the caller uses its codec instead). INVALID: no pieces. NOMEM. */
    enum status (*delta_plan)(struct device *dev, const struct delta_format *shape, const struct piece_range *pieces,
                              struct delta_plan **out) MUST_CHECK;
    /* The matrices of one call of muon; `matrices` [n] is copied. INVALID: none, or an empty one. NOMEM. */
    enum status (*muon_plan)(struct device *dev, const struct muon_matrix *matrices, size_t n,
                             struct muon_plan **out) MUST_CHECK;
    /* Bytes of device memory that the first such plan takes. */
    size_t (*attn_bytes)(struct device *dev, const struct attn_shape *shape);
    size_t (*head_bytes)(struct device *dev, const struct head_shape *shape);
    size_t (*muon_bytes)(struct device *dev, const struct muon_matrix *matrices, size_t n);
    void (*plan_free)(struct device *dev, void *plan); /* any of the five; NULL is allowed */

    /* (optional) Switches to bf16: activations and factors of matrix products are bf16, sums fp32; act_bytes becomes 2.
     * Call it before the first plan. UNSUPPORTED: this device computes in fp32 only, and continues to. NULL:
     * UNSUPPORTED. */
    enum status (*use_bf16)(struct device *dev, struct err *err) MUST_CHECK;
    /* (optional, all three or none) Allocates a copy of n parameters in the device's own form (bf16). NOMEM. NULL: the
     * device has no such copy; OK, 0 bytes, and params does nothing. */
    enum status (*params_plan)(struct device *dev, size_t n) MUST_CHECK;
    size_t (*params_bytes)(struct device *dev, size_t n); /* bytes of device memory that the first one takes */
    /* The next operations read parameters [offset, offset + count) of theta[n]. After theta changes, the caller
     * announces every w, b and wte in this way before an operation below reads it. Costs nothing for unchanged
     * parameters. */
    void (*params)(struct device *dev, const float *theta, size_t n, size_t offset, size_t count);

    /* out[N,C] = wte[token] + wpe[row % seq]; wpe and dwpe NULL: no positions. tokens[N] is in device memory; the data
     * loader guarantees 0 <= token < V. Backward adds into dwte (a tied head, which may overwrite, runs before it) and
     * adds to or overwrites rows 0..seq-1 of dwpe. Overwriting leaves the rows after seq unchanged: keep them zero. */
    void (*embed_fwd)(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                      const float *wpe, void *out);
    void (*embed_bwd)(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                      float *dwte, float *dwpe, bool accumulate);

    /* Layer norm over rows, eps 1e-5: y = (x - mean) * rstd * w + b. Backward reads mean[N] and rstd[N]. dx = dres +
     * d(norm)/dx dy; dres may be NULL (zero) or equal dx (in place). dw[C], db[C] are added to or overwritten. */
    void (*norm_fwd)(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                     float *mean, float *rstd);
    void (*norm_bwd)(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                     bool accumulate);

    /* RMS norm over rows (Zhang and Sennrich, arXiv 1910.07467): y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps).
     * Backward reads rstd[N]; its arguments are those of norm_bwd. */
    void (*rms_fwd)(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                    float *rstd);
    void (*rms_bwd)(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                    const float *rstd, const void *dres, void *dx, float *dw, bool accumulate);

    /* Rotates the heads of x in place: forward, or, with `back`, their gradients, by the opposite angles.
     * table[seq][head_dim]: for each position the cosines of its head_dim/2 angles, then the sines. */
    void (*rope)(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back);

    /* Gated units (SwiGLU, Shazeer, arXiv 2002.05202): h[N,F] = silu(gate) * up of gu[N,2F], gate | up as column
     * blocks, silu(z) = z / (1 + exp(-z)). Backward: dgu[N,2F] from dh[N,F]; dgu may be gu (in place). */
    void (*glu_fwd)(struct device *dev, size_t n, size_t f, const void *gu, void *h);
    void (*glu_bwd)(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu);

    /* y[N,M] = act(x w + b) + res. The plan decides b; res may be NULL or equal y. aux[N,M] keeps z = x w + b, an
     * activation, for backward; NULL if act is NONE or no backward follows. y is computed from the rounded z in aux, so
     * act_recompute gives the same bits. */
    void (*lin_fwd)(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                    const void *res, void *y, void *aux);
    /* y[N,M] = act(aux), recomputed if y was not kept; for plans with an activation. */
    void (*act_recompute)(struct device *dev, const struct lin_plan *plan, const void *aux, void *y);
    /* dx[N,K] = dy w^T (+ dx if accumulate). If aux[N,K] is not NULL, dx is multiplied by the derivative of the
     * activation that made x; aux is that of the previous layer's lin_fwd. accumulate and aux exclude each other. */
    void (*lin_bwd_x)(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                      void *dx, bool accumulate);
    /* dw = x^T dy in the layout of w, db[M] = column sums of dy (db may be NULL); added to or overwritten. `dy` is the
     * gradient of x w + b: lin_bwd_x of the next layer has already applied the derivative of the activation. */
    void (*lin_bwd_w)(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                      float *db, bool accumulate);

    /* qkv[N,(H+2G)*hd] has q | k | v as column blocks, head h in columns h*hd.. of each; o[N,H*hd]. lse[B,H,T]
     * (log-sum-exp of the scaled scores) is kept for backward and may be NULL in inference plans. No buffer has size
     * T*T. */
    void (*attn_fwd)(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse);
    void (*attn_bwd)(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o, const float *lse,
                     const void *d_o, void *dqkv);

    /* Language-model head: logits = x wte^T (computed in chunks of rows, never stored whole), loss[N] in nats,
     * gradients. target < 0: the row does not count (loss 0, no gradient). dx[N,C] is overwritten, dwte[V,C] added to
     * or overwritten. In inference plans dx and dwte are NULL and dscale is unused. */
    void (*head)(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                 const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate);

    /* Reductions to a scalar in device memory, in a fixed order, computed in double and rounded once. */
    void (*sum)(struct device *dev, size_t n, const float *x, float *out);
    void (*sumsq)(struct device *dev, size_t n, const float *x, float *out);

    /* scale = min(1, max_norm / sqrt(sumsq)) and norm = sqrt(sumsq), both scalars in device memory; max_norm <= 0:
     * scale is 1. scale is 0 if and only if the norm is not finite, so *scale and *norm always agree on whether the
     * step is taken. */
    void (*clip_scale)(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm);

    /* count->steps += 1 unless *scale is 0 (a refused step), then the values that follow from it: bias corrections,
     * noise. All in device memory, so the host does not have to know which steps were taken. */
    void (*count_step)(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count);
    /* theta, grad, m, v are whole flat vectors; spans select the ranges and their decay. The gradient is first
     * multiplied by *scale (device memory); NULL: 1. If *scale is 0, nothing changes (a refused step). m and v are
     * fp32, or bf16 with hyper->bf16_moments: then every device gives the same bits. */
    void (*adamw)(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                  void *m, void *v, const struct adamw_hyper *hyper, const float *scale);
    /* Muon (Jordan et al. 2024) with Nesterov momentum, decoupled decay and the step length of arXiv 2502.16982, which
     * matches the root mean square of AdamW's steps. g is the gradient times *scale, as in adamw:
     *     m = mu m + (1 - mu) g;  u = mu m + (1 - mu) g;  theta = theta (1 - lr decay) - lr 0.2 sqrt(max(rows, cols)) o
     * o is u with all singular values near 1, by `steps` rounds of the quintic in gpu/muon_rules.h. theta and grad are
     * whole flat vectors; the matrices give the layout of momentum (bf16 as in adamw). If *scale is 0, nothing
     * changes. */
    void (*muon)(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
                 const struct muon_hyper *hyper, const float *scale);
    /* theta = keep * theta - lr * scale * grad; keep: 1 - decay. scale as above. */
    void (*sgd)(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep,
                const float *scale);
    void (*axpy)(struct device *dev, size_t n, float a, const float *x, float *y); /* y += a x */

    /* Quantizes the delta of one fragment, in one pass over theta, anchor and residual:
     *     x = (anchor - theta) + decay * residual;   quantized = codec(x);   rest = x - values of quantized
     * - Bit for bit as compress/feedback.c and the codec.
     * - All pointers are device memory at the fragment's first float; delta_format_lay_out gives the layout of
     *   `quantized`.
     * - anchor NULL: x starts from theta. residual NULL: nothing is added. rest NULL: not written; rest may be
     *   residual.
     * - A piece with NaN or infinity is marked bad, and its part of `rest` is not written. */
    void (*delta)(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                  float decay, const float *residual, float *rest, void *quantized);
    /* Applies an update: theta += the values of a payload (codec_decode_quantized), one fp32 addition a value. Bit for
     * bit as the codec decodes and common/tensor/apply.h adds. Coordinates that were not sent stay unchanged. Device
     * memory as above; `quantized` is only read. */
    void (*delta_add)(struct device *dev, const struct delta_plan *plan, void *quantized, float *theta);
};

/* Opens a device by name.
 * - "cpu": `threads` >= 1 compute threads. ATOLL_CPU=portable|avx2|avx512 forces its instruction-set level.
 * - "cuda" or "cuda:N": see gpu/plugin.h. UNSUPPORTED with a line that names what is missing.
 * - "auto": a GPU if one can be used, otherwise the CPU; if there is a GPU that cannot be used, the log says why. */
enum status device_open(const char *name, int threads, struct device **out, struct err *err) MUST_CHECK;
/* Adds advice to err after an attempt with device `name` returned `status`: if that is UNSUPPORTED and the device is a
 * GPU, appends "; use CPU instead". cpu: the caller's option for the CPU ("train.devices=cpu", "--device cpu"); NULL:
 * no advice. Returns status. */
enum status device_advise(enum status status, const char *name, const char *cpu, struct err *err) MUST_CHECK;
enum { DEVICE_NAME_BYTES = 96 };
/* The device name of rank `rank` of `ranks` for the value of train.devices. "cuda:0,1": the rank's entry of the list.
 * Several ranks: "cuda" is GPU `rank`; "auto" is, too, if there are enough GPUs, otherwise "cpu". Returns out. */
const char *device_of_rank(const char *devices, int rank, int ranks, char out[DEVICE_NAME_BYTES]);
/* One name for several devices, for logs: "cuda:0,1 NVIDIA H200". If they share host memory, the name of the first.
 * Returns out. */
const char *device_names(struct device *const *devices, int n, char out[DEVICE_NAME_BYTES]);
/* NULL is allowed. */
void device_close(struct device *dev);

/* --- for back ends: false: a plan is INVALID ---------------------------------------------------------------------- */

/* Sets kv_heads if it is 0. */
static inline bool attn_shape_valid(struct attn_shape *s)
{
    if (!s->kv_heads) s->kv_heads = s->heads;
    return s->batch && s->seq && s->heads && s->head_dim && s->heads % s->kv_heads == 0;
}

static inline bool muon_matrices_valid(const struct muon_matrix *m, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!m[i].rows || !m[i].cols || m[i].ld < m[i].cols) return false;
    return n > 0;
}

/* --- optional operations: the slot, or its default for NULL ------------------------------------------------------- */

static inline void *device_host_alloc(struct device *dev, size_t bytes)
{
    return dev->ops->host_alloc ? dev->ops->host_alloc(dev, bytes) : dev->ops->alloc(dev, bytes);
}

static inline void device_host_release(struct device *dev, void *p)
{
    if (dev->ops->host_release)
        dev->ops->host_release(dev, p);
    else
        dev->ops->release(dev, p);
}

MUST_CHECK static inline enum status device_stage_plan(struct device *dev, size_t bytes, struct pool *pool)
{
    return dev->ops->stage_plan ? dev->ops->stage_plan(dev, bytes, pool) : STATUS_OK;
}

static inline void device_send(struct device *dev, void *dst, const void *host_src, size_t bytes)
{
    if (dev->ops->send)
        dev->ops->send(dev, dst, host_src, bytes);
    else
        dev->ops->upload(dev, dst, host_src, bytes);
}

MUST_CHECK static inline enum status device_fetch(struct device *dev, void *host_dst, const void *src, size_t bytes,
                                                  struct err *err)
{
    if (dev->ops->fetch) return dev->ops->fetch(dev, host_dst, src, bytes, err);
    dev->ops->download(dev, host_dst, src, bytes);
    return dev->ops->sync(dev, err);
}

static inline void device_mark(struct device *dev, int slot)
{
    assert(slot >= 0 && slot < DEVICE_MARKS);
    if (dev->ops->mark) dev->ops->mark(dev, slot);
}

MUST_CHECK static inline enum status device_reached(struct device *dev, int slot, struct err *err)
{
    assert(slot >= 0 && slot < DEVICE_MARKS);
    return dev->ops->reached ? dev->ops->reached(dev, slot, err) : dev->ops->sync(dev, err);
}

MUST_CHECK static inline enum status device_use_bf16(struct device *dev, struct err *err)
{
    if (dev->ops->use_bf16) return dev->ops->use_bf16(dev, err);
    return err_set(err, STATUS_UNSUPPORTED, "device %s computes in fp32 only", dev->name);
}

MUST_CHECK static inline enum status device_params_plan(struct device *dev, size_t n)
{
    return dev->ops->params_plan ? dev->ops->params_plan(dev, n) : STATUS_OK;
}

static inline size_t device_params_bytes(struct device *dev, size_t n)
{
    return dev->ops->params_bytes ? dev->ops->params_bytes(dev, n) : 0;
}

static inline void device_params(struct device *dev, const float *theta, size_t n, size_t offset, size_t count)
{
    assert(offset <= n && count <= n - offset);
    if (dev->ops->params) dev->ops->params(dev, theta, n, offset, count);
}

#endif
