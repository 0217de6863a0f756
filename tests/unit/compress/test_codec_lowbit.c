/* fp16 and the dense low-bit codecs: int4, 2bit, 1bit.
 * Tests every instruction set against the plain definition, the formats of docs/codecs.md to the byte, errors on
 * noise, and hostile payloads. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"
#include "compress/half.h"
#include "compress/lowbit/lowbit.h"
#include "tests/lib/rigs/codec_case.h"

static void fill(enum kind kind, uint64_t seed, float *x, size_t n)
{
    codec_case_fill(kind, seed, -100, x, n);
}

/* ---- kernels --------------------------------------------------------------------------------------------------------
 */

enum { KERNEL_N = 400 };

static void check_kernels(const struct lowbit_kernels *k, const float *x, size_t n)
{
    const struct lowbit_kernels *plain = &lowbit_plain;
    assert_int_equal(k->absmax(x, n), plain->absmax(x, n));
    float sum = plain->abs_sum(x, n), other = k->abs_sum(x, n);
    assert_memory_equal(&sum, &other, 4);
    const float mean = sum / (float)n;
    size_t above, above2;
    sum = plain->abs_sum_above(x, n, mean, &above);
    other = k->abs_sum_above(x, n, mean, &above2);
    assert_memory_equal(&sum, &other, 4);
    assert_int_equal(above, above2);
    uint8_t codes[KERNEL_N], codes2[KERNEL_N];
    uint32_t bits = plain->absmax(x, n);
    float most;
    memcpy(&most, &bits, 4);
    static float table[16], out[KERNEL_N], out2[KERNEL_N];
    rng_normal_fill(4, RNG_TEST, 0, 1.0f, table, 16);
    for (int what = 0; what < 3; what++) {
        const size_t width = 4 >> what, bytes = (n * width + 7) / 8;
        memset(codes, 0x5a, sizeof codes);
        memset(codes2, 0x5a, sizeof codes2);
        for (int level = 0; level < 2; level++) {
            const struct lowbit_kernels *now = level ? k : plain;
            uint8_t *to = level ? codes2 : codes;
            float *values = level ? out2 : out;
            if (what == 0) now->pack_int4(x, n, most > 0x1p-126f ? 7.0f / most : 0.0f, to);
            if (what == 1) now->pack_2bit(x, n, mean, to);
            if (what == 2) now->pack_1bit(x, n, to);
            memset(values, 0x5a, sizeof out);
            (width == 4 ? now->expand4 : width == 2 ? now->expand2 : now->expand1)(to, n, table, values);
            for (size_t i = 0; i < n; i++)
                assert_true(values[i] == table[to[i * width / 8] >> i * width % 8 & ((1 << width) - 1)]);
            (width == 4 ? now->add4 : width == 2 ? now->add2 : now->add1)(to, n, table, values);
        }
        assert_memory_equal(codes, codes2, sizeof codes); /* no byte past the last one is written */
        assert_int_equal(codes[bytes], 0x5a);
        assert_memory_equal(out, out2, sizeof out);
    }
}

static void test_instruction_sets_give_same_codes(void **state)
{
    (void)state;
    static float x[KERNEL_N + 1];
    const struct lowbit_kernels *all[3] = {&lowbit_plain, &lowbit_plain, &lowbit_plain};
    for (int level = CODEC_SIMD_PLAIN; level <= CODEC_SIMD_AVX512; level++) {
        codec_simd_limit((enum codec_simd)level);
        all[level] = lowbit_kernels();
    }
    for (int kind = 0; kind < N_KINDS; kind++)
        for (size_t n = 1; n < KERNEL_N; n = n < 140 ? n + 1 : n + 37) {
            fill((enum kind)kind, n, x, KERNEL_N + 1);
            for (int level = 1; level < 3; level++) check_kernels(all[level], x + n % 2, n); /* any alignment */
        }
}

/* ---- fp16 -----------------------------------------------------------------------------------------------------------
 */

/* The nearest fp16, ties to even, in doubles. */
static double nearest_fp16(double x)
{
    int exponent;
    frexp(x, &exponent); /* |x| = f * 2^exponent, f in [0.5, 1) */
    double unit = ldexp(1, exponent - 11 > -24 ? exponent - 11 : -24), rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) > 65504 ? copysign(65504, x) : rounded;
}

