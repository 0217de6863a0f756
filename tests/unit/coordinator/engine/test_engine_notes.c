/* Warnings about the training: workers that send the same deltas, and workers with other learning rates. They begin
 * once, stand in the status while they hold, and end with their cause. */
#include <math.h>

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

static void start(int workers, const char *more)
{
    static char least[40];
    snprintf(least, sizeof least, "coordinator.min_workers=%d", workers);
    const char *settings[] = {"train.max_steps=200", "outer.momentum=0", least, more, NULL};
    rig_open_with(&rig, settings, workers, false);
}

static void play_round(int workers, float level, float apart)
{
    for (int i = 0; i < workers; i++) rig_assigned(&rig, i);
    for (int i = 0; i < workers; i++)
        for (uint32_t f = 0; f < 2; f++)
            assert_int_equal(rig_deliver(&rig, i, f, level + apart * (float)i).type, MSG_CREDIT);
    for (int i = 0; i < workers; i++) rig_catch_up(&rig, i);
}

static bool holds(const char *text)
{
    return strstr(rig_status(&rig), text) != NULL;
}

static const char *last_note(void)
{
    for (size_t i = rig.n_events; i--;)
        if (rig.events[i].kind == ENGINE_EVENT_NOTE) return rig.event_text[i];
    return "";
}

TEST(test_equal_deltas_are_noted_once)
{
    start(2, NULL);
    for (int round = 0; round < 5; round++) {
        play_round(2, (float)(round + 1), 0);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), round >= 2);
        assert_int_equal(holds("nearly the same delta"), round >= 2);
    }
    assert_non_null(strstr(last_note(), "worker-0 and worker-1 send nearly the same delta (agreement 1.0000 in 3 "
                                        "rounds): do they train on the same samples?"));
    for (int i = 0; i < 2; i++) { /* each worker is told once */
        struct msg m;
        rig_expect(&rig, i, MSG_NOTE, &m);
        assert_string_equal(m.note.text, last_note());
        rig_expect_none(&rig, i, MSG_NOTE);
    }
    play_round(2, 40, 300);
    assert_false(holds("nearly the same delta"));
    rig_wait(&rig, 2000000); /* events of one second are counted together */
    for (int round = 0; round < 3; round++) play_round(2, (float)(round + 1), 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 2); /* it began again */
    rig_restart(&rig, false, 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 0); /* told by the earlier process, and still true */
    assert_true(holds("nearly the same delta"));
    rig_close(&rig);
}

TEST(test_other_deltas_are_not_noted)
{
    start(3, NULL);
    for (int round = 0; round < 6; round++) play_round(3, 1, (float)(round % 3)); /* two rounds of three differ */
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 0);
    rig_close(&rig);
    start(1, NULL); /* one worker has nobody to agree with */
    for (int round = 0; round < 6; round++) play_round(1, 1, 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 0);
    rig_close(&rig);
}

/* The worker reports both steps of its round. */
static void report_lr(int worker, float lr, double ahead)
{
    const struct rig_worker *w = &rig.workers[worker];
    struct msg m = {.type = MSG_METRICS, .metrics = {.session = w->session, .round = UINT64_MAX, .n_steps = 2}};
    for (uint32_t i = 0; i < 2; i++)
        m.metrics.steps[i] = (struct metrics_step){.round = w->task.round,
                                                   .step = i,
                                                   .position = w->task.step0 + ahead + i,
                                                   .tokens = 8,
                                                   .lr = lr,
                                                   .grad_norm = METRICS_UNKNOWN};
    rig_say(&rig, w->control, &m);
}

static void play_rates(float a, float b, double ahead)
{
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    report_lr(0, a, 0);
    report_lr(1, b, ahead);
    rig_deliver_all(&rig, 2, 1);
}

TEST(test_other_learning_rates_are_noted_once)
{
    start(2, NULL);
    play_rates(0.01f, 0.0081f, 0);
    play_rates(0.01f, METRICS_UNKNOWN, 0);
    play_rates(0, 0, 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 0);
    for (int round = 0; round < 3; round++) play_rates(0.01f, 0.0025f, 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 1);
    assert_string_equal(last_note(), "worker-0 trains with learning rate 0.01, worker-1 with 0.0025 at position 6: let "
                                     "the schedule follow worker.position");
    assert_true(holds("worker-1 with 0.0025"));
    play_rates(0.01f, 0.01f, 0);
    assert_false(holds("learning rate"));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 1);
    rig_close(&rig);
}

/* Without a barrier workers stand at other positions, where a schedule has other rates. */
TEST(test_rates_of_other_positions_are_not_compared)
{
    start(2, NULL);
    for (int round = 0; round < 3; round++) play_rates(0.01f, 0.0025f, 1);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_NOTE), 0);
    rig_close(&rig);
}

/* ASSIGN says the mean rate of the newest merged round, and the epochs that earlier rounds got. */
TEST(test_assignments_tell_rate_and_epoch)
{
    start(2, NULL);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 2; i++) {
            rig_assigned(&rig, i);
            const struct msg_assign *task = &rig.workers[i].task;
            assert_true(!round ? isnan(task->lr) : fabs(task->lr - (round == 3 ? 0.03 : 0.015)) < 1e-8);
            assert_true(fabs(task->epoch - (double)rig.workers[0].task.ranges[0].start / 50) < 1e-12);
            assert_int_equal(rig.workers[0].task.ranges[0].start > 0, round > 0);
        }
        report_lr(0, round == 2 ? 0.03f : 0.01f, 0);
        report_lr(1, round == 2 ? METRICS_UNKNOWN : 0.02f, 0);
        rig_deliver_all(&rig, 2, 1);
    }
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
