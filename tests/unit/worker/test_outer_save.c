/* The worker saves its state during the upload of its deltas.
 * - No delta can be merged before the state is on disk.
 * - The state does not change during the save.
 * - A worker killed in between trains the same round again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "tests/lib/rigs/scripted.h"

static struct scripted *const s = &scripted;

enum { SAVE_US = 10000000 };

/* Trains a round and offers its deltas during the save. */
static void deliver_during_save(void)
{
    assert_true(scripted_until_training());
    scripted_train();
    s->save_us = SAVE_US;
    scripted_train_done();
}

static void test_last_byte_waits_for_save(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(2);
    deliver_during_save();
    assert_true(outer_loop_deadline_us(s->loop) <= s->now + 10000); /* the end is detected soon */
    scripted_pass(SAVE_US / 2);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) assert_int_equal(s->part_have[f], s->offered[f].bytes - 1);
    assert_int_equal(s->saves, 2);
    assert_int_equal(outer_loop_want(s->loop), OUTER_WAIT);
    assert_string_equal(outer_loop_text(s->loop, s->now), "the save of its state of round 3");
    scripted_pass(SAVE_US / 2 + 100000);
    assert_int_equal(s->saves, 3);
    assert_int_equal(s->top[0], 3);
    scripted_rounds(2);
    scripted_check_theta();
    scripted_check_nothing_lost();
}

/* Kills the worker during a save, after a save that the worker has not noticed, and after the merge of its delta. */
static void test_kills_around_save_do_not_change_run(void **state)
{
    (void)state;
    uint64_t calm = 0;
    for (int when = 0; when < 4; when++) {
        if (when) scripted_end();
        scripted_begin("int8:256");
        scripted_rounds(2);
        for (int i = 0; i < 3; i++) {
            deliver_during_save();
            uint32_t crc = s->loop->f[0].payload_crc;
            if (when) scripted_pass(when == 3 ? SAVE_US + 100000 : SAVE_US / 2);
            if (when == 2) scripted_save_ends();
            if (when) scripted_worker_kill();
            if (when) scripted_worker_up();
            s->save_us = 0;
            if (when == 1) {
                assert_true(s->inner[0] == 0);
                assert_true(scripted_until_training()); /* the worker remembers only the previous round */
                assert_int_equal(outer_loop_assignment(s->loop)->round, s->offered[0].round);
                assert_true(s->inner[0] == (float)s->offered[0].round);
                scripted_train();
                scripted_train_done();
            }
            assert_true(scripted_until_training());
            assert_int_equal(s->offered[0].crc, crc);
        }
        assert_int_equal(s->top[0], 5);
        if (!when) calm = s->hash_at[0][5];
        assert_int_equal(s->hash_at[0][5], calm);
    }
}

static int lines;
static char last_line[1024];

static void keep_line(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    if (level > LOG_INFO) return;
    lines++;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void listen(bool on)
{
    lines = 0;
    log_set_level(on ? LOG_INFO : LOG_ERROR - 1);
    log_set_sink(on ? keep_line : NULL, NULL);
}

static void test_failed_save_releases_delta(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->save_fails = true;
    s->save_us = 3000000;
    listen(true);
    scripted_rounds(3);
    assert_int_equal(lines, 1); /* one line */
    assert_non_null(strstr(last_line, "the test's disk is full"));
    listen(false);
    assert_int_equal(s->saves, 1);
    assert_int_equal(s->top[0], 4);
    scripted_check_theta();
    scripted_check_nothing_lost();
}

/* A round closes without the worker's delta: its update waits until theta is on disk. */
static void test_update_waits_for_save(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->hold_merge = s->no_work = true;
    deliver_during_save();
    scripted_pass(1000000);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) scripted_publish(f, false);
    scripted_pass(1000000);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) assert_int_equal(outer_loop_version(s->loop, f), 1);
    scripted_pass(SAVE_US);
    assert_int_equal(s->saves, 2);
    for (uint32_t f = 0; f < SCRIPTED_F; f++) assert_int_equal(outer_loop_version(s->loop, f), 2);
    scripted_check_theta();
}