static void test_fp16_rounds_to_nearest(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static uint8_t halves[2 * N], again[2 * N];
    static float x[N], decoded[N];
    for (int level = CODEC_SIMD_PLAIN; level <= CODEC_SIMD_AVX512; level++) {
        codec_simd_limit((enum codec_simd)level);
        size_t n = 0;
        for (uint32_t h = 0; h < N; h++) {
            uint16_t half = (uint16_t)h;
            if ((h & 0x7c00) != 0x7c00) memcpy(halves + 2 * n++, &half, 2);
            assert_int_equal(fp16_finite((const uint8_t *)&half, 1), (h & 0x7c00) != 0x7c00);
        }
        assert_true(fp16_finite(halves, n));
        fp16_widen(halves, n, x);
        fp16_narrow(x, n, again); /* every value is restored */
        assert_memory_equal(halves, again, 2 * n);
        for (size_t i = 0; i < n; i++) assert_true(x[i] == (float)nearest_fp16((double)x[i]));
        for (int kind = 0; kind < N_KINDS; kind++) {
            fill((enum kind)kind, 3, x, N);
            for (size_t i = 0; kind == NORMAL && i < N; i++) x[i] = ldexpf(x[i], (int)(i % 40) - 15);
            fp16_narrow(x, N, halves);
            fp16_widen(halves, N, decoded);
            for (size_t i = 0; i < N; i++) {
                float expected = (float)nearest_fp16((double)x[i]);
                if (memcmp(&expected, &decoded[i], 4)) fail_msg("%a became %a, not %a", x[i], decoded[i], expected);
            }
        }
    }
}

/* ---- whole codecs ---------------------------------------------------------------------------------------------------
 */

static const char *const specs[] = {"fp16",     "int4",      "int4:64", "int4:65536", "2bit",
                                    "2bit:192", "1bit:1024", "1bit:64", "bf16",       "int8:64"};
enum { N_SPECS = sizeof specs / sizeof *specs };

/* Matrices with 1-D tensors between them; the counts are for n values. */
static size_t make_spans(struct codec_span *spans, size_t n)
{
    const size_t counts[] = {n / 2, n / 64, n / 128, n - n / 2 - n / 64 - n / 128 - n / 100, n / 100};
    size_t n_spans = 0, at = 0;
    for (size_t i = 0; i < 5; i++) {
        if (!counts[i]) continue;
        spans[n_spans++] = (struct codec_span){
            .offset = at, .count = counts[i], .rows = 1, .cols = counts[i], .ndim = i == 1 || i == 2 || i == 4 ? 1 : 2};
        at += counts[i];
    }
    assert_int_equal(at, n);
    return n_spans;
}

static struct codec *make_mixed(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    struct codec_span spans[5];
    struct err err = {0};
    if (codec_create(&codec, spec, spans, make_spans(spans, n), &err) != STATUS_OK) fail_msg("%s", err.msg);
    return codec;
}

