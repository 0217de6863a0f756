/* The entropy stage: code lengths, canonical codes, the format of docs/codecs.md, hostile bytes, bits per value. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/bytes/byte_planes.h"
#include "compress/bytes/huffman.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"
#include "compress/codec_stage.h"
#include "tests/lib/test.h"

static const struct codec_pool no_pool;

enum kind { UNIFORM, SAME, TWO, SKEWED, GEOMETRIC, RARE, RAMP, NIBBLES, N_KINDS };

static void fill(enum kind kind, uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng_u64(77 + kind, RNG_TEST, i);
        uint32_t low = (uint32_t)r;
        switch (kind) {
        case UNIFORM: bytes[i] = (uint8_t)r; break;
        case SAME: bytes[i] = 0x42; break;
        case TWO: bytes[i] = i % 3 ? 9 : 200; break;
        case SKEWED: bytes[i] = (uint8_t)(low % 100 < 90 ? 0 : r >> 40); break;
        case GEOMETRIC: bytes[i] = (uint8_t)__builtin_ctz(low | 1u << 30); break; /* codes of the maximum length */
        case RARE: bytes[i] = i == n / 2 ? 255 : 0; break;
        case RAMP: bytes[i] = (uint8_t)(i * 255 / n); break;
        default:
            bytes[i] = (uint8_t)((__builtin_popcount(low & 0xff) + (__builtin_popcount(low & 0xff00) << 4)));
            break;
        }
    }
}

/* Returns the bits of the plain Huffman code (no limit on lengths) and its longest code, by joining the two
 * smallest. */
static uint64_t plain_huffman(const uint32_t count[256], unsigned *longest)
{
    uint64_t weight[511], bits = 0;
    unsigned depth[511];
    size_t n = 0;
    for (int b = 0; b < 256; b++)
        if (count[b]) depth[n] = 0, weight[n++] = count[b];
    *longest = 0;
    while (n > 1) {
        for (int k = 0; k < 2; k++) { /* move the smallest to the end */
            size_t least = 0, end = n - 1 - (size_t)k;
            for (size_t i = 1; i <= end; i++)
                if (weight[i] < weight[least]) least = i;
            uint64_t w = weight[least];
            unsigned d = depth[least];
            weight[least] = weight[end], depth[least] = depth[end];
            weight[end] = w, depth[end] = d;
        }
        weight[n - 2] += weight[n - 1];
        depth[n - 2] = 1 + (depth[n - 2] > depth[n - 1] ? depth[n - 2] : depth[n - 1]);
        *longest = depth[n - 2];
        bits += weight[n - 2];
        n--;
    }
    return bits;
}

TEST(test_code_lengths_match_plain_huffman)
{
    static uint8_t bytes[100000];
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t n = 2; n <= sizeof bytes; n = n * 3 + 1) {
            uint32_t count[256], seen[256] = {0};
            uint8_t lengths[256];
            fill((enum kind)kind, bytes, n);
            huffman_count(bytes, n, count);
            for (size_t i = 0; i < n; i++) seen[bytes[i]]++;
            assert_memory_equal(seen, count, sizeof seen);
            unsigned used = 0, longest, kraft = 0;
            for (int b = 0; b < 256; b++) used += count[b] != 0;
            if (used < 2) continue;
            uint64_t bits = huffman_lengths(count, lengths), sum = 0, best = plain_huffman(count, &longest);
            for (int b = 0; b < 256; b++) {
                assert_true((lengths[b] != 0) == (count[b] != 0) && lengths[b] <= HUFFMAN_BITS_MAX);
                if (lengths[b]) kraft += 1u << (HUFFMAN_BITS_MAX - lengths[b]);
                sum += (uint64_t)count[b] * lengths[b];
                for (int c = 0; c < b; c++) /* more frequent, or equal and smaller: never longer than another */
                    assert_false(count[b] && count[b] == count[c] && lengths[b] > lengths[c]);
            }
            assert_int_equal(kraft, 1u << HUFFMAN_BITS_MAX);
            assert_int_equal(sum, bits);
            if (longest <= HUFFMAN_BITS_MAX)
                assert_int_equal(bits, best);
            else
                assert_true(bits >= best && bits <= best + best / 50 + 256); /* best may be too deep */
        }
}

