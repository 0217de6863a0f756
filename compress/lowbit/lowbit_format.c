#include "compress/lowbit/lowbit_format.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/float_bits.h"

#define SCALE_MIN 0x1p-110f
enum {
    SCALE_MIN_BITS = (127 - 110) << 23,
    E8M8_MIN = (127 - 110) << 8, /* 2^-110 */
    E8M8_MAX = (127 + 100) << 8, /* LOWBIT_SUM_MAX: no mean is larger */
    INT4_MIN = 0x0e25,           /* 2^-110 / 7, rounded up */
    INT4_MAX = 0xfc24,           /* the largest with 7 * scale finite */
};

static inline uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline float e8m8_value(uint32_t v)
{
    return float_of_bits(v << 15);
}

static uint32_t e8m8_up(float x)
{
    return (float_bits(x) + 0x7fffu) >> 15;
}

static uint32_t e8m8_nearest(float x)
{
    uint32_t bits = float_bits(x);
    return (bits + 0x3fffu + (bits >> 15 & 1)) >> 15;
}

static enum status check_e8m8(uint32_t v, uint32_t least, uint32_t most)
{
    if (v == 0 || (v >= least && v <= most)) return STATUS_OK;
    return v >> 8 == 255 ? STATUS_NONFINITE : STATUS_CORRUPT;
}

static void write_zeros(const struct lowbit_format *format, size_t n, uint8_t *head, uint8_t *codes)
{
    memset(head, 0, format->head);
    memset(codes, 0, (n * format->bits + 7) / 8);
}

/* ---- int4: scale = max / 7, rounded up, so that no value is clipped ---------------------------------------------- */

static void int4_encode(const struct lowbit_kernels *kernels, const float *x, size_t n, uint8_t *head, uint8_t *codes)
{
    uint32_t most = kernels->absmax(x, n);
    if (most < SCALE_MIN_BITS) {
        write_zeros(&lowbit_int4, n, head, codes);
        return;
    }
    uint32_t scale = e8m8_up(float_of_bits(most) / 7.0f);
    if (scale > INT4_MAX) scale = INT4_MAX;
    put16(head, scale);
    kernels->pack_int4(x, n, 1.0f / e8m8_value(scale), codes);
}

static enum status int4_check(const uint8_t *head)
{
    uint32_t scale = get16(head);
    enum status status = check_e8m8(scale, INT4_MIN, INT4_MAX);
    return status != STATUS_OK && scale > INT4_MAX ? STATUS_NONFINITE : status;
}

static void int4_levels(const uint8_t *head, float levels[LOWBIT_LEVELS])
{
    float scale = e8m8_value(get16(head));
    for (int code = 0; code < LOWBIT_LEVELS; code++) levels[code] = (float)((code ^ 8) - 8) * scale;
}

/* ---- 2bit: sign and one of two magnitudes ------------------------------------------------------------------------ */

/* Mean magnitudes at or below a threshold and above it. */
static void two_means(const struct lowbit_kernels *kernels, const float *x, size_t n, float sum, float threshold,
                      float *low, float *high)
{
    size_t above;
    float above_sum = kernels->abs_sum_above(x, n, threshold, &above);
    *low = above < n ? (sum - above_sum) / (float)(n - above) : above_sum / (float)n;
    *high = above ? above_sum / (float)above : *low;
}

/* Two steps of Lloyd's algorithm. For a normal distribution the first threshold is close to the optimum, 1.23 means. */
static void two_bit_encode(const struct lowbit_kernels *kernels, const float *x, size_t n, uint8_t *head,
                           uint8_t *codes)
{
    float sum = kernels->abs_sum(x, n), mean = sum / (float)n, low, high;
    if (mean < SCALE_MIN) {
        write_zeros(&lowbit_2bit, n, head, codes);
        return;
    }
    two_means(kernels, x, n, sum, 1.25f * mean, &low, &high);
    two_means(kernels, x, n, sum, 0.5f * (low + high), &low, &high);
    uint32_t scale = e8m8_nearest(high);
    high = e8m8_value(scale);
    uint32_t ratio = (uint32_t)(low / high * 256.0f + 0.5f);
    if (ratio > 255) ratio = 255;
    put16(head, scale);
    head[2] = (uint8_t)ratio;
    low = high * ((float)ratio * 0x1p-8f);
    kernels->pack_2bit(x, n, 0.5f * (low + high), codes);
}

static enum status two_bit_check(const uint8_t *head)
{
    uint32_t scale = get16(head);
    if (scale == 0 && head[2]) return STATUS_CORRUPT;
    return check_e8m8(scale, E8M8_MIN, E8M8_MAX);
}

static void two_bit_levels(const uint8_t *head, float levels[LOWBIT_LEVELS])
{
    levels[1] = e8m8_value(get16(head));
    levels[0] = levels[1] * ((float)head[2] * 0x1p-8f);
    levels[2] = -levels[0];
    levels[3] = -levels[1];
}

/* ---- 1bit: sign times the mean magnitude ------------------------------------------------------------------------- */

static void one_bit_encode(const struct lowbit_kernels *kernels, const float *x, size_t n, uint8_t *head,
                           uint8_t *codes)
{
    float mean = kernels->abs_sum(x, n) / (float)n;
    if (mean < SCALE_MIN) {
        write_zeros(&lowbit_1bit, n, head, codes);
        return;
    }
    put16(head, e8m8_nearest(mean));
    kernels->pack_1bit(x, n, codes);
}

static enum status one_bit_check(const uint8_t *head)
{
    return check_e8m8(get16(head), E8M8_MIN, E8M8_MAX);
}

static void one_bit_levels(const uint8_t *head, float levels[LOWBIT_LEVELS])
{
    levels[0] = e8m8_value(get16(head));
    levels[1] = -levels[0];
}

const struct lowbit_format lowbit_int4 = {"int4", 4, 2, int4_encode, int4_check, int4_levels};
const struct lowbit_format lowbit_2bit = {"2bit", 2, 3, two_bit_encode, two_bit_check, two_bit_levels};
const struct lowbit_format lowbit_1bit = {"1bit", 1, 2, one_bit_encode, one_bit_check, one_bit_levels};
