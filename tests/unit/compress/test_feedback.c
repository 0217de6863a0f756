/* Error feedback: sent + residual = delta + old residual, through commits, refusals and failures. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "tests/lib/test.h"

enum { N = 300, CAP = 4 * N + 100 };

static uint8_t bytes[CAP];
static float delta[N], before[N], x[N], sent[N];

static struct codec *make(const char *spec, size_t n)
{
    struct codec *codec = NULL;
    struct err err = {0};
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    if (codec_create(&codec, spec, &span, 1, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return codec;
}

/* Restarts the process: its checkpoint keeps the residual and whether a payload is pending. */
static void restart(struct feedback *fb, struct codec **codec, const char *spec, float decay)
{
    static float saved[N];
    bool pending = fb->pending;
    memcpy(saved, fb->residual, sizeof saved);
    feedback_finish(fb);
    codec_destroy(*codec);
    *codec = make(spec, N);
    assert_int_equal(feedback_init(fb, N, decay, true), STATUS_OK);
    memcpy(fb->residual, saved, sizeof saved);
    fb->pending = pending;
}

/* Allows one rounding of the larger summand. */
static bool adds_up(double sum, float expected, float part)
{
    return fabs(sum - expected) <= 0x1p-24 * (fabs((double)expected) + fabs((double)part));
}

/* Encodes with an error: no capacity, or an invalid delta. The state stays and delta is restored. */
static void check_failure(struct feedback *fb, struct codec *codec, uint64_t round)
{
    size_t size = 0;
    if (round & 1) delta[round % N] = NAN;
    assert_int_equal(feedback_encode(fb, codec, NULL, delta, bytes, round & 1 ? CAP : 3, &size),
                     round & 1 ? STATUS_NONFINITE : STATUS_LIMIT);
    assert_memory_equal(fb->residual, before, sizeof before);
    assert_false(fb->pending);
    memcpy(delta, x, sizeof x);
}

/* Runs 1,000 rounds of random deltas. Some are refused, some meet an error, some a restart before or after the
 * encoding.
 * After each round, within rounding: sent + residual = delta + decay * old residual. In total: sum of merged +
 * residual = sum of deltas - decayed part. */
static void check_property(const char *spec, float decay)
{
    struct codec *codec = make(spec, N);
    struct feedback fb;
    static double deltas[N], merged[N];
    memset(deltas, 0, sizeof deltas);
    memset(merged, 0, sizeof merged);
    assert_int_equal(feedback_init(&fb, N, decay, true), STATUS_OK);
    for (uint64_t round = 0; round < 1000; round++) {
        size_t size = 0;
        uint64_t dice = rng_u64(4, RNG_TEST, round), fate = dice % 8;
        rng_normal_fill(round, RNG_TEST, 0, fate == 0 ? 1.0f : 1e-3f, delta, N);
        if (dice >> 8 & 1) restart(&fb, &codec, spec, decay);
        memcpy(before, fb.residual, sizeof before);
        memcpy(x, delta, sizeof x);
        if (fate == 1 || fate == 2) check_failure(&fb, codec, round);
        assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
        assert_int_equal(codec_decode(codec, bytes, size, sent), STATUS_OK);
        for (size_t i = 0; i < N; i++) {
            volatile float kept = decay * before[i];
            assert_true(delta[i] == x[i] + kept); /* delta holds the encoded values */
            if (!adds_up((double)sent[i] + fb.residual[i], delta[i], sent[i]))
                fail_msg("%s, round %lu: error %g", spec, round, (double)sent[i] + fb.residual[i] - delta[i]);
            deltas[i] += (double)delta[i] - before[i];
        }
        assert_true(fb.pending);
        assert_int_equal(feedback_encode(&fb, codec, NULL, x, bytes, CAP, &size), STATUS_STATE); /* pending */
        if (dice >> 9 & 1) restart(&fb, &codec, spec, decay);
        if (fate < 5) {
            feedback_commit(&fb);
            for (size_t i = 0; i < N; i++) merged[i] += sent[i];
        } else {
            if (fate == 5) { /* other bytes than encode returned: refused, and still pending */
                assert_int_equal(feedback_rollback(&fb, codec, bytes, size - 1), STATUS_CORRUPT);
                assert_true(fb.pending);
            }
            assert_int_equal(feedback_rollback(&fb, codec, bytes, size), STATUS_OK);
            for (size_t i = 0; i < N; i++)
                if (!adds_up(fb.residual[i], delta[i], 2 * sent[i]))
                    fail_msg("%s, round %lu: %g lost", spec, round, (double)fb.residual[i] - delta[i]);
        }
        assert_false(fb.pending);
    }
    for (size_t i = 0; i < N; i++) /* deltas: with the decayed part subtracted */
        if (fabs(merged[i] + fb.residual[i] - deltas[i]) > 1e-4)
            fail_msg("%s: element %zu: %g merged + %g kept, not %g", spec, i, merged[i], fb.residual[i], deltas[i]);
    feedback_finish(&fb);
    codec_destroy(codec);
}

