/* Tests the outer path of the emulated CUDA device against the codecs with error feedback: payload and residual have
 * the same bits. ctest: labels=asan timeout=240 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/delta_case.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct device *open_cuda(unsigned order)
{
    struct device *dev = NULL;
    struct err err = {0};
    emulate_order(order);
    if (atoll_cuda_plugin.open(0, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return dev;
}

static void close_cuda(struct device *dev)
{
    struct err err = {0};
    if (dev->ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
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
            close_cuda(dev);
        }
}

static void test_chunks(void **state)
{
    static const char *const specs[] = {"topk:64/4096", "topk:40/2048+2bit", "topk:200/4096+2bit", "topk:3/256+int8",
                                        "topk:30/1024+fp16+huff"};
    (void)state;
    each_case(specs, COUNT(specs));
}

static void test_blocks(void **state)
{
    static const char *const specs[] = {"int8", "int8:100+lz4", "int4:128", "2bit", "2bit:8192", "1bit:192"};
    (void)state;
    each_case(specs, COUNT(specs));
}

/* The device adds updates. */
static void test_add(void **state)
{
    static const char *const specs[] = {
        "topk:64/4096", "topk:200/4096+2bit", "topk:3/256+int8", "topk:30/1024+fp16+huff",
        "int8:100+lz4", "int4:128",           "2bit:8192",       "1bit:192+huff",
        "int8"};
    size_t n_spans;
    const struct codec_span *spans = delta_case_spans(&n_spans);
    (void)state;
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int values = 0; values < DELTA_N; values++) {
            struct device *dev = open_cuda((unsigned)values % 3);
            delta_case_add(dev, specs[i], spans, n_spans, (enum delta_values)values);
            close_cuda(dev);
        }
}

/* The device sums in the order of the format, also for values whose sum depends on the order. */
static void test_order(void **state)
{
    static const struct codec_span span = {.count = 300, .rows = 2, .cols = 150, .ndim = 2};
    (void)state;
    struct device *dev = open_cuda(0);
    delta_case_check(dev, "topk:32/256", &span, 1, DELTA_CHUNK_ORDER, DELTA_CALL_ALONE);
    delta_case_check(dev, "1bit:64", &span, 1, DELTA_BLOCK_ORDER, DELTA_CALL_ALONE);
    close_cuda(dev);
}

/* The largest K that fits into shared memory, and more ties than K. */
static void test_many_chosen(void **state)
{
    static const struct codec_span span = {.count = 1500, .rows = 2, .cols = 750, .ndim = 2};
    (void)state;
    struct device *dev = open_cuda(2);
    delta_case_check(dev, "topk:1024/2048", &span, 1, DELTA_TIES, DELTA_CALL);
    close_cuda(dev);
}

static void test_not_finite(void **state)
{
    static const struct codec_span span = {.count = 600, .rows = 2, .cols = 300, .ndim = 2};
    static const char *const specs[] = {"topk:8/256", "int4:64", "int8:256"};
    float x[600];
    uint8_t payload[2048];
    size_t size = 77;
    (void)state;
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
            close_cuda(dev);
        }
}

/* Chunks too large for a thread block are refused; the caller still owns the codec. */
static void test_refusals(void **state)
{
    static const struct codec_span span = {.count = 20000, .rows = 2, .cols = 10000, .ndim = 2};
    static const char *const specs[] = {"topk:64/8192", "topk:1025/4096"};
    struct piece_range pieces[8];
    struct delta_format shape;
    struct delta_plan *plan = NULL;
    struct lin_plan *lin;
    struct err err = {0};
    (void)state;
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

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),     cmocka_unit_test(test_blocks),   cmocka_unit_test(test_many_chosen),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_refusals), cmocka_unit_test(test_order),
        cmocka_unit_test(test_add),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
