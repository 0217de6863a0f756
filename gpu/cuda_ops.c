/* Operations of the CUDA device: each is one or a few launches; no host synchronisation, no allocation. */
#include "gpu/cuda_impl.h"

#include <math.h>

/* Launch `kernel` on a grid of x by y blocks with the arguments that follow, a struct initialiser. */
#define LAUNCH(cuda, kernel, x, y, args_type, ...)                                                                     \
    do {                                                                                                               \
        struct cuda_grid grid_ = cuda_rt_grid((cuda)->rt, (x), (y));                                                   \
        kernel(&grid_, &(struct args_type){__VA_ARGS__});                                                              \
        cuda_rt_launched((cuda)->rt, #kernel);                                                                         \
    } while (0)

static size_t blocks_of(size_t n, size_t each)
{
    return (n + each - 1) / each;
}

static const struct cuda_plan *plan_of(struct cuda_device *cuda, const void *plan, enum cuda_plan_kind kind)
{
    const struct cuda_plan *p = plan;
    if (p && p->kind == kind) return p;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "operation called with a plan of another kind");
    return NULL;
}

/* --- vectors ------------------------------------------------------------------------------------------------------ */

void cuda_op_fill(struct device *dev, float *p, size_t n, float value)
{
    if (!n) return;
    LAUNCH(cuda_of(dev), cuda_fill, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = value, .y = p);
}

void cuda_op_axpy(struct device *dev, size_t n, float a, const float *x, float *y)
{
    if (!n) return;
    LAUNCH(cuda_of(dev), cuda_axpy, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = a, .x = x, .y = y);
}

void cuda_op_sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep,
                 const float *scale)
{
    if (!n) return;
    LAUNCH(cuda_of(dev), cuda_sgd, blocks_of(n, CUDA_BLOCK), 1, cuda_sgd_args, .n = n, .theta = theta, .grad = grad,
           .lr = lr, .keep = keep, .scale = scale);
}

void cuda_op_scale(struct device *dev, size_t n, float a, float *x)
{
    if (n) LAUNCH(cuda_of(dev), cuda_scale, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = a, .y = x);
}

static void reduce(struct cuda_device *cuda, size_t n, const float *x, bool square, float *out)
{
    LAUNCH(cuda, cuda_reduce, CUDA_SEGMENTS, 1, cuda_reduce_args, .n = n, .segment = blocks_of(n, CUDA_SEGMENTS),
           .square = square, .x = x, .sums = cuda->sums);
    LAUNCH(cuda, cuda_reduce_end, 1, 1, cuda_reduce_args, .sums = cuda->sums, .out = out);
}

void cuda_op_sum(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(cuda_of(dev), n, x, false, out);
}

void cuda_op_sumsq(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(cuda_of(dev), n, x, true, out);
}

void cuda_op_clip_scale(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm)
{
    LAUNCH(cuda_of(dev), cuda_clip, 1, 1, cuda_clip_args, .sumsq = sumsq, .max_norm = max_norm, .scale = scale,
           .norm = norm);
}

void cuda_op_count_step(struct device *dev, const float *scale, float beta1, float beta2, uint64_t *steps,
                        float *correct)
{
    LAUNCH(cuda_of(dev), cuda_count_step, 1, 1, cuda_count_args, .scale = scale, .beta1 = beta1, .beta2 = beta2,
           .steps = steps, .correct = correct);
}

