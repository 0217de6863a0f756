/* Top-k payloads written by hand, bit by bit. They pin the format and break each rule of docs/codecs.md once. A
 * refusal writes nothing. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "tests/lib/test.h"

enum { N_MAX = 300000 };

static struct codec *make(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    assert_int_equal(codec_create(&codec, spec, &span, 1, NULL), STATUS_OK);
    return codec;
}

struct hand {
    uint8_t bytes[256];
    size_t bits;
};

static void put(struct hand *h, uint64_t value, unsigned n)
{
    for (unsigned i = 0; i < n; i++, h->bits++) h->bytes[h->bits / 8] |= (uint8_t)((value >> i & 1) << h->bits % 8);
}

static struct hand begin(uint32_t m)
{
    struct hand h = {0};
    put(&h, m, 16);
    return h;
}

static void put_gap(struct hand *h, uint32_t m, uint32_t gap)
{
    unsigned c = 0;
    while (1u << c < m) c++;
    uint32_t u = (1u << c) - m, r = gap % m;
    put(h, 0, gap / m);
    put(h, 1, 1);
    if (r < u) {
        put(h, r, c - 1);
    } else if (c) {
        put(h, (r + u) >> 1, c - 1);
        put(h, r + u, 1);
    }
}

static enum status decode_checked(struct codec *codec, const uint8_t *bytes, size_t size, float *x)
{
    static float untouched[N_MAX], acc[N_MAX];
    size_t n = codec_count(codec);
    for (size_t i = 0; i < n; i++) untouched[i] = x[i] = acc[i] = (float)i + 0.5f;
    uint8_t *copy = mem_alloc(1, size + 1); /* an exact copy: the sanitizer detects a read past the end */
    memcpy(copy + 1, bytes, size);
    enum status status = codec_decode(codec, copy + 1, size, x);
    assert_int_equal(codec_decode_axpy(codec, 0.5f, copy + 1, size, acc), status);
    if (status != STATUS_OK) {
        assert_memory_equal(x, untouched, n * sizeof *x);
        assert_memory_equal(acc, untouched, n * sizeof *x);
    }
    mem_free(copy);
    return status;
}

static enum status decode_hand(struct codec *codec, const struct hand *h, float *x)
{
    return decode_checked(codec, h->bytes, (h->bits + 7) / 8, x);
}

/* 256 values, of which three are sent: 10, 20 and 200. S = 10 + 9 + 179 = 198, N = 3: m = 46. */
enum { ONE = 0x3f800000 >> 19, M = 46 }; /* ONE: the code of scale 1 */

static struct hand three(uint32_t m, uint32_t code, uint32_t g0, uint32_t g1, uint32_t g2)
{
    struct hand h = begin(m);
    put(&h, 0, 12);
    put(&h, code, 12);
    put_gap(&h, m, g0);
    put(&h, 0, 1);
    put_gap(&h, m, g1);
    put(&h, 1, 1);
    put_gap(&h, m, g2);
    put(&h, 0, 1);
    return h;
}

TEST(test_payload_follows_documented_format)
{
    static const uint8_t golden[] = {0x2e, 0x00, 0x00, 0x00, 0x7f, 0x95, 0x29, 0xf6, 0x00};
    struct codec *codec = make("topk:3/256", 256);
    float x[256] = {[10] = 1.0f, [20] = -1.0f, [200] = 1.0f, [201] = 1.0f, [7] = 0.999f}, decoded[256];
    uint8_t bytes[1000];
    size_t size;
    assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
    struct hand h = three(M, ONE, 10, 9, 179);
    assert_int_equal(size, (h.bits + 7) / 8);
    assert_memory_equal(bytes, h.bytes, size);
    assert_int_equal(size, sizeof golden);
    assert_memory_equal(bytes, golden, size);
    assert_int_equal(decode_hand(codec, &h, decoded), STATUS_OK);
    for (size_t i = 0; i < 256; i++) {
        assert_true(decoded[i] == (i == 10 || i == 200 ? 1.0f : i == 20 ? -1.0f : 0.0f));
        if (decoded[i] == 0) assert_true(signbit(decoded[i]));
    }
    codec_destroy(codec);
}

