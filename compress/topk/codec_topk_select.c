/* Selects the k largest magnitudes of a chunk, exactly.
 *
 * 1. One pass compares every |x| with a guess slightly below the k-th largest of the previous chunk and keeps the
 *    candidates: a vector compare, then a loop over the set bits.
 * 2. With at least k candidates, bisection finds the k-th largest among them.
 * 3. Otherwise a histogram of the upper bits gives a guess that is certainly low enough, and step 1 repeats.
 *
 * The guess never changes the result: magnitudes compare as integers, and only step 2 selects. */
#include <assert.h>

#include "compress/codec_simd.h"
#include "compress/topk/codec_topk.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* MARGIN: an eighth of an octave, which gives about 1.6 k candidates for a normal distribution. */
enum { BLOCK = 64, MANY = 4, MARGIN = 1 << 20 };

static const uint32_t MAGNITUDE = 0x7fffffffu;

static uint64_t mask_plain(const float *x, uint32_t least)
{
    uint64_t mask = 0;
    for (unsigned i = 0; i < BLOCK; i++) mask |= (uint64_t)((float_bits(x[i]) & MAGNITUDE) >= least) << i;
    return mask;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static inline uint64_t mask_avx2(const float *x, uint32_t least)
{
    const __m256i magnitude = _mm256_set1_epi32((int)MAGNITUDE), below = _mm256_set1_epi32((int)least - 1);
    uint64_t mask = 0;
    for (unsigned i = 0; i < BLOCK / 8; i++) {
        __m256i bits = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + 8 * i)), magnitude);
        unsigned some = (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(bits, below)));
        mask |= (uint64_t)some << 8 * i;
    }
    return mask;
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static inline uint64_t mask_avx512(const float *x,
                                                                                                 uint32_t least)
{
    const __m512i magnitude = _mm512_set1_epi32((int)MAGNITUDE), limit = _mm512_set1_epi32((int)least);
    uint64_t mask = 0;
    for (unsigned i = 0; i < BLOCK / 16; i++) {
        __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x + 16 * i), magnitude);
        mask |= (uint64_t)_mm512_cmpge_epu32_mask(bits, limit) << 16 * i;
    }
    return mask;
}
#endif

/* Collects the candidates, |x| >= least > 0, in order. Each kind of mask compiles the same loop. */
#define COLLECT(mask_of)                                                                                               \
    size_t n = 0, from = 0;                                                                                            \
    for (; from + BLOCK <= length; from += BLOCK)                                                                      \
        for (uint64_t mask = mask_of(x + from, least); mask; mask &= mask - 1) {                                       \
            size_t i = from + (size_t)__builtin_ctzll(mask);                                                           \
            s->bits[n] = float_bits(x[i]) & MAGNITUDE;                                                                 \
            s->index[n++] = (uint16_t)i;                                                                               \
        }                                                                                                              \
    for (; from < length; from++) {                                                                                    \
        s->bits[n] = float_bits(x[from]) & MAGNITUDE;                                                                  \
        s->index[n] = (uint16_t)from;                                                                                  \
        n += s->bits[n] >= least;                                                                                      \
    }                                                                                                                  \
    return n;

