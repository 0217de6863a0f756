#include "tests/lib/rigs/codec_case.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec_simd.h"

void codec_case_fill(enum kind kind, uint64_t seed, int threshold, float *x, size_t n)
{
    rng_normal_fill(seed, RNG_TEST, 1u << 20, 1e-3f, x, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng_u64(seed + 1, RNG_TEST, i);
        uint32_t bits = (uint32_t)r;
        switch (kind) {
        case ZEROS: x[i] = i & 1 ? -0.0f : 0.0f; break;
        case SPARSE: x[i] = r % 50 ? 0.0f : x[i]; break;
        case DENORMAL: x[i] *= 1e-36f; break;
        case HUGE_VALUES: x[i] = r & 1 ? FLT_MAX : r & 2 ? -FLT_MAX : x[i] * 1e38f; break;
        case MIXED: x[i] = ldexpf(x[i], (int)(r % 200) - 100); break;
        case CONSTANT: x[i] = -0.3f; break;
        case THRESHOLD: x[i] = ldexpf(x[i], threshold); break;
        case ANY_BITS:
            if ((bits & 0x7f800000u) == 0x7f800000u) bits &= 0x807fffffu;
            memcpy(&x[i], &bits, 4);
            break;
        default: break;
        }
    }
}

/* Checks one instruction set; second, acc and plain are scratch. */
static void check_level(struct codec *codec, int level, size_t n, const float *x, const uint8_t *bytes, size_t size,
                        const float *decoded, uint8_t *second, float *acc, float *plain)
{
    size_t again = 0, bound = codec_bound(codec);
    codec_simd_limit((enum codec_simd)level);
    memset(second, 0xee, bound);
    assert_int_equal(codec_encode(codec, x, second, bound, &again, NULL), STATUS_OK);
    assert_int_equal(again, size);
    assert_memory_equal(second, bytes, size);
    memset(acc, 0xee, n * sizeof *acc);
    assert_int_equal(codec_decode(codec, bytes, size, acc), STATUS_OK);
    assert_memory_equal(acc, decoded, n * sizeof *acc);
    const float a = level ? -0.3f : 0.7f;
    for (size_t i = 0; i < n; i++) {
        volatile float product = a * decoded[i]; /* two roundings, so that the compiler cannot fuse them */
        plain[i] = acc[i] = (float)i - 7.25f;
        plain[i] = plain[i] + product;
    }
    assert_int_equal(codec_decode_axpy(codec, a, bytes, size, acc), STATUS_OK);
    assert_memory_equal(acc, plain, n * sizeof *acc);
}

size_t codec_case_round_trip(struct codec *codec, size_t n, const float *x, float *decoded)
{
    size_t bound = codec_bound(codec), size = 0, again = 0;
    uint8_t *bytes = mem_alloc(1, bound + 1), *second = mem_alloc(1, bound);
    float *acc = mem_alloc(n, sizeof *acc), *plain = mem_alloc(n, sizeof *plain);
    mem_fail_after(1); /* any allocation fails from here on */
    bytes[bound] = 0x5a;
    codec_simd_limit(CODEC_SIMD_PLAIN);
    assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
    assert_int_equal(bytes[bound], 0x5a);
    assert_in_range(size, 1, bound);
    assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
    for (int level = CODEC_SIMD_PLAIN; level <= CODEC_SIMD_AVX512; level++)
        check_level(codec, level, n, x, bytes, size, decoded, second, acc, plain);
    memmove(bytes + 1, bytes, size);
    assert_int_equal(codec_decode(codec, bytes + 1, size, acc), STATUS_OK);
    assert_memory_equal(acc, decoded, n * sizeof *acc);
    assert_int_equal(codec_encode(codec, x, bytes + 1, bound, &again, NULL), STATUS_OK);
    assert_memory_equal(bytes + 1, second, size);
    for (size_t cap = 0; cap < size; cap += 1 + size / 5)
        assert_int_equal(codec_encode(codec, x, second, cap, &again, NULL), STATUS_LIMIT);
    mem_fail_after(0);
    mem_free(plain);
    mem_free(acc);
    mem_free(second);
    mem_free(bytes);
    return size;
}
