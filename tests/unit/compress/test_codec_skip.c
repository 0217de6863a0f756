/* The stage that leaves out zeros: the format of docs/codecs.md, sections behind it, hostile bytes, and what a row that
 * nobody touched costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/codec_stage.h"
#include "compress/feedback.h"

enum { N = 3000, ROOM = N + 64 };

enum kind { NO_ZEROS, ALL_ZEROS, SHORT_RUNS, LONG_RUNS, MOSTLY_ZEROS, N_KINDS };

/* Stretches of zeros and of other bytes, of random lengths. */
static void fill(enum kind kind, uint64_t seed, uint8_t *bytes, size_t n)
{
    static const unsigned zeros[] = {0, N, 20, 600, 300}, others[] = {N, 0, 20, 600, 3};
    for (size_t i = 0, draw = 0; i < n; draw++) {
        uint64_t r = rng_u64(seed, RNG_TEST, draw);
        unsigned most = draw & 1 ? zeros[kind] : others[kind];
        for (size_t k = 0, length = most ? (r >> 32) % most + 1 : 0; k < length && i < n; k++, i++)
            bytes[i] = draw & 1 ? 0 : (uint8_t)(1 + rng_u64(seed + 1, RNG_TEST, i) % 255);
    }
}

static size_t put(uint8_t *out, size_t at, uint64_t v)
{
    for (; v > 127; v >>= 7) out[at++] = (uint8_t)(v & 127) | 128;
    out[at++] = (uint8_t)v;
    return at;
}

/* The stage as docs/codecs.md tells it: first mark the bytes to leave out, then write. ends[]: of the sections among
 * the literals, counted from the first byte out. */
static size_t slow_encode(const struct payload_shape *shape, const uint8_t *in, size_t n, uint8_t *out, size_t ends[4])
{
    static bool left_out[N];
    memset(left_out, 0, sizeof left_out);
    for (size_t s = 0, from = 0; s <= shape->n_sections && from < n; s++) {
        bool rest = s == shape->n_sections;
        size_t to = rest || shape->section[s].to > n ? n : shape->section[s].to;
        size_t width = rest ? shape->width : shape->section[s].width;
        for (size_t i = from, k; i < to; i = k + 1) {
            for (k = i; k < to && !in[k]; k++) continue;
            size_t begin = i, end = k;
            while ((begin - from) % width) begin++;
            while ((end - from) % width) end--;
            for (size_t b = begin; end >= begin + 8 && b < end; b++) left_out[b] = true;
        }
        from = to;
    }
    size_t at = 8;
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)((uint64_t)n >> 8 * i);
    for (size_t i = 0; i < n;) {
        size_t literals = 0, zeros = 0;
        for (; i < n && !left_out[i]; i++) literals++;
        for (; i < n && left_out[i]; i++) zeros++;
        at = put(out, put(out, at, literals), zeros);
    }
    while (at % 4) out[at++] = 0;
    for (size_t i = 0, s = 0; i <= n; i++) {
        for (; s < shape->n_sections && (shape->section[s].to == i || i == n); s++) ends[s] = at;
        if (i < n && !left_out[i]) out[at++] = in[i];
    }
    return at;
}

