/* The contract of every codec, on every kind of input and size:
 * - the bound holds; the codec is lossless or its error is bounded,
 * - every instruction set makes the same bytes, and axpy equals decode,
 * - encode refuses NaN and returns its index,
 * - a created codec allocates no memory. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "tests/lib/rigs/codec_case.h"

static const char *const specs[] = {"fp32",
                                    "bf16",
                                    "int8",
                                    "int8:16",
                                    "int8:65536",
                                    "fp32+lz4",
                                    "bf16+lz4",
                                    "int8:64+lz4",
                                    "fp32+lz4+lz4",
                                    "topk:9/256",
                                    "topk:64/4096+2bit",
                                    "topk:100/256+int8",
                                    "topk:4/512+fp16+lz4"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static struct codec *make(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    struct err err = {0};
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    if (codec_create(&codec, spec, &span, 1, &err) != STATUS_OK) fail_msg("%s: %s", spec, err.msg);
    assert_int_equal(codec_count(codec), n);
    return codec;
}

static void fill(enum kind kind, float *x, size_t n)
{
    codec_case_fill(kind, 5, -109, x, n);
}

/* Checks the error bound of one value; `largest` is the largest magnitude of its block (or of more). */
static void check_error(const char *spec, float x, float decoded, float largest)
{
    assert_true(isfinite(decoded));
    if (!strncmp(spec, "fp32", 4)) {
        assert_memory_equal(&x, &decoded, 4);
    } else if (!strncmp(spec, "bf16", 4)) {
        double allowed = fmax(fabs((double)x) / 256, 0x1p-134); /* half a unit of the 8th bit, or of a denormal */
        if (fabs((double)x - decoded) > allowed) fail_msg("%s: %a became %a", spec, x, decoded);
    } else if (!strncmp(spec, "topk", 4)) { /* test_codec_topk compares with a reference */
        assert_true(fabsf(decoded) <= largest * 1.04f && (decoded == 0 || signbit(decoded) == signbit(x)));
    } else {
        double allowed = largest < 0x1p-119f ? (double)largest : (double)largest / 254 * (1 + 1e-5);
        if (fabs((double)x - decoded) > allowed) fail_msg("%s: %a became %a beside %a", spec, x, decoded, largest);
    }
    if (x == 0) assert_true(decoded == 0);
}

static size_t block_of(const char *spec)
{
    unsigned block = 256;
    if (!strncmp(spec, "int8", 4)) sscanf(spec, "int8:%u", &block);
    if (!strncmp(spec, "topk", 4)) sscanf(spec, "topk:%*u/%u", &block);
    return block;
}

static void check_round_trip(const char *spec, size_t n, const float *x)
{
    struct codec *codec = make(spec, n);
    size_t block = block_of(spec);
    float *decoded = mem_alloc(n, sizeof *decoded);
    (void)codec_case_round_trip(codec, n, x, decoded);
    for (size_t from = 0; from < n; from += block) {
        float largest = 0;
        for (size_t i = from; i < n && i < from + block; i++) largest = fmaxf(largest, fabsf(x[i]));
        for (size_t i = from; i < n && i < from + block; i++) check_error(spec, x[i], decoded[i], largest);
    }
    mem_free(decoded);
    codec_destroy(codec);
}

