/* The outer path of the CPU device: the reference for other devices, in plain loops. It runs on the calling thread,
 * because the pool's threads treat denormals as zero. Workers with parameters in host memory use their codec instead,
 * which is faster. */
#include "gpu/cpu/cpu_impl.h"

#include "gpu/delta_rules.h"
#include <assert.h>

static size_t count_at_least(const float *x, size_t n, uint32_t least)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += rule_magnitude(x[i]) >= least;
    return count;
}

/* Indices of the k largest magnitudes, ascending; among equal ones those of lower index, never zeros. Returns their
 * number. */
static size_t select_largest(const float *x, size_t n, size_t k, uint16_t *index)
{
    uint32_t least = 0; /* the largest threshold that at least k reach, bit by bit */
    for (uint32_t bit = 1u << 30; bit; bit >>= 1)
        if (count_at_least(x, n, least | bit) >= k) least |= bit;
    if (!least) least = 1;
    size_t above = count_at_least(x, n, least + 1), ties = above < k ? k - above : 0, chosen = 0;
    assert(k > 0 && k <= n && n <= UINT16_MAX + 1u);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = rule_magnitude(x[i]);
        bool tie = bits == least && ties;
        if (bits <= least && !tie) continue;
        ties -= tie;
        index[chosen++] = (uint16_t)i;
    }
    return chosen;
}

/* The scales of the selected values, which are summed in order. */
static void scales_of(enum piece_kind kind, const float *x, const uint16_t *index, size_t n, uint32_t *low,
                      uint32_t *high, uint32_t *split)
{
    unsigned mantissa = rule_mantissa(kind);
    double all = 0, above = 0, below = 0;
    uint32_t most = 0;
    size_t n_above = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = rule_magnitude(x[index[i]]);
        all += (double)rule_float(bits);
        most = bits > most ? bits : most;
    }
    *high = *split = 0;
    if (kind == PIECE_BYTES || kind == PIECE_HALF) {
        *low = kind == PIECE_HALF ? most >> 23 : rule_scale_code(mantissa, most);
        return;
    }
    *split = rule_bits((float)(all / (double)n));
    *low = rule_scale_code(mantissa, *split);
    if (kind == PIECE_SIGN) return;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = rule_magnitude(x[index[i]]);
        *(bits > *split ? &above : &below) += (double)rule_float(bits);
        n_above += bits > *split;
    }
    *low = rule_scale_code(mantissa, rule_bits((float)(below / (double)(n - n_above))));
    *high = n_above ? rule_scale_code(mantissa, rule_bits((float)(above / (double)n_above))) : *low;
}

/* Quantizes a chunk. Here and below, x becomes the residual. */
static void quantize_chunk(enum piece_kind kind, const struct piece_range *piece, float *x,
                           const struct quantized_delta *out, struct piece_head *head)
{
    uint16_t *index = out->index + piece->out, *code = out->code + piece->out;
    unsigned mantissa = rule_mantissa(kind);
    uint32_t low, high, split;
    size_t n = select_largest(x, piece->length, piece->k, index);
    if (!n) return;
    scales_of(kind, x, index, n, &low, &high, &split);
    if (low < rule_scale_least(mantissa)) return;
    float scale = rule_scale(mantissa, low), scale1 = rule_scale(mantissa, high);
    for (size_t i = 0; i < n; i++) {
        float *value = &x[index[i]];
        code[i] = (uint16_t)rule_chosen(kind, *value, split, low, scale);
        *value -= rule_chosen_value(kind, code[i], scale, scale1);
    }
    head->scale[0] = low;
    head->scale[1] = high;
    head->n = (uint32_t)n;
}

static float magnitude_sum(const float *x, size_t n, float threshold, size_t *above)
{
    float s[16] = {0};
    *above = 0;
    for (size_t i = 0; i < n; i++) {
        float m = rule_capped(x[i]);
        if (!(m > threshold)) continue;
        s[i % 16] = s[i % 16] + m;
        ++*above;
    }
    for (size_t half = 8; half; half /= 2)
        for (size_t j = 0; j < half; j++) s[j] = s[j] + s[j + half];
    return s[0];
}

static void two_means(const float *x, size_t n, float sum, float threshold, float *low, float *high)
{
    size_t above;
    float above_sum = magnitude_sum(x, n, threshold, &above);
    *low = above < n ? (sum - above_sum) / (float)(n - above) : above_sum / (float)n;
    *high = above ? above_sum / (float)above : *low;
}

static struct rule_block scale_block(enum piece_kind kind, const float *x, size_t n, uint32_t most)
{
    if (kind != PIECE_2BIT && kind != PIECE_1BIT) return rule_block_of(kind, most);
    size_t all;
    float sum = magnitude_sum(x, n, -1, &all), mean = sum / (float)n, low, high;
    if (kind == PIECE_1BIT || mean < RULE_SCALE_MIN) return rule_block_1bit(mean);
    two_means(x, n, sum, 1.25f * mean, &low, &high);
    two_means(x, n, sum, 0.5f * (low + high), &low, &high);
    return rule_block_2bit(low, high);
}

