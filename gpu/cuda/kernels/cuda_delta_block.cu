/* Block quantizers of the outer path: delta, error feedback, scale, codes and new residual. Grid: ceil(n_pieces / 8), 8
 * warps per block, one warp per block of values; no shared memory. Values are read once for the scale, once more for
 * each of the two steps of 2bit, and once for the codes. After the first read, a block of the usual size is in the
 * cache. */
#include "gpu/cuda/kernels/cuda_delta.h"

/* Sum of capped magnitudes above `threshold` (< 0: all) in the order of the codecs: value i is added to sum i mod 16,
 * then the sums are folded in halves. The upper half-warp repeats the additions of the lower one, so all lanes get the
 * result. */
DEVICE float magnitude_sum(const struct cuda_delta_args *a, const struct piece_range *piece, float threshold,
                           unsigned *above)
{
    unsigned lane = threadIdx.x % 32, n = 0;
    float s = 0;
    double unused = 0;
    for (unsigned from = 0; from < piece->length; from += 32) {
        float m = from + lane < piece->length ? rule_capped(delta_at(a, piece->from + from + lane, &unused)) : 0.0f;
        if (!(m > threshold))
            m = 0;
        else
            n += from + lane < piece->length;
        float other = __shfl_xor_sync(FULL_WARP, m, 16);
        s = s + (lane < 16 ? m : other);
        s = s + (lane < 16 ? other : m);
    }
    for (unsigned lanes = 8; lanes; lanes /= 2) s = s + __shfl_xor_sync(FULL_WARP, s, lanes);
    *above = __reduce_add_sync(FULL_WARP, n);
    return s;
}

/* Means of the magnitudes on each side of a threshold. */
DEVICE void two_means(const struct cuda_delta_args *a, const struct piece_range *piece, float sum, float threshold,
                      float *low, float *high)
{
    unsigned n = piece->length, above;
    float above_sum = magnitude_sum(a, piece, threshold, &above);
    *low = above < n ? (sum - above_sum) / (float)(n - above) : above_sum / (float)n;
    *high = above ? above_sum / (float)above : *low;
}

DEVICE struct rule_block scale_block(const struct cuda_delta_args *a, const struct piece_range *piece, uint32_t most)
{
    if (a->kind != PIECE_2BIT && a->kind != PIECE_1BIT) return rule_block_of(a->kind, most);
    unsigned all;
    float sum = magnitude_sum(a, piece, -1, &all), mean = sum / (float)piece->length, low, high;
    if (a->kind == PIECE_1BIT || mean < RULE_SCALE_MIN) return rule_block_1bit(mean);
    two_means(a, piece, sum, 1.25f * mean, &low, &high);
    two_means(a, piece, sum, 0.5f * (low + high), &low, &high);
    return rule_block_2bit(low, high);
}

/* Packs codes: those of 8 lanes fill `bits` bytes, and the first `bits` lanes write one byte each. */
DEVICE void put_codes(uint8_t *bytes, unsigned from, unsigned n_bytes, unsigned bits, unsigned code)
{
    unsigned lane = threadIdx.x % 32, word = code << (bits * (lane % 8) % 32);
    if (bits == 8) {
        if (from + lane < n_bytes) bytes[from + lane] = (uint8_t)code;
        return;
    }
    for (unsigned lanes = 1; lanes < 8; lanes *= 2) word |= __shfl_xor_sync(FULL_WARP, word, lanes);
    unsigned at = (from + lane / 8 * 8) * bits / 8 + lane % 8;
    if (lane % 8 < bits && at < n_bytes) bytes[at] = (uint8_t)(word >> 8 * (lane % 8 % 4));
}

DEVICE void send_block(const struct cuda_delta_args *a, const struct piece_range *piece, const struct rule_block *b)
{
    unsigned bits = rule_code_bits(a->kind), lane = threadIdx.x % 32, n_bytes = (piece->length * bits + 7) / 8;
    double unused = 0;
    for (unsigned from = 0; from < piece->length; from += 32) {
        unsigned code = 0;
        if (from + lane < piece->length) {
            uint64_t at = piece->from + from + lane;
            float x = delta_at(a, at, &unused);
            if (!b->zero) {
                code = rule_code(a->kind, b, x);
                x -= rule_code_value(a->kind, b, code);
            }
            if (a->rest) a->rest[at] = x;
        }
        put_codes(a->out.bytes + piece->out, from, n_bytes, bits, code);
    }
}

DEVICE void send_plain(const struct cuda_delta_args *a, const struct piece_range *piece)
{
    double unused = 0;
    for (unsigned i = threadIdx.x % 32; i < piece->length; i += 32) {
        float x = delta_at(a, piece->from + i, &unused);
        uint16_t half = rule_bf16(x);
        a->out.plain[piece->out + i] = half;
        if (a->rest) a->rest[piece->from + i] = x - rule_bf16_value(half);
    }
}

KERNEL(cuda_delta_block, cuda_delta_args, CUDA_ROW_WARPS * 32)
{
    size_t which = (size_t)blockIdx.x * CUDA_ROW_WARPS + threadIdx.x / 32;
    if (which >= a.n_pieces) return; /* uniform in the warp */
    const struct piece_range piece = a.pieces[which];
    struct piece_head head;
    uint32_t most = 0;
    memset(&head, 0, sizeof head);
    for (unsigned i = threadIdx.x % 32; i < piece.length; i += 32) {
        uint32_t bits = rule_magnitude(delta_at(&a, piece.from + i, &head.square));
        most = bits > most ? bits : most;
    }
    head.square = warp_sum_double(head.square);
    most = __reduce_max_sync(FULL_WARP, most);
    head.bad = most >= RULE_INFINITY;
    if (!head.bad && !piece.k) send_plain(&a, &piece);
    if (!head.bad && piece.k) {
        struct rule_block b = scale_block(&a, &piece, most);
        head.scale[0] = b.scale[0];
        head.scale[1] = b.scale[1];
        send_block(&a, &piece, &b);
    }
    if (threadIdx.x % 32 == 0) a.out.heads[which] = head;
}