static void test_decode_restores_within_bound(void **state)
{
    (void)state;
    static const size_t sizes[] = {1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 1000, 65536 + 3, 200000};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        float *x = mem_alloc(sizes[s], sizeof *x);
        for (int kind = 0; kind < N_KINDS; kind++) {
            if (sizes[s] > 1000 && kind != NORMAL && kind != SPARSE && kind != MIXED) continue;
            fill((enum kind)kind, x, sizes[s]);
            for (int i = 0; i < N_SPECS; i++) check_round_trip(specs[i], sizes[s], x);
        }
        mem_free(x);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* int8 against its definition in docs/codecs.md, in exact arithmetic where possible. */
static void test_int8_follows_definition(void **state)
{
    (void)state;
    enum { N = 1000, BLOCK = 64 };
    static float x[N], decoded[N];
    struct codec *codec = make("int8:64", N);
    static uint8_t bytes[N + 4 * 16];
    size_t size;
    fill(NORMAL, x, N);
    assert_int_equal(codec_bound(codec), sizeof bytes);
    assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
    for (size_t i = 0; i < N; i++) {
        float largest = 0, scale;
        for (size_t k = i / BLOCK * BLOCK; k < N && k < (i / BLOCK + 1) * BLOCK; k++)
            largest = fmaxf(largest, fabsf(x[k]));
        memcpy(&scale, bytes + 4 * (i / BLOCK), 4);
        assert_true(scale == largest / 127.0f);
        volatile float scaled = x[i] * (127.0f / largest);
        int code = (int8_t)bytes[4 * 16 + i];
        assert_int_equal(code, (int)nearbyint(scaled));
        assert_in_range(code + 127, 0, 254);
        assert_true(decoded[i] == (float)code * scale);
    }
    codec_destroy(codec);
}

static void test_bf16_rounds_to_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t bits;
        uint16_t expected;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82}, /* ties to even */
        {0xbf818000, 0xbf82}, {0x00000000, 0x0000}, {0x80000000, 0x8000}, {0x00008000, 0x0000},
        {0x00018000, 0x0002}, {0x7f7f7fff, 0x7f7f}, {0x7f7fffff, 0x7f7f}, {0xff7fffff, 0xff7f}, /* no infinity */
        {0x007fffff, 0x0080}};
    struct codec *codec = make("bf16", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float x;
        uint8_t bytes[2];
        size_t size;
        memcpy(&x, &cases[i].bits, 4);
        assert_int_equal(codec_encode(codec, &x, bytes, 2, &size, NULL), STATUS_OK);
        if ((bytes[0] | bytes[1] << 8) != cases[i].expected)
            fail_msg("%08x became %02x%02x", cases[i].bits, bytes[1], bytes[0]);
    }
    codec_destroy(codec);
}

static void test_encode_respects_capacity(void **state)
{
    (void)state;
    enum { N = 700 };
    static float x[N];
    static uint8_t bytes[4 * N + 100];
    for (int kind = NORMAL; kind <= SPARSE; kind++)
        for (int i = 0; i < N_SPECS; i++) {
            struct codec *codec = make(specs[i], N);
            size_t size = 0, untouched = 77;
            fill((enum kind)kind, x, N);
            assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
            for (size_t cap = 0; cap < size; cap += cap < 20 ? 1 : size / 19) {
                memset(bytes, 0x5a, sizeof bytes);
                assert_int_equal(codec_encode(codec, x, bytes, cap, &untouched, NULL), STATUS_LIMIT);
                for (size_t k = cap; k < sizeof bytes; k++) assert_int_equal(bytes[k], 0x5a);
            }
            assert_int_equal(untouched, 77);
            static uint8_t whole[4 * N + 100];
            assert_int_equal(codec_encode(codec, x, whole, sizeof whole, &size, NULL), STATUS_OK);
            for (size_t cap = size; cap < size + 40 && cap < sizeof bytes; cap++) { /* no effect */
                memset(bytes, 0x5a, sizeof bytes);
                assert_int_equal(codec_encode(codec, x, bytes, cap, &untouched, NULL), STATUS_OK);
                assert_int_equal(untouched, size);
                assert_memory_equal(bytes, whole, size);
                for (size_t k = cap; k < sizeof bytes; k++) assert_int_equal(bytes[k], 0x5a);
                untouched = 77;
            }
            codec_destroy(codec);
        }
}

