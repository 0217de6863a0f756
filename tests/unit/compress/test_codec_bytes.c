/* The byte formats of docs/codecs.md: known floats give known bytes; invalid bytes are refused and leave the output
 * unchanged. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/codec_stage.h"
#include "tests/lib/test.h"

static const struct codec_pool no_pool;

static struct codec *make(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    assert_int_equal(codec_create(&codec, spec, &span, 1, NULL), STATUS_OK);
    return codec;
}

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    unsigned byte;
    int used;
    for (; sscanf(hex, " %2x%n", &byte, &used) == 1; hex += used) out[n++] = (uint8_t)byte;
    return n;
}

/* 18 values: two blocks of int8:16. */
static const float sample[18] = {0.0f,  -0.0f, 1.0f, -1.0f, 0.5f,  -0.25f, 127.0f, -127.0f, 63.5f,
                                 0.49f, 2.5f,  3.5f, 1e-3f, 100.f, -64.0f, 7.0f,   0.254f,  -0.1f};

static const struct {
    const char *spec, *hex;
} golden[] = {
    {"fp32",
     "00000000 00000080 0000803f 000080bf 0000003f 000080be 0000fe42 0000fec2 00007e42 48e1fa3e 00002040 00006040"
     "6f12833a 0000c842 000080c2 0000e040 4a0c823e cdccccbd"},
    {"bf16", "0000 0080 803f 80bf 003f 80be fe42 fec2 7e42 fb3e 2040 6040 833a c842 80c2 e040 823e cdbd"},
    {"int8:16", "0000803f 6f12033b 00 00 01 ff 00 00 7f 81 40 00 02 04 00 64 c0 07 7f ce"},
};

TEST(test_floats_give_documented_bytes)
{
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        struct codec *codec = make(golden[i].spec, 18);
        uint8_t expected[128], bytes[128];
        size_t want = from_hex(golden[i].hex, expected), size = 0;
        assert_int_equal(codec_encode(codec, sample, bytes, sizeof bytes, &size, NULL), STATUS_OK);
        assert_int_equal(size, want);
        assert_memory_equal(bytes, expected, want);
        codec_destroy(codec);
    }
}

/* lz4's bytes may differ between versions of the library; every decoder must read these fixed ones. */
TEST(test_fixed_lz4_payloads_are_decoded)
{
    static const struct {
        const char *spec;
        size_t n;
        const char *hex;
        float expected;
    } cases[] = {
        /* 32 times 1.0f: planes of 32 bytes 00, 00, 80, 3f; literal runs and overlapping matches */
        {"fp32+lz4", 32, "8000000000000000 15000000 1f00 01002c 1f80 01000c 1f3f 010007 503f3f3f3f3f", 1.0f},
        {"fp32+lz4", 1, "0400000000000000 04000080 00000040", 2.0f}, /* a raw block: bytes not split */
        {"bf16+lz4", 2, "0400000000000000 04000080 00400040", 2.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = make(cases[i].spec, cases[i].n);
        uint8_t bytes[128], again[256];
        float x[32];
        size_t size = from_hex(cases[i].hex, bytes), encoded;
        enum status status = codec_decode(codec, bytes, size, x);
        if (status != STATUS_OK) fail_msg("case %zu: %s", i, status_text(status));
        for (size_t k = 0; k < cases[i].n; k++) assert_true(x[k] == cases[i].expected);
        assert_int_equal(codec_encode(codec, x, again, sizeof again, &encoded, NULL), STATUS_OK);
        if (i) { /* raw blocks are pinned */
            assert_int_equal(encoded, size);
            assert_memory_equal(again, bytes, size);
        }
        codec_destroy(codec);
    }
}

enum { N = 300 };

/* Decodes with decode and decode_axpy. Both must return the same status, write nothing on a refusal, and return
 * finite values. */
static enum status decode_checked(struct codec *codec, const uint8_t *bytes, size_t size)
{
    static float x[N], acc[N], untouched[N];
    for (size_t i = 0; i < N; i++) untouched[i] = (float)i;
    memcpy(x, untouched, sizeof x);
    memcpy(acc, untouched, sizeof acc);
    /* An exact copy, so that the sanitizer detects a read past the end. */
    uint8_t *copy = mem_alloc(1, size + 1);
    memcpy(copy + 1, bytes, size);
    enum status status = codec_decode(codec, copy + 1, size, x);
    assert_int_equal(codec_decode_axpy(codec, 0.5f, copy + 1, size, acc), status);
    mem_free(copy);
    if (status != STATUS_OK) {
        assert_true(status == STATUS_CORRUPT || status == STATUS_NONFINITE);
        assert_memory_equal(x, untouched, sizeof x);
        assert_memory_equal(acc, untouched, sizeof acc);
    }
    for (size_t i = 0; i < N; i++) assert_true(isfinite(x[i]));
    return status;
}

static const char *const specs[] = {
    "fp32",        "bf16",         "int8:16",    "int8:256",         "fp32+lz4",        "bf16+lz4",
    "int8:64+lz4", "fp32+lz4+lz4", "topk:9/256", "topk:30/256+2bit", "topk:4/256+int8", "topk:9/256+fp16+lz4"};

static void encode_sample(struct codec *codec, int sparse, uint8_t *bytes, size_t cap, size_t *size)
{
    static float x[N];
    rng_normal_fill(9, RNG_TEST, 0, 0.01f, x, N);
    for (size_t i = 0; sparse && i < N; i++)
        if (i % 7) x[i] = 0;
    assert_int_equal(codec_encode(codec, x, bytes, cap, size, NULL), STATUS_OK);
    assert_int_equal(decode_checked(codec, bytes, *size), STATUS_OK);
}

TEST(test_wrong_lengths_are_refused)
{
    uint8_t bytes[2 * (4 * N + 100)];
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int sparse = 0; sparse < 2; sparse++) {
            struct codec *codec = make(specs[i], N);
            size_t size;
            memset(bytes, 0, sizeof bytes);
            encode_sample(codec, sparse, bytes, sizeof bytes / 2, &size);
            for (size_t cut = 0; cut < size; cut++) assert_int_not_equal(decode_checked(codec, bytes, cut), STATUS_OK);
            for (size_t more = 1; more < 20; more++)
                assert_int_not_equal(decode_checked(codec, bytes, size + more), STATUS_OK);
            assert_int_not_equal(decode_checked(codec, bytes, sizeof bytes), STATUS_OK);
            codec_destroy(codec);
        }
}