/* Encodes one block of one plane bit by bit, as docs/codecs.md describes the stage. */
static size_t slow_block(const uint8_t *bytes, size_t n, const uint8_t lengths[256], uint8_t *out)
{
    uint32_t code[256], next = 0;
    for (unsigned l = 1; l <= HUFFMAN_BITS_MAX; l++, next <<= 1)
        for (int b = 0; b < 256; b++)
            if (lengths[b] == l) code[b] = next++;
    size_t at = 0, sizes = 13 + 128;
    const uint32_t head = (uint32_t)n | 1u << 24;
    for (int i = 0; i < 8; i++) out[at++] = (uint8_t)((uint64_t)n >> 8 * i);
    for (int i = 0; i < 4; i++) out[at++] = (uint8_t)(head >> 8 * i);
    out[at++] = 2;
    for (int i = 0; i < 128; i++) out[at++] = (uint8_t)(lengths[2 * i] | lengths[2 * i + 1] << 4);
    at += 16;
    for (size_t k = 0, from = 0, share = (n + 7) / 8; k < 8; k++, from += share) {
        size_t start = at, bit = 0;
        for (size_t i = from; i < n && i < from + share; i++)
            for (unsigned l = lengths[bytes[i]]; l-- > 0; bit++) {
                if (bit % 8 == 0) out[at++] = 0;
                out[at - 1] |= (uint8_t)((code[bytes[i]] >> l & 1) << bit % 8);
            }
        out[sizes + 2 * k] = (uint8_t)(at - start);
        out[sizes + 2 * k + 1] = (uint8_t)((at - start) >> 8);
    }
    return at;
}

static uint8_t *scratch(void)
{
    return mem_alloc(1, codec_huff.scratch);
}

TEST(test_stage_follows_documented_format)
{
    enum { N = 5000 };
    static uint8_t bytes[N], expected[2 * N], packed[2 * N], lengths[256];
    const struct payload_shape shape = {.width = 1};
    uint8_t *work = scratch();
    for (int kind = TWO; kind < N_KINDS; kind++)
        for (size_t n = 300; n <= N; n += n / 3) {
            uint32_t count[256];
            size_t size, want;
            fill((enum kind)kind, bytes, n);
            huffman_count(bytes, n, count);
            huffman_lengths(count, lengths);
            want = slow_block(bytes, n, lengths, expected);
            assert_int_equal(codec_huff.encode(&no_pool, work, &shape, bytes, n, packed, sizeof packed, &size),
                             STATUS_OK);
            if (want - 13 >= n) { /* not smaller: raw */
                assert_int_equal(size, 13 + n);
                assert_int_equal(packed[12], 0);
                assert_memory_equal(packed + 13, bytes, n);
            } else {
                assert_int_equal(size, want);
                assert_memory_equal(packed, expected, want);
            }
        }
    /* Small payloads by hand: sections of 2-byte and 1-byte elements, equal bytes, raw bytes. */
    static const uint8_t in[] = {1, 9, 2, 9, 3, 9, 7, 5, 5, 5}, out[] = {10, 0, 0, 0, 0, 0, 0, 0, /* raw size */
                                                                         6,  0, 0, 2,             /* 3 elements of 2 */
                                                                         0,  1, 2, 3, 1, 9,       /* raw, equal */
                                                                         1,  0, 0, 1,             /* the odd byte */
                                                                         0,  7,                   /* raw */
                                                                         3,  0, 0, 1, 1, 5};
    const struct payload_shape sections = {.width = 1, .n_sections = 1, .section = {{.to = 7, .width = 2}}};
    size_t size;
    assert_int_equal(codec_huff.encode(&no_pool, work, &sections, in, sizeof in, packed, sizeof packed, &size),
                     STATUS_OK);
    assert_int_equal(size, sizeof out);
    assert_memory_equal(packed, out, size);
    mem_free(work);
}