static void test_encode_refuses_nonfinite_input(void **state)
{
    (void)state;
    enum { N = 9000 };
    static float x[N];
    static uint8_t bytes[4 * N + 100];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static const size_t places[] = {0, 1, 7, 4095, 4096, 4097, 8191, 8192, N - 1};
    for (int i = 0; i < N_SPECS; i++) {
        struct codec *codec = make(specs[i], N);
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            size_t size = 77, index = 0;
            fill(NORMAL, x, N);
            x[places[p]] = bad[p % 3];
            x[N - 1] = NAN; /* encode reports the first one */
            assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, &index), STATUS_NONFINITE);
            assert_int_equal(index, places[p]);
            assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_NONFINITE);
            assert_int_equal(size, 77);
        }
        codec_destroy(codec);
    }
}

/* LZ4 shrinks sparse data and grouped bytes, and costs almost no bytes on other data. */
static void test_lz4_shrinks_sparse_data(void **state)
{
    (void)state;
    enum { N = 200000 };
    float *x = mem_alloc(N, sizeof *x);
    uint8_t *bytes = mem_alloc(1, 4 * N + 100);
    static const struct {
        const char *spec;
        enum kind kind;
        double most; /* of the bytes without lz4 */
    } cases[] = {{"fp32+lz4", SPARSE, 0.15},    {"int8:256+lz4", SPARSE, 0.25},   {"fp32+lz4", NORMAL, 0.95},
                 {"bf16+lz4", NORMAL, 0.9},     {"int8:256+lz4", NORMAL, 1.0002}, {"fp32+lz4", ZEROS, 0.01},
                 {"fp32+lz4", ANY_BITS, 1.0002}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char plain[16];
        size_t size, raw;
        snprintf(plain, sizeof plain, "%.*s", (int)strcspn(cases[i].spec, "+"), cases[i].spec);
        struct codec *with = make(cases[i].spec, N), *without = make(plain, N);
        fill(cases[i].kind, x, N);
        assert_int_equal(codec_encode(without, x, bytes, 4 * N + 100, &raw, NULL), STATUS_OK);
        assert_int_equal(codec_encode(with, x, bytes, 4 * N + 100, &size, NULL), STATUS_OK);
        if ((double)size > cases[i].most * (double)raw) fail_msg("%s: %zu of %zu bytes", cases[i].spec, size, raw);
        codec_destroy(with);
        codec_destroy(without);
    }
    mem_free(bytes);
    mem_free(x);
}

static void test_specs_are_parsed_or_refused(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *canonical;
        bool lossless;
    } good[] = {{"fp32", "fp32", true},
                {"bf16", "bf16", false},
                {"int8", "int8:256", false},
                {"int8:016", "int8:16", false},
                {"fp32+lz4", "fp32+lz4", true},
                {"int8+lz4", "int8:256+lz4", false},
                {"fp32+huff+lz4", "fp32+huff+lz4", true},
                {"bf16+lz4+lz4+lz4", "bf16+lz4+lz4+lz4", false}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct codec *codec = make(good[i].spec, 3);
        assert_string_equal(codec_spec(codec), good[i].canonical);
        assert_int_equal(codec_lossless(codec), good[i].lossless);
        assert_true(codec_feedback_decay(codec) == 1.0f);
        assert_int_equal(codec_spec_check(good[i].spec, NULL), STATUS_OK);
        assert_int_equal(codec_spec_check(good[i].canonical, NULL), STATUS_OK);
        codec_destroy(codec);
    }
    static const struct {
        const char *spec, *message;
    } bad[] = {{"", "unknown value stage \"\""},
               {"int7:256", "codec \"int7:256\": unknown value stage \"int7\"; known: fp32, bf16, "},
               {"lz4", "cannot start with \"lz4\""},
               {"fp32+zstd", "unknown byte stage \"zstd\""},
               {"fp32+", "unknown byte stage \"\""},
               {"fp32+bf16", "unknown byte stage \"bf16\""},
               {"fp32+lz4:9", "unknown byte stage \"lz4:9\""},
               {"+lz4", "unknown value stage"},
               {"fp32:16", "fp32 takes no parameter"},
               {"bf16:", "bf16 takes no parameter"},
               {"int8:", "int8 block \"\" is not allowed; write int8:16 to int8:65536"},
               {"int8:15", "int8:16 to int8:65536"},
               {"int8:65537", "int8:16 to int8:65536"},
               {"int8:-16", "int8:16 to int8:65536"},
               {"int8:16x", "int8:16 to int8:65536"},
               {"int8:99999999999999999999", "int8:16 to int8:65536"},
               {"fp32\n", "a spec holds only"},
               {"FP32", "unknown value stage \"FP32\""},
               {"fp32+lz4+lz4+lz4+lz4", "too many stages"},
               {"fp32+lz4aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                "longer than"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        struct codec *codec = NULL;
        const struct codec_span span = {.count = 1, .rows = 1, .cols = 1, .ndim = 1};
        assert_int_equal(codec_spec_check(bad[i].spec, &err), STATUS_INVALID);
        if (!strstr(err.msg, bad[i].message)) fail_msg("\"%s\" gives: %s", bad[i].spec, err.msg);
        assert_int_equal(codec_create(&codec, bad[i].spec, &span, 1, &err), STATUS_INVALID);
        assert_null(codec);
    }
    char text[2000];
    FILE *out = fmemopen(text, sizeof text, "w");
    codec_list(out);
    fclose(out);
    assert_non_null(strstr(text, "int8[:BLOCK]"));
    assert_non_null(strstr(text, "lz4"));
}

