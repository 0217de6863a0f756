/* Several threads encode and decode parts of payloads, use several codecs at the same time, and count the bytes of a
 * union: the results are those of one thread.
 * ctest: labels=threads */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "compress/topk/union_size.h"
#include "tests/lib/test.h"

enum { FIRST = 140000, VECTOR = 500, N = 300000, SECOND = N - FIRST - VECTOR }; /* three parts */
enum { R = 3, THREADS = 4 };

static const char *const specs[] = {
    "fp32",
    "bf16",
    "fp16",
    "int8:64",
    "int4:64",
    "2bit:64",
    "1bit:64",
    "bf16+lz4",
    "int4:256+huff",
    "topk:64/4096",
    "topk:1000/4096+2bit",
    "topk:64/1024+int8",
    "topk:64/4096+fp16+huff",
};
enum { N_SPECS = sizeof specs / sizeof *specs };

/* Other builds test refusals and residuals: ThreadSanitizer is slow. */
#ifdef __SANITIZE_THREAD__
enum { VALUES = 0 };
#else
enum { VALUES = 1 };
#endif

static const struct codec_span spans[] = {
    {0, FIRST, 100, FIRST / 100, 2}, {FIRST, VECTOR, 1, VECTOR, 1}, {FIRST + VECTOR, SECOND, 1, SECOND, 2}};

static float normal[R][N]; /* deltas; made once */

struct work {
    struct codec *codec;
    uint8_t *payload[R], *room[R];
    size_t size[R];
    struct codec_view view[R];
    float *x, *acc, *weight;
};

/* Deals the parts one by one, so that neighbours belong to different threads. */
static void add_parts(void *ctx, int thread, int threads)
{
    struct work *w = ctx;
    for (size_t p = (size_t)thread; p < codec_parts(w->codec); p += (size_t)threads) {
        size_t from = codec_part(w->codec, p).from;
        for (int r = 0; r < R; r++)
            codec_view_axpy_weigh(&w->view[r], p, 0.25f * (float)(r + 1), w->acc + from, w->weight + from);
        for (int r = 0; r < R; r++) codec_view_axpy(&w->view[r], p, 0.5f, w->acc + from);
        codec_view_decode(&w->view[0], p, w->x + from);
    }
}

static void open_work(struct work *w, const char *spec)
{
    *w = (struct work){.x = mem_alloc(N, 4), .acc = mem_alloc(N, 4), .weight = mem_alloc(N, 4)};
    assert_int_equal(codec_create(&w->codec, spec, spans, 3, NULL), STATUS_OK);
    assert_true(codec_parts(w->codec) >= 3);
    for (int r = 0; r < R; r++) {
        w->payload[r] = mem_alloc(1, codec_bound(w->codec));
        w->room[r] = mem_alloc(1, codec_open_room(w->codec) + 1);
        memcpy(w->x, normal[r], sizeof normal[r]);
        assert_int_equal(codec_encode(w->codec, w->x, w->payload[r], codec_bound(w->codec), &w->size[r], NULL),
                         STATUS_OK);
        assert_int_equal(codec_open(w->codec, w->payload[r], w->size[r], w->room[r], &w->view[r]), STATUS_OK);
    }
}

static void close_work(struct work *w)
{
    for (int r = 0; r < R; r++) {
        mem_free(w->payload[r]);
        mem_free(w->room[r]);
    }
    mem_free(w->x);
    mem_free(w->acc);
    mem_free(w->weight);
    codec_destroy(w->codec);
}

static void reset(struct work *w)
{
    memset(w->x, 0x11, N * 4);
    memset(w->acc, 0, N * 4);
    memset(w->weight, 0, N * 4);
}

TEST(test_parts_decode_the_same_with_threads)
{
    struct pool *pool;
    float *alone = mem_alloc(3 * (size_t)N, 4);
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (int s = 0; s < N_SPECS; s++) {
        struct work w;
        open_work(&w, specs[s]);
        reset(&w);
        add_parts(&w, 0, 1);
        memcpy(alone, w.x, N * 4);
        memcpy(alone + N, w.acc, N * 4);
        memcpy(alone + 2 * N, w.weight, N * 4);
        reset(&w);
        pool_run(pool, add_parts, &w);
        if (memcmp(alone, w.x, N * 4) || memcmp(alone + N, w.acc, N * 4) || memcmp(alone + 2 * N, w.weight, N * 4))
            fail_msg("%s: several threads make different floats", specs[s]);
        close_work(&w);
    }
    pool_destroy(pool);
    mem_free(alone);
}

