/* Operations of the CUDA device. Each is one or a few launches, without host synchronization or allocation. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <math.h>

#include "gpu/moment_rules.h"

/* --- vectors ------------------------------------------------------------------------------------------------------ */

void cuda_op_fill(struct device *dev, float *p, size_t n, float value)
{
    if (!n) return;
    cuda_written(cuda_of(dev), p, n * sizeof *p);
    LAUNCH(cuda_of(dev), cuda_fill, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = value, .y = p);
}

void cuda_op_axpy(struct device *dev, size_t n, float a, const float *x, float *y)
{
    if (!n) return;
    cuda_written(cuda_of(dev), y, n * sizeof *y);
    LAUNCH(cuda_of(dev), cuda_axpy, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = a, .x = x, .y = y);
}

void cuda_op_sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep,
                 const float *scale)
{
    if (!n) return;
    cuda_written(cuda_of(dev), theta, n * sizeof *theta);
    LAUNCH(cuda_of(dev), cuda_sgd, blocks_of(n, CUDA_BLOCK), 1, cuda_sgd_args, .n = n, .theta = theta, .grad = grad,
           .lr = lr, .keep = keep, .scale = scale);
}

static void reduce(struct cuda_device *cuda, size_t n, const float *x, bool square, float *out)
{
    bool wide = (uintptr_t)x % 16 == 0;
    size_t segment = blocks_of(blocks_of(n, CUDA_SEGMENTS), CUDA_BLOCK * CUDA_WIDE) * CUDA_BLOCK * CUDA_WIDE;
    size_t segments = n ? blocks_of(n, segment) : 0;
    assert(segments <= CUDA_SEGMENTS);
    if (segments)
        LAUNCH(cuda, cuda_reduce, segments, 1, cuda_reduce_args, .n = n, .segment = segment, .square = square,
               .wide = wide, .x = x, .sums = cuda->sums);
    LAUNCH(cuda, cuda_reduce_end, 1, 1, cuda_reduce_args, .segments = segments, .sums = cuda->sums, .out = out);
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

void cuda_op_count_step(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count)
{
    LAUNCH(cuda_of(dev), cuda_count_step, 1, 1, cuda_count_args, .scale = scale, .beta1 = beta1, .beta2 = beta2,
           .count = count);
}

/* Assigns blocks to the spans, and uploads the spans unless the device already has them. Returns the number of
 * blocks. */
static size_t adamw_blocks(struct cuda_device *cuda, const struct adamw_span *spans, size_t n)
{
    assert(n <= CUDA_SPANS && cuda->n_spans <= CUDA_SPANS);
    size_t blocks = 0, kept = 0;
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        if (!spans[i].count) continue;
        assert(spans[i].skipped <= spans[i].offset && kept < CUDA_SPANS);
        struct cuda_adamw_span *had = &cuda->spans[kept];
        struct cuda_adamw_span span = {.offset = spans[i].offset,
                                       .count = spans[i].count,
                                       .block = blocks,
                                       .skipped = spans[i].skipped,
                                       .decay = spans[i].decay};
        if (same && (kept >= cuda->n_spans || had->offset != span.offset || had->count != span.count ||
                     had->skipped != span.skipped || had->decay != span.decay)) {
            /* The upload of the old spans may still read the host copy. An error stays for the caller. */
            if (cuda->n_spans && cuda_rt_sync(cuda->rt, NULL) != STATUS_OK) return 0;
            same = false;
        }
        cuda->spans[kept++] = span;
        blocks += blocks_of(span.count, CUDA_BLOCK * CUDA_ADAMW_EACH);
    }
    if (!same || kept != cuda->n_spans)
        cuda_rt_copy(cuda->rt, cuda->spans_device, cuda->spans, kept * sizeof *cuda->spans, CUDA_UPLOAD);
    cuda->n_spans = kept;
    return blocks;
}