/* Returns the number of coordinates of x[n], one part, that the payload carries. */
static size_t carried(struct codec *codec, const float *x, size_t n)
{
    struct codec_view view;
    size_t size, bound = codec_bound(codec), count = 0;
    uint8_t *bytes = mem_alloc(bound, 1);
    float *acc = mem_alloc(n, sizeof *acc), *weight = mem_alloc(n, sizeof *weight);
    assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
    assert_int_equal(codec_open(codec, bytes, size, NULL, &view), STATUS_OK);
    assert_int_equal(codec_parts(codec), 1);
    codec_view_axpy_weigh(&view, 0, 1, acc, weight);
    for (size_t i = 0; i < n; i++) count += weight[i] > 0;
    mem_free(bytes);
    mem_free(acc);
    mem_free(weight);
    return count;
}

/* The properties of a spec match the behaviour of its codec. */
static void test_properties_of_specs_match_codecs(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        bool lossless, sparse, staged;
        uint32_t period;
        size_t zeroless; /* values of a block whose zeros come back as noise */
    } properties[] = {{"fp32", .lossless = true},
                      {"fp32+huff+lz4", .lossless = true, .staged = true},
                      {.spec = "bf16"},
                      {"fp16+lz4", .staged = true},
                      {.spec = "int8:64"},
                      {.spec = "int4"},
                      {"2bit", .zeroless = 256},
                      {"1bit:64+huff", .staged = true, .zeroless = 64},
                      {"topk:64/4096", .sparse = true, .period = 64},
                      {"topk:16/512+2bit+lz4", .sparse = true, .staged = true, .period = 32}};
    enum { N = 8192 };
    float *x = mem_alloc(N, sizeof *x), *back = mem_alloc(N, sizeof *back);
    for (size_t k = 0; k < sizeof properties / sizeof *properties; k++) {
        const char *spec = properties[k].spec;
        struct codec *codec = make(spec, N);
        uint32_t period = codec_spec_period(spec);
        assert_int_equal(codec_spec_lossless(spec), properties[k].lossless);
        assert_int_equal(codec_spec_sparse(spec), properties[k].sparse);
        assert_int_equal(codec_spec_staged(spec), properties[k].staged);
        assert_int_equal(period, properties[k].period);

        fill(NORMAL, x, N);
        (void)codec_case_round_trip(codec, N, x, back);
        assert_int_equal(!memcmp(x, back, N * sizeof *x), properties[k].lossless);
        assert_int_equal(carried(codec, x, N), period ? N / period : N);
        memset(x + 32, 0, (N - 32) * sizeof *x); /* one block with values other than zero */
        (void)codec_case_round_trip(codec, N, x, back);
        for (size_t i = 32; i < N; i++)
            if ((back[i] != 0) != (i < properties[k].zeroless)) fail_msg("%s: 0 became %a at %zu", spec, back[i], i);
        codec_destroy(codec);
    }
    mem_free(x);
    mem_free(back);
    assert_false(codec_spec_lossless("") || codec_spec_lossless("fp32x") || codec_spec_sparse("relay") ||
                 codec_spec_staged("int8:256") || codec_spec_staged("topk:64/4096+2bit"));
    assert_int_equal(codec_spec_period("topk:64/100"), 0);
}

