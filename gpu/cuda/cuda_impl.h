/* Internals of the CUDA device, shared by cuda_device.c (open, close, memory), cuda_plans.c (plans),
 * cuda_bf16_weights.c (parameters as bf16), cuda_lin.c (linear layers), cuda_muon.c (Muon), cuda_stage.c (unpinned host
 * memory) and cuda_ops.c (the other operations). */
#ifndef GPU_CUDA_IMPL_H
#define GPU_CUDA_IMPL_H

#include "gpu/cuda/cudnn/cuda_cudnn.h"
#include "gpu/cuda/rt/cuda_rt.h"
#include "gpu/device.h"

enum {
    CUDA_PARTIAL_FLOATS = 2 << 20, /* [floats] room for partial column sums */
    CUDA_ROW_BLOCKS = 512,         /* blocks of rows, at most, in sums of dw, db and bias gradients */
    CUDA_HEAD_PART = 64,           /* logits in memory at a time take 1/64 of the GPU's memory, */
    CUDA_HEAD_BYTES = 256 << 20,   /* but at least so many bytes, */
    CUDA_HEAD_BYTES_MAX = 1 << 30, /* and at most so many */
    CUDA_HEAD_ROWS = 128,          /* chunks of logits have a multiple of so many rows: tiles of matrix products */
    CUDA_MUON_FLOATS = 8 << 20,    /* floats of one batch of equal matrices; a batch has at least one matrix */
    CUDA_SPANS = 4096,             /* spans of theta in one launch of AdamW */
    CUDA_IMAGE_SLACK = 1 << 17     /* numbers behind the image, which products read when they round up a vocabulary */
};

enum cuda_plan_kind { CUDA_PLAN_LIN, CUDA_PLAN_ATTN, CUDA_PLAN_HEAD, CUDA_PLAN_DELTA, CUDA_PLAN_MUON };

struct cuda_head_gemms { /* products of one chunk of rows */
    size_t rows;
    struct cuda_gemm *logits, *dx, *dwte, *dwte_rest; /* dwte_rest: the last words; NULL: dwte covers all words */
};

struct cuda_muon_batch {         /* matrices of one shape */
    size_t rows, cols, first, n; /* first: index of the first matrix in the plan's places */
    struct cuda_gemm *gram, *mult, *next;
};

struct cuda_plan {
    struct cuda_plan *next;
    enum cuda_plan_kind kind;
    union {
        struct {
            struct lin_shape shape;
            struct cuda_gemm *fwd, *bwd_x, *bwd_w;
            struct cuda_gemm *bwd_x_dgelu; /* with the derivative of the GELU; NULL: bwd_x and a kernel */
        } lin;
        struct {
            struct attn_shape shape;
            float *dot;                    /* [B,H,T]; NULL in inference plans */
            struct cuda_cudnn_attn *cudnn; /* not NULL: cuDNN computes attention, and dot is unused */
        } attn;
        struct {
            struct head_shape shape;
            size_t ld;
            struct cuda_head_gemms whole, rest; /* rest.rows 0: the last chunk is whole */
        } head;
        struct {
            struct delta_format shape;
            struct piece_range *pieces; /* device memory */
        } delta;
        struct {
            struct cuda_muon_batch *batches;
            size_t n_batches;
            struct cuda_muon_place *places;     /* [n], device memory, as all buffers below */
            float *gram, *inverse;              /* sized for the largest batch, as the buffers below */
            void *x, *y, *factor, *poly, *mult; /* bf16; with fp32, factor is gram */
            size_t begin, end;                  /* range of theta that holds all matrices */
        } muon;
    } as;
};

/* The bf16 image of the parameters, which matrix products read. */
struct cuda_bf16_weights {
    uint16_t *values;
    size_t size;        /* capacity in parameters */
    const float *theta; /* the parameters of the image; NULL: none yet */
    size_t n;
    /* Ranges of theta that changed since, in order. When the list is full, two ranges become one. */
    struct {
        size_t begin, end;
    } stale[32];
    size_t n_stale;
};