static struct codec *make_matrix(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    struct err err = {0};
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    if (codec_create(&codec, spec, &span, 1, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return codec;
}

static void check_parts(struct codec *codec)
{
    size_t parts = codec_parts(codec), at = 0;
    for (size_t p = 0; p < parts; p++) {
        struct codec_part part = codec_part(codec, p);
        assert_int_equal(part.index, p);
        assert_int_equal(part.from, at);
        assert_true(part.to > part.from);
        at = part.to;
    }
    assert_int_equal(at, codec_count(codec));
}

static void check_round_trip(const char *spec, size_t n, const float *x)
{
    struct codec *codec = make_mixed(spec, n);
    float *decoded = mem_alloc(n, sizeof *decoded);
    check_parts(codec);
    assert_int_equal(codec_case_round_trip(codec, n, x, decoded), codec_bound(codec));
    for (size_t i = 0; i < n; i++) assert_true(isfinite(decoded[i]));
    mem_free(decoded);
    codec_destroy(codec);
}

static void test_decode_restores_within_bound(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 7, 63, 64, 65, 129, 255, 256, 257, 1000, 20011, 700000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        float *x = mem_alloc(sizes[s], sizeof *x);
        for (int kind = 0; kind < N_KINDS; kind++) {
            if (sizes[s] > 30000 && kind != NORMAL) continue;
            fill((enum kind)kind, 5, x, sizes[s]);
            for (int i = 0; i < N_SPECS; i++) check_round_trip(specs[i], sizes[s], x);
        }
        mem_free(x);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* Checks the error of a value of int4, in double. */
static void check_value(double x, double decoded, double largest)
{
    bool bad = fabs(x - decoded) > largest / 14 * (1 + 1.0 / 256) * (1 + 1e-6) || (x == 0 && decoded != 0) ||
               (fabs(x) == largest && largest < 1e38 && fabs(decoded) < largest * (1 - 1e-6));
    if (largest < 0x1p-110) bad = decoded != 0;
    if (bad) fail_msg("%a became %a beside %a", x, decoded, largest);
}

static void test_error_of_each_value_is_bounded(void **state)
{
    (void)state;
    enum { N = 5000, BLOCK = 64 };
    static float x[N], decoded[N];
    static uint8_t bytes[2 * N];
    for (int kind = 0; kind < N_KINDS; kind++) {
        struct codec *codec = make_matrix("int4:64", N);
        size_t size;
        fill((enum kind)kind, 8, x, N);
        assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
        assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
        for (size_t from = 0; from < N; from += BLOCK) {
            float largest = 0;
            for (size_t i = from; i < N && i < from + BLOCK; i++) largest = fmaxf(largest, fabsf(x[i]));
            for (size_t i = from; i < N && i < from + BLOCK; i++)
                check_value((double)x[i], (double)decoded[i], (double)largest);
        }
        codec_destroy(codec);
    }
}

/* Measures bits per value and relative error ||x - decoded|| / ||x|| on a normal distribution. The best 4 levels
 * have 0.343 (Max 1960); sign times mean has sqrt(1 - 2 / pi) = 0.603. */
static void test_bits_and_error_on_noise(void **state)
{
    (void)state;
    enum { N = 1 << 18 };
    static const struct {
        const char *spec;
        double bits, least, most;
    } cases[] = {{"fp16", 16, 0, 0.0006},      {"bf16", 16, 0, 0.002},         {"int8", 8.125, 0, 0.007},
                 {"int4", 4.0625, 0.11, 0.13}, {"2bit", 2.09375, 0.335, 0.35}, {"1bit", 1.0625, 0.595, 0.605}};
    float *x = mem_alloc(N, 4), *decoded = mem_alloc(N, 4);
    uint8_t *bytes = mem_alloc(1, 4 * N);
    fill(NORMAL, 12, x, N);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = make_matrix(cases[i].spec, N);
        size_t size;
        double error = 0, norm = 0;
        assert_int_equal(codec_encode(codec, x, bytes, 4 * N, &size, NULL), STATUS_OK);
        assert_true((double)size * 8 / N == cases[i].bits);
        assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
        for (size_t k = 0; k < N; k++) {
            error += ((double)x[k] - (double)decoded[k]) * ((double)x[k] - (double)decoded[k]);
            norm += (double)x[k] * (double)x[k];
        }
        error = sqrt(error / norm);
        if (error < cases[i].least || error > cases[i].most) fail_msg("%s: relative error %.4f", cases[i].spec, error);
        codec_destroy(codec);
    }
    mem_free(bytes);
    mem_free(decoded);
    mem_free(x);
}

/* ---- bytes ----------------------------------------------------------------------------------------------------------
 */

static size_t from_hex(const char *hex, uint8_t *out)
{
    size_t n = 0;
    unsigned byte;
    int used;
    for (; sscanf(hex, " %2x%n", &byte, &used) == 1; hex += used) out[n++] = (uint8_t)byte;
    return n;
}

/* A matrix of 70 values (two blocks of 64), then a vector of 2, then a matrix of 3. */
static const struct codec_span golden_spans[] = {{0, 70, 7, 10, 2}, {70, 2, 1, 2, 1}, {72, 3, 1, 3, 2}};

static void golden_values(float x[75])
{
    memset(x, 0, 75 * sizeof *x);
    static const float first[] = {7.0f, -7.0f, 1.0f, -1.0f, 0.5f, 1.5f, -2.5f, -0.0f, 3.5f, 0.49f, 0.05f, -0.1f};
    static const float rest[] = {0.25f, -0.5f, 0.75f, -1.0f, 1.0f, -0.0f, 1.01171875f, -3.0f, 0.0f, 0.0f, -0.0f};
    memcpy(x, first, sizeof first);
    memcpy(x + 64, rest, sizeof rest);
}

static const struct {
    const char *spec, *hex;
} golden[] = {
    {"fp16", "004700c7003c00bc0038003e00c100800043d737662a66ae000000000000000000000000000000000000000000000000"
             "000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"
             "0000000000000000000000000000000000000000000000000000000000000000003400b8003a00bc003c00800c3c00c2"
             "000000000080"},
    {"int4:64", "823f40c0 007f257c0000 97f1200e04000000000000000000000000000000000000000000000000000000d29507 000"
                "0"},
    {"2bit:64", "823f40c0 138103d57e46000000 8db08100000000000000000000000000d809 00"},
    {"1bit:64", "823f40c0 8a7d2b7e0000 ca080000000000002a 00"},
};

static void test_values_give_documented_bytes(void **state)
{
    (void)state;
    float x[75];
    golden_values(x);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        struct codec *codec = NULL;
        assert_int_equal(codec_create(&codec, golden[i].spec, golden_spans, 3, NULL), STATUS_OK);
        uint8_t expected[256], bytes[256];
        char text[600];
        size_t want = from_hex(golden[i].hex, expected), size = 0;
        assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
        for (size_t k = 0; k < size; k++) sprintf(text + 2 * k, "%02x", bytes[k]);
        if (size != want || memcmp(bytes, expected, want)) fail_msg("%s: %s", golden[i].spec, text);
        codec_destroy(codec);
    }
}

/* ---- hostile payloads -----------------------------------------------------------------------------------------------
 */

/* Decodes with decode and decode_axpy. Both must return the same status, write nothing on a refusal, and return
 * finite values. */
static enum status decode_checked(struct codec *codec, const uint8_t *bytes, size_t size)
{
    float x[75], acc[75], untouched[75];
    for (size_t i = 0; i < 75; i++) untouched[i] = x[i] = acc[i] = (float)i;
    uint8_t *copy = mem_alloc(1, size + 1); /* exact size, so that the sanitizer detects a read past the end */
    memcpy(copy + 1, bytes, size);
    enum status status = codec_decode(codec, copy + 1, size, x);
    assert_int_equal(codec_decode_axpy(codec, 0.5f, copy + 1, size, acc), status);
    mem_free(copy);
    for (size_t i = 0; i < 75; i++) assert_true(isfinite(x[i]));
    if (status != STATUS_OK) {
        assert_true(status == STATUS_CORRUPT || status == STATUS_NONFINITE);
        assert_memory_equal(x, untouched, sizeof x);
        assert_memory_equal(acc, untouched, sizeof acc);
    }
    return status;
}

/* Payloads of golden_spans: 4 bytes of bf16, three heads, codes of 70 values, codes of 3. */
static void test_invalid_payloads_are_refused(void **state)
{
    (void)state;
    enum { HEADS = 4 };
    static const struct {
        const char *spec;
        size_t at;
        uint16_t value;
        enum status verdict;
        bool byte; /* one byte at `at`, not two */
    } cases[] = {
        {"int4:64", 0, 0x7f80, STATUS_NONFINITE, false}, /* the vector */
        {"int4:64", 2, 0xffff, STATUS_NONFINITE, false},
        {"int4:64", HEADS, 0x0e25, STATUS_OK, false}, /* the smallest and the largest scale */
        {"int4:64", HEADS, 0xfc24, STATUS_OK, false},
        {"int4:64", HEADS, 0x0e24, STATUS_CORRUPT, false},
        {"int4:64", HEADS, 0x0001, STATUS_CORRUPT, false},
        {"int4:64", HEADS, 0xfc25, STATUS_NONFINITE, false},
        {"int4:64", HEADS + 2, 0xffff, STATUS_NONFINITE, false},
        {"int4:64", HEADS, 0, STATUS_CORRUPT, false},     /* scale 0 and other codes than 0 */
        {"int4:64", HEADS + 2, 0, STATUS_CORRUPT, false}, /* the same in a short block */
        {"int4:64", HEADS + 4, 0x7f00, STATUS_OK, false}, /* a scale, and codes that are all 0 */
        {"int4:64", HEADS + 6, 0x08, STATUS_CORRUPT, true},
        {"int4:64", HEADS + 6 + 20, 0x80, STATUS_CORRUPT, true},
        {"int4:64", HEADS + 6 + 20, 0x77, STATUS_OK, true},
        {"int4:64", HEADS + 6 + 36, 0x10, STATUS_CORRUPT, true}, /* past the last code of the second matrix */
        {"2bit:64", HEADS, 0x1100, STATUS_OK, false},
        {"2bit:64", HEADS, 0xe300, STATUS_OK, false},
        {"2bit:64", HEADS, 0x10ff, STATUS_CORRUPT, false},
        {"2bit:64", HEADS, 0xe301, STATUS_CORRUPT, false},
        {"2bit:64", HEADS, 0xff00, STATUS_NONFINITE, false},
        {"2bit:64", HEADS, 0, STATUS_CORRUPT, false},
        {"2bit:64", HEADS + 8, 1, STATUS_CORRUPT, true},         /* a ratio without a scale */
        {"2bit:64", HEADS + 9 + 17, 0x10, STATUS_CORRUPT, true}, /* past the 70th code */
        {"1bit:64", HEADS, 0x1100, STATUS_OK, false},
        {"1bit:64", HEADS, 0xe300, STATUS_OK, false},
        {"1bit:64", HEADS, 0x10ff, STATUS_CORRUPT, false},
        {"1bit:64", HEADS, 0xe301, STATUS_CORRUPT, false},
        {"1bit:64", HEADS + 2, 0xff80, STATUS_NONFINITE, false},
        {"1bit:64", HEADS + 6 + 8, 0x40, STATUS_CORRUPT, true},
        {"1bit:64", HEADS + 6 + 9, 0x01, STATUS_CORRUPT, true}, /* a zero block */
        {"fp16", 0, 0x7c00, STATUS_NONFINITE, false},
        {"fp16", 148, 0xfe00, STATUS_NONFINITE, false},
        {"fp16", 20, 0x8001, STATUS_OK, false},
    };
    float x[75];
    golden_values(x);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = NULL;
        uint8_t bytes[256];
        size_t size;
        assert_int_equal(codec_create(&codec, cases[i].spec, golden_spans, 3, NULL), STATUS_OK);
        assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
        assert_int_equal(decode_checked(codec, bytes, size), STATUS_OK);
        bytes[cases[i].at] = (uint8_t)cases[i].value;
        if (!cases[i].byte) bytes[cases[i].at + 1] = (uint8_t)(cases[i].value >> 8);
        enum status status = decode_checked(codec, bytes, size);
        if (status != cases[i].verdict) fail_msg("case %zu, %s: %s", i, cases[i].spec, status_text(status));
        codec_destroy(codec);
    }
}