/* Opens a payload with one changed byte, alone and on the pool. */
static void open_damaged(struct work *w, struct codec *on_pool, size_t size, uint64_t seed)
{
    struct codec_view view;
    size_t at = rng_u64(seed, RNG_TEST, 0) % (seed % 2 ? size : size < 200 ? size : 200); /* often in a head */
    uint8_t was = w->payload[0][at];
    w->payload[0][at] ^= (uint8_t)(1 + rng_u64(seed, RNG_TEST, 1) % 255);
    enum status alone = codec_open(w->codec, w->payload[0], size, w->room[0], &view);
    enum status shared = codec_open(on_pool, w->payload[0], size, w->room[1], &view);
    if (alone != shared) fail_msg("%s, byte %zu: %d alone, %d on a pool", codec_spec(on_pool), at, alone, shared);
    w->payload[0][at] = was;
}

/* Codecs with a pool of their own: same bytes, values and refusals, for any number of threads; also without room for
 * scratch memory or output. */
TEST(test_codec_with_pool_makes_same_payload)
{
    enum { EACH = 1 << 20 };
    uint8_t *scratch = mem_alloc(THREADS + 1, EACH);
    for (int s = 0; s < N_SPECS; s++)
        for (int threads = 2; threads <= THREADS + 1; threads++) {
            struct pool *pool;
            struct work w;
            struct codec *codec;
            size_t size, damages = VALUES && threads == 3 ? 60 : 3;
            assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &pool), STATUS_OK);
            open_work(&w, specs[s]);
            assert_int_equal(codec_create(&codec, specs[s], spans, 3, NULL), STATUS_OK);
            for (int little = 0; little < 2; little++) {
                codec_use_pool(codec, pool, scratch, little ? 100 : EACH);
                memset(w.payload[1], 0x55, codec_bound(codec));
                size_t cap = little ? w.size[0] : codec_bound(codec);
                assert_int_equal(codec_encode_pool(codec, pool, normal[0], w.payload[1], cap, &size, NULL), STATUS_OK);
                if (size != w.size[0] || memcmp(w.payload[1], w.payload[0], size))
                    fail_msg("%s: %d threads make different bytes", specs[s], threads);
            }
            codec_use_pool(codec, pool, scratch, EACH);
            assert_int_equal(codec_decode(w.codec, w.payload[0], size, w.x), STATUS_OK);
            assert_int_equal(codec_decode(codec, w.payload[0], size, w.acc), STATUS_OK);
            assert_memory_equal(w.x, w.acc, N * sizeof *w.x);
            for (uint64_t i = 0; i < damages; i++) open_damaged(&w, codec, size, i);
            codec_destroy(codec);
            close_work(&w);
            pool_destroy(pool);
        }
    mem_free(scratch);
}

static float residual[N];

/* Encode reports the first of several NaN, whichever thread finds it, and refuses a small capacity like one thread. */
static void encode_refused(struct work *w, struct pool *pool)
{
    static const size_t bad[] = {N - 1, FIRST + VECTOR + 7, 131072, 5};
    size_t size = 77, index = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        w->x[bad[i]] = i % 2 ? INFINITY : NAN;
        assert_int_equal(codec_encode_pool(w->codec, pool, w->x, w->payload[1], w->size[0], &size, &index),
                         STATUS_NONFINITE);
        assert_int_equal(index, bad[i]);
    }
    memcpy(w->x, normal[0], sizeof normal[0]);
    assert_int_equal(codec_encode_pool(w->codec, pool, w->x, w->payload[1], w->size[0] - 1, &size, NULL), STATUS_LIMIT);
    assert_int_equal(size, 77);
}

/* The residual is x minus the decoded payload, with x = delta + decay * old residual. */
static void check_residual(struct work *w, const struct feedback *fb, size_t size)
{
    for (size_t i = 0; i < N; i++) w->x[i] = normal[0][i] + fb->decay * residual[i];
    assert_int_equal(codec_decode(w->codec, w->payload[0], size, w->acc), STATUS_OK);
    for (size_t i = 0; i < N; i++)
        if (fb->residual[i] != w->x[i] - w->acc[i]) fail_msg("%s: residual of %zu", codec_spec(w->codec), i);
}