/* Staging of unpinned host memory through pinned buffers. */
struct cuda_stage {
    size_t bytes;                              /* bytes of each buffer; 0: no buffers */
    void *buffer[DEVICE_STAGES];               /* pinned */
    struct cuda_event *through[DEVICE_STAGES]; /* end of the buffer's last copy on COPY */
    struct cuda_event *enter, *leave;          /* order COPY after MAIN, and MAIN after COPY */
    struct pool *pool;                         /* copies between buffer and host memory; may be NULL */
    int turn;
};

struct cuda_device {
    struct device base;
    struct cuda_rt *rt;
    struct cuda_plan *plans;
    float *partials;
    void *logits;
    size_t logits_bytes, head_bytes; /* head_bytes: limit; tests lower it to get more chunks */
    size_t embed_rows;               /* CUDA_EMBED_ROWS; tests lower it to get more parts */
    size_t muon_floats;              /* CUDA_MUON_FLOATS; tests lower it to get more batches */
    double *sums;                    /* [CUDA_SEGMENTS] */

    bool bf16;
    struct cuda_bf16_weights image;

    /* The spans of the last AdamW step. They stay the same from step to step, so they are uploaded once. */
    struct cuda_adamw_span *spans, *spans_device; /* [CUDA_SPANS] */
    size_t n_spans;

    struct cuda_stage stage;
    enum cuda_attention attention;
    struct cuda_cudnn *cudnn; /* NULL: the plain loops compute attention */
};

static inline struct cuda_device *cuda_of(struct device *dev)
{
    return (struct cuda_device *)dev;
}

/* Writes into the device's note why cuDNN does not compute attention. */
void cuda_slow_attention(struct cuda_device *cuda, const char *why);
/* cuda_collective.c; see gpu/device.h. */
enum status cuda_collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                                 struct collective *out, struct err *err);

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

/* --- cuda_plans.c ------------------------------------------------------------------------------------------------- */

/* `plan`, or NULL with an error of the device if the plan has another kind. */
const struct cuda_plan *cuda_plan_of(struct cuda_device *cuda, const void *plan, enum cuda_plan_kind kind);
/* Frees all plans, when the device is closed. */
void cuda_plans_free(struct cuda_device *cuda);
enum status cuda_op_lin_plan(struct device *dev, const struct lin_shape *shape, struct lin_plan **out);
enum status cuda_op_attn_plan(struct device *dev, const struct attn_shape *shape, struct attn_plan **out);
enum status cuda_op_head_plan(struct device *dev, const struct head_shape *shape, struct head_plan **out);
enum status cuda_op_delta_plan(struct device *dev, const struct delta_format *shape, const struct piece_range *pieces,
                               struct delta_plan **out);
enum status cuda_op_muon_plan(struct device *dev, const struct muon_matrix *matrices, size_t n, struct muon_plan **out);
void cuda_op_plan_free(struct device *dev, void *plan);
size_t cuda_attn_bytes(struct device *dev, const struct attn_shape *shape);
size_t cuda_head_bytes(struct device *dev, const struct head_shape *shape);

/* --- cuda_muon.c -------------------------------------------------------------------------------------------------- */

/* Fill a plan of kind CUDA_PLAN_MUON; free its contents. */
enum status cuda_muon_fill(struct cuda_device *cuda, struct cuda_plan *plan, const struct muon_matrix *matrices,
                           size_t n) MUST_CHECK;
void cuda_muon_free(struct cuda_device *cuda, struct cuda_plan *plan);
size_t cuda_muon_bytes(struct device *dev, const struct muon_matrix *matrices, size_t n);
void cuda_op_muon(struct device *dev, const struct muon_plan *plan, float *theta, const float *grad, void *momentum,
                  const struct muon_hyper *hyper, const float *scale);

/* --- cuda_bf16_weights.c ------------------------------------------------------------------------------------------ */

/* Marks p[bytes] as changed: its range of the image is rounded again before its next use. Every writer of device memory
 * calls it, except kernels that also write the image. */