static const struct payload_shape shapes[] = {
    {.width = 1},
    {.width = 2},
    {.width = 4},
    {.width = 1, .n_sections = 1, .section = {{1204, 4}}},
    {.width = 1, .n_sections = 2, .section = {{0, 2}, {600, 2}}},
    {.width = 1, .n_sections = 2, .section = {{10, 2}, {500, 3}}},
    {.width = 4, .n_sections = 2, .section = {{77, 1}, {2901, 4}}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static void check_shape(const struct payload_shape *shape, const uint8_t *out, size_t size, const size_t ends[4])
{
    struct payload_shape next = *shape;
    codec_skip.reshape(out, size, &next);
    assert_int_equal(next.width, shape->width);
    assert_int_equal(next.n_sections, shape->n_sections + 1);
    assert_int_equal(next.section[0].width, 1);
    for (size_t s = 0; s < shape->n_sections; s++) {
        assert_int_equal(next.section[s + 1].to, ends[s]);
        assert_int_equal(next.section[s + 1].width, shape->section[s].width);
    }
}

static void check_bytes(const struct payload_shape *shape, const uint8_t *in, size_t n)
{
    static uint8_t want[ROOM];
    size_t size = 0, got = 0, ends[4] = {0}, bound = codec_skip.bound(n);
    uint8_t *out = mem_alloc(1, bound + 1), *again = mem_alloc(1, n + 1); /* exact, for the sanitizer */
    size_t expected = slow_encode(shape, in, n, want, ends);
    out[bound] = again[n] = 0x5a;
    assert_int_equal(codec_skip.encode(NULL, shape, in, n, out, bound, &size), STATUS_OK);
    assert_true(size <= bound);
    assert_int_equal(size, expected);
    assert_memory_equal(out, want, size);
    check_shape(shape, out, size, ends);
    memset(again, 0x77, n);
    assert_int_equal(codec_skip.decode(NULL, shape, out, size, again, n, &got), STATUS_OK);
    assert_int_equal(got, n);
    assert_memory_equal(again, in, n);
    assert_true(out[bound] == 0x5a && again[n] == 0x5a);
    if (n) assert_int_equal(codec_skip.decode(NULL, shape, out, size, again, n - 1, &got), STATUS_CORRUPT);
    for (size_t cap = 0; cap < size; cap += 1 + size / 9) {
        memset(out, 0x5a, bound);
        assert_int_equal(codec_skip.encode(NULL, shape, in, n, out, cap, &got), STATUS_LIMIT);
        for (size_t i = cap; i < bound; i++) assert_int_equal(out[i], 0x5a);
    }
    mem_free(again);
    mem_free(out);
}

static void test_reference(void **state)
{
    (void)state;
    static uint8_t in[N];
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int kind = 0; kind < N_KINDS; kind++)
            for (size_t n = 0; n <= N; n += n < 40 ? 1 : n / 3)
                for (uint64_t seed = 0; seed < 3; seed++) {
                    fill((enum kind)kind, seed * 100 + n, in, n);
                    check_bytes(&shapes[s], in, n);
                }
    assert_int_equal(mem_live_bytes(), 0);
}

/* Every place and length of one run, so that no word of the search is missed. */
static void test_every_run(void **state)
{
    (void)state;
    uint8_t in[48];
    for (size_t length = 1; length <= 40; length++)
        for (size_t at = 0; at + length <= sizeof in; at++)
            for (size_t second = 0; second < 2; second++) {
                memset(in, 9, sizeof in);
                memset(in + at, 0, length);
                if (second && at + length + 9 <= sizeof in) memset(in + at + length + 1, 0, 8);
                for (size_t s = 0; s < 3; s++) check_bytes(&shapes[s], in, sizeof in);
            }
}

static void test_by_hand(void **state)
{
    (void)state;
    /* 7 zeros stay, 8 go, at the end too; 200 bytes more take a varint of two. */
    static uint8_t in[2 + 7 + 1 + 8 + 200 + 9], out[300];
    static const uint8_t head[] = {227, 0, 0, 0, 0, 0, 0, 0, 10, 8, 0xc8, 1, 9, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1};
    size_t size;
    memset(in, 1, sizeof in);
    memset(in + 2, 0, 7);
    memset(in + 10, 0, 8);
    memset(in + 218, 0, 9);
    assert_int_equal(codec_skip.encode(NULL, &shapes[0], in, sizeof in, out, sizeof out, &size), STATUS_OK);
    assert_int_equal(size, 16 + 10 + 200);
    assert_memory_equal(out, head, sizeof head);
}

/* ---- hostile bytes ----------------------------------------------------------------------------------------------- */

static enum status judge(const uint8_t *packed, size_t size, size_t cap)
{
    size_t got = 77;
    uint8_t *copy = mem_alloc(1, size + 1), *out = mem_alloc(1, cap + 1);
    memcpy(copy + 1, packed, size);
    out[cap] = 0x5a;
    enum status status = codec_skip.decode(NULL, &shapes[0], copy + 1, size, out, cap, &got);
    assert_int_equal(out[cap], 0x5a);
    if (status != STATUS_OK) {
        assert_int_equal(status, STATUS_CORRUPT);
        assert_int_equal(got, 77);
    } else {
        assert_true(got <= cap);
    }
    mem_free(out);
    mem_free(copy);
    return status;
}

static void test_hostile(void **state)
{
    (void)state;
    static uint8_t in[N], packed[ROOM + 100], kept[ROOM + 100];
    for (int kind = 0; kind < N_KINDS; kind++) {
        size_t size, n = 700;
        fill((enum kind)kind, 5, in, n);
        memset(packed, 0, sizeof packed);
        assert_int_equal(codec_skip.encode(NULL, &shapes[0], in, n, packed, ROOM, &size), STATUS_OK);
        assert_int_equal(judge(packed, size, n), STATUS_OK);
        for (size_t cut = 0; cut < size; cut++) assert_int_equal(judge(packed, cut, n), STATUS_CORRUPT);
        for (size_t more = 1; more < 20; more++) assert_int_equal(judge(packed, size + more, n), STATUS_CORRUPT);
        for (size_t bit = 0; bit < 8 * 64; bit++) { /* sizes and pairs: what a flipped bit leaves has other lengths */
            memcpy(kept, packed, size);
            kept[bit / 8] ^= (uint8_t)(1 << bit % 8);
            (void)judge(kept, size, n);
            if (bit < 64) assert_int_equal(judge(kept, size, n), STATUS_CORRUPT);
        }
        for (uint64_t round = 0; round < 3000; round++) {
            memcpy(kept, packed, sizeof kept);
            for (uint64_t k = 0; k <= round % 5; k++) {
                uint64_t r = rng_u64(round, RNG_TEST, k);
                kept[(r >> 8) % (round & 1 ? size : 32)] = (uint8_t)r;
            }
            (void)judge(kept, size, n);
        }
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* Each rule broken alone. */
static void test_rules(void **state)
{
    (void)state;
    static const struct {
        enum status verdict;
        size_t size;
        uint8_t bytes[24];
    } cases[] = {
        {STATUS_OK, 8, {0}},                                  /* nothing */
        {STATUS_OK, 12, {8, [8] = 0, 8}},                     /* zeros alone */
        {STATUS_OK, 13, {1, [8] = 1, 0, [12] = 5}},           /* a literal alone */
        {STATUS_OK, 14, {10, [8] = 1, 8, 1, 0, [12] = 5, 6}}, /* both */
        {STATUS_CORRUPT, 0, {0}},                             /* no size */
        {STATUS_CORRUPT, 7, {0}},
        {STATUS_CORRUPT, 9, {0}},                    /* something follows */
        {STATUS_CORRUPT, 12, {8, 1, [8] = 0, 8}},    /* larger than the payload can be */
        {STATUS_CORRUPT, 12, {7, [8] = 0, 7}},       /* a run too short to be left out */
        {STATUS_CORRUPT, 12, {8, [8] = 0, 9}},       /* past the end */
        {STATUS_CORRUPT, 12, {8, [8] = 0, 7}},       /* not the end */
        {STATUS_CORRUPT, 12, {8, [8] = 0, 0x88, 0}}, /* a varint longer than it need be */
        {STATUS_CORRUPT, 20, {8, [8] = 0, 0x88, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0}}, /* and than any */
        {STATUS_CORRUPT, 12, {8, [8] = 0, 8, 1}},                                        /* padding that is not 0 */
        {STATUS_CORRUPT, 10, {8, [8] = 0, 8}},                                           /* padding that is missing */
        {STATUS_CORRUPT, 12, {16, [8] = 0, 8, 0, 8}},             /* two runs without a literal */
        {STATUS_CORRUPT, 14, {2, [8] = 1, 0, 1, 0, [12] = 5, 6}}, /* two literals without a run */
        {STATUS_CORRUPT, 14, {1, [8] = 1, 0, [12] = 5, 6}},       /* a literal too many */
        {STATUS_CORRUPT, 13, {2, [8] = 2, 0, [12] = 5}},          /* and one too few */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum status verdict = judge(cases[i].bytes, cases[i].size, 100);
        if (verdict != cases[i].verdict) fail_msg("case %zu: %s", i, status_text(verdict));
    }
}

/* ---- what it is for ---------------------------------------------------------------------------------------------- */

enum { ROWS = 2048, COLS = 256, VALUES = ROWS * COLS };

static bool touched(size_t row)
{
    return rng_u64(3, RNG_TEST, row) % 10 == 0;
}

static double bits_of(const char *spec, const float *x, size_t n, float *decoded)
{
    struct codec *codec = NULL;
    const struct codec_span span = {.count = n, .rows = n / COLS, .cols = COLS, .ndim = 2};
    struct err err;
    if (codec_create(&codec, spec, &span, 1, &err) != STATUS_OK) fail_msg("%s", err.msg);
    size_t size, bound = codec_bound(codec);
    uint8_t *bytes = mem_alloc(1, bound);
    assert_int_equal(codec_encode(codec, x, bytes, bound, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(codec, bytes, size, decoded), STATUS_OK);
    mem_free(bytes);
    codec_destroy(codec);
    return 8.0 * (double)size;
}

/* Nine rows of ten are zeros: they cost next to nothing, beside what the others cost alone, and stay zeros. */
static void test_untouched_rows(void **state)
{
    (void)state;
    static const char *const specs[] = {"fp32", "bf16",     "fp16",     "int8:256", "int4:256",
                                        "e3m0", "2bit:256", "1bit:256", "int8:64",  "int4:128"};
    static const char *const tails[] = {"", "+huff"};
    float *x = mem_alloc(VALUES, sizeof *x), *some = mem_alloc(VALUES, sizeof *x), *y = mem_alloc(VALUES, sizeof *x);
    size_t n = 0;
    rng_normal_fill(4, RNG_TEST, 0, 1e-3f, x, VALUES);
    for (size_t row = 0; row < ROWS; row++) {
        float *values = x + row * COLS;
        if (!touched(row)) memset(values, 0, COLS * sizeof *x);
        if (touched(row)) memcpy(some + n++ * COLS, values, COLS * sizeof *x);
    }
    for (size_t s = 0; s < 2 * sizeof specs / sizeof *specs; s++) {
        char with[64], without[64];
        snprintf(without, sizeof without, "%s%s", specs[s / 2], tails[s % 2]);
        snprintf(with, sizeof with, "%s+skip%s", specs[s / 2], tails[s % 2]);
        double alone = bits_of(without, some, n * COLS, y), all = bits_of(with, x, VALUES, y);
        double each = (all - alone) / (double)(VALUES - n * COLS);
        if (each > 0.021) fail_msg("%s: %.4f bits for each value of a row that nobody touched", with, each);
        for (size_t i = 0; i < VALUES; i++)
            if (x[i] == 0 && y[i] != 0) fail_msg("%s: value %zu is %g", with, i, y[i]);
    }
    mem_free(y);
    mem_free(some);
    mem_free(x);
    assert_int_equal(mem_live_bytes(), 0);
}

/* With error feedback too: what was not touched owes nothing, and is not sent later. */
static void test_feedback_stays_zero(void **state)
{
    (void)state;
    enum { SMALL = 32 * COLS, CAP = 8 * SMALL };
    static const char *const specs[] = {"int4:256+skip", "1bit:256+skip+huff", "2bit:128+skip", "bf16+skip+lz4",
                                        "topk:16/256+skip"};
    static float delta[SMALL], sent[SMALL];
    static uint8_t bytes[CAP];
    const struct codec_span span = {.count = SMALL, .rows = 32, .cols = COLS, .ndim = 2};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct codec *codec = NULL;
        struct feedback fb;
        assert_int_equal(codec_create(&codec, specs[s], &span, 1, NULL), STATUS_OK);
        assert_int_equal(feedback_init(&fb, SMALL, codec_feedback_decay(codec), true), STATUS_OK);
        for (uint64_t round = 0; round < 20; round++) {
            size_t size;
            rng_normal_fill(round, RNG_TEST, 0, 1e-3f, delta, SMALL);
            for (size_t i = 0; i < SMALL; i++)
                if (i / COLS % 4) delta[i] = 0;
            assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
            assert_int_equal(codec_decode(codec, bytes, size, sent), STATUS_OK);
            for (size_t i = 0; i < SMALL; i++)
                if (i / COLS % 4) assert_true(sent[i] == 0 && fb.residual[i] == 0);
            feedback_commit(&fb);
        }
        feedback_finish(&fb);
        codec_destroy(codec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_every_run),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_untouched_rows),
        cmocka_unit_test(test_feedback_stays_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
