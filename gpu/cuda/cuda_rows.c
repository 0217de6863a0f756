#include "gpu/cuda/cuda_rows.h"

#include <assert.h>

#include "common/base/mem.h"

enum {
    PARTIAL_FLOATS = 2 << 20, /* [floats] room for partial column sums */
    ROW_BLOCKS = 512          /* blocks of rows, at most, in sums of dw, db and bias gradients */
};

_Static_assert(2 * CUDA_EMBED_ROWS <= PARTIAL_FLOATS, "order and keys fit into the partial sums");

static void embed_fwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const float *wte,
                      const float *wpe, void *out)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_embed_fwd, wide_blocks(n * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq, .c = c,
           .bf16 = cuda->bf16, .tokens = tokens, .wte = wte, .wpe = wpe, .out = out);
}

static void embed_bwd(struct device *dev, size_t n, size_t seq, size_t c, const int32_t *tokens, const void *dout,
                      float *dwte, float *dwpe, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t places = n < seq ? n : seq;
    assert(cuda->rows->embed_rows > 0 && 2 * cuda->rows->embed_rows <= PARTIAL_FLOATS);
    if (dwpe)
        LAUNCH(cuda, cuda_embed_place, wide_blocks(places * c, c, CUDA_BLOCK), 1, cuda_embed_args, .n = n, .seq = seq,
               .c = c, .bf16 = cuda->bf16, .dout = dout, .dwpe = dwpe, .accumulate = accumulate);
    /* Sorting compares each token with all others, so it runs in parts to keep the work linear in the rows. */
    for (size_t at = 0; at < n; at += cuda->rows->embed_rows) {
        size_t rows = n - at < cuda->rows->embed_rows ? n - at : cuda->rows->embed_rows;
        int32_t *order = (int32_t *)(void *)cuda->rows->partials;
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

/* --- sums of columns ---------------------------------------------------------------------------------------------- */

/* Rows per block if n rows with `floats` partial sums each are summed block by block. 0 with an error of the device:
 * rows too wide. */
static size_t row_block(struct cuda_device *cuda, size_t n, size_t floats)
{
    assert(n > 0 && floats > 0);
    size_t blocks = PARTIAL_FLOATS / floats < ROW_BLOCKS ? PARTIAL_FLOATS / floats : ROW_BLOCKS;
    if (!blocks) cuda_rt_fail(cuda->rt, STATUS_LIMIT, "rows too long for column sums");
    return blocks ? blocks_of(n, blocks) : 0;
}

/* out[c] = or += the sum of `blocks` partial sums that lie `stride` floats apart. */
static void columns_sum(struct cuda_device *cuda, size_t c, size_t blocks, size_t stride, float *partials, float *out,
                        bool accumulate)
{
    assert(c <= stride && (blocks - 1) * stride + c <= PARTIAL_FLOATS);
    LAUNCH(cuda, cuda_columns_end, blocks_of(c, 32), 1, cuda_columns_args, .c = c, .blocks = blocks, .stride = stride,
           .partials = partials, .out = out, .accumulate = accumulate);
}

void cuda_columns_of(struct cuda_device *cuda, size_t n, size_t c, const void *x, float *out, bool accumulate)
{
    size_t block = row_block(cuda, n, c);
    if (!block) return;
    LAUNCH(cuda, cuda_columns, wide_blocks(c, c, CUDA_COLUMN_THREADS), blocks_of(n, block), cuda_columns_args, .n = n,
           .c = c, .block = block, .stride = c, .bf16 = cuda->bf16, .x = x, .partials = cuda->rows->partials);
    columns_sum(cuda, c, blocks_of(n, block), c, cuda->rows->partials, out, accumulate);
}

/* --- norms -------------------------------------------------------------------------------------------------------- */

static void norm_fwd(struct device *dev, size_t n, size_t c, const void *x, const float *w, const float *b, void *y,
                     float *mean, float *rstd)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_norm_fwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .bf16 = cuda->bf16,
           .eps = 1e-5f, .x = x, .w = w, .b = b, .y = y, .mean_out = mean, .rstd_out = rstd);
}

/* True if cuda_norm_fused and cuda_rms_fused support rows of c columns. */
static bool norm_fuses(size_t c)
{
    return c % CUDA_WIDE == 0 && c <= CUDA_FUSED_COLUMNS;
}