/* The kernel updates the bf16 image, too; stale ranges stay stale. */
void cuda_op_adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                   void *m, void *v, const struct adamw_hyper *h, const float *scale)
{
    assert(!h->bf16_moments || h->count);
    struct cuda_device *cuda = cuda_of(dev);
    float correct1 = h->count ? 0 : moment_correct(h->beta1, h->step);
    float correct2 = h->count ? 0 : moment_correct(h->beta2, h->step);
    for (size_t at = 0; at < n_spans; at += CUDA_SPANS) {
        size_t n = n_spans - at < CUDA_SPANS ? n_spans - at : CUDA_SPANS, blocks = adamw_blocks(cuda, spans + at, n);
        if (!blocks) continue;
        LAUNCH(cuda, cuda_adamw, blocks, 1, cuda_adamw_args, .n_spans = cuda->n_spans, .spans = cuda->spans_device,
               .theta = theta, .m = m, .v = v, .bf16 = h->bf16_moments,
               .image = cuda->image.theta == theta ? cuda->image.values : NULL, .grad = grad, .scale = scale,
               .lr = h->lr, .beta1 = h->beta1, .beta2 = h->beta2, .eps = h->eps, .keep = 1 - h->lr * h->weight_decay,
               .correct1 = correct1, .correct2 = correct2, .count = h->count);
    }
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

void cuda_op_embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                       const float *wpe, void *out)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_embed_fwd, wide_blocks(n * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq, .c = c,
           .bf16 = cuda->bf16, .tokens = tokens, .wte = wte, .wpe = wpe, .out = out);
}

_Static_assert(2 * CUDA_EMBED_ROWS <= CUDA_PARTIAL_FLOATS, "order and keys fit into the partial sums");

void cuda_op_embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                       float *dwte, float *dwpe, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t places = n < seq ? n : seq;
    assert(cuda->embed_rows > 0 && 2 * cuda->embed_rows <= CUDA_PARTIAL_FLOATS);
    if (dwpe)
        LAUNCH(cuda, cuda_embed_place, wide_blocks(places * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq,
               .c = c, .bf16 = cuda->bf16, .dout = dout, .dwpe = dwpe, .accumulate = accumulate);
    /* Sorting compares each token with all others, so it runs in parts to keep the work linear in the rows. */
    for (size_t at = 0; at < n; at += cuda->embed_rows) {
        size_t rows = n - at < cuda->embed_rows ? n - at : cuda->embed_rows;
        int32_t *order = (int32_t *)(void *)cuda->partials;
        struct cuda_embed_args args = {.n = rows,
                                       .c = c,
                                       .bf16 = cuda->bf16,
                                       .tokens = tokens + at,
                                       .dwte = dwte,
                                       .dout = (const char *)dout + at * c * dev->act_bytes,
                                       .order = order,
                                       .keys = order + rows};
        LAUNCH_ARGS(cuda, cuda_embed_sort, blocks_of(rows, 32), 1, &args);
        LAUNCH_ARGS(cuda, cuda_embed_word, blocks_of(rows, CUDA_ROW_WARPS), wide_blocks(c, c, 32), &args);
    }
}

size_t cuda_row_block(struct cuda_device *cuda, size_t n, size_t floats)
{
    assert(n > 0 && floats > 0);
    size_t blocks = CUDA_PARTIAL_FLOATS / floats < CUDA_ROW_BLOCKS ? CUDA_PARTIAL_FLOATS / floats : CUDA_ROW_BLOCKS;
    if (!blocks) cuda_rt_fail(cuda->rt, STATUS_LIMIT, "rows too long for column sums");
    return blocks ? blocks_of(n, blocks) : 0;
}

void cuda_columns_sum(struct cuda_device *cuda, size_t c, size_t blocks, size_t stride, float *partials, float *out,
                      bool accumulate)
{
    assert(c <= stride && (blocks - 1) * stride + c <= CUDA_PARTIAL_FLOATS);
    LAUNCH(cuda, cuda_columns_end, blocks_of(c, 32), 1, cuda_columns_args, .c = c, .blocks = blocks, .stride = stride,
           .partials = partials, .out = out, .accumulate = accumulate);
}

void cuda_op_norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                      float *mean, float *rstd)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_norm_fwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .bf16 = cuda->bf16,
           .x = x, .w = w, .b = b, .y = y, .mean_out = mean, .rstd_out = rstd);
}

