/* The outer loop against a scripted coordinator: fresh joins, joins from a snapshot or a saved state, interrupted
 * uploads, refusals and wrong hashes, also on a network that loses and duplicates messages.
 * Sent + residual must always equal the computed deltas. */
#include <math.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/rigs/scripted.h"
#include "tests/lib/test.h"

static struct scripted *const s = &scripted;

TEST_WITH(test_version_0_of_other_weights_is_downloaded, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    s->theta[1][0][5] = 3.25f; /* init_from: other values than the seed's */
    s->hash_at[1][0] = hash_floats(NULL, s->theta[1][0], s->layout.fragments[1].count);
    assert_true(scripted_until_training());
    assert_int_equal(s->snapshot_gets, 1);
    scripted_check_theta();
}

/* A program whose own parameters have the run's hash downloads nothing; of other ones, only the fragments that differ.
 */
TEST(test_version_0_of_own_parameters_is_kept)
{
    for (int same = 0; same < 2; same++) {
        static float own[SCRIPTED_N];
        scripted_begin("int8:256");
        for (uint32_t f = 0; f < SCRIPTED_F; f++) {
            const struct fragment *fragment = &s->layout.fragments[f];
            for (uint64_t i = 0; i < fragment->count; i++)
                own[fragment->offset + i] = s->theta[f][0][i] = 0.25f * (float)(i % 7);
            s->hash_at[f][0] = hash_floats(NULL, s->theta[f][0], fragment->count);
        }
        if (!same) own[s->layout.fragments[1].offset] += 1;
        s->initial = own;
        assert_true(scripted_until_training());
        assert_int_equal(s->snapshot_gets, same ? 0 : 1);
        scripted_check_theta();
        scripted_end();
    }
}

TEST_WITH(test_wrong_hash_drops_state_and_rejoins, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(2);
    uint64_t good = s->hash_at[0][2];
    s->snapshot_at = 2;
    scripted_train();
    s->spoil_hash = true; /* of the first merged fragment */
    scripted_train_done();
    scripted_pass(3000000);
    assert_true(s->joins >= 2);
    assert_int_equal(good, s->hash_at[0][2]);
    assert_true(s->snapshot_gets >= SCRIPTED_F);
    /* The update itself has a wrong hash: the worker cannot get past it until the snapshot moves on. */
    for (uint32_t f = 0; f < SCRIPTED_F; f++)
        if (s->top[f] < 3) scripted_publish(f, false);
    s->snapshot_at = s->oldest = 3;
    scripted_pass(60000000);
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR - 1);
    scripted_check_theta();
}

TEST_WITH(test_damaged_update_is_requested_again, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->spoil_payload = true;
    scripted_publish(0, false);
    scripted_pass(1000000);
    assert_int_equal(outer_loop_version(s->loop, 0), 1);
    assert_int_equal(s->joins, 1);
    s->snapshot_at = s->oldest = 2;
    scripted_publish(1, false);
    scripted_pass(60000000); /* after three damaged copies the worker starts from the later snapshot */
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR - 1);
    scripted_check_theta();
}

TEST_WITH(test_damaged_snapshot_is_requested_again, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    for (int v = 0; v < 3; v++)
        for (uint32_t f = 0; f < SCRIPTED_F; f++) scripted_publish(f, false);
    s->snapshot_at = s->oldest = 2;
    s->spoil_snapshots = 1;
    assert_true(scripted_until_training());
    assert_int_equal(s->snapshot_gets, SCRIPTED_F + 1);
    assert_int_equal(s->joins, 1);
    scripted_check_theta();
}

TEST_WITH(test_deleted_log_means_snapshot_without_residual, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(2);
    scripted_worker_kill();
    for (int v = 0; v < 5; v++)
        for (uint32_t f = 0; f < SCRIPTED_F; f++) scripted_publish(f, false);
    s->snapshot_at = s->oldest = 6;
    scripted_worker_up();
    assert_true(scripted_until_training());
    scripted_check_theta();
    for (int i = 0; i < 10; i++) assert_true(s->loop->f[0].fb.residual[i] == 0.0f);
}

/* Saved every third round and killed two rounds later: the residual of the saved round is part of deltas merged
 * since. Keeping it would send it twice. */
