/* Top-k against the slow reference of tests/lib/rigs/topk_reference.c: same bytes and values from every instruction
 * set, for every kind of input, shape and value form. */
#include <float.h>
#include <math.h>

#include "common/base/float_bits.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/codec_simd.h"
#include "tests/lib/rigs/topk_reference.h"
#include "tests/lib/test.h"

enum { N_MAX = 300000 };

static const char *const form_names[TOPK_FORMS] = {"sign", "2bit", "int8", "fp16"};

/* ---- inputs --------------------------------------------------------------------------------------------------------
 */

enum kind { NORMAL, ZEROS, SPARSE, TIES, EQUAL, DENORMAL, WIDE, HUGE_VALUES, ANY_BITS, RAMP, STEPS, POWERS, N_KINDS };

static void fill(enum kind kind, float *x, size_t n)
{
    rng_normal_fill(3, RNG_TEST, 1u << 20, 1e-3f, x, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng_u64(4, RNG_TEST, i);
        uint32_t b = (uint32_t)r;
        switch (kind) {
        case ZEROS: x[i] = i & 1 ? -0.0f : 0.0f; break;
        case SPARSE: x[i] = r % 150 ? r % 3 ? 0.0f : -0.0f : x[i]; break;
        case TIES: x[i] = (float)((int)(r % 9) - 4); break;
        case EQUAL: x[i] = r & 1 ? 0.3f : -0.3f; break;
        case DENORMAL: x[i] *= i / 1000 % 2 ? 1e-37f : 3e-28f; break; /* near the smallest value that is sent */
        case WIDE: x[i] = ldexpf(x[i], (int)(r % 200) - 100); break;
        case HUGE_VALUES: x[i] = r & 1 ? FLT_MAX : r & 2 ? -FLT_MAX : x[i] * 1e38f; break;
        case ANY_BITS:
            if ((b & 0x7f800000u) == 0x7f800000u) b &= 0x807fffffu;
            x[i] = float_of_bits(b);
            break;
        case RAMP: x[i] = (float)i; break; /* each guess is too low */
        case STEPS:
            x[i] = ldexpf(x[i], -(int)(i / 700 % 40));
            break; /* each guess is too high, then too low */
        /* Each guess is too high, and the final threshold is itself a value. */
        case POWERS: x[i] = ldexpf(r & 8 ? 1.0f : -1.0f, (int)(r % 3) - 3 * (int)(i / 256 % 30)); break;
        default: break;
        }
    }
}

/* ---- the tests -----------------------------------------------------------------------------------------------------
 */

static float x[N_MAX], decoded[N_MAX], expected[N_MAX], acc[N_MAX], weight[N_MAX], plain[N_MAX];
static bool carried[N_MAX];
static uint8_t wanted[2 * N_MAX + 100000];

static bool same(const void *a, const void *b, size_t n)
{
    return memcmp(a, b, n) == 0;
}

static void check_parts(struct codec *codec, const uint8_t *bytes, size_t size, size_t n)
{
    struct codec_view view;
    size_t end = 0, parts = codec_parts(codec);
    assert_int_equal(codec_open_room(codec), 0);
    assert_int_equal(codec_open(codec, bytes, size, NULL, &view), STATUS_OK);
    for (size_t p = 0; p < parts; p++) {
        struct codec_part part = codec_part(codec, p);
        assert_int_equal(part.index, p);
        assert_int_equal(part.from, end);
        assert_true(part.to > part.from);
        end = part.to;
    }
    assert_int_equal(end, n);
    for (size_t i = 0; i < n; i++) acc[i] = plain[i] = (float)i - 7.25f, weight[i] = 3.0f;
    for (size_t p = parts; p-- > 0;) {
        size_t from = codec_part(codec, p).from;
        codec_view_decode(&view, p, decoded + from);
        codec_view_axpy(&view, p, 0.7f, plain + from);
        codec_view_axpy_weigh(&view, p, 0.7f, acc + from, weight + from);
    }
    assert_true(same(decoded, expected, n * sizeof *x));
    assert_true(same(acc, plain, n * sizeof *x));
    for (size_t i = 0; i < n; i++) {
        volatile float product = 0.7f * expected[i];
        if (acc[i] != (float)i - 7.25f + product) fail_msg("coordinate %zu", i);
        assert_true(weight[i] == (carried[i] ? 3.7f : 3.0f));
    }
}

