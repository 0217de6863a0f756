/* Tests the outer path of the emulated CUDA device against the codecs with error feedback: payload and residual have
 * the same bits. ctest: labels=asan timeout=240 */
#include <math.h>

#include "common/base/mem.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/delta_case.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct device *open_cuda(unsigned order)
{
    emulate_order(order);
    return cuda_begin(false);
}

/* Run every codec on every kind of values, with ascending, descending and shuffled threads in turn. */
static void each_case(const char *const *specs, size_t n_specs)
{
    size_t n_spans, at = 0;
    const struct codec_span *spans = delta_case_spans(&n_spans);
    for (size_t i = 0; i < n_specs; i++)
        for (int values = 0; values < DELTA_N; values++, at++) {
            struct device *dev = open_cuda((unsigned)at % 3);
            delta_case_check(dev, specs[i], spans, n_spans, (enum delta_values)values,
                             (enum delta_call)(at % DELTA_CALLS));
            cuda_end(dev);
        }
}

TEST(test_chunks)
{
    static const char *const specs[] = {"topk:64/4096", "topk:40/2048+2bit", "topk:200/4096+2bit", "topk:3/256+int8",
                                        "topk:30/1024+fp16+huff"};
    each_case(specs, COUNT(specs));
}

TEST(test_blocks)
{
    static const char *const specs[] = {"int8", "int8:100+lz4", "int4:128", "2bit", "2bit:8192", "1bit:192"};
    each_case(specs, COUNT(specs));
}

/* The device adds updates. */
TEST(test_updates_are_added)
{
    static const char *const specs[] = {
        "topk:64/4096", "topk:200/4096+2bit", "topk:3/256+int8", "topk:30/1024+fp16+huff",
        "int8:100+lz4", "int4:128",           "2bit:8192",       "1bit:192+huff",
        "int8"};
    size_t n_spans;
    const struct codec_span *spans = delta_case_spans(&n_spans);
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int values = 0; values < DELTA_N; values++) {
            struct device *dev = open_cuda((unsigned)values % 3);
            delta_case_add(dev, specs[i], spans, n_spans, (enum delta_values)values);
            cuda_end(dev);
        }
}

/* The device sums in the order of the format, also for values whose sum depends on the order. */
TEST(test_order)
{
    static const struct codec_span span = {.count = 300, .rows = 2, .cols = 150, .ndim = 2};
    struct device *dev = open_cuda(0);
    delta_case_check(dev, "topk:32/256", &span, 1, DELTA_CHUNK_ORDER, DELTA_CALL_ALONE);
    delta_case_check(dev, "1bit:64", &span, 1, DELTA_BLOCK_ORDER, DELTA_CALL_ALONE);
    cuda_end(dev);
}

/* The largest K that fits into shared memory, and more ties than K. */
TEST(test_many_chosen)
{
    static const struct codec_span span = {.count = 1500, .rows = 2, .cols = 750, .ndim = 2};
    struct device *dev = open_cuda(2);
    delta_case_check(dev, "topk:1024/2048", &span, 1, DELTA_TIES, DELTA_CALL);
    cuda_end(dev);
}

TEST(test_not_finite)
{
    static const struct codec_span span = {.count = 600, .rows = 2, .cols = 300, .ndim = 2};
    static const char *const specs[] = {"topk:8/256", "int4:64", "int8:256"};
    float x[600];
    uint8_t payload[2048];
    size_t size = 77;
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int nan = 0; nan < 2; nan++) {
            struct device *dev = open_cuda(0);
            struct codec *codec = delta_case_codec(specs[i], &span, 1);
            void *room;
            delta_case_fill(DELTA_NORMAL, 1, x, COUNT(x));
            x[599] = nan ? NAN : -INFINITY;
            struct quantized_delta numbers = delta_case_numbers(dev, codec, x, &room);
            assert_int_equal(numbers.heads[0].bad, 0);
            assert_int_equal(codec_encode_quantized(codec, &numbers, payload, sizeof payload, &size), STATUS_NONFINITE);
            assert_int_equal(size, 77);
            mem_free(room);
            codec_destroy(codec);
            cuda_end(dev);
        }
}

/* Chunks too large for a thread block are refused; the caller still owns the codec. */
TEST(test_refusals)
{
    static const struct codec_span span = {.count = 20000, .rows = 2, .cols = 10000, .ndim = 2};
    static const char *const specs[] = {"topk:64/8192", "topk:1025/4096"};
    struct piece_range pieces[8];
    struct delta_format shape;
    struct delta_plan *plan = NULL;
    struct lin_plan *lin;
    struct err err = {0};
    struct device *dev = open_cuda(0);
    for (size_t i = 0; i < COUNT(specs); i++) {
        struct codec *codec = delta_case_codec(specs[i], &span, 1);
        assert_true(codec_delta_format(codec, &shape, pieces));
        assert_true(shape.n_pieces <= COUNT(pieces));
        assert_int_equal(dev->ops->delta_plan(dev, &shape, pieces, &plan), STATUS_UNSUPPORTED);
        codec_destroy(codec);
    }
    shape.n_pieces = 0;
    assert_int_equal(dev->ops->delta_plan(dev, &shape, pieces, &plan), STATUS_INVALID);
    shape.n_pieces = 1;
    shape.k_max = 4;
    mem_fail_after(1);
    assert_int_equal(dev->ops->delta_plan(dev, &shape, pieces, &plan), STATUS_NOMEM);
    assert_int_equal(dev->ops->lin_plan(dev, &(struct lin_shape){.n = 1, .k = 1, .m = 1}, &lin), STATUS_OK);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_OK);
    dev->ops->delta_add(dev, (struct delta_plan *)lin, NULL, NULL);
    dev->ops->delta(dev, (struct delta_plan *)lin, NULL, NULL, 0, NULL, NULL, NULL);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_INVALID);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
