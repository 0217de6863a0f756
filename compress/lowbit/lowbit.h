/* Inner loops of the dense low-bit codecs (int4, 2bit, 1bit), each for one block of values.
 *
 * - lowbit_plain.c is the definition; lowbit_avx2.c and lowbit_avx512.c give the same bits faster (lowbit_body.h).
 * - Sums have a fixed order: value i is added to partial sum i mod 16 in the order of i. The 16 partial sums are folded
 *   in halves (s[j] += s[j + 8], then 4, 2, 1).
 * - Codes of `bits` bits lie in bytes lowest bit first: code i at bit bits * i. The bits after the last code are
 *   zero. */
#ifndef COMPRESS_LOWBIT_H
#define COMPRESS_LOWBIT_H

#include <stddef.h>
#include <stdint.h>

/* Sums clamp magnitudes to this value, so that 65536 of them stay far from infinity. */
#define LOWBIT_SUM_MAX 0x1p100f

struct lowbit_kernels {
    /* Bits of the largest magnitude: positive floats have the order of their bits, with infinity and NaN on top. */
    uint32_t (*absmax)(const float *x, size_t n);
    /* Sum of min(|x|, LOWBIT_SUM_MAX). */
    float (*abs_sum)(const float *x, size_t n);
    /* Same, over |x| > threshold only; *above_p: how many. */
    float (*abs_sum_above)(const float *x, size_t n, float threshold, size_t *above_p);

    /* pack_*: n codes into ceil(n * bits / 8) bytes. int4: two's complement of x * factor rounded to nearest, ties to
     * even; |x * factor| < 7.5. */
    void (*pack_int4)(const float *x, size_t n, float factor, uint8_t *codes);
    /* 2bit: bit 1 is the sign bit of x, bit 0 is |x| > threshold. */
    void (*pack_2bit)(const float *x, size_t n, float threshold, uint8_t *codes);
    /* 1bit: the sign bit of x. */
    void (*pack_1bit)(const float *x, size_t n, uint8_t *codes);

    /* out[i] = table[code i]; table has 16, 4, 2 entries. */
    void (*expand4)(const uint8_t *codes, size_t n, const float *table, float *out);
    void (*expand2)(const uint8_t *codes, size_t n, const float *table, float *out);
    void (*expand1)(const uint8_t *codes, size_t n, const float *table, float *out);
    /* out[i] = out[i] + table[code i]. */
    void (*add4)(const uint8_t *codes, size_t n, const float *table, float *out);
    void (*add2)(const uint8_t *codes, size_t n, const float *table, float *out);
    void (*add1)(const uint8_t *codes, size_t n, const float *table, float *out);
};

/* The functions of a source that have the names of the members. */
#define LOWBIT_KERNELS                                                                                                 \
    {                                                                                                                  \
        absmax, abs_sum, abs_sum_above, pack_int4, pack_2bit, pack_1bit, expand4, expand2, expand1, add4, add2, add1   \
    }

extern const struct lowbit_kernels lowbit_plain, lowbit_avx2, lowbit_avx512;

/* The fastest set that this CPU runs, within codec_simd_limit. */
const struct lowbit_kernels *lowbit_kernels(void);

#endif