static void check_against_reference(enum topk_form form, uint32_t k, uint32_t chunk, const struct codec_span *spans,
                                    size_t n_spans, enum kind kind)
{
    char spec[64];
    struct codec *codec = NULL;
    snprintf(spec, sizeof spec, "topk:%u/%u+%s", k, chunk, form_names[form]);
    assert_int_equal(codec_create(&codec, spec, spans, n_spans, NULL), STATUS_OK);
    assert_true(codec_sparse(codec));
    size_t n = codec_count(codec), bound = codec_bound(codec), size = 0;
    fill(kind, x, n);
    size_t want = topk_reference(form, k, chunk, spans, n_spans, x, wanted, expected, carried);
    uint8_t *bytes = mem_alloc(1, bound + 1);
    assert_in_range(want, 1, bound);
    for (int simd = CODEC_SIMD_PLAIN; simd <= CODEC_SIMD_AVX512; simd++) {
        codec_simd_limit((enum codec_simd)simd);
        memset(bytes, 0xee, bound + 1);
        assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
        if (size != want || !same(bytes, wanted, want)) {
            size_t at = 0;
            while (at < size && at < want && bytes[at] == wanted[at]) at++;
            fail_msg("%s, kind %d, n %zu, simd %d: %zu bytes for %zu, byte %zu", spec, kind, n, simd, size, want, at);
        }
        assert_int_equal(bytes[bound], 0xee);
        assert_int_equal(codec_encode(codec, x, bytes, want, &size, NULL), STATUS_OK);
        assert_int_equal(codec_encode(codec, x, bytes, want - 1, &size, NULL), STATUS_LIMIT);
        assert_int_equal(codec_encode(codec, x, bytes, want, &size, NULL), STATUS_OK);
        memset(decoded, 0xee, n * sizeof *x);
        assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
        if (!same(decoded, expected, n * sizeof *x)) {
            for (size_t i = 0; i < n; i++)
                if (!same(&decoded[i], &expected[i], 4))
                    fail_msg("%s, kind %d: value %zu decodes to %a, expected %a, from %a", spec, kind, i, decoded[i],
                             expected[i], x[i]);
        }
    }
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(expected[i]));
        if (x[i] == 0) assert_true(expected[i] == 0);
        if (expected[i] != 0) assert_true(signbit(expected[i]) == signbit(x[i]));
    }
    check_parts(codec, bytes, size, n);
    mem_free(bytes);
    codec_destroy(codec);
}

TEST(test_matrices_match_reference)
{
    static const uint32_t shapes[][3] = {/* n, K, CHUNK */
                                         {1, 1, 256},      {2, 255, 256},     {255, 3, 256},   {256, 3, 256},
                                         {257, 3, 256},    {1000, 64, 256},   {700, 255, 256}, {5000, 1, 512},
                                         {9000, 64, 4096}, {70000, 16, 65536}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int form = 0; form < TOPK_FORMS; form++)
            for (int kind = 0; kind < N_KINDS; kind++) {
                if (form == TOPK_FP16 && shapes[s][0] > 1000 && kind != NORMAL && kind != WIDE)
                    continue; /* the reference is slow */
                const uint32_t n = shapes[s][0];
                const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
                check_against_reference((enum topk_form)form, shapes[s][1], shapes[s][2], &span, 1, (enum kind)kind);
            }
    assert_int_equal(mem_live_bytes(), 0);
}

/* Several groups, short chunks in the middle, 1-D tensors before, between and after. */
TEST(test_mixed_tensors_match_reference)
{
    static const uint32_t tensors[][2] = {/* count, dimensions */
                                          {77, 1},    {40000, 2}, {1, 1},   {3, 2},   {600, 1},
                                          {99999, 3}, {5, 2},     {256, 2}, {511, 2}, {300, 1}};
    enum { T = sizeof tensors / sizeof *tensors };
    struct codec_span spans[T];
    uint64_t n = 0;
    for (size_t t = 0; t < T; n += tensors[t++][0])
        spans[t] = (struct codec_span){
            .offset = n, .count = tensors[t][0], .rows = 1, .cols = tensors[t][0], .ndim = (uint8_t)tensors[t][1]};
    for (int kind = 0; kind < N_KINDS; kind++) {
        check_against_reference(TOPK_SIGN, 4, 256, spans, T, (enum kind)kind);
        check_against_reference(TOPK_TWO_BIT, 100, 1024, spans, T, (enum kind)kind);
        check_against_reference(TOPK_INT8, 64, 4096, spans, T, (enum kind)kind);
    }
    check_against_reference(TOPK_FP16, 1, 512, spans, T, NORMAL);
    check_against_reference(TOPK_SIGN, 4, 256, spans, 1, NORMAL); /* 1-D only: no chunk */
    check_against_reference(TOPK_SIGN, 4, 256, spans, 2, WIDE);
    assert_int_equal(mem_live_bytes(), 0);
}

/* More than one part. */
TEST(test_several_parts_match_reference)
{
    const struct codec_span span = {.count = N_MAX, .rows = 3, .cols = N_MAX / 3, .ndim = 2};
    check_against_reference(TOPK_SIGN, 64, 4096, &span, 1, NORMAL);
    check_against_reference(TOPK_SIGN, 64, 4096, &span, 1, SPARSE);
    check_against_reference(TOPK_TWO_BIT, 1000, 4096, &span, 1, STEPS);
    check_against_reference(TOPK_INT8, 8, 65536, &span, 1, TIES);
    check_against_reference(TOPK_SIGN, 4, 256, &span, 1, STEPS);
}

