#include "tests/lib/device/large_case.h"
#include "tests/lib/test.h"

#include <sys/mman.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/delta_format.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/device_case.h"

enum { N = 300, COLS = 8, ROWS = 4, BLOCK = 64, CHUNK = 256, K = 16, WIDTH = 2048, TURNS = 16 };

void *large_map(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) skip();
    (void)madvise(p, bytes, MADV_NOHUGEPAGE);
    return p;
}

void large_unmap(void *p, uint64_t bytes)
{
    assert_int_equal(munmap(p, bytes), 0);
}

/* --- the device's memory ------------------------------------------------------------------------------------------ */

enum { THETA, GRAD, FIRST, SECOND, VECTORS };

struct large {
    struct device *dev;
    float *at[VECTORS]; /* [LARGE_FLOATS] */
};

static void put(const struct large *l, float *dst, const void *values, size_t bytes)
{
    l->dev->ops->upload(l->dev, dst, values, bytes);
    assert_int_equal(l->dev->ops->sync(l->dev, NULL), STATUS_OK);
}

static void get(const struct large *l, void *values, const float *src, size_t bytes)
{
    case_get(l->dev, values, src, bytes);
}

/* Writes the same random values at `place` of every vector. */
static void put_all(const struct large *l, uint64_t place, size_t n)
{
    float x[CHUNK * ROWS];
    assert_true(n <= sizeof x / sizeof *x);
    for (int v = 0; v < VECTORS; v++) {
        rng_normal_fill(11, RNG_TEST, (uint64_t)v << 40, 1, x, n);
        for (size_t i = 0; v == SECOND && i < n; i++) x[i] = x[i] * x[i];
        put(l, l->at[v] + place, x, n * sizeof *x);
    }
}

static void expect_same(const struct large *l, const char *what, int vector, uint64_t near, uint64_t far, size_t n)
{
    float a[CHUNK * ROWS], b[CHUNK * ROWS];
    get(l, a, l->at[vector] + near, n * sizeof *a);
    get(l, b, l->at[vector] + far, n * sizeof *b);
    if (memcmp(a, b, n * sizeof *a) != 0) fail_msg("%s: vector %d differs past 2^33 values", what, vector);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static void check_adamw(const struct large *l)
{
    const struct adamw_span near = {.count = N, .decay = true};
    const struct adamw_span far = {.offset = LARGE_FAR, .count = N, .decay = true, .skipped = (uint64_t)1 << 32};
    const struct adamw_hyper hyper = {
        .lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = 3};
    put_all(l, 0, N);
    put_all(l, LARGE_FAR, N);
    put_all(l, LARGE_FAR - far.skipped, N);
    l->dev->ops->adamw(l->dev, &near, 1, l->at[THETA], l->at[GRAD], l->at[FIRST], l->at[SECOND], &hyper, NULL);
    l->dev->ops->adamw(l->dev, &far, 1, l->at[THETA], l->at[GRAD], l->at[FIRST], l->at[SECOND], &hyper, NULL);
    expect_same(l, "adamw", THETA, 0, LARGE_FAR, N);
    expect_same(l, "adamw", FIRST, 0, LARGE_FAR - far.skipped, N);
    expect_same(l, "adamw", SECOND, 0, LARGE_FAR - far.skipped, N);
}

/* Rows more than 2^31 apart. */
static void check_muon(const struct large *l)
{
    const uint64_t ld = LARGE_FAR / (ROWS - 1);
    const struct muon_matrix near = {.rows = ROWS, .cols = COLS, .ld = COLS, .decay = true};
    const struct muon_matrix far = {.offset = 8, .rows = ROWS, .cols = COLS, .ld = ld, .decay = true};
    const struct muon_hyper hyper = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .steps = 2};
    struct muon_plan *plans[2];
    float x[COLS], y[COLS];
    put_all(l, 0, ROWS * COLS);
    for (int v = 0; v < VECTORS; v++)
        for (uint64_t row = 0; row < ROWS; row++) {
            get(l, x, l->at[v] + row * COLS, sizeof x);
            put(l, l->at[v] + (1 << 20) + row * COLS, x, sizeof x); /* row 0 of `far` lies at the position of `near` */
        }
    assert_int_equal(l->dev->ops->muon_plan(l->dev, &near, 1, &plans[0]), STATUS_OK);
    assert_int_equal(l->dev->ops->muon_plan(l->dev, &far, 1, &plans[1]), STATUS_OK);
    l->dev->ops->muon(l->dev, plans[0], l->at[THETA], l->at[GRAD], l->at[FIRST], &hyper, NULL);
    float want[2][ROWS][COLS];
    get(l, want[0], l->at[THETA], sizeof want[0]);
    get(l, want[1], l->at[FIRST], sizeof want[1]);
    for (int v = 0; v < VECTORS; v++)
        for (uint64_t row = 0; row < ROWS; row++) {
            get(l, x, l->at[v] + (1 << 20) + row * COLS, sizeof x);
            put(l, l->at[v] + far.offset + row * ld, x, sizeof x);
        }
    l->dev->ops->muon(l->dev, plans[1], l->at[THETA], l->at[GRAD], l->at[FIRST], &hyper, NULL);
    for (uint64_t row = 0; row < ROWS; row++)
        for (int v = 0; v < 2; v++) {
            get(l, y, l->at[v ? FIRST : THETA] + far.offset + row * ld, sizeof y);
            if (memcmp(y, want[v][row], sizeof y) != 0) fail_msg("muon: row %d differs", (int)row);
        }
    for (int i = 0; i < 2; i++) l->dev->ops->plan_free(l->dev, plans[i]);
}

