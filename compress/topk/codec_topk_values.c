/* Quantizes the selected values and codes the scales of chunks. */
#include <assert.h>
#include <math.h>

#include "compress/codec_simd.h"
#include "compress/topk/codec_topk.h"

enum {
    ESCAPE = 12,   /* zeros before a scale in full */
    HIGH_RICE = 3, /* Rice parameter of the second scale */
};

const struct topk_form topk_forms[] = {
    [TOPK_SIGN] = {.value_bits = 1, .mantissa = 4, .rice = 1},
    [TOPK_2BIT] = {.value_bits = 2, .mantissa = 5, .rice = 2, .two = true},
    [TOPK_INT8] = {.value_bits = 8, .mantissa = 7, .rice = 4},
    [TOPK_FP16] = {.value_bits = 15, .mantissa = 0, .rice = 1},
};

uint32_t topk_scale_least(const struct topk_form *form)
{
    return 27u << form->mantissa;
}

uint32_t topk_scale_end(const struct topk_form *form)
{
    return 255u << form->mantissa;
}

/* The nearest code, halves up, at most the largest finite one. */
static uint32_t round_code(const struct topk_form *form, uint32_t bits)
{
    unsigned drop = 23 - form->mantissa;
    uint32_t code = (bits + (1u << (drop - 1))) >> drop;
    return code < topk_scale_end(form) ? code : topk_scale_end(form) - 1;
}

/* Maximum and minimum of n > 0 magnitudes, the number above `split`, and in fp64 the sums of all, of those above it and
 * of the others. */
struct sums {
    double all, above, below; /* below: at or below `split` */
    uint32_t most, least, count;
};

enum { LANES = 16 };

CODEC_SIMD(add_up, (const uint32_t *restrict magnitude, size_t n, uint32_t split, struct sums *restrict out),
           (magnitude, n, split, out))
{
    double all[LANES] = {0}, above[LANES] = {0};
    uint32_t most = 0, least = UINT32_MAX, count = 0;
    size_t whole = n / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            uint32_t bits = magnitude[i + k], some = bits > split ? bits : 0;
            all[k] += (double)float_of_bits(bits);
            above[k] += (double)float_of_bits(some);
        }
    for (size_t i = whole; i < n; i++) {
        all[0] += (double)float_of_bits(magnitude[i]);
        above[0] += magnitude[i] > split ? (double)float_of_bits(magnitude[i]) : 0;
    }
    for (size_t i = 0; i < n; i++) {
        most = magnitude[i] > most ? magnitude[i] : most;
        least = magnitude[i] < least ? magnitude[i] : least;
        count += magnitude[i] > split;
    }
    *out = (struct sums){.most = most, .least = least, .count = count};
    for (size_t k = 0; k < LANES; k++) {
        out->all += all[k];
        out->above += above[k];
    }
}

/* Sums in ascending order of index. */
static void add_in_order(const uint32_t *magnitude, size_t n, uint32_t split, struct sums *s)
{
    s->all = s->above = 0;
    double below = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)float_of_bits(magnitude[i]);
        s->all += x;
        if (magnitude[i] > split)
            s->above += x;
        else
            below += x;
    }
    s->below = below;
}

/* The format defines sums as one addition after the other. If the largest magnitude is less than 2^12 times the
 * smallest (24 bits each, at most 2^16 of them), no addition rounds, and every order gives the same result. */
static struct sums sums_of(const uint32_t *magnitude, size_t n, uint32_t split)
{
    struct sums s;
    add_up(magnitude, n, split, &s);
    if ((s.most >> 23) - (s.least >> 23) <= 11)
        s.below = s.all - s.above;
    else
        add_in_order(magnitude, n, split, &s);
    return s;
}

/* Mean |x| of n > 0 values: summed in fp64, in ascending order of index. */
static float mean_of(const uint32_t *magnitude, size_t n)
{
    return (float)(sums_of(magnitude, n, UINT32_MAX).all / (double)n);
}

static inline uint16_t sign_of(const float *x, uint16_t index)
{
    return (uint16_t)(float_bits(x[index]) >> 31);
}

