/* Deltas of workers with codecs of their own: each is decoded by the codec that it names, journaled in fp32 and merged
 * with the others; the result equals the mean of the decoded values, computed in double here. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "coordinator/outer/arrival.h"
#include "tests/lib/test.h"

enum { ROWS = 300, COLUMNS = 701, N = ROWS * COLUMNS, WORKERS = 3 };

static struct config config;
static struct layout layout;
static struct outer_state outer;

static void open_state(const char *const *settings)
{
    struct config_sources sources;
    struct err err = {0};
    uint64_t shape[2] = {ROWS, COLUMNS}, bytes;
    config_defaults(&config, &sources);
    for (; *settings; settings++)
        assert_int_equal(config_set(&config, &sources, *settings, CONFIG_FLAG, &err), STATUS_OK);
    if (config_resolve(&config, &sources, &err) != STATUS_OK) fail_msg("%s", err.msg);
    config.coordinator.threads = 1;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "t", 2, shape, LAYOUT_INIT_NORMAL, 1.0f, 0), STATUS_OK);
    assert_int_equal(layout_split(&layout, 1), STATUS_OK);
    size_t before = mem_live_bytes();
    if (outer_state_init(&outer, &config, &layout, &err) != STATUS_OK) fail_msg("%s", err.msg);
    size_t used = mem_live_bytes() - before;
    assert_int_equal(outer_state_bytes(&bytes, &config, &layout, 0, &err), STATUS_OK);
    assert_int_equal(bytes, used);
}

static void close_state(void)
{
    outer_state_finish(&outer);
    layout_finish(&layout);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Encodes x as a worker with codec `spec` does. Returns the size; decoded[] holds the values of the payload. */
static size_t encode(const char *spec, const float *x, uint8_t *out, size_t cap, float *decoded)
{
    struct codec *codec;
    size_t head = 1 + strlen(spec), size;
    assert_int_equal(codec_create_for_fragment(&codec, spec, &layout, 0, NULL), STATUS_OK);
    assert_string_equal(codec_spec(codec), spec);
    out[0] = (uint8_t)strlen(spec);
    memcpy(out + 1, spec, strlen(spec));
    assert_int_equal(codec_encode(codec, x, out + head, cap - head, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode(codec, out + head, size, decoded), STATUS_OK);
    codec_destroy(codec);
    return head + size;
}

TEST(test_mixed_codecs_are_merged)
{
    static const char *const specs[WORKERS] = {"int8:256", "topk:64/4096+sign", "fp32"};
    static float x[N], decoded[N];
    static double want[N];
    static const uint64_t tokens[WORKERS] = {1, 2, 5};
    const char *const settings[] = {"codec.up=int8:256", "codec.up_allowed=topk:64/4096+sign, fp32", "merge.clip=off",
                                    NULL};
    struct merge_delta deltas[WORKERS] = {0};
    struct merge merge;
    memset(want, 0, sizeof want);
    open_state(settings);
    assert_string_equal(codec_spec(outer.fragments[0].up), "fp32");
    assert_false(outer.merger.parameters); /* a lossless codec of one worker does not change the form of all */
    for (int i = 0; i < WORKERS; i++) {
        struct codec_view view;
        size_t size;
        rng_normal_fill(3, RNG_TEST, (uint64_t)i << 30, 0.1f, x, N);
        size = encode(specs[i], x, outer.payload, outer.payload_cap, decoded);
        assert_true(size <= arrival_bound(&outer.fragments[0]));
        for (size_t k = 0; k < N; k++) want[k] += (double)tokens[i] / 8 * (double)decoded[k];
        assert_int_equal(arrival_open(&outer.fragments[0], outer.payload, size, &view), STATUS_OK);
        assert_int_equal(arrival_store(&outer, 0, &view, &size), STATUS_OK);
        uint8_t *kept = mem_alloc(1, size);
        memcpy(kept, outer.payload, size);
        deltas[i] = (struct merge_delta){.payload = kept, .size = size, .tokens = tokens[i]};
        assert_int_equal(merge_open(outer.fragments[0].up, &deltas[i]), STATUS_OK);
    }
    assert_int_equal(
        merge_start(&merge, &outer.merger, &layout, 0, outer.fragments[0].up, outer.theta, outer.acc, tokens, WORKERS),
        STATUS_OK);
    merge_add(&merge, deltas, WORKERS);
    for (size_t k = 0; k < N; k++)
        if (fabs((double)outer.acc[k] - want[k]) > 1e-6) fail_msg("%zu: %g, not %g", k, (double)outer.acc[k], want[k]);
    for (int i = 0; i < WORKERS; i++) mem_free((void *)(uintptr_t)deltas[i].payload);
    close_state();
}

TEST(test_unknown_codecs_are_refused)
{
    static float x[N], decoded[N];
    const char *const settings[] = {"codec.up=int8:256", "codec.up_allowed=bf16", NULL};
    struct codec_view view;
    open_state(settings);
    const struct outer_fragment *frag = &outer.fragments[0];
    rng_normal_fill(3, RNG_TEST, 0, 0.1f, x, N);
    size_t size = encode("int4:256", x, outer.payload, outer.payload_cap, decoded);
    assert_int_equal(arrival_open(frag, outer.payload, size, &view), STATUS_UNSUPPORTED);
    size = encode("bf16", x, outer.payload, outer.payload_cap, decoded);
    assert_int_equal(arrival_open(frag, outer.payload, size, &view), STATUS_OK);
    assert_int_equal(arrival_open(frag, outer.payload, size - 1, &view), STATUS_CORRUPT);
    for (size_t cut = 0; cut < 6; cut++)
        assert_int_equal(arrival_open(frag, outer.payload, cut, &view), STATUS_CORRUPT);
    outer.payload[0] = 255; /* longer than any name */
    assert_int_equal(arrival_open(frag, outer.payload, size, &view), STATUS_UNSUPPORTED);
    close_state();
}

TEST_MAIN(NULL, NULL)
