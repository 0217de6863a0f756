/* A device computes: the model, the inner optimizer and the vector work of one rank run on it through one table of
 * operations. "cpu" is the reference and lives in this folder; "cuda" is a shared object loaded at run time.
 *
 * Operations are queue-ordered: they take effect in the order of the calls, and the caller may not look at memory of
 * the device (nor change host memory it handed to upload/download) before `sync`. They return nothing: the first error
 * sticks to the device and `sync` returns it. Shapes are fixed when a plan is made, so no operation allocates. The
 * granularity is a fused layer: a back end that cannot fuse issues several kernels, one that can never pays for the
 * other's.
 *
 * Two kinds of pointers. `float *` is always fp32: parameters, gradients, optimizer state, statistics, losses. `void *`
 * is an activation, `device->act_bytes` a number (4: fp32, 2: bf16), row-major, and only the device looks inside.
 *
 * Shapes: N = B*T rows (tokens), C model width, V vocabulary, H heads of hd columns, G of them with keys and values of
 * their own, a linear layer maps K to M, a gated one has F units. Weights have the layout of the Hugging Face
 * checkpoint, so theta is never transposed: GPT-2's linear [K,M] (y = x w + b), Llama's [M,K] (a plan with `out_in`,
 * y = x w^T), wte [V,C].
 *
 * One gradient rule: gradients are sums over tokens of the derivative of the loss times `dscale`; whoever runs the step
 * chooses dscale = 1 / (tokens of the whole step) once, in `head`. Nothing else divides.
 *
 * Determinism: same inputs, same bits, for any number of threads, on one instruction-set level (but for dq of attention
 * through cuDNN, gpu/cuda/cudnn/cuda_cudnn.h). Threads: one thread at a time may call into a device; different devices
 * are independent. */
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
    size_t act_bytes;  /* size of one activation element */
    int threads;       /* CPU threads it computes with; 1 for a GPU */
    bool host_memory;  /* alloc gives memory that the host may use, too, and operations take host memory */
    double peak_flops; /* FLOP/s of the data sheet for products in its precision; 0: not known. Complete before the
                        * first plan */
    char name[96];     /* "cpu avx512 x2": for logs */
    char note[200];    /* for logs: what would be faster, and why it is not; complete when all plans are made. After an
                        * UNSUPPORTED plan: why */
};

enum lin_act { LIN_ACT_NONE, LIN_ACT_GELU };

struct lin_shape {
    size_t n, k, m;   /* y[n,m] from x[n,k] */
    enum lin_act act; /* GELU: the tanh form, 0.5 z (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3))) */
    bool bias;        /* lin_fwd gets one, always; else never */
    bool after_act;   /* an activation made x: lin_bwd_x gets its aux; a plan that does not say so takes one, too, but
                       * may be slower */
    bool out_in;      /* w is [m,k] */
    bool inference;   /* only lin_fwd will be called */
};

struct attn_shape {
    size_t batch, seq, heads, head_dim; /* causal self-attention, scale 1/sqrt(head_dim) */
    size_t kv_heads; /* G, divides heads: query head h reads keys and values h / (heads / G). 0: heads */
    bool inference;
};

/* Rotary positions (Su et al., arXiv 2104.09864) of `heads` heads side by side at the start of rows of `ld` elements;
 * row r is at position r % seq. Element i of a head turns with element i + head_dim/2, as Hugging Face does it. */
struct rope_shape {
    size_t n, seq, heads, head_dim, ld; /* head_dim is even */
};

struct head_shape {
    size_t n, c, v;
    bool inference; /* losses only, no gradients */
};

/* Plans are opaque to callers; each back end has its own struct behind the pointer. */
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
    uint64_t skipped; /* m and v leave so much before it out: they have it at offset - skipped */
};

/* Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected moments. */
struct adamw_hyper {
    float lr, beta1, beta2, eps, weight_decay;
    uint64_t step;                  /* 1 for the first step */
    const struct step_count *count; /* not NULL: device memory, after count_step, in place of `step` */
    bool bf16_moments;              /* needs `count`: m and v are bf16, rounded by gpu/moment_rules.h */
};

/* A matrix of theta, or some columns of a wider one: element r,c is theta[offset + r * ld + c]. */
struct muon_matrix {
    uint64_t offset;
    size_t rows, cols, ld;
    bool decay;
    uint64_t skipped; /* the momentum leaves so much before it out: it has it at offset - skipped */
};

struct muon_hyper {
    float lr, momentum, weight_decay;
    uint32_t steps;                 /* of the Newton-Schulz iteration, >= 1 */
    const struct step_count *count; /* as AdamW's; read only with bf16_moments, which need it */
    bool bf16_moments;
};

/* Places in the queue that can be waited for at one time. */
enum { DEVICE_MARKS = 4 };
/* Pinned buffers that send and fetch go through in turn. */
enum { DEVICE_STAGES = 2 };

/* Callers use a slot as dev->ops->copy(dev, ...). A slot marked (optional) may be NULL: callers use the function of the
 * same name at the end of this file, device_mark(dev, ...), and the comment says what it does then. */
struct device_ops {
    void (*close)(struct device *dev);

    /* (optional) Collectives between devices of this kind, see gpu/collective.h, which takes care of NULL: the ranks
     * read each other's memory. */
    enum status (*collective)(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                              struct collective *out, struct err *err);

    /* Bytes of the device's memory that can still be had, and of all of it; 0: not known. */
    void (*memory)(struct device *dev, uint64_t *free_p, uint64_t *total_p);
    /* Memory of the device, zeroed, 64-byte aligned; NULL when there is none. release: NULL is allowed. */
    void *(*alloc)(struct device *dev, size_t bytes);
    void (*release)(struct device *dev, void *p);
    void (*upload)(struct device *dev, void *dst, const void *host_src, size_t bytes);
    void (*download)(struct device *dev, void *host_dst, const void *src, size_t bytes);
    void (*copy)(struct device *dev, void *dst, const void *src, size_t bytes); /* may not overlap */
    void (*fill)(struct device *dev, float *p, size_t n, float value);
    /* Wait for everything submitted; the first error since open, or OK. err may be NULL. */
    enum status (*sync)(struct device *dev, struct err *err) MUST_CHECK;
    /* (optional, both or none) Memory of the host that upload and download reach without waiting (pinned, where there
     * is a GPU); zeroed. NULL when there is none. host_release: NULL is allowed. NULL slots: alloc and release. */
    void *(*host_alloc)(struct device *dev, size_t bytes);
    void (*host_release)(struct device *dev, void *p);
    /* (optional) Room for send and fetch, taken once: DEVICE_STAGES pinned buffers of so many bytes. The threads of
     * `pool` copy from and to them; it is the caller's, who lends it as long as the device lives and uses it in the
     * thread that calls send and fetch only. pool NULL: that thread copies alone. NOMEM: they go without buffers, and
     * wait. NULL slot: nothing to do. */
    enum status (*stage_plan)(struct device *dev, size_t bytes, struct pool *pool) MUST_CHECK;
    /* (optional) As upload, but host_src may change as soon as the call returns. The host waits for buffers only: the
     * last pieces may be on their way still. NULL: upload, for devices that copy at once. */
    void (*send)(struct device *dev, void *dst, const void *host_src, size_t bytes);
    /* (optional) As download, but host_dst is there when the call returns; errors as sync. NULL: download, then sync.
     */
    enum status (*fetch)(struct device *dev, void *host_dst, const void *src, size_t bytes, struct err *err) MUST_CHECK;
    /* (optional, both or none) Mark this place in the queue, slot < DEVICE_MARKS; `reached` waits until all submitted
     * before the slot's last mark is done, and no longer: what came later goes on. Its result is sync's. NULL: mark
     * does nothing, reached is sync. */
    void (*mark)(struct device *dev, int slot);
    enum status (*reached)(struct device *dev, int slot, struct err *err) MUST_CHECK;