void cuda_written(struct cuda_device *cuda, const void *p, size_t bytes);
/* Address of parameters w for a matrix product: in the image, or with fp32 w itself. NULL with an error of the device
 * if w lies outside of the parameters. */
const void *cuda_weights(struct cuda_device *cuda, const float *w);
enum status cuda_op_params_plan(struct device *dev, size_t n);
size_t cuda_params_bytes(struct device *dev, size_t n);
void cuda_op_params(struct device *dev, const float *theta, size_t n, size_t offset, size_t count);

/* --- cuda_stage.c: see device.h ----------------------------------------------------------------------------------- */

enum status cuda_op_stage_plan(struct device *dev, size_t bytes, struct pool *pool);
void cuda_op_send(struct device *dev, void *dst, const void *src, size_t bytes);
enum status cuda_op_fetch(struct device *dev, void *dst, const void *src, size_t bytes, struct err *err);
void cuda_stage_finish(struct cuda_device *cuda);

/* --- cuda_ops.c: sums of columns ---------------------------------------------------------------------------------- */

/* Rows per block if n rows with `floats` partial sums each are summed block by block. 0 with an error of the device:
 * rows too wide. */
size_t cuda_row_block(struct cuda_device *cuda, size_t n, size_t floats);
/* True if cuda_norm_fused and cuda_rms_fused support rows of c columns. */
bool cuda_norm_fuses(size_t c);
/* out[c] = or += the sum of `blocks` partial sums that lie `stride` floats apart. */
void cuda_columns_sum(struct cuda_device *cuda, size_t c, size_t blocks, size_t stride, float *partials, float *out,
                      bool accumulate);

/* --- cuda_lin.c: linear layers ------------------------------------------------------------------------------------ */

/* Creates the products of a plan with a shape. Errors: NOMEM, UNSUPPORTED. */
enum status cuda_lin_fill(struct cuda_device *cuda, struct cuda_plan *plan) MUST_CHECK;
void cuda_lin_free(struct cuda_plan *plan);
void cuda_op_lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                     const void *res, void *y, void *aux);
void cuda_op_act_recompute(struct device *dev, const struct lin_plan *plan, const void *aux, void *y);
void cuda_op_lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                       void *dx, bool accumulate);
void cuda_op_lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                       float *db, bool accumulate);

/* --- cuda_llama_ops.c: see device.h ------------------------------------------------------------------------------- */

void cuda_op_rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                     float *rstd);
void cuda_op_rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *rstd, const void *dres, void *dx, float *dw, bool accumulate);
void cuda_op_rope(struct device *dev, const struct rope_shape *shape, const float *table, void *x, bool back);
void cuda_op_glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h);
void cuda_op_glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu);

/* --- cuda_ops.c: see device.h ------------------------------------------------------------------------------------- */

void cuda_op_fill(struct device *dev, float *p, size_t n, float value);
void cuda_op_embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                       const float *wpe, void *out);
void cuda_op_embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                       float *dwte, float *dwpe, bool accumulate);
void cuda_op_norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                      float *mean, float *rstd);
void cuda_op_norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                      const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                      bool accumulate);
void cuda_op_attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse);
void cuda_op_attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o,
                      const float *lse, const void *d_o, void *dqkv);
void cuda_op_head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                  const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate);
void cuda_op_sum(struct device *dev, size_t n, const float *x, float *out);
void cuda_op_sumsq(struct device *dev, size_t n, const float *x, float *out);
void cuda_op_clip_scale(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm);
void cuda_op_adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                   void *m, void *v, const struct adamw_hyper *hyper, const float *scale);
void cuda_op_count_step(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count);
void cuda_op_sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep,
                 const float *scale);
void cuda_op_axpy(struct device *dev, size_t n, float a, const float *x, float *y);
void cuda_op_delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                   float decay, const float *residual, float *rest, void *numbers);
void cuda_op_delta_add(struct device *dev, const struct delta_plan *plan, void *numbers, float *theta);

#endif