static void test_wrong_lengths_and_flips_are_safe(void **state)
{
    (void)state;
    static const char *const all[] = {"fp16", "int4:64", "2bit:64", "1bit:64"};
    float x[75];
    golden_values(x);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct codec *codec = NULL;
        uint8_t bytes[512] = {0};
        size_t size;
        assert_int_equal(codec_create(&codec, all[i], golden_spans, 3, NULL), STATUS_OK);
        assert_int_equal(codec_encode(codec, x, bytes, 256, &size, NULL), STATUS_OK);
        for (size_t wrong = 0; wrong < sizeof bytes; wrong++)
            assert_int_equal(decode_checked(codec, bytes, wrong), wrong == size ? STATUS_OK : STATUS_CORRUPT);
        for (size_t bit = 0; bit < 8 * size; bit++) {
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            (void)decode_checked(codec, bytes, size);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        for (uint64_t round = 0; round < 20000; round++) {
            uint8_t kept[sizeof bytes];
            memcpy(kept, bytes, sizeof kept);
            for (uint64_t k = 0; k <= round % 5; k++) {
                uint64_t r = rng_u64(round, RNG_TEST, k);
                bytes[(r >> 8) % (round & 1 ? size : 14)] = (uint8_t)r;
            }
            (void)decode_checked(codec, bytes, size);
            memcpy(bytes, kept, sizeof kept);
        }
        codec_destroy(codec);
    }
}