    /* Plans. INVALID for a zero dimension, NOMEM. They belong to the device and end with plan_free or close. */
    enum status (*lin_plan)(struct device *dev, const struct lin_shape *shape, struct lin_plan **out) MUST_CHECK;
    enum status (*attn_plan)(struct device *dev, const struct attn_shape *shape, struct attn_plan **out) MUST_CHECK;
    enum status (*head_plan)(struct device *dev, const struct head_shape *shape, struct head_plan **out) MUST_CHECK;
    /* For fragments that are cut like this; `pieces` [shape->n_pieces] is copied. UNSUPPORTED: the device does not take
     * pieces of this size (the caller's codec does the work then), INVALID for no pieces, NOMEM. */
    enum status (*delta_plan)(struct device *dev, const struct delta_format *shape, const struct piece_range *pieces,
                              struct delta_plan **out) MUST_CHECK;
    /* The matrices that one call of muon takes; `matrices` [n] is copied. INVALID for none or an empty one, NOMEM. */
    enum status (*muon_plan)(struct device *dev, const struct muon_matrix *matrices, size_t n,
                             struct muon_plan **out) MUST_CHECK;
    /* Bytes that the first such plan takes of the device's memory. */
    size_t (*attn_bytes)(struct device *dev, const struct attn_shape *shape);
    size_t (*head_bytes)(struct device *dev, const struct head_shape *shape);
    size_t (*muon_bytes)(struct device *dev, const struct muon_matrix *matrices, size_t n);
    void (*plan_free)(struct device *dev, void *plan); /* any of the five; NULL is allowed */

    /* (optional) Activations and the factors of matrix products in bf16 from now on, sums in fp32; act_bytes becomes 2.
     * Before the first plan. UNSUPPORTED: this device computes in fp32 only, and goes on so. NULL: UNSUPPORTED. */
    enum status (*use_bf16)(struct device *dev, struct err *err) MUST_CHECK;
    /* (optional, all three or none) Make room for a copy of n parameters in a form of the device's own (bf16). NOMEM.
     * NULL: the device has no such copy; OK, 0 bytes, and params does nothing. */
    enum status (*params_plan)(struct device *dev, size_t n) MUST_CHECK;
    size_t (*params_bytes)(struct device *dev, size_t n); /* bytes of the device's memory that the first one takes */
    /* Parameters [offset, offset + count) of theta[n] are about to be read: every w, b and wte of the operations below
     * lies in what was named so since it changed last. Costs nothing where nothing has changed. */
    void (*params)(struct device *dev, const float *theta, size_t n, size_t offset, size_t count);

    /* out[N,C] = wte[token] + wpe[row % seq]; wpe and dwpe NULL: no positions. tokens[N] in device memory, each
     * 0 <= token < V (the data loader's duty). Backward adds into dwte (a tied head, which may overwrite, runs before
     * it) and adds to or overwrites rows 0..seq-1 of dwpe. Overwriting leaves the rows after seq alone: keep them
     * zero. */
    void (*embed_fwd)(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                      const float *wpe, void *out);
    void (*embed_bwd)(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                      float *dwte, float *dwpe, bool accumulate);

    /* Layer norm over rows, eps 1e-5: y = (x - mean) * rstd * w + b. mean[N] and rstd[N] are kept for backward.
     * Backward: dx = dres + d(norm)/dx dy; dres may be NULL (zero) or equal dx (in place). dw[C], db[C] added to or
     * overwritten. */
    void (*norm_fwd)(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                     float *mean, float *rstd);
    void (*norm_bwd)(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                     bool accumulate);