/* A word whose row begins past 2^33 values. */
static void check_embed(const struct large *l)
{
    const int32_t token = (int32_t)(LARGE_FAR / WIDTH);
    float row[WIDTH], out[WIDTH];
    float *place = l->at[THETA] + (uint64_t)token * WIDTH, *made = l->at[GRAD], *tokens = l->at[FIRST];
    rng_normal_fill(12, RNG_TEST, 0, 1, row, WIDTH);
    put(l, place, row, sizeof row);
    put(l, tokens, &token, sizeof token);
    l->dev->ops->embed_fwd(l->dev, 1, 1, WIDTH, (const int32_t *)(const void *)tokens, l->at[THETA], NULL, made);
    get(l, out, made, sizeof out);
    assert_memory_equal(out, row, sizeof row);
    l->dev->ops->embed_bwd(l->dev, 1, 1, WIDTH, (const int32_t *)(const void *)tokens, made, l->at[THETA], NULL, true);
    get(l, out, place, sizeof out);
    for (size_t i = 0; i < WIDTH; i++) assert_true(out[i] == 2 * row[i]);
}

static void check_rope(const struct large *l)
{
    const uint64_t ld = LARGE_FAR / 2;
    const struct rope_shape near = {.n = 3, .seq = 3, .heads = 1, .head_dim = TURNS, .ld = TURNS};
    struct rope_shape far = near;
    float table[3 * TURNS], x[3 * TURNS];
    far.ld = ld;
    rng_normal_fill(13, RNG_TEST, 0, 1, table, 3 * TURNS);
    rng_normal_fill(14, RNG_TEST, 0, 1, x, 3 * TURNS);
    put(l, l->at[FIRST], table, sizeof table);
    put(l, l->at[GRAD], x, sizeof x);
    for (uint64_t row = 0; row < 3; row++) put(l, l->at[THETA] + row * ld, x + row * TURNS, TURNS * sizeof *x);
    l->dev->ops->rope(l->dev, &near, l->at[FIRST], l->at[GRAD], false);
    l->dev->ops->rope(l->dev, &far, l->at[FIRST], l->at[THETA], false);
    for (uint64_t row = 0; row < 3; row++) {
        float a[TURNS], b[TURNS];
        get(l, a, l->at[GRAD] + row * TURNS, sizeof a);
        get(l, b, l->at[THETA] + row * ld, sizeof b);
        assert_memory_equal(a, b, sizeof a);
    }
}

/* Pieces of a fragment of 2^33 values: the quantized values of the last pieces, and their sum. */
static void check_delta(const struct large *l, enum piece_kind kind, uint32_t length, uint32_t k)
{
    size_t chosen = kind <= PIECE_HALF ? k : 0, bytes = kind <= PIECE_HALF ? 0 : length;
    const struct piece_range pieces[] = {{.length = length, .k = k},
                                         {.from = LARGE_FAR, .out = chosen + bytes, .length = length, .k = k}};
    const struct delta_format shape = {.kind = kind,
                                       .n_values = LARGE_FAR + length,
                                       .n_pieces = 2,
                                       .n_chosen = 2 * chosen,
                                       .n_bytes = 2 * bytes,
                                       .longest = length,
                                       .k_max = k};
    struct delta_plan *plan;
    struct quantized_delta made;
    _Alignas(16) unsigned char host[4096];
    size_t size = delta_format_lay_out(&shape, host, &made);
    float *numbers = l->at[SECOND] + (1 << 20);
    assert_true(size <= sizeof host);
    put_all(l, 0, length);
    put_all(l, LARGE_FAR, length);
    assert_int_equal(l->dev->ops->delta_plan(l->dev, &shape, pieces, &plan), STATUS_OK);
    l->dev->ops->delta(l->dev, plan, l->at[THETA], l->at[GRAD], 0.5f, l->at[FIRST], l->at[SECOND], numbers);
    get(l, host, numbers, size);
    assert_memory_equal(&made.heads[0], &made.heads[1], sizeof *made.heads);
    assert_memory_equal(made.index, made.index + chosen, chosen * sizeof *made.index);
    assert_memory_equal(made.code, made.code + chosen, chosen * sizeof *made.code);
    assert_memory_equal(made.bytes, made.bytes + bytes, bytes);
    assert_true(made.heads[1].square > 0);
    expect_same(l, "delta", SECOND, 0, LARGE_FAR, length);
    l->dev->ops->delta_add(l->dev, plan, numbers, l->at[THETA]);
    expect_same(l, "delta_add", THETA, 0, LARGE_FAR, length);
    l->dev->ops->plan_free(l->dev, plan);
}

void large_case_check(struct device *dev, void *(*alloc)(struct device *dev, uint64_t bytes),
                      void (*release)(struct device *dev, void *p, uint64_t bytes))
{
    struct large l = {.dev = dev};
    const uint64_t bytes = LARGE_FLOATS * sizeof(float);
    for (int v = 0; v < VECTORS; v++) {
        l.at[v] = alloc(dev, bytes);
        if (!l.at[v]) skip(); /* a system without overcommit */
    }
    check_adamw(&l);
    check_muon(&l);
    check_embed(&l);
    check_rope(&l);
    check_delta(&l, PIECE_INT8, BLOCK, BLOCK);
    check_delta(&l, PIECE_SIGN, CHUNK, K);
    for (int v = 0; v < VECTORS; v++) release(dev, l.at[v], bytes);
}
