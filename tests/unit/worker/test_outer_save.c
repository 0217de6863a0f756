/* The worker saves its state during the upload of its deltas.
 * - No delta can be merged before the state is on disk.
 * - The state does not change during the save.
 * - A worker killed in between trains the same round again. */

#include "common/base/log.h"
#include "tests/lib/rigs/scripted.h"
#include "tests/lib/test.h"

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

TEST_WITH(test_failed_save_releases_delta, NULL, scripted_teardown)
{
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

TEST_WITH(test_leave_waits_for_save, NULL, scripted_teardown)
{
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
TEST_WITH(test_slow_saves_are_reported, NULL, scripted_teardown)
{
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

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR - 1);
    return test_run(argc, argv, NULL, NULL);
}