static void test_invalid_spans_are_refused(void **state)
{
    (void)state;
    struct codec *codec = NULL;
    const struct codec_span bad[][2] = {
        {{.offset = 1, .count = 4, .rows = 2, .cols = 2}, {.offset = 5, .count = 1, .rows = 1, .cols = 1}},
        {{.offset = 0, .count = 4, .rows = 2, .cols = 2}, {.offset = 5, .count = 1, .rows = 1, .cols = 1}},
        {{.offset = 0, .count = 4, .rows = 2, .cols = 3}, {.offset = 4, .count = 1, .rows = 1, .cols = 1}},
        {{.offset = 0, .count = 4, .rows = 2, .cols = 2}, {.offset = 4, .count = 0, .rows = 0, .cols = 1}},
        {{.offset = 0, .count = 4, .rows = 2, .cols = 2},
         {.offset = 4, .count = 1ull << 41, .rows = 1, .cols = 1ull << 41}},
        {{.offset = 0, .count = 4, .rows = 2, .cols = 2},
         {.offset = 4, .count = 1ull << 63, .rows = 1ull << 63, .cols = 2}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(codec_create(&codec, "fp32", bad[i], 2, NULL), STATUS_INVALID);
    assert_int_equal(codec_create(&codec, "fp32", NULL, 0, NULL), STATUS_INVALID);
    assert_null(codec);

    struct layout layout;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "a", 2, (uint64_t[]){3, 5}, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    assert_int_equal(layout_add(&layout, "b", 1, (uint64_t[]){7}, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    assert_int_equal(layout_add(&layout, "c", 3, (uint64_t[]){2, 3, 4}, LAYOUT_INIT_ZEROS, 0, true), STATUS_OK);
    assert_int_equal(layout_split(&layout, 2), STATUS_OK);
    size_t n = 0;
    for (uint32_t f = 0; f < layout.n_fragments; f++) {
        assert_int_equal(codec_create_for_fragment(&codec, "int8", &layout, f, NULL), STATUS_OK);
        assert_int_equal(codec_count(codec), layout.fragments[f].count);
        n += codec_count(codec);
        codec_destroy(codec);
    }
    assert_int_equal(n, 15 + 7 + 24);
    codec = NULL;
    assert_int_equal(codec_create_for_fragment(&codec, "int8", &layout, layout.n_fragments, NULL), STATUS_INVALID);
    for (int nth = 1;; nth++) { /* every allocation fails once, and no memory leaks */
        size_t live = mem_live_bytes();
        mem_fail_after(nth);
        enum status status = codec_create_for_fragment(&codec, "int8+lz4", &layout, 0, NULL);
        mem_fail_after(0);
        if (status == STATUS_OK) break;
        assert_int_equal(status, STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), live);
        assert_null(codec);
        assert_true(nth < 10);
    }
    codec_destroy(codec);
    codec_destroy(NULL);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_restores_within_bound),
        cmocka_unit_test(test_int8_follows_definition),
        cmocka_unit_test(test_bf16_rounds_to_even),
        cmocka_unit_test(test_encode_respects_capacity),
        cmocka_unit_test(test_encode_refuses_nonfinite_input),
        cmocka_unit_test(test_lz4_shrinks_sparse_data),
        cmocka_unit_test(test_specs_are_parsed_or_refused),
        cmocka_unit_test(test_properties_of_specs_match_codecs),
        cmocka_unit_test(test_invalid_spans_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