static void check_bytes(uint8_t *work, const struct payload_shape *shape, const uint8_t *bytes, size_t n)
{
    size_t bound = codec_huff.bound(n), size = 0, got = 0;
    uint8_t *packed = mem_alloc(1, bound + 1), *again = mem_alloc(1, n + 1);
    packed[bound] = again[n] = 0x5a;
    assert_int_equal(codec_huff.encode(&no_pool, work, shape, bytes, n, packed, bound, &size), STATUS_OK);
    assert_in_range(size, 1, bound);
    assert_int_equal(codec_huff.decode(&no_pool, work, shape, packed, size, again, n, &got), STATUS_OK);
    assert_int_equal(got, n);
    assert_memory_equal(again, bytes, n);
    assert_true(packed[bound] == 0x5a && again[n] == 0x5a);
    if (n) assert_int_equal(codec_huff.decode(&no_pool, work, shape, packed, size, again, n - 1, &got), STATUS_CORRUPT);
    for (size_t cap = 0; cap < size; cap += 1 + size / 7) {
        memset(packed, 0x5a, bound);
        assert_int_equal(codec_huff.encode(&no_pool, work, shape, bytes, n, packed, cap, &got), STATUS_LIMIT);
        for (size_t i = cap; i < bound; i++) assert_int_equal(packed[i], 0x5a);
    }
    mem_free(again);
    mem_free(packed);
}

TEST(test_decode_restores_bytes)
{
    static const size_t sizes[] = {0, 1, 2, 3, 4, 137, 200, 1000, 1003, 131071, 131072, 131073, 300001};
    static const struct payload_shape shapes[] = {
        {.width = 1},
        {.width = 2},
        {.width = 3},
        {.width = 4},
        {.width = 1, .n_sections = 2, .section = {{0, 2}, {500, 3}}},
        {.width = 2, .n_sections = 1, .section = {{131077, 4}}},
        {.width = 1, .n_sections = 3, .section = {{5, 4}, {10, 3}, {900, 1}}}};
    uint8_t *work = scratch();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint8_t *bytes = mem_alloc(1, sizes[i] + 1);
        for (int kind = 0; kind < N_KINDS; kind++) {
            fill((enum kind)kind, bytes, sizes[i]);
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) check_bytes(work, &shapes[s], bytes, sizes[i]);
        }
        mem_free(bytes);
    }
    mem_free(work);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_split_and_join_restore_bytes)
{
    static uint8_t bytes[1000], split[1000], joined[1000];
    fill(UNIFORM, bytes, sizeof bytes);
    for (int level = CODEC_SIMD_PLAIN; level <= CODEC_SIMD_AVX512; level++)
        for (size_t width = 1; width <= 5; width++)
            for (size_t n = 0; n <= sizeof bytes; n += 37) {
                codec_simd_limit((enum codec_simd)level);
                planes_split(bytes, n, width, split);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(split[i < n / width * width ? i % width * (n / width) + i / width : i], bytes[i]);
                planes_join(split, n, width, joined);
                assert_memory_equal(joined, bytes, n);
            }
}

/* ---- hostile bytes --------------------------------------------------------------------------------------------------
 */

enum { RAW = 2000 };

static enum status decode_checked(uint8_t *work, const uint8_t *packed, size_t size, size_t cap)
{
    static uint8_t out[RAW + 1];
    const struct payload_shape shape = {.width = 1};
    size_t got = 77;
    uint8_t *copy = mem_alloc(1, size + 1); /* exact size, so that the sanitizer detects a read past the end */
    memcpy(copy + 1, packed, size);
    out[cap] = 0x5a;
    enum status status = codec_huff.decode(&no_pool, work, &shape, copy + 1, size, out, cap, &got);
    assert_int_equal(out[cap], 0x5a);
    mem_free(copy);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_CORRUPT);
        assert_int_equal(got, 77);
    } else {
        assert_true(got <= cap);
    }
    return status;
}

