/* Tests the outer loop's state on the emulated CUDA device over joins, updates, refusals, wrong hashes and restarts:
 * - Each round starts from the exact theta (tests/lib/rigs/scripted.c checks it every time).
 * - Payloads and residuals lose no value.
 * - The bus carries only changed values, once. ctest: labels=asan timeout=240 */
#include <math.h>

#include "common/base/log.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/rigs/scripted.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct scripted *const s = &scripted;

static void begin_with(void (*start)(const char *, const char *, struct device *), const char *up, const char *down,
                       unsigned seed)
{
    emulate_queue_order(seed);
    struct device *dev = cuda_begin(false);
    if (seed) /* seed 0: no pinned buffers */
        assert_int_equal(device_stage_plan(dev, 4 * SCRIPTED_N / 5, NULL), STATUS_OK);
    start(up, down, dev);
}

static void begin(const char *up, const char *down, unsigned seed)
{
    begin_with(scripted_begin_on, up, down, seed);
}

static void finish(void)
{
    struct device *dev = s->device;
    scripted_end();
    cuda_end(dev);
}

/* Bytes sent to the device from the end of a round until the next training. */
static unsigned long round_bytes(void)
{
    unsigned long before = emulate_uploaded();
    assert_true(scripted_until_training());
    scripted_train();
    return emulate_uploaded() - before;
}

static const char *const codecs[][2] = {{"int8:256", "int8:256"},    {"topk:20/512", "int4"},
                                        {"topk:8/256+2bit", "fp32"}, {"int4", "bf16"},
                                        {"int8", "topk:99/512"},     {"2bit", "topk:512/1024+fp16"}};

TEST(test_rounds)
{
    for (unsigned i = 0; i < COUNT(codecs); i++) {
        begin(codecs[i][0], codecs[i][1], i);
        scripted_rounds(4);
        assert_true(outer_loop_on_device(s->loop));
        scripted_check_theta();
        if (s->loop->f[0].fb.decay == 1) scripted_check_nothing_lost();
        finish();
    }
}

/* Discard the current round; the worker joins again. */
static void fault(void)
{
    struct outer_result poisoned = {.tokens = 32, .steps = 4, .loss_sum = NAN, .compute_us = 1000};
    log_set_level(LOG_ERROR - 1);
    assert_int_equal(outer_loop_train_done(s->loop, &poisoned, s->now), STATUS_NONFINITE);
    log_set_level(LOG_WARN);
}

/* Theta is uploaded once per round, and unchanged fragments are not uploaded. */
TEST(test_emulated_bytes)
{
    begin("int8:256", "fp32", 0);
    assert_true(scripted_until_training()); /* the tables of the plans are uploaded */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(round_bytes(), SCRIPTED_N * sizeof(float));
        scripted_train_done();
    }
    assert_int_equal(round_bytes(), SCRIPTED_N * sizeof(float));
    fault();
    assert_int_equal(round_bytes(), 0);
    finish();
}

/* For codecs with a device form, only the update's quantized values are uploaded; after a reload, theta once more. */
TEST(test_emulated_numbers)
{
    static const char *const downs[] = {"int8:256", "int4", "topk:20/512", "topk:100/512+2bit+huff"};
    for (unsigned i = 0; i < COUNT(downs); i++) {
        begin("int8:256", downs[i], i);
        assert_true(scripted_until_training());
        assert_int_equal(round_bytes(), SCRIPTED_N * sizeof(float));
        for (int round = 0; round < 3; round++) {
            scripted_train_done();
            unsigned long bytes = round_bytes();
            if (!bytes || bytes > SCRIPTED_N * 13 / 10) fail_msg("%s: %lu bytes uploaded", downs[i], bytes);
        }
        fault();
        assert_int_equal(round_bytes(), 0);
        finish();
    }
}

/* Updates of other workers during training: the base of the delta stays on the device, without a copy on the host.
 * Floats are uploaded once, after training; the update with the worker's own delta follows as quantized values. */
TEST(test_emulated_async)
{
    for (unsigned seed = 0; seed < 4; seed++) {
        begin_with(scripted_begin_async, "int8:256", seed % 2 ? "int8:256" : "topk:20/512", seed);
        scripted_rounds(2);
        assert_true(outer_loop_on_device(s->loop) && s->loop->base == s->loop->theta);
        for (int round = 0; round < 3; round++) {
            assert_true(scripted_until_training());
            scripted_train();
            for (int k = 0; k < 2; k++)
                for (uint32_t f = 0; f < SCRIPTED_F; f++) {
                    scripted_publish(f, false);
                    if (round < 2 || f) scripted_pass(200000); /* otherwise the message arrives later */
                }
            unsigned long before = emulate_uploaded();
            s->hold_merge = true;
            scripted_train_done();
            unsigned long floats =
                emulate_uploaded() - before - SCRIPTED_N * sizeof(float); /* minus the trained ones */
            assert_int_equal(floats, SCRIPTED_N * sizeof(float));
            s->hold_merge = false;
            before = emulate_uploaded();
            assert_true(scripted_until_training());
            assert_true(emulate_uploaded() - before < SCRIPTED_N * 14 / 10);
        }
        scripted_train();
        scripted_publish(0, false);
        scripted_pass(200000);
        fault();
        scripted_publish(0, false); /* its quantized values belong to another anchor */
        assert_true(scripted_until_training());
        scripted_train();
        scripted_check_theta();
        finish();
    }
}

/* A wrong hash: the worker reloads all fragments, the same version included. */
TEST(test_faults)
{
    for (unsigned i = 0; i < COUNT(codecs); i++) {
        begin(codecs[i][0], codecs[i][1], i);
        scripted_rounds(2);
        s->snapshot_at = 2;
        scripted_train();
        log_set_level(LOG_ERROR - 1);
        s->spoil_hash = true; /* of the first merged fragment */
        scripted_train_done();
        scripted_pass(3000000);
        for (uint32_t f = 0; f < SCRIPTED_F; f++)
            if (s->top[f] < 3) scripted_publish(f, false);
        s->snapshot_at = s->oldest = 3;
        scripted_pass(60000000);
        scripted_rounds(2);
        scripted_worker_kill();
        scripted_worker_up();
        scripted_rounds(2);
        log_set_level(LOG_WARN);
        scripted_check_theta();
        finish();
    }
}

/* The network loses and duplicates messages, and the worker is killed at random points. */
TEST(test_kills)
{
    begin("topk:20/512", "int8:256", 3);
    s->loss = 0.1;
    for (int i = 0; i < 6; i++) {
        scripted_rounds(1);
        if (i % 2) continue;
        if (scripted_until_training()) scripted_train();
        scripted_worker_kill();
        scripted_worker_up();
    }
    scripted_rounds(1);
    s->loss = 0;
    assert_true(scripted_until_training());
    scripted_check_theta();
    finish();
}

TEST_MAIN(NULL, NULL)
