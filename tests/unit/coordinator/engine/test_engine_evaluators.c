/* Runs in which some workers, or all, have no validation data. */
#include <math.h>

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

enum { LOSS = 2 }; /* nats per token */

static void open_run(bool first_is_blind, bool second_is_blind)
{
    const char *settings[] = {"coordinator.min_workers=2", "train.eval_every=1", "train.max_steps=4", NULL};
    rig_open(&rig, settings);
    rig.workers[0].blind = first_is_blind;
    rig.workers[1].blind = second_is_blind;
    for (int i = 0; i < 2; i++) rig_join(&rig, i);
}

static void play_round(void)
{
    for (int i = 0; i < 2; i++) rig_assigned(&rig, i);
    rig_deliver_all(&rig, 2, 1);
}

static double final_loss(bool *done_p)
{
    struct engine_summary sum;
    engine_summary(rig.engine, &sum);
    *done_p = sum.done;
    return sum.final_val_loss;
}

/* The first worker defines the run without validation data; the second one defines these, also across a restart. */
TEST(test_only_workers_with_data_evaluate)
{
    bool done;
    for (int restart = 0; restart < 2; restart++) {
        open_run(true, false);
        if (restart) {
            rig_restart(&rig, true, 7);
            rig.workers[1].session = rig.workers[0].session = 0;
            rig_join(&rig, 0); /* alone it would end the run without a loss */
            rig_join(&rig, 1);
        }
        for (int round = 0; round < 2; round++) {
            play_round();
            rig_expect_none(&rig, 0, MSG_EVAL);
            rig_answer_evals(&rig, 2, LOSS);
            for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_READY);
        }
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 2);
        assert_true(fabs(final_loss(&done) - LOSS) < 1e-9 && done);
        rig_close(&rig);
    }
}

TEST(test_other_validation_data_are_refused)
{
    struct msg m;
    open_run(true, false);
    for (int change = 0; change < 3; change++) {
        rig_hello(&rig, 2);
        rig_expect(&rig, 2, MSG_CONFIG, &m);
        rig_join_message(&rig, 2, false, &m);
        if (change == 0) m.join.val_samples++;
        if (change == 1) m.join.val_hash++;
        if (change == 2) m.join.val_samples = m.join.val_hash = 0;
        rig_say(&rig, rig.workers[2].control, &m);
        if (change == 2) {
            rig_expect(&rig, 2, MSG_WELCOME, &m);
            break;
        }
        rig_expect(&rig, 2, MSG_REFUSE, &m);
        assert_int_equal(m.refuse.code, REFUSE_DATASET);
        assert_non_null(strstr(m.refuse.text, "validation data"));
    }
    rig_close(&rig);
}

TEST(test_run_without_evaluator_ends_without_loss)
{
    bool done;
    char status[8192];
    open_run(true, true);
    for (int round = 0; round < 2; round++) play_round();
    assert_true(isnan(final_loss(&done)) && done);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 0);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 2);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0); /* nothing is wrong */
    assert_true(engine_status_json(rig.engine, status, sizeof status) > 0);
    assert_non_null(strstr(status, "\"final_val_loss\":null"));
    assert_non_null(strstr(status, "\"state\":\"done\""));
    rig_close(&rig);
}

/* The only evaluator is away for a moment: the final evaluation waits. It leaves: the run ends without a loss. */
TEST(test_run_ends_when_its_evaluator_left)
{
    bool done;
    open_run(true, false);
    play_round();
    rig_answer_evals(&rig, 2, LOSS);
    for (int i = 0; i < 2; i++) rig_beat(&rig, i, WORKER_READY);
    play_round();
    rig_restart(&rig, false, 0);
    rig_join(&rig, 0);
    rig_wait(&rig, 2000000);
    assert_true(isnan(final_loss(&done)) && !done); /* waits for its active member */
    rig_join(&rig, 1);
    rig_leave(&rig, 1);
    rig_beat(&rig, 0, WORKER_READY);
    assert_true(isnan(final_loss(&done)) && done);
    assert_true(rig_faults(&rig, "no validation loss after round 2: no worker with validation data is here", ""));
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
