#include "compress/codec_simd.h"

#include <stdatomic.h>
#include <string.h>

static atomic_int simd_limit = CODEC_SIMD_AVX512;

enum codec_simd codec_simd_level(void)
{
    enum codec_simd level = CODEC_SIMD_PLAIN;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) level = CODEC_SIMD_AVX2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq"))
        level = CODEC_SIMD_AVX512;
#endif
    enum codec_simd limit = (enum codec_simd)atomic_load_explicit(&simd_limit, memory_order_relaxed);
    return level < limit ? level : limit;
}

void codec_simd_limit(enum codec_simd limit)
{
    atomic_store(&simd_limit, limit);
}

enum { SCAN = 4096 }; /* floats between two checks of the result: 16 KiB */

/* *bad = 1 if one of the n floats at x is not finite. */
CODEC_SIMD(scan, (const uint8_t *x, size_t n, uint32_t *bad), (x, n, bad))
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + 4 * i, 4);
        any |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
    }
    *bad = any;
}

size_t codec_first_nonfinite(const void *data, size_t n)
{
    const uint8_t *x = data;
    for (size_t from = 0; from < n; from += SCAN) {
        size_t count = n - from < SCAN ? n - from : SCAN;
        uint32_t bad;
        scan(x + 4 * from, count, &bad);
        if (!bad) continue;
        for (size_t i = from;; i++) {
            scan(x + 4 * i, 1, &bad);
            if (bad) return i;
        }
    }
    return n;
}