static struct topk_scales quantize_sign(const float *x, const uint16_t *index, const uint32_t *magnitude, size_t n,
                                        uint16_t *codes)
{
    for (size_t i = 0; i < n; i++) codes[i] = sign_of(x, index[i]);
    return (struct topk_scales){.low = round_code(&topk_forms[TOPK_SIGN], float_bits(mean_of(magnitude, n)))};
}

/* Splits the values at their mean; the mean of each class is its level. */
static struct topk_scales quantize_2bit(const float *x, const uint16_t *index, const uint32_t *magnitude, size_t n,
                                        uint16_t *codes)
{
    const struct topk_form *form = &topk_forms[TOPK_2BIT];
    uint32_t split = float_bits(mean_of(magnitude, n));
    for (size_t i = 0; i < n; i++) codes[i] = (uint16_t)(sign_of(x, index[i]) | (magnitude[i] > split) << 1);
    struct sums sums = sums_of(magnitude, n, split);
    struct topk_scales s = {.low = round_code(form, float_bits((float)(sums.below / (double)(n - sums.count))))};
    s.high = sums.count ? round_code(form, float_bits((float)(sums.above / (double)sums.count))) : s.low;
    return s;
}

static uint32_t largest(const uint32_t *magnitude, size_t n)
{
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) most = magnitude[i] > most ? magnitude[i] : most;
    return most;
}

static struct topk_scales quantize_int8(const float *x, const uint16_t *index, const uint32_t *magnitude, size_t n,
                                        uint16_t *codes)
{
    const struct topk_form *form = &topk_forms[TOPK_INT8];
    struct topk_scales s = {.low = round_code(form, largest(magnitude, n))};
    if (s.low < topk_scale_least(form)) return s;
    float scale = topk_scale(form, s.low);
    for (size_t i = 0; i < n; i++) {
        float m = nearbyintf(float_of_bits(magnitude[i]) / scale * 128.0f);
        m = m < 1.0f ? 1.0f : m > 128.0f ? 128.0f : m;
        codes[i] = (uint16_t)(sign_of(x, index[i]) | ((unsigned)m - 1) << 1);
    }
    return s;
}

/* The 14 bits of y = |x| / 2^exponent as a positive fp16 below 2: nearest, ties to even; never 0, never 2. */
static uint32_t half_of(uint32_t magnitude, uint32_t exponent)
{
    /* The bits of y, unless y is far below fp16. */
    int32_t moved = (int32_t)magnitude - ((int32_t)exponent - 127) * (1 << 23);
    if (moved < (100 << 23)) return 1;
    uint32_t bits = (uint32_t)moved, half;
    if (bits < (113u << 23)) /* denormal: its step 2^-24 is the last bit of numbers between 1/2 and 1 */
        half = float_bits(float_of_bits(bits) + 0.5f) - float_bits(0.5f);
    else
        half = ((bits + 0xfffu + (bits >> 13 & 1)) >> 13) - (112u << 10);
    return half < 1 ? 1 : half > 0x3fff ? 0x3fff : half;
}

static struct topk_scales quantize_fp16(const float *x, const uint16_t *index, const uint32_t *magnitude, size_t n,
                                        uint16_t *codes)
{
    struct topk_scales s = {.low = largest(magnitude, n) >> 23};
    for (size_t i = 0; i < n; i++) codes[i] = (uint16_t)(sign_of(x, index[i]) | half_of(magnitude[i], s.low) << 1);
    return s;
}

struct topk_scales topk_quantize(enum topk_values values, const float *x, const uint16_t *index,
                                 const uint32_t *magnitude, size_t n, uint16_t *codes)
{
    struct topk_scales s = {0};
    if (!n) return s;
    assert(n <= UINT16_MAX + 1u);
    switch (values) {
    case TOPK_SIGN: s = quantize_sign(x, index, magnitude, n, codes); break;
    case TOPK_2BIT: s = quantize_2bit(x, index, magnitude, n, codes); break;
    case TOPK_INT8: s = quantize_int8(x, index, magnitude, n, codes); break;
    case TOPK_FP16: s = quantize_fp16(x, index, magnitude, n, codes); break;
    }
    return s.low < topk_scale_least(&topk_forms[values]) ? (struct topk_scales){0} : s;
}