TEST(test_flipped_bits_are_safe)
{
    uint8_t bytes[4 * N + 100];
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        for (int sparse = 0; sparse < 2; sparse++) {
            struct codec *codec = make(specs[i], N);
            size_t size, refused = 0;
            encode_sample(codec, sparse, bytes, sizeof bytes, &size);
            for (size_t bit = 0; bit < 8 * size; bit++) {
                bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
                refused += decode_checked(codec, bytes, size) != STATUS_OK;
                bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            }
            if (strstr(specs[i], "lz4")) assert_true(refused > 60); /* at least every bit of the lengths */
            for (uint64_t round = 0; round < 2000; round++) {       /* several bytes at once */
                uint8_t kept[4 * N + 100];
                memcpy(kept, bytes, size);
                for (uint64_t k = 0; k <= round % 5; k++) {
                    uint64_t r = rng_u64(round, RNG_TEST, k);
                    bytes[(r >> 8) % (round & 1 ? size : 16)] = (uint8_t)r;
                }
                (void)decode_checked(codec, bytes, size);
                memcpy(bytes, kept, size);
            }
            codec_destroy(codec);
        }
}

static enum status with_u32(struct codec *codec, uint8_t *bytes, size_t size, size_t at, uint32_t value)
{
    uint8_t kept[4];
    memcpy(kept, bytes + at, 4);
    for (size_t i = 0; i < 4; i++) bytes[at + i] = (uint8_t)(value >> (8 * i));
    enum status status = decode_checked(codec, bytes, size);
    memcpy(bytes + at, kept, 4);
    return status;
}

