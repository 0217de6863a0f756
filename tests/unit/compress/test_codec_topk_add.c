/* Adding several top-k payloads together gives the bits of adding them one by one in that order, for any groups. An
 * invalid payload is detected in every group that is checked together. */

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/merge.h"
#include "tests/lib/test.h"

enum { FIRST = 140000, VECTOR = 500, N = 410000, SECOND = N - FIRST - VECTOR }; /* four groups of 2^17 */
enum { R = 19 };

static const struct codec_span spans[] = {
    {0, FIRST, 100, FIRST / 100, 2}, {FIRST, VECTOR, 1, VECTOR, 1}, {FIRST + VECTOR, SECOND, 1, SECOND, 2}};

/* Fills chunks that send the maximum, fewer, no or close values: other parameters and ends. Drawing normal values is
 * slow, so each worker reads the same ones from another offset. */
static void fill(unsigned worker, float *x)
{
    enum { FURTHER = 1009 };
    static float drawn[N + R * FURTHER];
    if (drawn[0] == 0) rng_normal_fill(21, RNG_TEST, 0, 1.0f, drawn, sizeof drawn / sizeof *drawn);
    memcpy(x, drawn + worker * FURTHER, N * sizeof *x);
    for (size_t i = 0; i < N; i++) {
        size_t chunk = i / 4096;
        bool few = worker % 4 == 1 && (chunk + worker) % 3 == 0 && i % 97;
        bool none = worker % 4 == 2 && (chunk + worker) % 5 == 0;
        if (few || none) x[i] = 0;
        if (worker % 4 == 3 && i % 1024 < 100 + 40 * worker) x[i] *= 100.0f;
    }
}

struct work {
    struct codec *codec;
    uint8_t *payload[R];
    size_t size[R];
    struct codec_view view[R];
    float *decoded[R], *acc, *weight, *acc_one, *weight_one;
};

static void work_open(struct work *w, const char *spec)
{
    *w = (struct work){
        .acc = mem_alloc(N, 4), .weight = mem_alloc(N, 4), .acc_one = mem_alloc(N, 4), .weight_one = mem_alloc(N, 4)};
    assert_int_equal(codec_create(&w->codec, spec, spans, 3, NULL), STATUS_OK);
    for (unsigned r = 0; r < R; r++) {
        uint8_t *made = mem_alloc(1, codec_bound(w->codec));
        w->decoded[r] = mem_alloc(N, 4);
        fill(r, w->decoded[r]);
        assert_int_equal(codec_encode(w->codec, w->decoded[r], made, codec_bound(w->codec), &w->size[r], NULL),
                         STATUS_OK);
        w->payload[r] = mem_alloc(1, w->size[r]); /* no byte past the end may be read */
        memcpy(w->payload[r], made, w->size[r]);
        mem_free(made);
        assert_int_equal(codec_decode(w->codec, w->payload[r], w->size[r], w->decoded[r]), STATUS_OK);
        assert_int_equal(codec_open(w->codec, w->payload[r], w->size[r], NULL, &w->view[r]), STATUS_OK);
    }
}

static void work_close(struct work *w)
{
    for (unsigned r = 0; r < R; r++) {
        mem_free(w->payload[r]);
        mem_free(w->decoded[r]);
    }
    mem_free(w->acc);
    mem_free(w->weight);
    mem_free(w->acc_one);
    mem_free(w->weight_one);
    codec_destroy(w->codec);
    assert_int_equal(mem_live_bytes(), 0);
}

static float factor(unsigned r)
{
    return 0.1f * (float)(r % 7 + 1);
}

/* The plain loop: each coordinate takes the payloads in order. */
static void add_plain(struct work *w, unsigned first, unsigned n)
{
    for (size_t i = 0; i < N; i++) {
        float acc = 0.25f, weight = 0;
        for (unsigned r = first; r < first + n; r++) {
            volatile float product = factor(r) * w->decoded[r][i];
            if (merge_unsent(w->decoded[r][i])) continue;
            acc = acc + product;
            weight = weight + factor(r);
        }
        w->acc_one[i] = acc;
        w->weight_one[i] = weight;
    }
}