TEST(test_invalid_positions_and_scales_are_refused)
{
    struct codec *codec = make("topk:3/256", 256);
    float x[256];
    static const struct {
        uint32_t m, code, gap[3];
        enum status verdict;
    } cases[] = {
        {M, ONE, {10, 9, 179}, STATUS_OK},          {M - 1, ONE, {10, 9, 179}, STATUS_CORRUPT},
        {M + 1, ONE, {10, 9, 179}, STATUS_CORRUPT}, {57, ONE, {10, 9, 224}, STATUS_CORRUPT}, /* up to 245, m wrong */
        {57, ONE, {0, 0, 253}, STATUS_CORRUPT},     {59, ONE, {0, 0, 253}, STATUS_OK},       /* the last position */
        {59, ONE, {0, 0, 255}, STATUS_CORRUPT},     {59, ONE, {0, 255, 0}, STATUS_CORRUPT},  /* past the end */
        {59, ONE, {257, 0, 0}, STATUS_CORRUPT},     {1, ONE, {0, 0, 0}, STATUS_OK},
        {M, 0xfef, {10, 9, 179}, STATUS_OK},        {M, 0xff0, {10, 9, 179}, STATUS_NONFINITE},
        {M, 0xfff, {10, 9, 179}, STATUS_NONFINITE}, {M, 0x1b0, {10, 9, 179}, STATUS_OK},
        {M, 0x1af, {10, 9, 179}, STATUS_CORRUPT},   {M, 1, {10, 9, 179}, STATUS_CORRUPT},
        {M, 0, {10, 9, 179}, STATUS_CORRUPT}, /* carries nothing, but bits follow */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct hand h = three(cases[i].m, cases[i].code, cases[i].gap[0], cases[i].gap[1], cases[i].gap[2]);
        enum status status = decode_hand(codec, &h, x);
        if (status != cases[i].verdict) fail_msg("case %zu: %s", i, status_text(status));
    }
    struct hand h = three(M, ONE, 10, 9, 179);
    size_t size = (h.bits + 7) / 8;
    assert_int_not_equal(h.bits % 8, 0);
    for (size_t bit = h.bits; bit < 8 * size; bit++) { /* padding */
        h.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_int_equal(decode_checked(codec, h.bytes, size, x), STATUS_CORRUPT);
        h.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_int_equal(decode_checked(codec, h.bytes, size + 1, x), STATUS_CORRUPT);
    for (size_t cut = 0; cut < size; cut++) assert_int_equal(decode_checked(codec, h.bytes, cut, x), STATUS_CORRUPT);
    h = begin(0);
    assert_int_equal(decode_checked(codec, h.bytes, 2, x), STATUS_CORRUPT);
    for (size_t length = 2; length < sizeof h.bytes; length++) { /* only zeros */
        h = begin(M);
        put(&h, 0, 12);
        put(&h, ONE, 12);
        assert_int_equal(decode_checked(codec, h.bytes, length, x), STATUS_CORRUPT);
    }
    h = begin(1);
    put(&h, 0, 24); /* no value sent */
    assert_int_equal(decode_hand(codec, &h, x), STATUS_OK);
    for (size_t i = 0; i < 256; i++) assert_true(x[i] == 0);
    codec_destroy(codec);
}

TEST(test_chunk_with_fewer_values_ends_early)
{
    struct codec *codec = make("topk:3/256", 256);
    float x[256] = {[10] = 2.0f, [20] = -2.0f}, decoded[256];
    uint8_t bytes[1000];
    size_t size;
    struct hand h = begin(59); /* gaps 10, 9, 235: S = 254, N = 3 */
    put(&h, 0, 12);
    put(&h, ONE + 16, 12);
    put_gap(&h, 59, 10);
    put(&h, 0, 1);
    put_gap(&h, 59, 9);
    put(&h, 1, 1);
    put_gap(&h, 59, 235);
    assert_int_equal(codec_encode(codec, x, bytes, sizeof bytes, &size, NULL), STATUS_OK);
    assert_int_equal(size, (h.bits + 7) / 8);
    assert_memory_equal(bytes, h.bytes, size);
    assert_int_equal(decode_hand(codec, &h, decoded), STATUS_OK);
    for (size_t i = 0; i < 256; i++) assert_true(decoded[i] == x[i]);
    /* The end before any value must be sent as an empty chunk. m of one gap of 256. */
    h = begin(178);
    put(&h, 0, 12);
    put(&h, ONE, 12);
    put_gap(&h, 178, 256);
    assert_int_equal(decode_hand(codec, &h, decoded), STATUS_CORRUPT);
    codec_destroy(codec);
}

/* Two chunks, each with its first value: gaps 0, m = 1. `second` puts the second scale. */
static enum status decode_second(struct codec *codec, uint32_t first, uint64_t second, unsigned bits)
{
    float x[512];
    struct hand h = begin(1);
    put(&h, 0, 12);
    put(&h, first, 12);
    put(&h, 1, 2);
    put(&h, second, bits);
    put(&h, 1, 2);
    return decode_hand(codec, &h, x);
}

TEST(test_scale_is_sent_in_shortest_form)
{
    struct codec *codec = make("topk:1/256", 512);
    assert_int_equal(decode_second(codec, ONE, 1, 2), STATUS_OK);                    /* step 0: a one, a zero */
    assert_int_equal(decode_second(codec, ONE, 3, 2), STATUS_OK);                    /* -1 */
    assert_int_equal(decode_second(codec, 0x1b0, 3, 2), STATUS_CORRUPT);             /* below the smallest */
    assert_int_equal(decode_second(codec, 0xfef, 1 << 1, 3), STATUS_NONFINITE);      /* 1 above the largest */
    assert_int_equal(decode_second(codec, ONE, (ONE + 12ull) << 12, 24), STATUS_OK); /* out of a step's range */
    assert_int_equal(decode_second(codec, ONE, (ONE - 13ull) << 12, 24), STATUS_OK);
    assert_int_equal(decode_second(codec, ONE, (ONE + 11ull) << 12, 24), STATUS_CORRUPT); /* within a step's range */
    assert_int_equal(decode_second(codec, ONE, (ONE - 12ull) << 12, 24), STATUS_CORRUPT);
    assert_int_equal(decode_second(codec, ONE, (uint64_t)ONE << 12, 24), STATUS_CORRUPT);
    /* The first scale as a step without a previous scale. */
    float x[512];
    struct hand h = begin(1);
    put(&h, 1, 2);
    put(&h, 1, 2);
    put(&h, 1, 2);
    put(&h, 1, 2);
    assert_int_equal(decode_hand(codec, &h, x), STATUS_CORRUPT);
    codec_destroy(codec);
}

static enum status decode_2bit(uint32_t low, uint64_t high, unsigned bits, uint32_t value)
{
    struct codec *codec = make("topk:1/256+2bit", 256);
    float x[256];
    struct hand h = begin(1);
    put(&h, 0, 12);
    put(&h, low, 13);
    put(&h, high, bits);
    put(&h, 1, 1);
    put(&h, value, 2);
    enum status status = decode_hand(codec, &h, x);
    codec_destroy(codec);
    return status;
}

TEST(test_second_level_is_sent_in_shortest_form)
{
    enum { LOW = 0x3f800000 >> 18 };
    assert_int_equal(decode_2bit(LOW, 1, 4, 0), STATUS_OK);      /* the same level */
    assert_int_equal(decode_2bit(LOW, 3, 4, 2), STATUS_OK);      /* one above, and a value uses it */
    assert_int_equal(decode_2bit(LOW, 3, 4, 0), STATUS_CORRUPT); /* no value uses it */
    assert_int_equal(decode_2bit(LOW, (LOW + 96ull) << 12, 25, 2), STATUS_OK);
    assert_int_equal(decode_2bit(LOW, (LOW + 95ull) << 12, 25, 2), STATUS_CORRUPT); /* within a step's range */
    assert_int_equal(decode_2bit(LOW, (LOW - 1ull) << 12, 25, 2), STATUS_CORRUPT);  /* below the first */
    assert_int_equal(decode_2bit(LOW, 0x1fe0ull << 12, 25, 2), STATUS_NONFINITE);
    assert_int_equal(decode_2bit(0x1fdf, 3, 4, 2), STATUS_NONFINITE);
}

TEST(test_half_values_are_decoded)
{
    struct codec *codec = make("topk:1/256+fp16", 256);
    for (uint32_t half = 0; half < 0x4000; half += half < 3 ? 1 : 0x155) {
        float x[256];
        struct hand h = begin(1);
        put(&h, 0, 12);
        put(&h, 127 + 3, 8); /* 8 */
        put(&h, 1, 1);
        put(&h, half << 1 | 1, 15);
        assert_int_equal(decode_hand(codec, &h, x), half ? STATUS_OK : STATUS_CORRUPT);
        double value = half < 1024 ? ldexp(half, -24) : ldexp(1024 + half % 1024, (int)(half / 1024) - 25);
        if (half) assert_true((double)x[0] == -8 * value);
    }
    codec_destroy(codec);
}

/* Three groups: the offsets of the second and third. */
TEST(test_wrong_group_offsets_are_refused)
{
    struct codec *codec = make("topk:4/4096", N_MAX);
    static float x[N_MAX];
    uint8_t *bytes = mem_alloc(1, codec_bound(codec));
    size_t size;
    rng_normal_fill(7, RNG_TEST, 0, 1, x, N_MAX);
    assert_int_equal(codec_encode(codec, x, bytes, codec_bound(codec), &size, NULL), STATUS_OK);
    assert_int_equal(codec_parts(codec), 3);
    assert_int_equal(decode_checked(codec, bytes, size, x), STATUS_OK);
    uint32_t offset[2], changed;
    memcpy(offset, bytes, 8);
    const uint32_t wrong[] = {0,
                              1,
                              offset[0] - 1,
                              offset[0] + 1,
                              offset[1],
                              offset[1] + 1,
                              (uint32_t)size - 8,
                              (uint32_t)size,
                              0x7fffffff,
                              0xffffffff};
    for (int which = 0; which < 2; which++)
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            changed = wrong[i];
            if (changed == offset[which]) continue;
            memcpy(bytes + 4 * which, &changed, 4);
            assert_int_equal(decode_checked(codec, bytes, size, x), STATUS_CORRUPT);
            memcpy(bytes + 4 * which, &offset[which], 4);
        }
    for (size_t cut = 0; cut < 10; cut++) assert_int_equal(decode_checked(codec, bytes, cut, x), STATUS_CORRUPT);
    mem_free(bytes);
    codec_destroy(codec);
}

TEST_MAIN(NULL, NULL)
