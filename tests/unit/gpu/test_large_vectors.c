/* Fragments and vectors of more than 2^33 values: sizes of payloads, their last values, and operations of a device.
 * ctest: labels=asan */
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/tensor/delta_format.h"
#include "compress/codec.h"
#include "compress/codec_stage.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/cpu/gemm.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/large_case.h"
#include "tests/lib/test.h"

enum { PLAIN = 4096 };
#define MATRIX ((uint64_t)1 << 33)
#define VALUES (MATRIX + PLAIN)

static struct codec *codec_of(const char *spec)
{
    const struct codec_span spans[] = {
        {.count = MATRIX, .rows = 1 << 17, .cols = 1 << 16, .ndim = 2},
        {.offset = MATRIX, .count = PLAIN, .rows = 1, .cols = PLAIN, .ndim = 1},
    };
    struct codec *codec;
    struct err err = {0};
    if (codec_create(&codec, spec, spans, 2, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return codec;
}

static void expect_parts(const char *spec, uint64_t bound)
{
    struct codec *codec = codec_of(spec);
    uint64_t at = 0;
    assert_int_equal(codec_count(codec), VALUES);
    assert_int_equal(codec_bound(codec), bound);
    for (size_t p = 0, n = codec_parts(codec); p < n; p++) {
        assert_int_equal(codec_part(codec, p).from, at);
        at = codec_part(codec, p).to;
    }
    assert_int_equal(at, VALUES);
    codec_destroy(codec);
}

/* Sizes of a payload, and of the quantized values on a device. */
TEST(test_payload_sizes_exceed_32_bits)
{
    const uint64_t blocks = MATRIX / 65536;
    expect_parts("fp32", 4 * VALUES);
    expect_parts("bf16", 2 * VALUES);
    expect_parts("int8:65536", 4 * (blocks + 1) + VALUES);
    expect_parts("int4:65536", 2 * PLAIN + 2 * blocks + MATRIX / 2);
    expect_parts("2bit:65536", 2 * PLAIN + 3 * blocks + MATRIX / 4);
    expect_parts("1bit:65536", 2 * PLAIN + 2 * blocks + MATRIX / 8);
    /* the bits of gaps, signs and scales; below, groups of two chunks and their offsets */
    const uint64_t bits = blocks * (64 * (3 + 16 + 1) + 20 + 4);
    expect_parts("topk:64/65536+sign", 2 * PLAIN + bits / 8 + blocks / 2 * (4 + 2 + 1));
    for (int i = 0; i < 2; i++) {
        const struct byte_stage *const stages[] = {&codec_lz4, &codec_huff};
        uint64_t bytes = stages[i]->bound(4 * VALUES);
        assert_true(bytes > 4 * VALUES && bytes < 4 * VALUES + VALUES / 1024);
    }
}

/* Offsets in a top-k payload have 32 bits: a larger fragment is refused. */
TEST(test_topk_refuses_too_large_fragment)
{
    const struct codec_span span = {.count = MATRIX, .rows = 1 << 17, .cols = 1 << 16, .ndim = 2};
    struct codec *codec;
    struct err err = {0};
    assert_int_equal(codec_create(&codec, "topk:4095/4096+sign", &span, 1, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "a fragment of 8589934592 values is too large for it"));
    assert_non_null(strstr(err.msg, "train.fragments"));
}

/* Decodes the last value of the matrix, from a payload of zeros with n bytes at `at` and n_head bytes at `head_at`. */
static float far_value(const char *spec, uint64_t at, const void *bytes, size_t n, uint64_t head_at, const void *head,
                       size_t n_head)
{
    struct codec *codec = codec_of(spec);
    uint64_t size = codec_bound(codec);
    uint8_t *payload = large_map(size);
    const struct codec_view view = {.codec = codec, .payload = payload, .size = size};
    struct codec_part part = codec_part(codec, codec_parts(codec) - 1);
    while (part.from >= MATRIX) part = codec_part(codec, part.index - 1);
    float *x = mem_alloc(part.to - part.from, sizeof *x), *last = x + (MATRIX - 1 - part.from);
    memcpy(payload + at, bytes, n);
    if (n_head) memcpy(payload + head_at, head, n_head);
    codec_view_decode(&view, part.index, x);
    float value = *last;
    codec_view_axpy(&view, part.index, 1, x);
    assert_true(*last == 2 * value);
    mem_free(x);
    large_unmap(payload, size);
    codec_destroy(codec);
    return value;
}

TEST(test_last_value_of_large_payload_is_decoded)
{
    const float x = 1.5f;
    const uint16_t half = 0x3fc0;
    const uint8_t code = 3, nibble = 0x30, scale[2] = {0, 127}; /* 2^0 */
    const uint64_t blocks = MATRIX / 65536;
    assert_true(far_value("fp32", 4 * (MATRIX - 1), &x, 4, 0, NULL, 0) == 1.5f);
    assert_true(far_value("bf16", 2 * (MATRIX - 1), &half, 2, 0, NULL, 0) == 1.5f);
    assert_true(far_value("int8:65536", 4 * (blocks + 1) + MATRIX - 1, &code, 1, 4 * (blocks - 1), &x, 4) == 4.5f);
    assert_true(far_value("int4:65536", 2 * PLAIN + 2 * blocks + MATRIX / 2 - 1, &nibble, 1,
                          2 * PLAIN + 2 * (blocks - 1), scale, 2) == 3);
}

TEST(test_offsets_of_chunks_exceed_32_bits)
{
    static const char *const specs[] = {"int8:65536", "int4:65536", "topk:64/65536+sign"};
    for (int i = 0; i < 3; i++) {
        struct codec *codec = codec_of(specs[i]);
        struct delta_format shape;
        struct quantized_delta numbers;
        assert_true(codec_delta_format(codec, &shape, NULL));
        struct piece_range *pieces = mem_alloc(shape.n_pieces, sizeof *pieces), *last = &pieces[shape.n_pieces - 2];
        assert_true(codec_delta_format(codec, &shape, pieces));
        assert_int_equal(shape.n_values, VALUES);
        assert_int_equal(shape.n_pieces, MATRIX / 65536 + 1);
        assert_int_equal(last->from, MATRIX - 65536);
        const uint64_t outs[] = {MATRIX - 65536, (MATRIX - 65536) / 2, 64 * (MATRIX / 65536 - 1)};
        assert_int_equal(last->out, outs[i]);
        assert_int_equal(last[1].from, MATRIX);
        assert_true(delta_format_lay_out(&shape, NULL, &numbers) >
                    shape.n_pieces * sizeof *numbers.heads + shape.n_bytes);
        mem_free(pieces);
        codec_destroy(codec);
    }
}

/* ---- operations -------------------------------------------------------------------------------------------------- */

static void *map_vector(struct device *dev, uint64_t bytes)
{
    (void)dev;
    return large_map(bytes);
}

static void unmap_vector(struct device *dev, void *p, uint64_t bytes)
{
    (void)dev;
    large_unmap(p, bytes);
}

static void check_operations(struct device *dev)
{
    large_case_check(dev, map_vector, unmap_vector);
}

TEST(test_operations_reach_far_values)
{
    device_case_each(check_operations);
}

/* Rows of A, B and C that lie 2^32 values apart. */
TEST(test_products_reach_far_rows)
{
    enum { M = 3, COLS = 5, DEPTH = 4 };
    const uint64_t ld = (uint64_t)1 << 32, bytes = (DEPTH * ld + 4096) * sizeof(float);
    float *a = large_map(bytes), *b = large_map(bytes), *c = large_map(bytes);
    struct pool *pool;
    void *scratch = mem_alloc(1, gemm_scratch_bytes());
    assert_int_equal(pool_create(1, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (uint64_t i = 0; i < M; i++)
        for (uint64_t k = 0; k < DEPTH; k++) a[i * ld + k] = (float)(i + 2 * k);
    for (uint64_t k = 0; k < DEPTH; k++)
        for (uint64_t j = 0; j < COLS; j++) b[k * ld + j] = (float)(3 * k + j);
    gemm_run(&(struct gemm){.m = M, .n = COLS, .k = DEPTH, .a = a, .lda = ld, .b = b, .ldb = ld, .c = c, .ldc = ld},
             cpu_kernels_select(NULL), pool, &scratch);
    for (uint64_t i = 0; i < M; i++)
        for (uint64_t j = 0; j < COLS; j++) {
            float sum = 0;
            for (uint64_t k = 0; k < DEPTH; k++) sum += (float)((i + 2 * k) * (3 * k + j));
            assert_true(c[i * ld + j] == sum);
        }
    pool_destroy(pool);
    mem_free(scratch);
    large_unmap(a, bytes);
    large_unmap(b, bytes);
    large_unmap(c, bytes);
}

TEST_MAIN(NULL, NULL)
