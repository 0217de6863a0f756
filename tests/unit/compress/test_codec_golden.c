/* Payloads of every codec as files, tests/golden/codecs_v1. The same floats must always give these bytes, and the
 * bytes these floats.
 * A file is a payload and, in its last 8 bytes, hash64 of the decoded floats. The bytes of lz4 depend on the
 * library's version: its files are only decoded. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/hash.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"
#include "tests/lib/rigs/golden.h"

enum { N = 420, CAP = 8 * N };

/* Matrices around a vector; the second matrix is shorter than a chunk of top-k. */
static const struct codec_span spans[] = {{0, 300, 10, 30, 2}, {300, 20, 1, 20, 1}, {320, 100, 4, 25, 2}};

static const char *const specs[] = {"fp32",
                                    "bf16",
                                    "fp16",
                                    "int8:64",
                                    "int4:64",
                                    "2bit:64",
                                    "1bit:64",
                                    "topk:16/256",
                                    "topk:32/256+2bit",
                                    "topk:16/256+int8",
                                    "topk:8/256+fp16",
                                    "int4:256+huff",
                                    "bf16+huff",
                                    "topk:16/256+huff",
                                    "fp32+lz4",
                                    "bf16+lz4",
                                    "int8:64+lz4"};

/* From integers alone, so that every machine has the same: magnitudes over nine octaves, every fifth value 0. */
static void values(float x[N])
{
    for (uint64_t i = 0; i < N; i++) {
        uint64_t r = rng_u64(11, RNG_TEST, i);
        float mantissa = (float)(0x800000 + (r & 0x7fffff)) * 0x1p-23f;
        x[i] = i % 5 == 4 ? 0 : ldexpf(r >> 40 & 1 ? -mantissa : mantissa, (int)(r >> 32) % 9 - 16);
    }
}

static void file_of(const char *spec, char name[64])
{
    snprintf(name, 64, "codecs_v1/%s", spec);
    for (char *c = name + strlen("codecs_v1/"); *c; c++)
        if (strchr(":/+", *c)) *c = '_';
}

static void put_hash(struct codec *codec, uint8_t *bytes, size_t size)
{
    static float y[N];
    assert_int_equal(codec_decode(codec, bytes, size, y), STATUS_OK);
    uint64_t hash = hash64(y, sizeof y);
    for (int i = 0; i < 8; i++) bytes[size + (size_t)i] = (uint8_t)(hash >> 8 * i);
}

static void check_spec(const char *spec)
{
    static uint8_t bytes[CAP], kept[CAP];
    static float x[N];
    struct codec *codec = NULL;
    char name[64];
    size_t size;
    const char *write = getenv("ATOLL_GOLDEN");
    assert_int_equal(codec_create(&codec, spec, spans, 3, NULL), STATUS_OK);
    assert_true(codec_bound(codec) + 8 <= CAP);
    file_of(spec, name);
    values(x);
    assert_int_equal(codec_encode(codec, x, bytes, CAP - 8, &size, NULL), STATUS_OK);
    put_hash(codec, bytes, size);
    if (!strstr(spec, "lz4") || (write && !strcmp(write, "write"))) golden_check(name, bytes, size + 8);
    size = golden_read(name, kept, CAP);
    assert_true(size > 8);
    memcpy(bytes, kept, size);
    put_hash(codec, bytes, size - 8);
    if (memcmp(bytes, kept, size)) fail_msg("%s decodes to floats that differ from the file", name);
    codec_destroy(codec);
}

static void test_codecs_match_golden_files(void **state)
{
    (void)state;
    for (int level = CODEC_SIMD_PLAIN; level <= CODEC_SIMD_AVX512; level++) {
        codec_simd_limit((enum codec_simd)level);
        for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) check_spec(specs[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codecs_match_golden_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