bool cuda_norm_fuses(size_t c)
{
    return c % CUDA_WIDE == 0 && c <= CUDA_FUSED_COLUMNS;
}

void cuda_op_norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                      const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                      bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t block = cuda_row_block(cuda, n, 2 * c);
    if (!block) return;
    size_t blocks = blocks_of(n, block);
    if (cuda_norm_fuses(c)) {
        struct cuda_fused_args args = {.n = n,
                                       .c = c,
                                       .block = block,
                                       .bf16 = cuda->bf16,
                                       .x = x,
                                       .dy = dy,
                                       .dres = dres,
                                       .w = w,
                                       .mean = mean,
                                       .rstd = rstd,
                                       .dx = dx,
                                       .partials = cuda->partials};
        if (c <= CUDA_FUSED_SHORT)
            LAUNCH_ARGS(cuda, cuda_norm_fused_short, blocks, 1, &args);
        else
            LAUNCH_ARGS(cuda, cuda_norm_fused, blocks, 1, &args);
    } else {
        LAUNCH(cuda, cuda_norm_columns, wide_blocks(c, c, CUDA_COLUMN_THREADS), blocks, cuda_norm_args, .n = n, .c = c,
               .block = block, .bf16 = cuda->bf16, .dy = dy, .x = x, .mean = mean, .rstd = rstd,
               .partials = cuda->partials);
        LAUNCH(cuda, cuda_norm_bwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .bf16 = cuda->bf16,
               .dy = dy, .x = x, .w = w, .mean = mean, .rstd = rstd, .dres = dres, .dx = dx);
    }
    bool together = db == dw + c; /* true in GPT-2's layout */
    cuda_columns_sum(cuda, together ? 2 * c : c, blocks, 2 * c, cuda->partials, dw, accumulate);
    if (!together) cuda_columns_sum(cuda, c, blocks, 2 * c, cuda->partials + c, db, accumulate);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

/* dwte of one chunk: all words, or the aligned part and then the last few words. */
static void head_weights(struct cuda_device *cuda, const struct cuda_head_gemms *g, const struct head_shape *s,
                         const void *x, float *dwte, bool accumulate)
{
    size_t most = g->dwte_rest ? s->v / CUDA_WIDE * CUDA_WIDE : s->v;
    float *rest = dwte + most * s->c;
    cuda_rt_gemm(cuda->rt, g->dwte,
                 &(struct cuda_gemm_call){.a = cuda->logits, .b = x, .c = accumulate ? dwte : NULL, .out = dwte});
    if (g->dwte_rest)
        cuda_rt_gemm(cuda->rt, g->dwte_rest,
                     &(struct cuda_gemm_call){.a = (const char *)cuda->logits + most * cuda->base.act_bytes,
                                              .b = x,
                                              .c = accumulate ? rest : NULL,
                                              .out = rest});
}

void cuda_op_head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                  const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_HEAD);
    if (!p) return;
    const struct head_shape *s = &p->as.head.shape;
    const void *weights = cuda_weights(cuda, wte);
    size_t row_bytes = s->c * dev->act_bytes;
    assert(p->as.head.whole.rows > 0 && p->as.head.whole.rows * p->as.head.ld * dev->act_bytes <= cuda->logits_bytes);
    assert(s->inference == (dx == NULL) && s->inference == (dwte == NULL));
    for (size_t row = 0; row < s->n; row += p->as.head.whole.rows) {
        bool whole = s->n - row >= p->as.head.whole.rows;
        const struct cuda_head_gemms *g = whole ? &p->as.head.whole : &p->as.head.rest;
        assert(g->rows <= s->n - row);
        const void *in = (const char *)x + row * row_bytes;
        cuda_rt_gemm(cuda->rt, g->logits, &(struct cuda_gemm_call){.a = in, .b = weights, .out = cuda->logits});
        LAUNCH(cuda, cuda_xent, g->rows, 1, cuda_xent_args, .v = s->v, .ld = p->as.head.ld, .dscale = dscale,
               .loss_only = s->inference, .bf16 = cuda->bf16, .logits = cuda->logits, .loss = loss + row,
               .targets = targets + row);
        if (s->inference) continue;
        head_weights(cuda, g, s, in, dwte, accumulate || row > 0);
        cuda_rt_gemm(cuda->rt, g->dx,
                     &(struct cuda_gemm_call){.a = cuda->logits, .b = weights, .out = (char *)dx + row * row_bytes});
    }
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