TEST(test_sent_plus_residual_is_conserved)
{
    static const char *const specs[] = {"fp32",
                                        "bf16",
                                        "int8:32",
                                        "int8:256+lz4",
                                        "topk:9/256",
                                        "topk:64/256+2bit",
                                        "topk:9/256+int8",
                                        "topk:9/256+fp16+lz4",
                                        "fp16",
                                        "int4:64",
                                        "2bit:64",
                                        "1bit:64",
                                        "int4:64+huff",
                                        "topk:9/256+sign+huff"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct codec *codec = make(specs[i], N);
        float advised = codec_feedback_decay(codec);
        assert_true(advised == (strncmp(specs[i], "topk", 4) ? 1.0f : 0.95f));
        codec_destroy(codec);
        check_property(specs[i], advised);
        check_property(specs[i], advised == 1.0f ? 0.9f : 1.0f);
    }
    assert_int_equal(mem_live_bytes(), 0);
}

/* A constant delta far below one quantization step arrives in the long run only with feedback. */
TEST(test_small_values_arrive_with_feedback)
{
    for (int enabled = 0; enabled < 2; enabled++) {
        struct codec *codec = make("int8:256", 256);
        struct feedback fb;
        double arrived = 0;
        assert_int_equal(feedback_init(&fb, 256, 1.0f, enabled), STATUS_OK);
        for (int round = 0; round < 2000; round++) {
            size_t size;
            for (int i = 0; i < 256; i++) delta[i] = i ? 1e-4f : 1.0f; /* a step is 1/127 = 79 times 1e-4 */
            assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
            assert_int_equal(codec_decode(codec, bytes, size, sent), STATUS_OK);
            arrived += sent[5];
            feedback_commit(&fb);
        }
        if (enabled)
            assert_true(fabs(arrived - 0.2) < 0.005);
        else
            assert_true(arrived == 0);
        feedback_finish(&fb);
        codec_destroy(codec);
    }
}

TEST(test_lossless_codec_has_no_residual)
{
    struct codec *codec = make("fp32+lz4", N);
    struct feedback fb;
    size_t size;
    assert_int_equal(feedback_init(&fb, N, 1.0f, true), STATUS_OK);
    for (uint64_t round = 0; round < 10; round++) {
        rng_normal_fill(round, RNG_TEST, 0, 1.0f, delta, N);
        assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
        for (size_t i = 0; i < N; i++) assert_true(fb.residual[i] == 0);
        feedback_commit(&fb);
    }
    feedback_finish(&fb);
    codec_destroy(codec);
}

TEST(test_disabled_feedback_has_no_residual)
{
    struct codec *codec = make("int8:256", N);
    struct feedback fb;
    size_t size;
    assert_int_equal(feedback_init(&fb, N, 1.0f, false), STATUS_OK);
    assert_null(fb.residual);
    rng_normal_fill(1, RNG_TEST, 0, 1.0f, delta, N);
    memcpy(x, delta, sizeof x);
    assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
    assert_memory_equal(x, delta, sizeof x);
    assert_int_equal(feedback_rollback(&fb, codec, bytes, size), STATUS_OK);
    assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
    feedback_commit(&fb);
    feedback_commit(&fb); /* nothing pending: no effect */
    feedback_reset(&fb);
    feedback_finish(&fb);
    codec_destroy(codec);
}