void cuda_op_adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                   float *m, float *v, const struct adamw_hyper *h, const float *scale)
{
    float correct1 = (float)(1 / (1 - pow(h->beta1, (double)h->step)));
    float correct2 = (float)(1 / (1 - pow(h->beta2, (double)h->step)));
    for (size_t i = 0; i < n_spans; i++) {
        uint64_t at = spans[i].offset;
        if (!spans[i].count) continue;
        LAUNCH(cuda_of(dev), cuda_adamw, blocks_of(spans[i].count, CUDA_BLOCK), 1, cuda_adamw_args, .n = spans[i].count,
               .theta = theta + at, .m = m + at, .v = v + at, .grad = grad + at, .scale = scale, .lr = h->lr,
               .beta1 = h->beta1, .beta2 = h->beta2, .eps = h->eps,
               .decay = spans[i].decay ? h->lr * h->weight_decay : 0, .correct1 = correct1, .correct2 = correct2,
               .correct = h->correct);
    }
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

void cuda_op_embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                       const float *wpe, void *out)
{
    LAUNCH(cuda_of(dev), cuda_embed_fwd, blocks_of(n * c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq, .c = c,
           .tokens = tokens, .wte = wte, .wpe = wpe, .out = out);
}

void cuda_op_embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                       float *dwte, float *dwpe, bool accumulate)
{
    size_t places = n < seq ? n : seq;
    LAUNCH(cuda_of(dev), cuda_embed_place, blocks_of(places * c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq,
           .c = c, .dout = dout, .dwpe = dwpe, .accumulate = accumulate);
    LAUNCH(cuda_of(dev), cuda_embed_word, n, 1, cuda_embed_args, .n = n, .c = c, .tokens = tokens, .dout = dout,
           .dwte = dwte);
}

/* Rows of one block when n rows of `floats` partial sums each are summed block by block; 0: too wide. */
static size_t row_block(struct cuda_device *cuda, size_t n, size_t floats)
{
    size_t blocks = CUDA_PARTIAL_FLOATS / floats < CUDA_ROW_BLOCKS ? CUDA_PARTIAL_FLOATS / floats : CUDA_ROW_BLOCKS;
    if (!blocks) cuda_rt_fail(cuda->rt, STATUS_LIMIT, "rows too long for sums of columns");
    return blocks ? blocks_of(n, blocks) : 0;
}

static void columns_end(struct cuda_device *cuda, size_t c, size_t blocks, size_t stride, float *partials, float *out,
                        bool accumulate)
{
    LAUNCH(cuda, cuda_columns_end, blocks_of(c, CUDA_BLOCK), 1, cuda_columns_args, .c = c, .blocks = blocks,
           .stride = stride, .partials = partials, .out = out, .accumulate = accumulate);
}

void cuda_op_norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                      float *mean, float *rstd)
{
    LAUNCH(cuda_of(dev), cuda_norm_fwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .x = x, .w = w,
           .b = b, .y = y, .mean_out = mean, .rstd_out = rstd);
}

void cuda_op_norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                      const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                      bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t block = row_block(cuda, n, 2 * c);
    if (!block) return;
    size_t blocks = blocks_of(n, block);
    LAUNCH(cuda, cuda_norm_columns, blocks_of(c, CUDA_BLOCK), blocks, cuda_norm_args, .n = n, .c = c, .block = block,
           .dy = dy, .x = x, .mean = mean, .rstd = rstd, .partials = cuda->partials);
    columns_end(cuda, c, blocks, 2 * c, cuda->partials, dw, accumulate);
    columns_end(cuda, c, blocks, 2 * c, cuda->partials + c, db, accumulate);
    LAUNCH(cuda, cuda_norm_bwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .dy = dy, .x = x,
           .w = w, .mean = mean, .rstd = rstd, .dres = dres, .dx = dx);
}

/* --- linear layers and head --------------------------------------------------------------------------------------- */

void cuda_op_lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                     const void *res, void *y, void *aux)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin.shape;
    bool gelu = s->act == LIN_ACT_GELU;
    if (res && gelu) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "lin_fwd: a residual cannot follow an activation");
        return;
    }
    if (res && res != y) cuda_rt_copy(cuda->rt, y, res, s->n * s->m * sizeof(float), CUDA_INSIDE);
    cuda_rt_gemm(cuda->rt, p->as.lin.fwd, x, w, y, res ? 1 : 0);
    if (!b && !gelu) return;
    LAUNCH(cuda, cuda_bias_act, blocks_of(s->n * s->m, CUDA_BLOCK), 1, cuda_bias_args, .n = s->n, .m = s->m,
           .gelu = gelu, .b = b, .y = y, .aux = aux);
}

void cuda_op_act_again(struct device *dev, const struct lin_plan *plan, const void *aux, void *y)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    size_t n = p->as.lin.shape.n * p->as.lin.shape.m;
    if (p->as.lin.shape.act == LIN_ACT_NONE)
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "act_again: a plan without activation");
    else
        LAUNCH(cuda, cuda_gelu, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .x = aux, .y = y);
}

static bool may_go_back(struct cuda_device *cuda, const struct cuda_plan *p)
{
    if (!p->as.lin.shape.inference) return true;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "backward of a linear layer with a plan for inference");
    return false;
}

void cuda_op_lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w,
                       const void *aux, void *dx, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    size_t n = p->as.lin.shape.n * p->as.lin.shape.k;
    if (!may_go_back(cuda, p)) return;
    cuda_rt_gemm(cuda->rt, p->as.lin.bwd_x, dy, w, dx, accumulate ? 1 : 0);
    if (aux) LAUNCH(cuda, cuda_gelu_slope, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .x = aux, .y = dx);
}