static void quantize_block(enum piece_kind kind, const struct piece_range *piece, float *x, uint32_t most,
                           const struct quantized_delta *out, struct piece_head *head)
{
    unsigned bits = rule_code_bits(kind);
    uint8_t *bytes = out->bytes + piece->out;
    struct rule_block b = scale_block(kind, x, piece->length, most);
    head->scale[0] = b.scale[0];
    head->scale[1] = b.scale[1];
    memset(bytes, 0, (piece->length * bits + 7) / 8);
    for (size_t i = 0; i < piece->length && !b.zero; i++) {
        uint32_t code = rule_code(kind, &b, x[i]);
        bytes[i * bits / 8] |= (uint8_t)(code << i * bits % 8);
        x[i] -= rule_code_value(kind, &b, code);
    }
}

static void quantize_plain(const struct piece_range *piece, float *x, const struct quantized_delta *out)
{
    for (size_t i = 0; i < piece->length; i++) {
        uint16_t half = rule_bf16(x[i]);
        out->plain[piece->out + i] = half;
        x[i] -= rule_bf16_value(half);
    }
}

static void delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                  float decay, const float *residual, float *rest, void *quantized)
{
    const struct cpu_plan *p = cpu_plan_of(cpu_of(dev), plan, CPU_PLAN_DELTA);
    if (!p) return;
    const struct delta_format *shape = &p->as.delta.shape;
    float *x = p->as.delta.x;
    struct quantized_delta out;
    delta_format_lay_out(shape, quantized, &out);
    for (size_t i = 0; i < shape->n_pieces; i++) {
        const struct piece_range *piece = &p->as.delta.pieces[i];
        assert(piece->length <= (shape->longest > PIECE_PLAIN_MAX ? shape->longest : PIECE_PLAIN_MAX));
        assert(piece->k <= piece->length);
        struct piece_head head = {0};
        uint32_t most = 0;
        for (size_t j = 0; j < piece->length; j++) {
            size_t at = (size_t)piece->from + j;
            float delta = anchor ? anchor[at] - theta[at] : theta[at];
            head.square += (double)delta * (double)delta;
            x[j] = residual ? delta + decay * residual[at] : delta;
            most = rule_magnitude(x[j]) > most ? rule_magnitude(x[j]) : most;
        }
        head.bad = most >= RULE_INFINITY;
        if (!head.bad) {
            if (!piece->k)
                quantize_plain(piece, x, &out);
            else if (shape->kind <= PIECE_HALF)
                quantize_chunk(shape->kind, piece, x, &out, &head);
            else
                quantize_block(shape->kind, piece, x, most, &out, &head);
            if (rest) memcpy(rest + piece->from, x, piece->length * sizeof *x);
        }
        out.heads[i] = head;
    }
}

static void add_piece(enum piece_kind kind, const struct piece_range *piece, const struct piece_head *head,
                      const struct quantized_delta *in, float *theta)
{
    unsigned mantissa = rule_mantissa(kind), bits = rule_code_bits(kind);
    if (!piece->k) {
        for (size_t i = 0; i < piece->length; i++) theta[i] = theta[i] + rule_bf16_value(in->plain[piece->out + i]);
    } else if (kind <= PIECE_HALF) {
        assert(head->n <= piece->length);
        float scale = rule_scale(mantissa, head->scale[0]), scale1 = rule_scale(mantissa, head->scale[1]);
        for (size_t i = 0; i < head->n; i++) {
            float *to = &theta[in->index[piece->out + i]];
            *to = *to + rule_chosen_value(kind, in->code[piece->out + i], scale, scale1);
        }
    } else {
        struct rule_block b = rule_block_of_head(kind, head->scale);
        for (size_t i = 0; i < piece->length; i++)
            theta[i] = theta[i] + rule_code_value(kind, &b, rule_code_at(in->bytes + piece->out, bits, i));
    }
}

static void delta_add(struct device *dev, const struct delta_plan *plan, void *quantized, float *theta)
{
    const struct cpu_plan *p = cpu_plan_of(cpu_of(dev), plan, CPU_PLAN_DELTA);
    if (!p) return;
    const struct delta_format *shape = &p->as.delta.shape;
    struct quantized_delta in;
    delta_format_lay_out(shape, quantized, &in);
    for (size_t i = 0; i < shape->n_pieces; i++)
        add_piece(shape->kind, &p->as.delta.pieces[i], &in.heads[i], &in, theta + p->as.delta.pieces[i].from);
}

void cpu_delta_ops(struct device_ops *ops)
{
    ops->delta = delta;
    ops->delta_add = delta_add;
}