TEST(test_hostile_bytes_are_safe)
{
    static uint8_t bytes[RAW], packed[RAW + 1000];
    const struct payload_shape shape = {.width = 1, .n_sections = 1, .section = {{.to = 800, .width = 2}}};
    uint8_t *work = scratch();
    for (int kind = 0; kind < N_KINDS; kind++) {
        size_t size;
        fill((enum kind)kind, bytes, RAW);
        memset(packed, 0, sizeof packed);
        assert_int_equal(codec_huff.encode(&no_pool, work, &shape, bytes, RAW, packed, sizeof packed, &size),
                         STATUS_OK);
        assert_int_equal(decode_checked(work, packed, size, RAW), STATUS_OK);
        for (size_t cut = 0; cut < size; cut++)
            assert_int_equal(decode_checked(work, packed, cut, RAW), STATUS_CORRUPT);
        for (size_t more = 1; more < 20; more++)
            assert_int_equal(decode_checked(work, packed, size + more, RAW), STATUS_CORRUPT);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
            (void)decode_checked(work, packed, size, RAW);
            packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (uint64_t round = 0; round < 3000; round++) {
            static uint8_t kept[sizeof packed];
            memcpy(kept, packed, sizeof kept);
            for (uint64_t k = 0; k <= round % 5; k++) {
                uint64_t r = rng_u64(round, RNG_TEST, k);
                packed[(r >> 8) % (round & 1 ? size : 200)] = (uint8_t)r;
            }
            (void)decode_checked(work, packed, size, RAW);
            memcpy(packed, kept, sizeof kept);
        }
    }
    mem_free(work);
}

/* Breaks each rule alone. TWO: bytes 9 and 200 with codes of one bit; n = 300, streams of 38 bits in 5 bytes, the
 * last of 34. */
TEST(test_invalid_blocks_are_refused)
{
    enum { N = 300, BLOCK = 8, MODE = 12, LENGTHS = 13, SIZES = LENGTHS + 128, STREAMS = SIZES + 16 };
    static uint8_t bytes[N], packed[N + 100], good[N + 100];
    const struct payload_shape shape = {.width = 1};
    uint8_t *work = scratch();
    size_t size;
    fill(TWO, bytes, N);
    assert_int_equal(codec_huff.encode(&no_pool, work, &shape, bytes, N, good, sizeof good, &size), STATUS_OK);
    assert_int_equal(size, STREAMS + 40);
    static const struct {
        size_t at;
        uint8_t value;
    } bad[] = {
        {0, 0x2b},           /* raw size smaller: a block exceeds it */
        {0, 0x2d},           /* larger: a block is missing */
        {7, 0x80},           /* an enormous size */
        {BLOCK, 0},          /* 256 bytes: the streams hold more */
        {BLOCK + 2, 3},      /* block larger than the maximum */
        {BLOCK + 3, 0},      /* no planes */
        {BLOCK + 3, 5},      /* elements of 5 bytes */
        {MODE, 3},           /* unknown mode */
        {MODE, 0},           /* raw: bytes are missing */
        {LENGTHS, 1},        /* three codes of one bit */
        {LENGTHS + 4, 0x20}, /* incomplete code */
        {LENGTHS + 4, 0x00}, /* one code alone */
        {LENGTHS + 4, 0xd0}, /* longer than 12 bits */
        {SIZES, 4},          /* stream too short, the next one shifted */
        {SIZES + 14, 6},     /* past the end */
        {SIZES + 15, 0xff},  /* far past the end */
        {STREAMS + 4, 0x80}, /* bits after the last code */
        {STREAMS + 39, 0x80},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memcpy(packed, good, size);
        assert_int_equal(decode_checked(work, packed, size, N), STATUS_OK);
        packed[bad[i].at] = bad[i].value;
        if (decode_checked(work, packed, size, N) != STATUS_CORRUPT) fail_msg("rule %zu", i);
    }
    /* A coded plane that is not smaller than raw: 180 bytes of two kinds take 128 + 16 + 8 * 3; for 160 bytes the
     * code is not smaller. */
    static uint8_t wide[400];
    for (size_t n = 150; n < 190; n++) {
        uint8_t lengths[256] = {[9] = 1, [200] = 1};
        size_t made = slow_block(bytes, n, lengths, wide);
        assert_int_equal(decode_checked(work, wide, made, N), made - 13 < n ? STATUS_OK : STATUS_CORRUPT);
    }
    static const uint8_t one_equal[] = {1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 5};
    assert_int_equal(decode_checked(work, one_equal, sizeof one_equal, N), STATUS_CORRUPT);
    static const uint8_t ragged[] = {3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 2, 0, 5, 0, 6};
    assert_int_equal(decode_checked(work, ragged, sizeof ragged, N), STATUS_CORRUPT);
    static const uint8_t empty_block[] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0};
    assert_int_equal(decode_checked(work, empty_block, sizeof empty_block, N), STATUS_CORRUPT);
    mem_free(work);
}