void cuda_op_attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_ATTN);
    if (!p) return;
    const struct attn_shape *s = &p->as.attn.shape;
    if (p->as.attn.cudnn) {
        cuda_cudnn_attn_fwd(p->as.attn.cudnn, qkv, o, lse);
        return;
    }
    struct cuda_attn_args args = {.seq = s->seq,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .bf16 = cuda->bf16,
                                  .scale = 1.0f / sqrtf((float)s->head_dim),
                                  .qkv = qkv,
                                  .o = o,
                                  .lse_out = lse};
    LAUNCH_ARGS(cuda, cuda_attn_fwd, blocks_of(s->seq, CUDA_ATTN_ROWS), s->batch * s->heads, &args);
}

void cuda_op_attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o,
                      const float *lse, const void *d_o, void *dqkv)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_ATTN);
    if (!p) return;
    const struct attn_shape *s = &p->as.attn.shape;
    if (p->as.attn.cudnn && !s->inference) {
        cuda_cudnn_attn_bwd(p->as.attn.cudnn, qkv, o, lse, d_o, dqkv);
        return;
    }
    if (!p->as.attn.dot) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "attn_bwd: the plan is for inference");
        return;
    }
    size_t blocks = blocks_of(s->seq, CUDA_ATTN_ROWS), heads = s->batch * s->heads, kv_heads = s->batch * s->kv_heads;
    struct cuda_attn_args args = {.seq = s->seq,
                                  .heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .bf16 = cuda->bf16,
                                  .scale = 1.0f / sqrtf((float)s->head_dim),
                                  .qkv = qkv,
                                  .o_in = o,
                                  .lse = lse,
                                  .d_o = d_o,
                                  .dot = p->as.attn.dot,
                                  .dqkv = dqkv};
    LAUNCH_ARGS(cuda, cuda_attn_dot, blocks, heads, &args);
    LAUNCH_ARGS(cuda, cuda_attn_bwd_q, blocks, heads, &args);
    LAUNCH_ARGS(cuda, cuda_attn_bwd_kv, blocks, kv_heads, &args);
}

/* --- the outer path ----------------------------------------------------------------------------------------------- */

void cuda_op_delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                   float decay, const float *residual, float *rest, void *numbers)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_DELTA);
    if (!p) return;
    const struct delta_format *s = &p->as.delta.shape;
    struct quantized_delta out;
    delta_format_lay_out(s, numbers, &out);
    assert(p->as.delta.pieces && s->n_pieces > 0);
    struct cuda_delta_args args = {.kind = s->kind,
                                   .decay = decay,
                                   .n_pieces = s->n_pieces,
                                   .pieces = p->as.delta.pieces,
                                   .theta = theta,
                                   .anchor = anchor,
                                   .residual = residual,
                                   .rest = rest,
                                   .out = out};
    if (s->kind <= PIECE_HALF)
        LAUNCH_ARGS(cuda, cuda_delta_chunk, s->n_pieces, 1, &args);
    else
        LAUNCH_ARGS(cuda, cuda_delta_block, blocks_of(s->n_pieces, CUDA_ROW_WARPS), 1, &args);
}

void cuda_op_delta_add(struct device *dev, const struct delta_plan *plan, void *numbers, float *theta)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_DELTA);
    if (!p) return;
    const struct delta_format *s = &p->as.delta.shape;
    struct quantized_delta in;
    delta_format_lay_out(s, numbers, &in);
    assert(p->as.delta.pieces && s->n_pieces > 0);
    cuda_written(cuda, theta, s->n_values * sizeof *theta);
    LAUNCH(cuda, cuda_delta_add, blocks_of(s->n_pieces, CUDA_ROW_WARPS), 1, cuda_add_args, .kind = s->kind,
           .n_pieces = s->n_pieces, .pieces = p->as.delta.pieces, .in = in, .theta = theta);
}