/* ---- scales in the payload ------------------------------------------------------------------------------------------
 * A Rice code of the step from the previous scale, signs folded (0, -1, 1, -2, ...). ESCAPE zeros and the code in full
 * replace it if the step is too large, and for a chunk that sends no values (0). */

static uint32_t fold(int32_t step)
{
    return step < 0 ? (uint32_t)(-step) * 2 - 1 : (uint32_t)step * 2;
}

static int32_t unfold(uint32_t folded)
{
    return folded & 1 ? -(int32_t)(folded / 2) - 1 : (int32_t)(folded / 2);
}

/* folded: the step; UINT32_MAX: write the code in full. */
static void put_step(struct bit_writer *w, const struct topk_form *form, unsigned rice, uint32_t folded, uint32_t code)
{
    uint32_t q = folded >> rice;
    if (q >= ESCAPE) {
        bits_put(w, 0, ESCAPE);
        bits_put(w, code, 8 + form->mantissa);
        return;
    }
    bits_put(w, 1u << q, q + 1);
    bits_put(w, folded & ((1u << rice) - 1), rice);
}

static uint32_t step_size(const struct topk_form *form, unsigned rice, uint32_t folded)
{
    uint32_t q = folded >> rice;
    return q >= ESCAPE ? ESCAPE + 8 + form->mantissa : q + 1 + rice;
}

/* Returns true and *folded, or false and *code in full. */
static bool get_step(struct bit_reader *r, const struct topk_form *form, unsigned rice, uint32_t *folded,
                     uint32_t *code)
{
    uint32_t zeros = (uint32_t)__builtin_ctzll(bits_peek(r) | 1u << ESCAPE);
    if (zeros < ESCAPE) {
        r->pos += zeros + 1;
        *folded = zeros << rice | bits_get(r, rice);
        return true;
    }
    r->pos += ESCAPE;
    *code = bits_get(r, 8 + form->mantissa);
    return false;
}

static uint32_t low_step(uint32_t previous, uint32_t low)
{
    return previous && low ? fold((int32_t)low - (int32_t)previous) : UINT32_MAX;
}

void topk_put_scales(struct bit_writer *w, const struct topk_form *form, uint32_t previous, struct topk_scales scales)
{
    assert(scales.low < topk_scale_end(form) && (!form->two || scales.high >= scales.low));
    put_step(w, form, form->rice, low_step(previous, scales.low), scales.low);
    if (form->two && scales.low) put_step(w, form, HIGH_RICE, scales.high - scales.low, scales.high);
}

uint32_t topk_scales_size(const struct topk_form *form, uint32_t previous, struct topk_scales scales)
{
    uint32_t bits = step_size(form, form->rice, low_step(previous, scales.low));
    if (form->two && scales.low) bits += step_size(form, HIGH_RICE, scales.high - scales.low);
    return bits;
}

static enum status check_code(const struct topk_form *form, uint32_t code)
{
    if (code >= topk_scale_end(form)) return STATUS_NONFINITE;
    return code < topk_scale_least(form) ? STATUS_CORRUPT : STATUS_OK;
}

enum status topk_get_scales(struct bit_reader *r, const struct topk_form *form, uint32_t previous,
                            struct topk_scales *scales)
{
    uint32_t folded, code;
    *scales = (struct topk_scales){0};
    if (get_step(r, form, form->rice, &folded, &code)) {
        if (!previous) return STATUS_CORRUPT;
        int64_t moved = (int64_t)previous + unfold(folded);
        if (moved < 0) return STATUS_CORRUPT;
        code = (uint32_t)moved;
    } else {
        if (!code) return STATUS_OK;
        if (low_step(previous, code) >> form->rice < ESCAPE) return STATUS_CORRUPT; /* a shorter code exists */
    }
    TRY(check_code(form, code));
    scales->low = code;
    if (!form->two) return STATUS_OK;
    if (get_step(r, form, HIGH_RICE, &folded, &code)) {
        code = scales->low + folded;
    } else if (code < scales->low || (code - scales->low) >> HIGH_RICE < ESCAPE) {
        return STATUS_CORRUPT;
    }
    TRY(check_code(form, code));
    scales->high = code;
    return STATUS_OK;
}