/* ---- compression ------------------------------------------------------------------------------------------------- */

static double bits_per_value(const char *spec, const float *x, size_t n)
{
    struct codec *codec = NULL;
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    struct err err;
    if (codec_create(&codec, spec, &span, 1, &err) != STATUS_OK) fail_msg("%s", err.msg);
    size_t bound = codec_bound(codec), size;
    uint8_t *bytes = mem_alloc(1, bound);
    float *with = mem_alloc(n, 4), *without = mem_alloc(n, 4);
    assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(codec, bytes, size, with), STATUS_OK);
    codec_destroy(codec);
    char plain[64];
    size_t plain_size;
    snprintf(plain, sizeof plain, "%.*s", (int)(strchr(spec, '+') - spec), spec);
    assert_int_equal(codec_create(&codec, plain, &span, 1, NULL), STATUS_OK);
    assert_int_equal(codec_encode(codec, x, bytes, bound, &plain_size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(codec, bytes, plain_size, without), STATUS_OK);
    assert_memory_equal(with, without, 4 * n);
    codec_destroy(codec);
    mem_free(without);
    mem_free(with);
    mem_free(bytes);
    return 8.0 * (double)size / (double)n;
}

TEST(test_bits_per_value_are_bounded)
{
    enum { N = 1 << 19 };
    static const struct {
        const char *spec;
        double most; /* bits per value, headers included */
    } cases[] = {{"int4+huff", 3.36}, {"int4:4096+huff", 3.02}, {"2bit+huff", 1.99}, {"1bit+huff", 1.04},
                 {"int8+huff", 7.6},  {"bf16+huff", 10.8},      {"fp16+huff", 13.6}, {"fp32+huff", 26.9}};
    float *x = mem_alloc(N, 4);
    rng_normal_fill(3, RNG_TEST, 0, 1e-3f, x, N);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double bits = bits_per_value(cases[i].spec, x, N);
        if (bits > cases[i].most) fail_msg("%s: %.4f bits per value", cases[i].spec, bits);
    }
    for (size_t i = 0; i < N; i++) { /* incompressible */
        uint32_t word = (uint32_t)rng_u64(1, RNG_TEST, i);
        if ((word & 0x7f800000u) == 0x7f800000u) word &= 0x807fffffu;
        memcpy(&x[i], &word, 4);
    }
    assert_true(bits_per_value("fp32+huff", x, N) < 32.01);
    memset(x, 0, N * sizeof *x); /* fully compressible */
    assert_true(bits_per_value("int4+huff", x, N) < 0.001);
    mem_free(x);
}

TEST_MAIN(NULL, NULL)
