#include "common/base/hash.h"

#include <assert.h>
#include <string.h>
#if defined(__x86_64__)
#include <wmmintrin.h>
#endif
#include <xxhash.h>

#include "common/base/pool.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats and hashes are hashed as stored in memory");

/* A 256-entry table filled on first use would need a lock; this nibble table is a small constant. */
static uint32_t crc_portable(uint32_t crc, const unsigned char *p, size_t n)
{
    static const uint32_t table[16] = {0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
                                       0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
                                       0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75};
    for (; n; n--, p++) {
        crc ^= *p;
        crc = table[crc & 15] ^ (crc >> 4);
        crc = table[crc & 15] ^ (crc >> 4);
    }
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t crc_sse42(uint32_t crc, const unsigned char *p, size_t n)
{
    uint64_t c = crc;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        c = __builtin_ia32_crc32di(c, v);
    }
    crc = (uint32_t)c;
    for (; n; n--, p++) crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}

/* The CRC32 instruction has a latency of three cycles and a throughput of one per cycle. So three stretches are
 * computed side by side (Gopal et al., "Fast CRC computation for iSCSI polynomial using CRC32 instruction", Intel
 * 2011). */
enum { STRETCH = 8192 };
#define PAST_ONE 0x54a86326u /* x^(8 STRETCH - 33) mod P, reflected; product and instruction add x^33 */
#define PAST_TWO 0x1dc403ccu /* x^(16 STRETCH - 33) */

/* Extends `crc` by zero bytes, whose number the constant `past` encodes. */
__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_past(uint64_t crc, uint32_t past)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi32_si128((int)past), 0);
    return (uint32_t)__builtin_ia32_crc32di(0, (uint64_t)_mm_cvtsi128_si64(product));
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_three(uint32_t crc, const unsigned char *p, size_t n)
{
    for (; n >= 3 * STRETCH; n -= 3 * STRETCH, p += 3 * STRETCH) {
        uint64_t first = crc, second = 0, third = 0, v[3];
        for (size_t i = 0; i < STRETCH; i += 8) {
            memcpy(&v[0], p + i, 8);
            memcpy(&v[1], p + STRETCH + i, 8);
            memcpy(&v[2], p + 2 * STRETCH + i, 8);
            first = __builtin_ia32_crc32di(first, v[0]);
            second = __builtin_ia32_crc32di(second, v[1]);
            third = __builtin_ia32_crc32di(third, v[2]);
        }
        crc = crc_past(first, PAST_TWO) ^ crc_past(second, PAST_ONE) ^ (uint32_t)third;
    }
    return crc_sse42(crc, p, n);
}
#endif

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) return ~crc_three(~crc, data, size);
#endif
    return crc32c_portable(crc, data, size);
}

uint32_t crc32c_portable(uint32_t crc, const void *data, size_t size)
{
    return ~crc_portable(~crc, data, size);
}

/* a * b mod P. Bit 31 - i is the coefficient of x^i. */
static uint32_t crc_product(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a >> 31) product ^= b;
        b = b >> 1 ^ (b & 1 ? 0x82f63b78u : 0);
    }
    return product;
}

/* crc(AB) = crc(A) x^(8 size) + crc(B): the inversions before and after cancel. */
uint32_t crc32c_join(uint32_t a, uint32_t b, size_t size)
{
    uint32_t power = 1u << (31 - 8); /* x^8, squared for each bit of size */
    for (; size; size >>= 1) {
        if (size & 1) a = crc_product(a, power);
        power = crc_product(power, power);
    }
    return a ^ b;
}

uint64_t hash64(const void *data, size_t size)
{
    return XXH3_64bits(data, size);
}

uint64_t hash_mix(uint64_t acc, uint64_t member)
{
    uint64_t pair[2] = {acc, member};
    return XXH3_64bits(pair, sizeof pair);
}

enum { LEAVES = 1024 }; /* hashed at a time, 64 MiB of floats: fixed memory for any n */

struct leaves {
    const float *x;
    size_t n;
    uint64_t hash[LEAVES];
};

static void hash_leaves(void *ctx, int thread, int threads)
{
    struct leaves *leaves = ctx;
    size_t at, end;
    pool_share(leaves->n, HASH_BLOCK, thread, threads, &at, &end);
    assert(at % HASH_BLOCK == 0 || at == end);
    assert(end <= (size_t)LEAVES * HASH_BLOCK);
    for (; at < end; at += HASH_BLOCK) {
        size_t n = end - at < HASH_BLOCK ? end - at : HASH_BLOCK;
        leaves->hash[at / HASH_BLOCK] = hash64(leaves->x + at, n * sizeof *leaves->x);
    }
}

uint64_t hash_floats(struct pool *pool, const float *x, size_t n)
{
    const size_t most = (size_t)LEAVES * HASH_BLOCK;
    struct leaves leaves;
    uint64_t root = n;
    assert(x || !n);
    for (size_t at = 0; at < n; at += most) {
        leaves.x = x + at;
        leaves.n = n - at < most ? n - at : most;
        pool_run_if(pool, leaves.n > HASH_BLOCK, hash_leaves, &leaves);
        for (size_t i = 0; i * HASH_BLOCK < leaves.n; i++) root = hash_mix(root, leaves.hash[i]);
    }
    return root;
}
