/* Payloads from the quantized values of a device (here the CPU's plain loops). They equal the codec's own bytes for
 * every stage with that form; values that no floats give are refused. */

#include "common/base/mem.h"
#include "tests/lib/device/delta_case.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct device *open_cpu(void)
{
    struct device *dev = NULL;
    struct err err = {0};
    if (device_open("cpu", 1, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return dev;
}

TEST(test_quantized_values_give_bytes_of_codec)
{
    static const char *const specs[] = {"topk:64/4096",
                                        "topk:40/2048+2bit",
                                        "topk:200/4096+2bit+lz4",
                                        "topk:3/256+int8",
                                        "topk:30/1024+fp16+huff",
                                        "topk:9000/16384",
                                        "topk:1/256+fp16",
                                        "topk:255/256+int8",
                                        "int8",
                                        "int8:100+lz4",
                                        "int8:65536",
                                        "int4:128+huff",
                                        "int4:65536",
                                        "2bit",
                                        "2bit:8192",
                                        "1bit:192",
                                        "1bit:64"};
    size_t n_spans;
    const struct codec_span *spans = delta_case_spans(&n_spans);
    struct device *dev = open_cpu();
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int values = 0; values < DELTA_N; values++)
            for (int call = 0; call < DELTA_CALLS; call++)
                delta_case_check(dev, specs[i], spans, n_spans, (enum delta_values)values, (enum delta_call)call);
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int values = 0; values < DELTA_N; values++)
            delta_case_add(dev, specs[i], spans, n_spans, (enum delta_values)values);
    delta_case_check(dev, "topk:32/256", spans, n_spans, DELTA_CHUNK_ORDER, DELTA_CALL_ALONE);
    delta_case_check(dev, "1bit:64", spans, n_spans, DELTA_BLOCK_ORDER, DELTA_CALL_ALONE);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Several groups, so that the payload has offsets between them. */
TEST(test_several_groups_give_bytes_of_codec)
{
    static const struct codec_span spans[] = {{.count = 400000, .rows = 400, .cols = 1000, .ndim = 2},
                                              {.offset = 400000, .count = 5000, .rows = 1, .cols = 5000, .ndim = 1}};
    struct device *dev = open_cpu();
    delta_case_check(dev, "topk:64/4096", spans, 2, DELTA_NORMAL, DELTA_CALL);
    delta_case_check(dev, "int4", spans, 2, DELTA_NORMAL, DELTA_CALL);
    delta_case_add(dev, "topk:64/4096", spans, 2, DELTA_NORMAL);
    delta_case_add(dev, "topk:2000/4096+fp16", spans, 2, DELTA_NORMAL); /* more than one slice per chunk */
    device_close(dev);
}

enum { N = 700 };

static const struct codec_span span_pair[] = {{.count = 600, .rows = 2, .cols = 300, .ndim = 2},
                                              {.offset = 600, .count = 100, .rows = 1, .cols = 100, .ndim = 1}};

/* The values of a valid encoding, one of which a test damages. */
struct broken {
    struct device *dev;
    struct codec *codec;
    struct quantized_delta numbers;
    void *room;
};

static struct broken broken_begin(const char *spec)
{
    struct broken b = {.dev = open_cpu(), .codec = delta_case_codec(spec, span_pair, 2)};
    float x[N];
    delta_case_fill(DELTA_NORMAL, 1, x, N);
    b.numbers = delta_case_numbers(b.dev, b.codec, x, &b.room);
    return b;
}

static void broken_end(struct broken *b, enum status want)
{
    static uint8_t payload[8192];
    size_t size = 77;
    enum status status = codec_encode_quantized(b->codec, &b->numbers, payload, sizeof payload, &size);
    mem_free(b->room);
    codec_destroy(b->codec);
    device_close(b->dev);
    assert_int_equal(status, want);
    if (want != STATUS_OK) assert_int_equal(size, 77);
    assert_int_equal(mem_live_bytes(), 0);
}

#define BROKEN(spec, want, change)                                                                                     \
    do {                                                                                                               \
        struct broken b = broken_begin(spec);                                                                          \
        change;                                                                                                        \
        broken_end(&b, want);                                                                                          \
    } while (0)

TEST(test_invalid_chunks_are_refused)
{
    BROKEN("topk:8/256", STATUS_OK, (void)b);
    BROKEN("topk:8/256", STATUS_NONFINITE, b.numbers.heads[1].bad = 1);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.heads[0].n = 9);
    BROKEN("topk:8/256", STATUS_OK, b.numbers.heads[0].n = 0);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = 0);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = (27u << 4) - 1);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = 255u << 4);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.heads[0].scale[1] = 1);
    BROKEN("topk:8/256+2bit", STATUS_CORRUPT, b.numbers.heads[0].scale[1] = b.numbers.heads[0].scale[0] - 1);
    BROKEN("topk:8/256+2bit", STATUS_CORRUPT, b.numbers.heads[0].scale[1] = 255u << 5);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.index[1] = b.numbers.index[0]);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.index[7] = 256);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.index[16 + 2] = 88); /* past the end of the short chunk */
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.code[0] = 2);
    BROKEN("topk:8/256+fp16", STATUS_CORRUPT, b.numbers.code[3] = 0x8000);
    BROKEN("topk:8/256", STATUS_CORRUPT, b.numbers.plain[5] = 0x7f80);
}

TEST(test_invalid_blocks_are_refused)
{
    BROKEN("int8", STATUS_OK, (void)b);
    BROKEN("int8", STATUS_CORRUPT, b.numbers.bytes[0] = 0x80);
    BROKEN("int8", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = 1);
    BROKEN("int4", STATUS_OK, (void)b);
    BROKEN("int4", STATUS_CORRUPT, b.numbers.bytes[0] = 0x81);
    BROKEN("int4", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = 0x10000);
    BROKEN("int4", STATUS_CORRUPT, b.numbers.heads[0].scale[0] = 0);
    BROKEN("int4", STATUS_CORRUPT, b.numbers.plain[99] = 0xff80);
    BROKEN("2bit", STATUS_CORRUPT, b.numbers.heads[0].scale[1] = 256);
    BROKEN("1bit", STATUS_NONFINITE, b.numbers.heads[2].bad = 1);
}

TEST(test_codecs_without_form_are_refused)
{
    struct delta_format shape;
    struct quantized_delta none = {0};
    uint8_t byte = 0;
    size_t size;
    struct codec *codec = delta_case_codec("bf16+lz4", span_pair, 2);
    assert_false(codec_delta_format(codec, &shape, NULL));
    assert_int_equal(codec_encode_quantized(codec, &none, &byte, 1, &size), STATUS_INVALID);
    assert_int_equal(codec_decode_quantized(codec, &byte, 1, &byte), STATUS_INVALID);
    codec_destroy(codec);
    static const char *const specs[] = {"topk:8/256", "int4", "int8"};
    for (size_t i = 0; i < COUNT(specs); i++) {
        struct broken b = broken_begin(specs[i]);
        assert_int_equal(codec_encode_quantized(b.codec, &b.numbers, &byte, 1, &size), STATUS_LIMIT);
        assert_int_equal(codec_decode_quantized(b.codec, &byte, 1, b.room), STATUS_CORRUPT);
        broken_end(&b, STATUS_OK);
    }
}

TEST_MAIN(NULL, NULL)