/* All bytes, compared with log2 of the number of choices plus a sign. */
TEST(test_size_on_noise_is_near_entropy)
{
    enum { N = 1 << 18 };
    const struct codec_span span = {.count = N, .rows = 64, .cols = N / 64, .ndim = 2};
    static const struct {
        const char *spec;
        double most;
    } cases[] = {{"topk:64/4096+sign", 0.1335}, {"topk:128/4096+sign", 0.2345}, {"topk:64/4096+2bit", 0.1505}};
    rng_normal_fill(8, RNG_TEST, 0, 1e-3f, x, N);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct codec *codec = NULL;
        size_t size;
        assert_int_equal(codec_create(&codec, cases[i].spec, &span, 1, NULL), STATUS_OK);
        uint8_t *bytes = mem_alloc(1, codec_bound(codec));
        assert_int_equal(codec_encode(codec, x, bytes, codec_bound(codec), &size, NULL), STATUS_OK);
        if (8.0 * (double)size / N > cases[i].most) fail_msg("%s: %.4f bits", cases[i].spec, 8.0 * (double)size / N);
        mem_free(bytes);
        codec_destroy(codec);
    }
}

/* 1-D tensors take 16 bits per value, most of the bytes of a small model; an entropy stage uses their positions. */
TEST(test_entropy_stage_shrinks_vectors)
{
    enum { MATRIX = 1 << 18, VECTOR = 8192 };
    const struct codec_span spans[2] = {{.count = MATRIX, .rows = 64, .cols = MATRIX / 64, .ndim = 2},
                                        {.offset = MATRIX, .count = VECTOR, .rows = 1, .cols = VECTOR, .ndim = 1}};
    size_t size[2];
    rng_normal_fill(8, RNG_TEST, 0, 1e-3f, x, MATRIX + VECTOR);
    for (int i = 0; i < 2; i++) {
        struct codec *codec = NULL;
        assert_int_equal(codec_create(&codec, i ? "topk:64/4096+sign+huff" : "topk:64/4096+sign", spans, 2, NULL),
                         STATUS_OK);
        uint8_t *bytes = mem_alloc(1, codec_bound(codec));
        assert_int_equal(codec_encode(codec, x, bytes, codec_bound(codec), &size[i], NULL), STATUS_OK);
        mem_free(bytes);
        codec_destroy(codec);
    }
    double saved = 8.0 * ((double)size[0] - (double)size[1]) / VECTOR;
    if (saved < 4.9 || saved > 5.5) fail_msg("saves %.2f bits per value", saved);
}

TEST(test_specs_are_parsed_or_refused)
{
    static const struct {
        const char *spec, *canonical;
    } good[] = {{"topk:64/4096", "topk:64/4096+sign"},           {"topk:64/4096+sign", "topk:64/4096+sign"},
                {"topk:1/256+2bit", "topk:1/256+2bit"},          {"topk:65535/65536+int8", "topk:65535/65536+int8"},
                {"topk:07/256+fp16+lz4", "topk:7/256+fp16+lz4"}, {"topk:7/256+lz4", "topk:7/256+sign+lz4"}};
    const struct codec_span span = {.count = 1000, .rows = 10, .cols = 100, .ndim = 2};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct codec *codec = NULL;
        assert_int_equal(codec_create(&codec, good[i].spec, &span, 1, NULL), STATUS_OK);
        assert_string_equal(codec_spec(codec), good[i].canonical);
        assert_int_equal(codec_spec_check(good[i].canonical, NULL), STATUS_OK);
        assert_true(codec_feedback_decay(codec) == 0.95f);
        assert_false(codec_lossless(codec));
        codec_destroy(codec);
    }
    static const char *const bad[] = {"topk",
                                      "topk:",
                                      "topk:64",
                                      "topk:/4096",
                                      "topk:64/",
                                      "topk:0/256",
                                      "topk:256/256",
                                      "topk:64/4095",
                                      "topk:64/128",
                                      "topk:1/131072",
                                      "topk:64/4096x",
                                      "topk:-1/256",
                                      "topk:64/4096/2",
                                      "topk:99999999999/256",
                                      "topk:8/256+sign+2bit",
                                      "topk:8/256+lz4+sign",
                                      "topk:8/256+int4",
                                      "topk:8/256+"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err err = {0};
        assert_int_equal(codec_spec_check(bad[i], &err), STATUS_INVALID);
        assert_true(err.msg[0] != 0);
    }
    /* Offsets have 32 bits: a fragment that may need more is refused with an error. */
    struct err err = {0};
    struct codec *codec = NULL;
    const struct codec_span vast = {.count = 1ull << 38, .rows = 1, .cols = 1ull << 38, .ndim = 2};
    enum status status = codec_create(&codec, "topk:64/4096", &vast, 1, &err);
    assert_true(status == STATUS_UNSUPPORTED || status == STATUS_NOMEM);
    assert_null(codec);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