TEST_WITH(test_older_state_resets_its_residual, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    snprintf(s->config.checkpoint.worker_every, sizeof s->config.checkpoint.worker_every, "3");
    scripted_rounds(6);
    assert_int_equal(s->saves, 2);
    assert_true(s->loop->f[0].fb.residual[1] != 0.0f);
    scripted_worker_kill();
    scripted_worker_up();
    assert_true(scripted_until_training());
    scripted_check_theta();
    assert_true(s->inner[0] == 4); /* of round 3 */
    for (int i = 0; i < 500; i++) assert_true(s->loop->f[0].fb.residual[i] == 0.0f);
    scripted_rounds(2);
    scripted_check_theta();
}

TEST_WITH(test_damaged_state_falls_back_to_older, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(4);
    scripted_worker_kill();
    s->stored_size[0] -= 100;
    scripted_worker_up();
    assert_true(scripted_until_training());
    scripted_check_theta();
    assert_true(s->inner[0] == 3); /* of one round earlier */
    scripted_rounds(1);
    scripted_check_theta();
}

TEST_WITH(test_state_of_other_worker_is_ignored, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(1);
    scripted_worker_kill();
    s->setup.uuid[0] ^= 1; /* the file belongs to another worker */
    scripted_worker_up();
    assert_true(scripted_until_training());
    assert_true(s->inner[0] == 0);
    scripted_check_theta();
}

/* If the coordinator does not answer, the status names that first, independent of the earlier wait. */
TEST_WITH(test_status_names_silent_coordinator, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(1);
    scripted_train();
    scripted_train_done();
    heartbeat_on_message(outer_loop_heartbeat(s->loop), NULL, s->now);
    assert_null(strstr(outer_loop_text(s->loop, s->now + 4000000), "coordinator"));
    const char *text = outer_loop_text(s->loop, s->now + 7000000);
    if (!strstr(text, "the coordinator (no answer for 7 s), then for the upload of its delta of round "))
        fail_msg("%s", text);
    s->loop->sync.phase = SYNC_HELLO;
    assert_string_equal(outer_loop_text(s->loop, s->now + 8000000), "the coordinator (no answer for 8 s)");
}

/* Another coordinator at the address refuses the run of a trained worker: the error does not blame the state. */
TEST_WITH(test_other_run_at_address_ends_worker, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(2);
    s->refuse_hello = REFUSE_RUN;
    scripted_pass(5000000);
    struct msg unknown = {.type = MSG_REFUSE, .refuse.code = REFUSE_UNKNOWN_SESSION};
    scripted_answer(&unknown);
    scripted_pass(5000000);
    assert_int_equal(outer_loop_want(s->loop), OUTER_FAILED);
    assert_true(outer_loop_refused(s->loop));
    assert_non_null(strstr(outer_loop_text(s->loop, s->now), "now serves another run"));
}

static int warnings;

static void count_warnings(void *ctx, enum log_level level, const char *line)
{
    (void)ctx;
    warnings += level <= LOG_WARN;
    if (level <= LOG_WARN) assert_non_null(strstr(line, "retrying for 90 s"));
}

/* One warning, retries for some time, and a join once the other worker is gone. */
TEST_WITH(test_taken_name_is_retried, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    s->refuse_hello = REFUSE_NAME;
    warnings = 0;
    log_set_level(LOG_WARN);
    log_set_sink(count_warnings, NULL);
    scripted_pass(60000000);
    log_set_sink(NULL, NULL);
    log_set_level(LOG_ERROR - 1);
    assert_int_equal(warnings, 1);
    assert_int_equal(outer_loop_want(s->loop), OUTER_WAIT);
    s->refuse_hello = 0;
    assert_true(scripted_until_training());
}

TEST_WITH(test_steady_state_allocates_no_memory, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    s->setup.save_begin = NULL;
    scripted_rounds(1);
    mem_fail_after(1);
    s->loop->setup.save_begin = NULL; /* the test's own storage allocates */
    scripted_rounds(3);
    mem_fail_after(0);
    scripted_check_theta();
}

/* Work takes time: at every second call, the stopwatch has advanced. */
enum { WORK_US = 200000, IDLE_US = 50000 };

static uint64_t slow_stopwatch(void)
{
    static bool behind;
    behind = !behind;
    return s->now += behind ? 0 : WORK_US;
}