/* Payload and residual. */
TEST(test_threads_make_same_payload_and_residual)
{
    rng_normal_fill(13, RNG_TEST, 0, 1e-3f, residual, N);
    for (int s = 0; s < N_SPECS; s++) {
        int threads = 2 + s % 4;
        struct pool *pool;
        struct work w;
        struct feedback fb[2];
        size_t size[2];
        assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &pool), STATUS_OK);
        open_work(&w, specs[s]);
        memset(w.payload[1], 0x55, w.size[0]);
        memcpy(w.x, normal[0], sizeof normal[0]);
        assert_int_equal(codec_encode_pool(w.codec, pool, w.x, w.payload[1], codec_bound(w.codec), &size[1], NULL),
                         STATUS_OK);
        if (size[1] != w.size[0] || memcmp(w.payload[1], w.payload[0], size[1]))
            fail_msg("%s: %d threads make different bytes", specs[s], threads);
        if (VALUES || s % 4 == 0) encode_refused(&w, pool);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(feedback_init(&fb[k], N, 0.95f, true), STATUS_OK);
            memcpy(fb[k].residual, residual, sizeof residual);
            memcpy(w.x, normal[0], sizeof normal[0]);
            assert_int_equal(
                feedback_encode(&fb[k], w.codec, k ? pool : NULL, w.x, w.payload[k], codec_bound(w.codec), &size[k]),
                STATUS_OK);
        }
        if (size[1] != size[0] || memcmp(w.payload[1], w.payload[0], size[1]))
            fail_msg("%s: %d threads make different bytes with feedback", specs[s], threads);
        assert_memory_equal(fb[0].residual, fb[1].residual, N * sizeof(float));
        if (VALUES) check_residual(&w, &fb[0], size[0]);
        feedback_finish(&fb[0]);
        feedback_finish(&fb[1]);
        close_work(&w);
        pool_destroy(pool);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* One codec per thread, all at the same time: they share no state. */
struct side_by_side {
    struct work work[THREADS];
    const char *spec;
    size_t size[THREADS];
    bool same[THREADS];
};

static void encode_and_decode(void *ctx, int thread, int threads)
{
    struct side_by_side *all = ctx;
    struct work *w = &all->work[thread];
    (void)threads;
    memcpy(w->x, normal[0], sizeof normal[0]);
    bool ok = codec_encode(w->codec, w->x, w->payload[1], codec_bound(w->codec), &all->size[thread], NULL) == STATUS_OK;
    ok = ok && all->size[thread] == w->size[0] && !memcmp(w->payload[1], w->payload[0], w->size[0]);
    all->same[thread] = ok && codec_decode(w->codec, w->payload[1], w->size[0], w->acc) == STATUS_OK;
}

TEST(test_codecs_share_no_state)
{
    static struct side_by_side all;
    struct pool *pool;
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (int s = 3; s < N_SPECS; s += 2) {
        for (int t = 0; t < THREADS; t++) open_work(&all.work[t], specs[s]);
        pool_run(pool, encode_and_decode, &all);
        for (int t = 0; t < THREADS; t++) {
            assert_true(all.same[t]);
            assert_memory_equal(all.work[t].acc, all.work[0].acc, N * 4);
        }
        for (int t = 0; t < THREADS; t++) close_work(&all.work[t]);
    }
    pool_destroy(pool);
    assert_int_equal(mem_live_bytes(), 0);
}

/* No delta carries every seventh coordinate. */
TEST(test_union_bytes_are_independent_of_threads)
{
    struct layout layout;
    float *merged = mem_alloc(N, sizeof *merged);
    layout_init(&layout);
    for (size_t i = 0; i < sizeof spans / sizeof *spans; i++) {
        const char name[2] = {(char)('a' + i), 0};
        uint64_t shape[2] = {spans[i].ndim > 1 ? spans[i].rows : spans[i].cols, spans[i].cols};
        assert_int_equal(layout_add(&layout, name, spans[i].ndim, shape, LAYOUT_INIT_NORMAL, 1.0f, true), STATUS_OK);
    }
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    rng_normal_fill(12, RNG_TEST, 0, 1e-3f, merged, N);
    for (size_t i = 0; i < N; i += 7) merged[i] = -0.0f;
    uint64_t alone = union_bytes(&layout, 0, merged, NULL);
    for (int threads = 2; threads <= THREADS; threads++) {
        struct pool *pool;
        assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &pool), STATUS_OK);
        assert_int_equal(union_bytes(&layout, 0, merged, pool), alone);
        pool_destroy(pool);
    }
    mem_free(merged);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

int main(int argc, char **argv)
{
    for (uint64_t r = 0; r < R; r++) rng_normal_fill(12, RNG_TEST, r << 30, 1e-3f, normal[r], N);
    return test_run(argc, argv, NULL, NULL);
}