static void test_specs_are_parsed_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *canonical; /* NULL: refused */
    } cases[] = {{"fp16", "fp16"},       {"int4", "int4:256"},
                 {"int4:64", "int4:64"}, {"2bit:0192+huff", "2bit:192+huff"},
                 {"1bit", "1bit:256"},   {"2bit:65536", "2bit:65536"},
                 {"int4:63", NULL},      {"int4:100", NULL},
                 {"int4:65600", NULL},   {"2bit:", NULL},
                 {"1bit:-64", NULL},     {"2bit:64x", NULL},
                 {"int4:0", NULL},       {"fp16:16", NULL},
                 {"int4+", NULL},        {"huff", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err err = {0};
        enum status status = codec_spec_check(cases[i].spec, &err);
        assert_int_equal(status, cases[i].canonical ? STATUS_OK : STATUS_INVALID);
        if (!cases[i].canonical) {
            assert_true(err.msg[0] && !strchr(err.msg, '\n'));
            continue;
        }
        struct codec *codec = make_matrix(cases[i].spec, 100);
        assert_string_equal(codec_spec(codec), cases[i].canonical);
        assert_false(codec_lossless(codec) || codec_sparse(codec));
        assert_true(codec_feedback_decay(codec) == 1.0f);
        codec_destroy(codec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruction_sets_give_same_codes),
        cmocka_unit_test(test_fp16_rounds_to_nearest),
        cmocka_unit_test(test_decode_restores_within_bound),
        cmocka_unit_test(test_error_of_each_value_is_bounded),
        cmocka_unit_test(test_bits_and_error_on_noise),
        cmocka_unit_test(test_values_give_documented_bytes),
        cmocka_unit_test(test_invalid_payloads_are_refused),
        cmocka_unit_test(test_wrong_lengths_and_flips_are_safe),
        cmocka_unit_test(test_specs_are_parsed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