    /* RMS norm over rows (Zhang and Sennrich, arXiv 1910.07467): y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps);
     * rstd[N] is kept for backward, whose arguments are norm_bwd's. */
    void (*rms_fwd)(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                    float *rstd);
    void (*rms_bwd)(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                    const float *rstd, const void *dres, void *dx, float *dw, bool accumulate);

    /* Turn the heads of x in place: forward, or, `back`, their gradients, by the same angles the other way.
     * table[seq][head_dim]: of each position the cosines of its head_dim/2 angles, then the sines. */
    void (*rope)(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back);

    /* Gated units (SwiGLU, Shazeer, arXiv 2002.05202): h[N,F] = silu(gate) * up of gu[N,2F], gate | up as column
     * blocks, silu(z) = z / (1 + exp(-z)). Backward: dgu[N,2F] of dh[N,F]; dgu may be gu (in place). */
    void (*glu_fwd)(struct device *dev, size_t n, size_t f, const void *gu, void *h);
    void (*glu_bwd)(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu);

    /* y[N,M] = act(x w + b) + res. b as the plan says, res may be NULL; res may equal y. aux[N,M] keeps z = x w + b,
     * an activation as others, for the way back; NULL when act is NONE or there will be none. y is made of the z that
     * aux holds, rounded as it is, so that act_recompute gives the same bits. */
    void (*lin_fwd)(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                    const void *res, void *y, void *aux);
    /* y[N,M] = act(aux) once more, when y was not kept; for plans with an activation. */
    void (*act_recompute)(struct device *dev, const struct lin_plan *plan, const void *aux, void *y);
    /* dx[N,K] = dy w^T (+ dx when accumulate), times the derivative of the activation that made x when aux[N,K] (of the
     * layer before, from its lin_fwd) is not NULL. accumulate and aux exclude each other. */
    void (*lin_bwd_x)(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                      void *dx, bool accumulate);
    /* dw = x^T dy in w's layout, db[M] = column sums of dy (db may be NULL); added to or overwritten. `dy` is the
     * gradient of x w + b: through the activation it already went in the lin_bwd_x of the layer after. */
    void (*lin_bwd_w)(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                      float *db, bool accumulate);

    /* qkv[N,(H+2G)*hd] with q | k | v as column blocks, head h in columns h*hd.. of each; o[N,H*hd]; lse[B,H,T]
     * (log-sum-exp of the scaled scores) is kept for backward and may be NULL in inference plans. Nothing of size T*T
     * exists. */
    void (*attn_fwd)(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse);
    void (*attn_bwd)(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o, const float *lse,
                     const void *d_o, void *dqkv);

    /* Language-model head: logits = x wte^T (never stored whole: rows are cut into chunks), loss[N] in nats, gradients.
     * target < 0: the row does not count (loss 0, no gradient). dx[N,C] is overwritten, dwte[V,C] added to or
     * overwritten; with inference plans dx and dwte are NULL and dscale has no meaning. */
    void (*head)(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                 const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate);

    /* Reductions to a scalar in device memory, in a fixed order, computed in double and rounded once. */
    void (*sum)(struct device *dev, size_t n, const float *x, float *out);
    void (*sumsq)(struct device *dev, size_t n, const float *x, float *out);

    /* scale = min(1, max_norm / sqrt(sumsq)) and norm = sqrt(sumsq), both scalars in device memory; max_norm <= 0:
     * scale is 1. A norm that is not finite gives scale 0 and shows in *norm; a finite one never does, so that all who
     * look at one of the two say alike whether the step was taken. */
    void (*clip_scale)(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm);