static void check_added(struct work *w, const char *spec, unsigned first, unsigned n)
{
    struct codec_addend from[R];
    for (unsigned r = 0; r < n; r++)
        from[r] = (struct codec_addend){.view = &w->view[first + r], .a = factor(first + r)};
    add_plain(w, first, n);
    for (int weigh = 0; weigh < 2; weigh++) {
        for (size_t i = 0; i < N; i++) w->acc[i] = 0.25f;
        memset(w->weight, 0, N * sizeof *w->weight);
        for (size_t p = codec_parts(w->codec); p-- > 0;) {
            size_t at = codec_part(w->codec, p).from;
            codec_views_add(from, n, p, w->acc + at, weigh ? w->weight + at : NULL);
        }
        if (memcmp(w->acc, w->acc_one, N * sizeof *w->acc)) fail_msg("%s: %u payloads from %u", spec, n, first);
        if (weigh && memcmp(w->weight, w->weight_one, N * sizeof *w->weight))
            fail_msg("%s: weights of %u payloads from %u", spec, n, first);
    }
}

TEST(test_adding_together_equals_adding_in_order)
{
    /* The third sends more of a chunk than the decoder reads at a time. */
    static const char *const specs[] = {"topk:64/4096+sign", "topk:1000/4096+2bit", "topk:1500/2048+int8",
                                        "topk:3/256+fp16", "topk:40/65536+sign"};
    static const unsigned counts[] = {1, 2, 3, 4, 7, R};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct work w;
        work_open(&w, specs[s]);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            check_added(&w, specs[s], (R - counts[i]) / 2, counts[i]);
        work_close(&w);
    }
}

/* Coordinates that are not in the list decode to -0. */
TEST(test_list_has_all_values)
{
    static const char *const specs[] = {"topk:64/4096+sign", "topk:1000/4096+2bit", "topk:1500/2048+int8",
                                        "topk:3/256+fp16", "topk:40/65536+sign"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        struct work w;
        work_open(&w, specs[s]);
        uint32_t *index = mem_alloc(N, sizeof *index);
        float *value = mem_alloc(N, sizeof *value);
        for (unsigned r = 0; r < R; r += 3) {
            for (size_t i = 0; i < N; i++) w.acc[i] = -0.0f;
            for (size_t p = 0; p < codec_parts(w.codec); p++) {
                size_t from = codec_part(w.codec, p).from, n = codec_view_list(&w.view[r], p, index, value);
                for (size_t i = 0; i < n; i++) w.acc[from + index[i]] = value[i];
                for (size_t i = 1; i < n; i++) assert_true(index[i] > index[i - 1]);
            }
            if (memcmp(w.acc, w.decoded[r], N * sizeof *w.acc)) fail_msg("%s: payload %u", specs[s], r);
        }
        mem_free(index);
        mem_free(value);
        work_close(&w);
    }
}

/* Changes the parameter in the head of each group in turn: it no longer fits the gaps. */
TEST(test_invalid_parameter_of_any_group_is_detected)
{
    struct work w;
    work_open(&w, "topk:64/4096+fp16");
    size_t parts = codec_parts(w.codec), offsets = 2 * VECTOR, groups = offsets + 4 * (parts - 1);
    assert_int_equal(parts, 4);
    for (size_t g = 0; g < parts; g++) {
        uint32_t offset = 0;
        struct codec_view view;
        if (g) memcpy(&offset, w.payload[0] + offsets + 4 * (g - 1), 4);
        uint8_t *head = &w.payload[0][groups + offset];
        *head ^= 1;
        assert_int_equal(codec_open(w.codec, w.payload[0], w.size[0], NULL, &view), STATUS_CORRUPT);
        *head ^= 1;
        assert_int_equal(codec_open(w.codec, w.payload[0], w.size[0], NULL, &view), STATUS_OK);
    }
    work_close(&w);
}

TEST_MAIN(NULL, NULL)