/* The residual changes at once, because the save has ended by then. The round may be assigned again from the same
 * versions, and the refused delta must not return from the disk. The worker is READY only when the state without it
 * is saved. */
static void test_refusal_waits_for_save(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->reject = REJECT_LATE;
    s->no_work = true;
    deliver_during_save();
    scripted_pass(100000);
    assert_int_equal(s->saves, 2);
    assert_int_equal(s->loop->sync.last_again, 1);
    scripted_check_nothing_lost();
    assert_string_equal(outer_loop_text(s->loop, s->now), "the save of its state");
    assert_int_equal(s->loop->sync.state, WORKER_CATCHING_UP);
    scripted_pass(SAVE_US);
    assert_int_equal(s->saves, 3);
    assert_int_equal(s->loop->sync.state, WORKER_READY);
    memset(s->offered, 0, sizeof s->offered);
    scripted_worker_kill();
    scripted_worker_up();
    s->reject = 0;
    scripted_pass(5000000);
    assert_int_equal(s->loop->sync.state, WORKER_READY);
    assert_int_equal(s->offered[0].bytes, 0);
    scripted_check_nothing_lost();
}

/* The run continued without the worker: it drops its state and loads a snapshot. */
static void test_reset_waits_for_save(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->hold_merge = true;
    deliver_during_save();
    scripted_pass(100000);
    for (int v = 0; v < 4; v++)
        for (uint32_t f = 0; f < SCRIPTED_F; f++) scripted_publish(f, false);
    s->snapshot_at = s->oldest = 4;
    s->session = 0; /* and lost its sessions */
    scripted_pass(SAVE_US / 2);
    assert_int_equal(s->joins, 2);
    assert_int_equal(s->saves, 2);
    s->hold_merge = false;
    assert_true(scripted_until_training());
    scripted_check_theta();
    s->save_us = 0;
    scripted_rounds(1);
    scripted_check_theta();
}

static void test_leave_waits_for_save(void **state)
{
    (void)state;
    scripted_begin("int8:256");
    scripted_rounds(1);
    deliver_during_save();
    scripted_pass(100000);
    outer_loop_leave(s->loop, "stopped", s->now);
    assert_int_equal(s->saves, 2); /* and no other save */
    assert_int_equal(s->leaves, 1);
    assert_int_equal(outer_loop_want(s->loop), OUTER_DONE);
    scripted_worker_kill();
    scripted_worker_up();
    assert_true(scripted_until_training());
    deliver_during_save();
    scripted_pass(100000);
    outer_loop_destroy(s->loop); /* another end: the state is not freed before the save has read it */
    s->loop = NULL;
    assert_int_equal(s->saves, 3);
    scripted_worker_up();
}

/* Only the time that the round waited for the save counts, not the time of the upload. */
static void test_slow_saves_are_reported(void **state)
{
    (void)state;
    double waited;
    scripted_begin("int8:256");
    scripted_rounds(1);
    listen(true);
    deliver_during_save();
    s->mute = true;
    scripted_pass(SAVE_US - 1500000);
    s->mute = false;
    scripted_pass(60000000);
    assert_int_equal(lines, 0);
    deliver_during_save();
    scripted_pass(SAVE_US + 100000);
    assert_int_equal(lines, 1);
    const char *at = strstr(last_line, "waited ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "waited %lf s for the save", &waited), 1);
    assert_true(waited > 9 && waited <= 10.1);
    listen(false);
}

int main(void)
{
    log_set_level(LOG_ERROR - 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_last_byte_waits_for_save, scripted_teardown),
        cmocka_unit_test_teardown(test_kills_around_save_do_not_change_run, scripted_teardown),
        cmocka_unit_test_teardown(test_failed_save_releases_delta, scripted_teardown),
        cmocka_unit_test_teardown(test_update_waits_for_save, scripted_teardown),
        cmocka_unit_test_teardown(test_refusal_waits_for_save, scripted_teardown),
        cmocka_unit_test_teardown(test_reset_waits_for_save, scripted_teardown),
        cmocka_unit_test_teardown(test_leave_waits_for_save, scripted_teardown),
        cmocka_unit_test_teardown(test_slow_saves_are_reported, scripted_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