    /* count->steps += 1 unless *scale is 0 (a refused step), then what follows from it: bias corrections, noise. All in
     * device memory: so the host need not know yet which steps were taken. */
    void (*count_step)(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count);
    /* theta, grad, m, v are the whole flat vectors; spans say which parts and whether they decay. The gradient is
     * multiplied by *scale (device memory) first; NULL: 1. Where *scale is 0, nothing changes (a refused step). m and v
     * are fp32, or bf16 with hyper->bf16_moments: then the bits are the same on every device. */
    void (*adamw)(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                  void *m, void *v, const struct adamw_hyper *hyper, const float *scale);
    /* Muon (Jordan et al. 2024) with Nesterov momentum, decoupled decay and the step length of arXiv 2502.16982, which
     * has the root mean square of AdamW's steps; g is the gradient times *scale, as in adamw:
     *     m = mu m + (1 - mu) g;  u = mu m + (1 - mu) g;  theta = theta (1 - lr decay) - lr 0.2 sqrt(max(rows, cols)) o
     * o is u with all singular values near 1, by `steps` rounds of the quintic in gpu/muon_rules.h. theta and grad
     * are whole flat vectors, momentum as the matrices say (bf16 as in adamw). Where *scale is 0, nothing changes. */
    void (*muon)(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
                 const struct muon_hyper *hyper, const float *scale);
    /* theta = keep * theta - lr * scale * grad; keep: 1 less the decay. scale as above. */
    void (*sgd)(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep,
                const float *scale);
    void (*axpy)(struct device *dev, size_t n, float a, const float *x, float *y); /* y += a x */

    /* What the outer path sends of one fragment, in one pass over theta, anchor and residual:
     *     x = (anchor - theta) + decay * residual;   numbers = what the codec makes of x;   rest = x - their values
     * bit for bit as compress/feedback.c and the codec do it. All are device memory, at the fragment's first float;
     * `numbers` is laid out by delta_format_lay_out. anchor NULL: theta in place of the difference; residual NULL:
     * nothing is added; rest NULL: not wanted; it may be residual. A piece with NaN or infinity is marked bad, and of
     * the rest the part of such a piece is not written. */
    void (*delta)(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                  float decay, const float *residual, float *rest, void *numbers);
    /* The way back, of an update: theta += what the numbers of a payload (codec_decode_quantized) stand for, one fp32
     * addition a value, bit for bit as the codec decodes and common/tensor/apply.h adds. What was not sent stays as it
     * is. Device memory as above; the numbers are only read. */
    void (*delta_add)(struct device *dev, const struct delta_plan *plan, void *numbers, float *theta);
};

/* Open a device by name: "cpu" with `threads` >= 1 compute threads, "cuda" or "cuda:N" (gpu/plugin.h: UNSUPPORTED, with
 * a line that says what is missing). "auto" is the best there is: a GPU, or the CPU with a line in the log.
 * ATOLL_CPU=portable|avx2|avx512 forces an instruction-set level of "cpu". */
enum status device_open(const char *name, int threads, struct device **out, struct err *err) MUST_CHECK;
/* After `status` of what was tried with device `name`: where a GPU cannot be used (UNSUPPORTED) err goes on with
 * "; CPU does without". cpu: how the caller's user asks for the CPU ("train.devices=cpu", "--device cpu"), which no
 * device knows; NULL: nothing is advised. Returns status. */
enum status device_advise(enum status status, const char *name, const char *cpu, struct err *err) MUST_CHECK;
enum { DEVICE_NAME_BYTES = 96 };
/* The name that rank `rank` of `ranks` opens, of what train.devices says: its number of the list "cuda:0,1"; with
 * several ranks "cuda" is GPU `rank`, and "auto" too where there are enough, else "cpu". Returns out. */
const char *device_of_rank(const char *devices, int rank, int ranks, char out[DEVICE_NAME_BYTES]);
/* What logs call them together: "cuda:0,1 NVIDIA H200". Where they share memory, the name of the first. Returns out. */
const char *device_names(struct device *const *devices, int n, char out[DEVICE_NAME_BYTES]);
/* NULL is allowed. */
void device_close(struct device *dev);

/* --- optional operations: the slot, or what its comment says for NULL --------------------------------------------- */

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
    return err_set(err, STATUS_UNSUPPORTED, "device %s computes in fp32", dev->name);
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
