/* Tests deltas made on a device over rounds that are merged, refused, not finite, saved and restored: payloads and
 * residuals have the bits of feedback_encode. Runs on the CPU device and on the emulated CUDA device, whose memory the
 * host cannot access. ctest: labels=asan */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cuda_plugin.h"
#include "tests/lib/device/delta_case.h"
#include "tests/lib/test.h"
#include "worker/outer/delta_device.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { FRAGMENTS = 2, EACH = 700, N = FRAGMENTS * EACH, ROUNDS = 24, CAP = 8192 };

static const struct codec_span spans[] = {{.count = 600, .rows = 2, .cols = 300, .ndim = 2},
                                          {.offset = 600, .count = 100, .rows = 1, .cols = 100, .ndim = 1}};

struct side { /* one fragment's codec and residual, of the maker and of the reference */
    struct codec *codec[2];
    struct feedback fb[2];
    uint8_t payload[2][CAP];
    size_t size[2];
};

struct rig {
    struct device *dev;
    struct delta_device *maker;
    bool fresh; /* the device has no anchor yet */
    struct side side[FRAGMENTS];
    float *theta; /* on the device */
    float base[N], values[N], delta[EACH], seen[N];
};

static struct rig rig;

static void make_maker(void)
{
    struct err err = {0};
    struct delta_source sources[FRAGMENTS];
    for (uint32_t i = 0; i < FRAGMENTS; i++)
        sources[i] = (struct delta_source){
            .offset = i * EACH, .count = EACH, .codec = rig.side[i].codec[0], .feedback = &rig.side[i].fb[0]};
    if (delta_device_create(&rig.maker, rig.dev, rig.theta, sources, FRAGMENTS, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    rig.fresh = true;
}

static void open_rig(bool cuda, const char *spec, bool feedback)
{
    struct err err = {0};
    enum status status = cuda ? atoll_cuda_plugin.open(0, &rig.dev, &err) : device_open("cpu", 1, &rig.dev, &err);
    if (status != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(device_stage_plan(rig.dev, 1000, NULL), STATUS_OK);
    rig.theta = rig.dev->ops->alloc(rig.dev, sizeof rig.values);
    assert_non_null(rig.theta);
    for (uint32_t i = 0; i < FRAGMENTS; i++)
        for (int k = 0; k < 2; k++) {
            struct side *s = &rig.side[i];
            s->codec[k] = delta_case_codec(spec, spans, COUNT(spans));
            assert_true(codec_bound(s->codec[k]) <= CAP);
            assert_int_equal(feedback_init(&s->fb[k], EACH, codec_feedback_decay(s->codec[k]), feedback), STATUS_OK);
        }
    make_maker();
}

static void close_rig(void)
{
    for (uint32_t i = 0; i < FRAGMENTS; i++)
        for (int k = 0; k < 2; k++) {
            feedback_finish(&rig.side[i].fb[k]);
            codec_destroy(rig.side[i].codec[k]);
        }
    delta_device_destroy(rig.maker);
    rig.dev->ops->release(rig.dev, rig.theta);
    device_close(rig.dev);
    assert_int_equal(mem_live_bytes(), 0);
}

static void anchor(uint32_t i, const float *values)
{
    delta_device_anchor(rig.maker, i, values, hash_floats(NULL, rig.base + i * EACH, EACH));
}

/* Some fragments change. The device recognizes the others by their hash and does not read their floats. */
static void anchor_all(uint64_t round)
{
    static const float nothing[EACH];
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
        bool changes = round == 0 || rng_u64(round, RNG_TEST, 100 + i) % 2;
        if (changes) rng_normal_fill(round, RNG_TEST, i << 16, 1, rig.base + i * EACH, EACH);
        anchor(i, changes || rig.fresh ? rig.base + i * EACH : nothing);
    }
    rig.fresh = false;
    rig.dev->ops->download(rig.dev, rig.seen, delta_device_base(rig.maker), sizeof rig.seen);
    assert_int_equal(rig.dev->ops->sync(rig.dev, NULL), STATUS_OK);
    assert_memory_equal(rig.seen, rig.base, sizeof rig.base);
}

static enum status train_and_make(uint64_t round)
{
    struct err err = {0};
    anchor_all(round);
    rng_normal_fill(round, RNG_TEST, 1 << 20, 1e-2f, rig.values, N);
    for (int i = 0; i < N; i++) rig.values[i] += rig.base[i];
    float kept = rig.values[N - 1];
    if (round % 5 == 4) rig.values[N - 1] = NAN;
    rig.dev->ops->upload(rig.dev, rig.theta, rig.values, sizeof rig.values);
    enum status status = delta_device_make(rig.maker, &err);
    if (round % 5 == 4) {
        assert_int_equal(status, STATUS_NONFINITE);
        rig.values[N - 1] = kept;
        rig.dev->ops->upload(rig.dev, rig.theta, rig.values, sizeof rig.values);
        status = delta_device_make(rig.maker, &err);
    }
    return status;
}

static void encode_both(uint32_t i)
{
    struct side *s = &rig.side[i];
    double norm, square = 0;
    const struct quantized_delta *numbers = delta_device_quantized(rig.maker, i, &norm);
    assert_int_equal(codec_encode_quantized(s->codec[0], numbers, s->payload[0], CAP, &s->size[0]), STATUS_OK);
    for (int k = 0; k < EACH; k++) {
        rig.delta[k] = rig.base[i * EACH + (uint32_t)k] - rig.values[i * EACH + (uint32_t)k];
        square += (double)rig.delta[k] * (double)rig.delta[k];
    }
    assert_true(fabs(norm - sqrt(square)) < 1e-9 * norm);
    assert_int_equal(feedback_encode(&s->fb[1], s->codec[1], NULL, rig.delta, s->payload[1], CAP, &s->size[1]),
                     STATUS_OK);
    assert_int_equal(s->size[0], s->size[1]);
    assert_memory_equal(s->payload[0], s->payload[1], s->size[0]);
}

static void put_back(uint32_t i)
{
    struct err err = {0};
    struct side *s = &rig.side[i];
    assert_int_equal(delta_device_read_residual(rig.maker, i, &err), STATUS_OK);
    for (int k = 0; k < 2; k++)
        assert_int_equal(feedback_rollback(&s->fb[k], s->codec[k], s->payload[k], s->size[k]), STATUS_OK);
    delta_device_residual_changed(rig.maker, i);
}

static void play(uint64_t round)
{
    struct err err = {0};
    assert_int_equal(train_and_make(round), STATUS_OK);
    for (uint32_t i = 0; i < FRAGMENTS; i++) encode_both(i);
    delta_device_keep_residuals(rig.maker);
    for (uint32_t i = 0; i < FRAGMENTS; i++) {
        struct side *s = &rig.side[i];
        s->fb[0].pending = true;
        if (rng_u64(round, RNG_TEST, i) % 3 == 0) put_back(i);
        for (int k = 0; k < 2; k++) feedback_commit(&s->fb[k]);
        if (round % 7 == 6 && i == 1) {
            for (int k = 0; k < 2; k++) feedback_reset(&s->fb[k]);
            delta_device_residual_changed(rig.maker, i);
        }
        if (round % 2) continue; /* only in some rounds, because reading a copy must not change later rounds */
        assert_int_equal(delta_device_read_residual(rig.maker, i, &err), STATUS_OK);
        if (s->fb[0].residual) assert_memory_equal(s->fb[0].residual, s->fb[1].residual, EACH * sizeof(float));
    }
    if (round % 6 != 4) return;
    delta_device_destroy(rig.maker); /* the process saves its state, ends and restarts */
    make_maker();
}

TEST(test_rounds)
{
    static const char *const specs[] = {"topk:8/256", "topk:20/512+2bit+huff", "int4:64", "int8"};
    for (size_t i = 0; i < COUNT(specs); i++)
        for (int cuda = 0; cuda < 2; cuda++)
            for (int feedback = 0; feedback < 2; feedback++) {
                open_rig(cuda, specs[i], feedback);
                for (uint64_t round = 0; round < (cuda ? ROUNDS / 2 : ROUNDS); round++) play(round);
                close_rig();
            }
}

TEST(test_refusals)
{
    struct err err = {0};
    struct feedback fb;
    struct delta_device *maker = NULL;
    struct device *dev = NULL;
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_OK);
    float *theta = dev->ops->alloc(dev, EACH * sizeof *theta);
    assert_int_equal(feedback_init(&fb, EACH, 1, true), STATUS_OK);
    struct codec *bf16 = delta_case_codec("bf16", spans, COUNT(spans));
    struct codec *topk = delta_case_codec("topk:8/256", spans, COUNT(spans));
    struct delta_source source = {.count = EACH, .codec = bf16, .feedback = &fb};
    assert_int_equal(delta_device_create(&maker, dev, theta, &source, 1, &err), STATUS_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "bf16"));
    source.codec = topk;
    enum status status = STATUS_NOMEM;
    long nth = 0;
    while (status == STATUS_NOMEM && nth < 20) { /* every allocation fails once */
        mem_fail_after(++nth);
        status = delta_device_create(&maker, dev, theta, &source, 1, &err);
        mem_fail_after(0);
    }
    assert_int_equal(status, STATUS_OK);
    assert_true(nth > 3); /* a plugin has its own count of allocations */
    delta_device_destroy(maker);
    feedback_finish(&fb);
    codec_destroy(bf16);
    codec_destroy(topk);
    dev->ops->release(dev, theta);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