/* dx, and partial sums of dw (and db) in *blocks blocks of rows. Returns false with an error of the device. */
static bool norm_backward(struct cuda_device *cuda, struct cuda_norm_args *args, bool rms, size_t *blocks)
{
    size_t c = args->c, columns = wide_blocks(c, c, CUDA_COLUMN_THREADS), rows = blocks_of(args->n, CUDA_ROW_WARPS);
    args->bf16 = cuda->bf16;
    args->partials = cuda->rows->partials;
    args->block = row_block(cuda, args->n, rms ? c : 2 * c);
    if (!args->block) return false;
    *blocks = blocks_of(args->n, args->block);
    if (norm_fuses(c) && c <= CUDA_FUSED_SHORT && rms)
        LAUNCH_ARGS(cuda, cuda_rms_fused_short, *blocks, 1, args);
    else if (norm_fuses(c) && c <= CUDA_FUSED_SHORT)
        LAUNCH_ARGS(cuda, cuda_norm_fused_short, *blocks, 1, args);
    else if (norm_fuses(c) && rms)
        LAUNCH_ARGS(cuda, cuda_rms_fused, *blocks, 1, args);
    else if (norm_fuses(c))
        LAUNCH_ARGS(cuda, cuda_norm_fused, *blocks, 1, args);
    else if (rms) {
        LAUNCH_ARGS(cuda, cuda_rms_columns, columns, *blocks, args);
        LAUNCH_ARGS(cuda, cuda_rms_bwd, rows, 1, args);
    } else {
        LAUNCH_ARGS(cuda, cuda_norm_columns, columns, *blocks, args);
        LAUNCH_ARGS(cuda, cuda_norm_bwd, rows, 1, args);
    }
    return true;
}

static void norm_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *mean, const float *rstd, const void *dres, void *dx, float *dw, float *db,
                     bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_norm_args args = {
        .n = n, .c = c, .x = x, .dy = dy, .dres = dres, .w = w, .mean = mean, .rstd = rstd, .dx = dx};
    size_t blocks;
    if (!norm_backward(cuda, &args, false, &blocks)) return;
    bool together = db == dw + c; /* true in GPT-2's layout */
    columns_sum(cuda, together ? 2 * c : c, blocks, 2 * c, args.partials, dw, accumulate);
    if (!together) columns_sum(cuda, c, blocks, 2 * c, args.partials + c, db, accumulate);
}

static void rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                    float *rstd)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_rms_fwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_norm_args, .n = n, .c = c, .bf16 = cuda->bf16,
           .eps = eps, .x = x, .w = w, .y = y, .rstd_out = rstd);
}

static void rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                    const float *rstd, const void *dres, void *dx, float *dw, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_norm_args args = {.n = n, .c = c, .x = x, .dy = dy, .dres = dres, .w = w, .rstd = rstd, .dx = dx};
    size_t blocks;
    if (norm_backward(cuda, &args, true, &blocks)) columns_sum(cuda, c, blocks, c, args.partials, dw, accumulate);
}

/* --- elementwise -------------------------------------------------------------------------------------------------- */

static void rope(struct device *dev, const struct rope_shape *s, const float *table, void *x, bool back)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t half = s->head_dim / 2, pairs = s->n * s->heads * half;
    assert(s->seq > 0);
    bool wide = half % CUDA_WIDE == 0 && s->ld % CUDA_WIDE == 0;
    if (s->head_dim % 2 || s->heads * s->head_dim > s->ld) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "rope: the head size is odd, or heads are wider than their rows");
        return;
    }
    LAUNCH(cuda, cuda_rope, blocks_of(wide ? pairs / CUDA_WIDE : pairs, CUDA_BLOCK), 1, cuda_rope_args, .n = s->n,
           .seq = s->seq, .heads = s->heads, .head_dim = s->head_dim, .ld = s->ld, .bf16 = cuda->bf16, .back = back,
           .wide = wide, .table = table, .x = x);
}

static void glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_glu_fwd, wide_blocks(n * f, f, CUDA_BLOCK), 1, cuda_glu_args, .n = n, .f = f, .bf16 = cuda->bf16,
           .gu = gu, .h = h);
}

static void glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_glu_bwd, wide_blocks(n * f, f, CUDA_BLOCK), 1, cuda_glu_args, .n = n, .f = f, .bf16 = cuda->bf16,
           .gu = gu, .dh = dh, .dgu = dgu);
}

enum status cuda_rows_open(struct cuda_device *cuda)
{
    cuda->ops.embed_fwd = embed_fwd;
    cuda->ops.embed_bwd = embed_bwd;
    cuda->ops.norm_fwd = norm_fwd;
    cuda->ops.norm_bwd = norm_bwd;
    cuda->ops.rms_fwd = rms_fwd;
    cuda->ops.rms_bwd = rms_bwd;
    cuda->ops.rope = rope;
    cuda->ops.glu_fwd = glu_fwd;
    cuda->ops.glu_bwd = glu_bwd;
    cuda->rows = mem_alloc(1, sizeof *cuda->rows);
    if (!cuda->rows) return STATUS_NOMEM;
    cuda->rows->embed_rows = CUDA_EMBED_ROWS;
    cuda->rows->partials = cuda_rt_alloc(cuda->rt, PARTIAL_FLOATS * sizeof *cuda->rows->partials);
    return cuda->rows->partials ? STATUS_OK : STATUS_NOMEM;
}

void cuda_rows_close(struct cuda_device *cuda)
{
    if (cuda->rows) cuda_rt_release(cuda->rt, cuda->rows->partials);
    mem_free(cuda->rows);
}
