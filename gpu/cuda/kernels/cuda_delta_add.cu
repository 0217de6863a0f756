/* Adds the quantized values of an update to theta. Grid: ceil(n_pieces / 8), 8 warps per block, one warp per piece.
 * Lanes take values of a block in turn, or the sent values of a chunk. Rounding is that of gpu/delta_rules.h, as on the
 * CPU. */
#include "gpu/cuda/kernels/cuda_delta.h"

DEVICE void add_chunk(const struct cuda_add_args *a, const struct piece_range *piece, const struct piece_head *head)
{
    unsigned mantissa = rule_mantissa(a->kind);
    float scale = rule_scale(mantissa, head->scale[0]), scale1 = rule_scale(mantissa, head->scale[1]);
    for (unsigned i = threadIdx.x % 32; i < head->n; i += 32) {
        float *theta = &a->theta[piece->from + a->in.index[piece->out + i]];
        *theta = *theta + rule_chosen_value(a->kind, a->in.code[piece->out + i], scale, scale1);
    }
}

DEVICE void add_block(const struct cuda_add_args *a, const struct piece_range *piece, const struct piece_head *head)
{
    unsigned bits = rule_code_bits(a->kind);
    struct rule_block b = rule_block_of_head(a->kind, head->scale);
    for (unsigned i = threadIdx.x % 32; i < piece->length; i += 32) {
        float *theta = &a->theta[piece->from + i];
        *theta = *theta + rule_code_value(a->kind, &b, rule_code_at(a->in.bytes + piece->out, bits, i));
    }
}

DEVICE void add_plain(const struct cuda_add_args *a, const struct piece_range *piece)
{
    for (unsigned i = threadIdx.x % 32; i < piece->length; i += 32) {
        float *theta = &a->theta[piece->from + i];
        *theta = *theta + rule_bf16_value(a->in.plain[piece->out + i]);
    }
}

KERNEL(cuda_delta_add, cuda_add_args, CUDA_ROW_WARPS * 32)
{
    size_t which = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32;
    if (which >= a.n_pieces) return; /* uniform in the warp */
    const struct piece_range piece = a.pieces[which];
    const struct piece_head head = a.in.heads[which];
    if (!piece.k)
        add_plain(&a, &piece);
    else if (a.kind <= PIECE_HALF)
        add_chunk(&a, &piece, &head);
    else
        add_block(&a, &piece, &head);
}