TEST(test_nonfinite_payloads_are_refused)
{
    uint8_t bytes[4 * N];
    size_t size;
    struct codec *codec = make("fp32", N);
    encode_sample(codec, 0, bytes, sizeof bytes, &size);
    static const uint32_t words[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (size_t at = 0; at < size; at += at ? size - 4 - at ? size - 4 - at : 4 : 400)
            assert_int_equal(with_u32(codec, bytes, size, at, words[i]), STATUS_NONFINITE);
    codec_destroy(codec);

    codec = make("bf16", N);
    encode_sample(codec, 0, bytes, sizeof bytes, &size);
    assert_int_equal(with_u32(codec, bytes, size, 0, 0x00007f80), STATUS_NONFINITE);
    assert_int_equal(with_u32(codec, bytes, size, size - 4, 0xffff0000), STATUS_NONFINITE);
    codec_destroy(codec);
}

TEST(test_invalid_int8_payloads_are_refused)
{
    uint8_t bytes[4 * N];
    size_t size;
    struct codec *codec = make("int8:256", N);
    encode_sample(codec, 0, bytes, sizeof bytes, &size);
    assert_int_equal(size, 8 + N);
    static const struct {
        uint32_t scale;
        enum status verdict;
    } cases[] = {{0x00000000, STATUS_OK},        {0x00800000, STATUS_OK},        {0x7c010203, STATUS_OK},
                 {0x7c010204, STATUS_NONFINITE}, /* 127 times it is infinite */
                 {0x7f7fffff, STATUS_NONFINITE}, {0x7f800000, STATUS_NONFINITE}, {0x7fc00000, STATUS_NONFINITE},
                 {0xff800000, STATUS_NONFINITE}, {0x80000000, STATUS_CORRUPT}, /* -0, negative, denormal */
                 {0xbf800000, STATUS_CORRUPT},   {0x00000001, STATUS_CORRUPT},   {0x007fffff, STATUS_CORRUPT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t at = 0; at < 8; at += 4) {
            enum status status = with_u32(codec, bytes, size, at, cases[i].scale);
            if (status != cases[i].verdict) fail_msg("scale %08x: %s", cases[i].scale, status_text(status));
        }
    for (size_t i = 8; i < size; i++) {
        uint8_t kept = bytes[i];
        bytes[i] = 0x80;
        assert_int_equal(decode_checked(codec, bytes, size), STATUS_CORRUPT);
        bytes[i] = kept;
    }
    codec_destroy(codec);
}

TEST(test_invalid_lz4_payloads_are_refused)
{
    static const struct {
        const char *spec, *hex;
    } cases[] = {
        {"fp32+lz4", ""},
        {"fp32+lz4", "04000000"},
        {"fp32+lz4", "0000000000000000"},                      /* no floats */
        {"fp32+lz4", "0500000000000000 05000080 0000000000"},  /* longer than any payload */
        {"fp32+lz4", "ffffffffffffffff 04000080 00000000"},    /* an enormous length */
        {"fp32+lz4", "0300000000000000 03000080 000000"},      /* shorter than the payload */
        {"fp32+lz4", "0400000000000000 03000080 00000000"},    /* raw block of the wrong length */
        {"fp32+lz4", "0400000000000000 04000080 00000000 00"}, /* extra bytes */
        {"fp32+lz4", "0400000000000000 04000000 30000000"},    /* compressed, but not smaller */
        {"fp32+lz4", "0400000000000000 05000000 4000000000"},  /* the same, well-formed */
        {"fp32+lz4", "0400000000000000 00000000"},             /* empty block */
        {"fp32+lz4", "0400000000000000 ffffffff 00000000"},    /* length past the end */
        {"fp32+lz4", "0400000000000000 02000000 1000"},        /* one literal instead of four bytes */
        {"fp32+lz4", "0400000000000000 04000080 0000807f"},    /* the decoded value is infinite */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = make(cases[i].spec, 1);
        uint8_t bytes[64];
        float x = 5;
        size_t size = from_hex(cases[i].hex, bytes);
        enum status status = codec_decode(codec, bytes, size, &x);
        if (status != STATUS_CORRUPT && status != STATUS_NONFINITE) fail_msg("case %zu: %s", i, status_text(status));
        assert_true(x == 5);
        codec_destroy(codec);
    }
}

/* A byte stage alone respects its capacity. */
TEST(test_lz4_respects_capacity)
{
    uint8_t *scratch = mem_alloc(1, codec_lz4.scratch), raw[100], packed[200], out[101];
    const struct payload_shape shape = {.width = 1};
    size_t size = 0, got = 0;
    for (size_t i = 0; i < sizeof raw; i++) raw[i] = (uint8_t)(i / 30);
    assert_int_equal(
        codec_lz4.encode(&no_pool, scratch, &shape, raw, sizeof raw, packed, codec_lz4.bound(sizeof raw), &size),
        STATUS_OK);
    for (size_t cap = 0; cap <= sizeof raw; cap++) {
        memset(out, 0x5a, sizeof out);
        enum status status = codec_lz4.decode(&no_pool, scratch, &shape, packed, size, out, cap, &got);
        assert_int_equal(status, cap < sizeof raw ? STATUS_CORRUPT : STATUS_OK);
        for (size_t i = cap; i < sizeof out; i++) assert_int_equal(out[i], 0x5a);
    }
    assert_int_equal(got, sizeof raw);
    assert_memory_equal(out, raw, sizeof raw);
    mem_free(scratch);
}

TEST_MAIN(NULL, NULL)