/* A caller that adds its deltas to a lent residual gets the same bytes and the same residual. */
TEST(test_residual_takes_the_delta_in_place)
{
    static const char *const specs[] = {"int8:256", "int4:64", "topk:16/256+sign"};
    static float lent[N], copy[N];
    static uint8_t there[CAP];
    for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
        struct codec *codec = make(specs[k], N);
        struct feedback own, in_place;
        float decay = codec_feedback_decay(codec);
        size_t size = 0, size_there = 0;
        memset(lent, 1, sizeof lent);
        assert_int_equal(feedback_init(&own, N, decay, true), STATUS_OK);
        assert_int_equal(feedback_init_lent(&in_place, N, decay, lent), STATUS_OK);
        for (uint64_t round = 0; round < 40; round++) {
            rng_normal_fill(round, RNG_TEST, 1, 1e-2f, delta, N);
            memcpy(copy, delta, sizeof copy);
            assert_int_equal(feedback_encode_in_place(&in_place, codec, NULL, there, CAP, &size_there), STATUS_STATE);
            feedback_ready(&in_place, NULL);
            feedback_ready(&in_place, NULL); /* a round that was dropped and assigned again */
            for (size_t i = 0; i < N; i++) lent[i] += delta[i];
            if (round == 7)
                assert_int_equal(feedback_encode_in_place(&in_place, codec, NULL, there, 3, &size), STATUS_LIMIT);
            assert_int_equal(feedback_encode(&own, codec, NULL, copy, bytes, CAP, &size), STATUS_OK);
            assert_int_equal(feedback_encode_in_place(&in_place, codec, NULL, there, CAP, &size_there), STATUS_OK);
            assert_int_equal(size_there, size);
            assert_memory_equal(there, bytes, size);
            assert_memory_equal(lent, own.residual, sizeof lent);
            if (round % 3) {
                feedback_commit(&own), feedback_commit(&in_place);
            } else {
                assert_int_equal(feedback_rollback(&own, codec, bytes, size), STATUS_OK);
                assert_int_equal(feedback_rollback(&in_place, codec, there, size), STATUS_OK);
            }
            assert_memory_equal(lent, own.residual, sizeof lent);
        }
        feedback_finish(&own);
        feedback_finish(&in_place);
        codec_destroy(codec);
    }
}

TEST(test_reset_clears_residual)
{
    struct codec *codec = make("int8:256", N), *shorter = make("int8:256", N - 1);
    struct feedback fb;
    size_t size = 0;
    assert_int_equal(feedback_init(&fb, 0, 1.0f, true), STATUS_INVALID);
    assert_int_equal(feedback_init(&fb, N, NAN, true), STATUS_INVALID);
    assert_int_equal(feedback_init(&fb, N, 1.5f, true), STATUS_INVALID);
    assert_int_equal(feedback_init(&fb, N, -0.1f, true), STATUS_INVALID);
    mem_fail_after(1);
    assert_int_equal(feedback_init(&fb, N, 1.0f, true), STATUS_NOMEM);
    assert_int_equal(feedback_init(&fb, N, 1.0f, true), STATUS_OK);
    rng_normal_fill(1, RNG_TEST, 0, 1.0f, delta, N);
    assert_int_equal(feedback_encode(&fb, shorter, NULL, delta, bytes, CAP, &size), STATUS_INVALID);
    assert_int_equal(feedback_rollback(&fb, codec, bytes, 1), STATUS_STATE); /* nothing to roll back */
    mem_fail_after(1);                                                       /* no allocation from here on */
    assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
    assert_int_equal(feedback_rollback(&fb, codec, bytes, size), STATUS_OK);
    assert_int_equal(feedback_encode(&fb, codec, NULL, delta, bytes, CAP, &size), STATUS_OK);
    mem_fail_after(0);
    feedback_reset(&fb);
    assert_false(fb.pending);
    for (size_t i = 0; i < N; i++) assert_true(fb.residual[i] == 0);
    feedback_finish(&fb);
    codec_destroy(codec);
    codec_destroy(shorter);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST_MAIN(NULL, NULL)