void cuda_op_lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                       float *db, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin.shape;
    if (!may_go_back(cuda, p)) return;
    cuda_rt_gemm(cuda->rt, p->as.lin.bwd_w, s->out_in ? dy : x, s->out_in ? x : dy, dw, accumulate ? 1 : 0);
    size_t block = db ? row_block(cuda, s->n, s->m) : 0;
    if (!block) return;
    LAUNCH(cuda, cuda_columns, blocks_of(s->m, CUDA_BLOCK), blocks_of(s->n, block), cuda_columns_args, .n = s->n,
           .c = s->m, .block = block, .stride = s->m, .x = dy, .partials = cuda->partials);
    columns_end(cuda, s->m, blocks_of(s->n, block), s->m, cuda->partials, db, accumulate);
}

void cuda_op_head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                  const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_HEAD);
    if (!p) return;
    const struct head_shape *s = &p->as.head.shape;
    const float *in = x;
    float *din = dx;
    for (size_t row = 0; row < s->n; row += p->as.head.whole.rows) {
        bool whole = s->n - row >= p->as.head.whole.rows;
        const struct cuda_head_gemms *g = whole ? &p->as.head.whole : &p->as.head.rest;
        cuda_rt_gemm(cuda->rt, g->logits, in + row * s->c, wte, cuda->logits, 0);
        LAUNCH(cuda, cuda_xent, g->rows, 1, cuda_xent_args, .v = s->v, .ld = p->as.head.ld, .dscale = dscale,
               .loss_only = s->inference, .logits = cuda->logits, .loss = loss + row, .targets = targets + row);
        if (s->inference) continue;
        cuda_rt_gemm(cuda->rt, g->dwte, cuda->logits, in + row * s->c, dwte, accumulate || row > 0 ? 1 : 0);
        cuda_rt_gemm(cuda->rt, g->dx, cuda->logits, wte, din + row * s->c, 0);
    }
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

void cuda_op_attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_ATTN);
    if (!p) return;
    const struct attn_shape *s = &p->as.attn.shape;
    if (p->as.attn.cudnn) {
        cuda_cudnn_attn_fwd(p->as.attn.cudnn, qkv, o, lse);
        return;
    }
    LAUNCH(cuda, cuda_attn_fwd, blocks_of(s->seq, CUDA_ATTN_ROWS), s->batch * s->heads, cuda_attn_args, .seq = s->seq,
           .heads = s->heads, .head_dim = s->head_dim, .scale = 1.0f / sqrtf((float)s->head_dim), .qkv = qkv, .o = o,
           .lse_out = lse);
}

void cuda_op_attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o,
                      const float *lse, const void *d_o, void *dqkv)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_ATTN);
    if (!p) return;
    const struct attn_shape *s = &p->as.attn.shape;
    if (p->as.attn.cudnn && !s->inference) {
        cuda_cudnn_attn_bwd(p->as.attn.cudnn, qkv, o, lse, d_o, dqkv);
        return;
    }
    if (!p->as.attn.dot) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "attn_bwd: with a plan for inference");
        return;
    }
    struct cuda_grid grid = cuda_rt_grid(cuda->rt, blocks_of(s->seq, CUDA_ATTN_ROWS), s->batch * s->heads);
    struct cuda_attn_args args = {.seq = s->seq, .heads = s->heads, .head_dim = s->head_dim,
                                  .scale = 1.0f / sqrtf((float)s->head_dim), .qkv = qkv, .o_in = o, .lse = lse,
                                  .d_o = d_o, .dot = p->as.attn.dot, .dqkv = dqkv};
    cuda_attn_dot(&grid, &args);
    cuda_rt_launched(cuda->rt, "cuda_attn_dot");
    cuda_attn_bwd_q(&grid, &args);
    cuda_rt_launched(cuda->rt, "cuda_attn_bwd_q");
    cuda_attn_bwd_kv(&grid, &args);
    cuda_rt_launched(cuda->rt, "cuda_attn_bwd_kv");
}

/* --- the outer path ----------------------------------------------------------------------------------------------- */

void cuda_op_delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                   float decay, const float *residual, float *rest, void *numbers)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = plan_of(cuda, plan, CUDA_PLAN_DELTA);
    if (!p) return;
    const struct piece_shape *s = &p->as.delta.shape;
    struct piece_numbers out;
    pieces_lay_out(s, numbers, &out);
    struct cuda_delta_args args = {.kind = s->kind, .decay = decay, .n_pieces = s->n_pieces,
                                   .pieces = p->as.delta.pieces, .theta = theta, .anchor = anchor,
                                   .residual = residual, .rest = rest, .out = out};
    bool chunks = s->kind <= PIECE_HALF;
    struct cuda_grid grid = cuda_rt_grid(cuda->rt, chunks ? s->n_pieces : blocks_of(s->n_pieces, CUDA_ROW_WARPS), 1);
    (chunks ? cuda_delta_chunk : cuda_delta_block)(&grid, &args);
    cuda_rt_launched(cuda->rt, chunks ? "cuda_delta_chunk" : "cuda_delta_block");
}
