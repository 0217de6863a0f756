/* RMS norm, rotary positions and gated units on the CUDA device. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>

void cuda_op_rms_fwd(struct device *dev, size_t n, size_t c, float eps, const void *x, const float *w, void *y,
                     float *rstd)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_rms_fwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_rms_args, .n = n, .c = c, .bf16 = cuda->bf16,
           .eps = eps, .x = x, .w = w, .y = y, .rstd_out = rstd);
}

void cuda_op_rms_bwd(struct device *dev, size_t n, size_t c, const void *dy, const void *x, const float *w,
                     const float *rstd, const void *dres, void *dx, float *dw, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t block = cuda_row_block(cuda, n, c);
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
                                       .rstd = rstd,
                                       .dx = dx,
                                       .partials = cuda->partials};
        if (c <= CUDA_FUSED_SHORT)
            LAUNCH_ARGS(cuda, cuda_rms_fused_short, blocks, 1, &args);
        else
            LAUNCH_ARGS(cuda, cuda_rms_fused, blocks, 1, &args);
    } else {
        LAUNCH(cuda, cuda_rms_columns, wide_blocks(c, c, CUDA_COLUMN_THREADS), blocks, cuda_rms_args, .n = n, .c = c,
               .block = block, .bf16 = cuda->bf16, .dy = dy, .x = x, .rstd = rstd, .partials = cuda->partials);
        LAUNCH(cuda, cuda_rms_bwd, blocks_of(n, CUDA_ROW_WARPS), 1, cuda_rms_args, .n = n, .c = c, .bf16 = cuda->bf16,
               .dy = dy, .x = x, .w = w, .rstd = rstd, .dres = dres, .dx = dx);
    }
    cuda_columns_sum(cuda, c, blocks, c, cuda->partials, dw, accumulate);
}

void cuda_op_rope(struct device *dev, const struct rope_shape *s, const float *table, void *x, bool back)
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

void cuda_op_glu_fwd(struct device *dev, size_t n, size_t f, const void *gu, void *h)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_glu_fwd, wide_blocks(n * f, f, CUDA_BLOCK), 1, cuda_glu_args, .n = n, .f = f, .bf16 = cuda->bf16,
           .gu = gu, .h = h);
}

void cuda_op_glu_bwd(struct device *dev, size_t n, size_t f, const void *gu, const void *dh, void *dgu)
{
    struct cuda_device *cuda = cuda_of(dev);
    LAUNCH(cuda, cuda_glu_bwd, wide_blocks(n * f, f, CUDA_BLOCK), 1, cuda_glu_args, .n = n, .f = f, .bf16 = cuda->bf16,
           .gu = gu, .dh = dh, .dgu = dgu);
}