/* The times of a round's parts add up to its duration: no part is missing or counted twice. */
TEST_WITH(test_times_of_round_add_up, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->loop->setup.stopwatch_us = slow_stopwatch;
    for (int round = 1; round < 4; round++) {
        assert_true(scripted_until_training());
        scripted_train();
        s->hold_merge = round == 2;
        s->save_us = round == 3 ? 4000000 : 0; /* delivered at the end of the save */
        uint64_t begun = s->now;
        scripted_train_done();
        if (s->hold_merge) scripted_pass(3000000); /* delivered long before */
        for (uint32_t f = 0; f < SCRIPTED_F && s->hold_merge; f++) scripted_publish(f, true);
        s->hold_merge = false;
        while (outer_loop_times(s->loop)->round != (uint64_t)round && s->now < begun + 100000000) scripted_pass(1);
        const struct outer_times *t = outer_loop_times(s->loop);
        double took = (double)(s->now - begun) * 1e-6, sum = t->compress_s + t->send_s + t->wait_s + t->apply_s;
        assert_true(fabs(t->compute_s - 1e-3) < 1e-9);
        assert_true(fabs(t->compress_s - 2 * WORK_US * 1e-6) < 1e-9); /* encode, and gather for the save */
        assert_true(fabs(t->apply_s - SCRIPTED_F * WORK_US * 1e-6) < 1e-9);
        if (round == 2) assert_true(t->wait_s > 2);
        if (round == 3) assert_true(t->send_s > 3.5);
        if (sum > took + 1e-9 || sum < took - 2.5e-6 * IDLE_US)
            fail_msg("round %d took %.3f s: compress %.3f, send %.3f, wait %.3f, apply %.3f", round, took,
                     t->compress_s, t->send_s, t->wait_s, t->apply_s);
    }
}

TEST_WITH(test_out_of_memory_at_config_is_reported, NULL, scripted_teardown)
{
    for (long n = 1; n < 12; n++) {
        scripted_begin("int8:256");
        mem_fail_after(n);
        scripted_pass(500000);
        mem_fail_after(0);
        if (outer_loop_want(s->loop) == OUTER_FAILED) assert_int_not_equal(outer_loop_text(s->loop, s->now)[0], 0);
        scripted_end();
    }
    scripted_begin("int8:256");
}

/* Relayed updates grow with the number of workers. One larger than the maximum is an error of its sender. One that
 * does not fit into memory must not be requested without end. */
TEST_WITH(test_out_of_memory_for_update_ends_worker, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    assert_true(scripted_until_training());
    struct outer_fragment *f = &s->loop->f[0];
    struct msg m = {.type = MSG_CHUNK, .chunk = {.kind = OBJECT_UPDATE, .key = 1, .total = f->object_max + 1}};
    m.chunk.data = (const uint8_t *)"x";
    m.chunk.size = 1;
    outer_loop_on_message(s->loop, WIRE_BULK, &m, s->now);
    assert_int_equal(outer_loop_want(s->loop), OUTER_TRAIN);
    f->object_max++;
    mem_fail_after(1);
    outer_loop_on_message(s->loop, WIRE_CONTROL, &m, s->now); /* not the lane of chunks: ignored */
    assert_int_equal(outer_loop_want(s->loop), OUTER_TRAIN);
    outer_loop_on_message(s->loop, WIRE_BULK, &m, s->now);
    mem_fail_after(0);
    assert_int_equal(outer_loop_want(s->loop), OUTER_FAILED);
    assert_non_null(strstr(outer_loop_text(s->loop, s->now), "no memory for an update of "));
}

/* A delta refused for its finite values does not return with the residual. An accepted round between two refusals
 * restarts their count. */
TEST_WITH(test_too_large_delta_is_sent_once, NULL, scripted_teardown)
{
    scripted_begin("int8:256");
    scripted_rounds(1);
    s->inner[0] = 0;
    for (int times = 1; times <= 5; times++) {
        assert_true(scripted_until_training());
        scripted_train();
        assert_true((s->inner[0] == 1) == (times != 3)); /* restarted, but after the accepted round */
        s->inner[0] = 99;
        s->reject = times == 2 ? 0 : REJECT_NONFINITE;
        s->no_work = true;
        scripted_train_done();
        scripted_pass(1000000);
        s->no_work = false;
        assert_true(s->inner[0] == 99); /* a step may be in progress */
        if (times == 5) break;
        assert_int_not_equal(outer_loop_want(s->loop), OUTER_FAILED);
        for (uint32_t f = 0; f < SCRIPTED_F && times != 2; f++) {
            const struct feedback *fb = &s->loop->f[f].fb;
            assert_false(fb->pending);
            for (size_t i = 0; i < fb->count; i++) assert_true(fb->residual[i] == 0);
        }
    }
    assert_int_equal(outer_loop_want(s->loop), OUTER_FAILED); /* the third in a row */
    assert_non_null(strstr(outer_loop_text(s->loop, s->now), "learning_rate"));
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR - 1);
    return test_run(argc, argv, NULL, NULL);
}
