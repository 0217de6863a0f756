/* Loops of the codecs, compiled for the plain instruction set, AVX2 and AVX-512. The CPU chooses at run time. Each loop
 * is written once, in C, over independent elements. Vectorizing it cannot change a bit (no reassociation of floats, no
 * fused multiply-add), so all variants make the same bytes. */
#ifndef COMPRESS_CODEC_SIMD_H
#define COMPRESS_CODEC_SIMD_H

#include <stddef.h>
#include <stdint.h>

enum codec_simd { CODEC_SIMD_PLAIN, CODEC_SIMD_AVX2, CODEC_SIMD_AVX512 };

/* The widest variant that this CPU runs, within the limit. */
enum codec_simd codec_simd_level(void);
/* Test hook: use nothing wider than `limit` from now on. */
void codec_simd_limit(enum codec_simd limit);

/* Index of the first NaN or infinity among the n floats at x (any alignment); n if there is none. */
size_t codec_first_nonfinite(const void *x, size_t n);

/* Begins `static void name params`; its body follows, and args are the names of the params. */
#define CODEC_SIMD(name, params, args) CODEC_SIMD_OF(static, name, params, args)
/* The same, static or not. */
#define CODEC_SIMD_OF(linkage, name, params, args)                                                                     \
    CODEC_SIMD_BODY name##_body params;                                                                                \
    CODEC_SIMD_VARIANTS(linkage, name, params, args)                                                                   \
    CODEC_SIMD_BODY name##_body params
#define CODEC_SIMD_BODY static inline __attribute__((always_inline)) void

#if defined(__x86_64__)
#define CODEC_SIMD_VARIANTS(linkage, name, params, args)                                                               \
    __attribute__((target("avx2"))) static void name##_avx2 params                                                     \
    {                                                                                                                  \
        name##_body args;                                                                                              \
    }                                                                                                                  \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void name##_avx512 params                     \
    {                                                                                                                  \
        name##_body args;                                                                                              \
    }                                                                                                                  \
    static void name##_plain params                                                                                    \
    {                                                                                                                  \
        name##_body args;                                                                                              \
    }                                                                                                                  \
    linkage void name params                                                                                           \
    {                                                                                                                  \
        switch (codec_simd_level()) {                                                                                  \
        case CODEC_SIMD_AVX512: name##_avx512 args; break;                                                             \
        case CODEC_SIMD_AVX2: name##_avx2 args; break;                                                                 \
        default: name##_plain args; break;                                                                             \
        }                                                                                                              \
    }
#else
#define CODEC_SIMD_VARIANTS(linkage, name, params, args)                                                               \
    linkage void name params                                                                                           \
    {                                                                                                                  \
        name##_body args;                                                                                              \
    }
#endif

#endif