static size_t collect_plain(struct topk_select *s, const float *x, size_t length, uint32_t least)
{
    COLLECT(mask_plain)
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static size_t collect_avx2(struct topk_select *s, const float *x, size_t length,
                                                           uint32_t least)
{
    COLLECT(mask_avx2)
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static size_t
collect_avx512(struct topk_select *s, const float *x, size_t length, uint32_t least)
{
    COLLECT(mask_avx512)
}

/* Number of set bits. gcc 12 may spill the mask as 16 bits and read 32 back, also on its way into a general register
 * (-O1 with ThreadSanitizer). The assembly hides the mask's width from gcc, so that it keeps the `& 0xffff`. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static inline size_t count_mask(__mmask16 mask)
{
    uint32_t bits;
    __asm__("kmovw %1, %0" : "=r"(bits) : "k"(mask));
    return (size_t)__builtin_popcount(bits & 0xffffu);
}

/* Same for many candidates: compresses 16 at a time. n <= from, so there is room for 16 entries at n. */
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static size_t
collect_many_avx512(struct topk_select *s, const float *x, size_t length, uint32_t least)
{
    const __m512i magnitude = _mm512_set1_epi32((int)MAGNITUDE), limit = _mm512_set1_epi32((int)least);
    const __m512i step = _mm512_set1_epi32(16);
    __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    size_t n = 0, from = 0;
    for (; from + 16 <= length; from += 16) {
        __m512i bits = _mm512_and_si512(_mm512_loadu_si512(x + from), magnitude);
        __mmask16 some = _mm512_cmpge_epu32_mask(bits, limit);
        _mm512_storeu_si512(s->bits + n, _mm512_maskz_compress_epi32(some, bits));
        _mm256_storeu_si256((__m256i *)(void *)(s->index + n),
                            _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(some, index)));
        n += count_mask(some);
        index = _mm512_add_epi32(index, step);
    }
    for (; from < length; from++) {
        s->bits[n] = float_bits(x[from]) & MAGNITUDE;
        s->index[n] = (uint16_t)from;
        n += s->bits[n] >= least;
    }
    return n;
}
#endif

/* many: the caller expects more than a few candidates in each BLOCK. */
static size_t collect(struct topk_select *s, const float *x, size_t length, uint32_t least, bool many)
{
#if defined(__x86_64__)
    switch (codec_simd_level()) {
    case CODEC_SIMD_AVX512: return (many ? collect_many_avx512 : collect_avx512)(s, x, length, least);
    case CODEC_SIMD_AVX2: return collect_avx2(s, x, length, least);
    default: break;
    }
#endif
    (void)many;
    return collect_plain(s, x, length, least);
}

/* *found = a threshold that at least k of bits[n] reach; fewer than k are larger, or exactly k reach it. All bits lie
 * in least .. MAGNITUDE. */
CODEC_SIMD(bisect, (const uint32_t *restrict bits, size_t n, size_t k, uint32_t least, uint32_t *found),
           (bits, n, k, least, found))
{
    uint32_t low = least, high = 0; /* invariant: at least k reach low, fewer than k reach high */
    for (size_t i = 0; i < n; i++) high = bits[i] > high ? bits[i] : high;
    for (high++; high - low > 1;) {
        uint32_t middle = low + (high - low) / 2, count = 0;
        for (size_t i = 0; i < n; i++) count += bits[i] >= middle;
        if (count >= k)
            low = middle;
        else
            high = middle;
        if (count == k) break;
    }
    *found = low;
}

/* A threshold above 0 that at least k magnitudes reach; otherwise 1, which all nonzero magnitudes reach. */
static uint32_t safe_guess(uint32_t *bins, const float *x, size_t length, size_t k)
{
    memset(bins, 0, TOPK_BINS * sizeof *bins);
    for (size_t i = 0; i < length; i++) bins[(float_bits(x[i]) & MAGNITUDE) >> 20]++;
    size_t above = 0;
    for (uint32_t bin = TOPK_BINS; bin-- > 1;) {
        above += bins[bin];
        if (above >= k) return bin << 20;
    }
    return 1;
}

size_t topk_select(struct topk_select *s, const float *x, size_t length, size_t k)
{
    uint32_t least = s->guess > MARGIN ? s->guess - MARGIN : 1;
    assert(k && k <= length && length <= UINT16_MAX + 1u);
    bool many = k * (BLOCK / MANY) > length;
    size_t n = collect(s, x, length, least, many);
    if (n < k && least > 1) {
        least = safe_guess(s->bins, x, length, k);
        n = collect(s, x, length, least, many);
    }
    if (n <= k) { /* fewer than k: all that are not 0 */
        s->guess = n < k ? 0 : least;
        return n;
    }
    uint32_t found;
    bisect(s->bits, n, k, least, &found);
    size_t above = 0, kept = 0;
    for (size_t i = 0; i < n; i++) above += s->bits[i] >= found;
    size_t spare = above - k; /* drop the last ones that equal found: above > k only if found is one of them */
    for (size_t i = n; spare; i--)
        if (s->bits[i - 1] == found) s->bits[i - 1] = 0, spare--;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = s->bits[i];
        s->bits[kept] = bits;
        s->index[kept] = s->index[i];
        kept += bits >= found;
    }
    assert(kept == k);
    s->guess = found;
    return kept;
}
