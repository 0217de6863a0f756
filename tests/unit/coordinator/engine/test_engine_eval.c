/* Evaluations: samples by a second worker, false results, disputes, and holders that do not answer. */
#include <math.h>

#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/test.h"

static struct rig rig;

enum { TRUTH = 2 }; /* nats per token of honest workers */

/* Opens a run whose first evaluation has begun. rounds: 1 or more. */
static void open_at_evaluation(int n_workers, const char *max_steps)
{
    char least[40];
    snprintf(least, sizeof least, "coordinator.min_workers=%d", n_workers);
    const char *settings[] = {least, "train.eval_every=1", max_steps, "model.vocab_size=256", NULL};
    rig_open_with(&rig, settings, n_workers, true);
    rig_deliver_all(&rig, n_workers, 1);
}

/* How a worker lies. */
enum lie { NO_LIE, VALUE, TOKENS, SUM_ONLY, NEGATIVE_PART };

struct liar {
    int worker; /* -1: none */
    enum lie lie;
    double value; /* nats per token */
};

/* Answers all EVALs; returns the number of the liar's. */
static int answer_all(int n_workers, struct liar liar)
{
    struct msg eval, m;
    int lies = 0;
    for (bool any = true; any;) {
        any = false;
        for (int i = 0; i < n_workers; i++) {
            if (!rig_take(&rig, i, MSG_EVAL, &eval)) continue;
            bool false_one = i == liar.worker && liar.lie != NO_LIE;
            any = true;
            lies += false_one;
            rig_eval_result(&rig, i, &eval, false_one && liar.lie == VALUE ? liar.value : TRUTH, &m);
            if (false_one && liar.lie == TOKENS) m.eval_result.tokens -= 1;
            if (false_one && liar.lie == SUM_ONLY) m.eval_result.loss_sum *= 0.5;
            if (false_one && liar.lie == NEGATIVE_PART) {
                m.eval_result.parts[0].sum -= 1000;
                m.eval_result.loss_sum -= 1000;
            }
            rig_say(&rig, rig.workers[i].control, &m);
        }
    }
    return lies;
}

static double val_loss(void)
{
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 1);
    return rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.val_loss;
}

static void next_round(int n_workers)
{
    for (int i = 0; i < n_workers; i++) rig_beat(&rig, i, WORKER_READY);
    for (int i = 0; i < n_workers; i++) rig_assigned(&rig, i);
    rig_forget(&rig);
    rig_deliver_all(&rig, n_workers, 1);
}

/* Takes the newest EVAL: a heartbeat repeats it. */
static struct msg newest_eval(int worker)
{
    struct msg eval, m;
    rig_expect(&rig, worker, MSG_EVAL, &eval);
    while (rig_take(&rig, worker, MSG_EVAL, &m)) eval = m;
    return eval;
}

/* Every share is checked by another worker, on windows inside it, and the value keeps the first worker's bits. */
TEST(test_second_worker_checks_sample)
{
    struct msg first[2], second, m;
    open_at_evaluation(2, "train.max_steps=20");
    double values[2] = {1.7000001, 2.3}, sums[2] = {0};
    for (int i = 0; i < 2; i++) first[i] = newest_eval(i);
    for (int i = 0; i < 2; i++) {
        rig_eval_result(&rig, i, &first[i], values[i], &m);
        sums[i] = m.eval_result.loss_sum;
        rig_say(&rig, rig.workers[i].control, &m);
    }
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 0);
    for (int i = 0; i < 2; i++) {
        second = newest_eval(i);
        const struct msg_eval *share = &first[1 - i].eval;
        assert_int_equal(second.eval.start, share->start);
        assert_int_equal(second.eval.count, share->count);
        assert_int_equal(share->wanted, 31);
        assert_true(second.eval.wanted && second.eval.wanted < 31); /* of 5 windows */
        assert_int_equal(second.eval.versions[0], share->versions[0]);
        rig_eval_result(&rig, i, &second, values[1 - i] * (1 + 1e-6), &m); /* other instructions */
        rig_say(&rig, rig.workers[i].control, &m);
    }
    assert_true(val_loss() == (sums[0] + sums[1]) / 80);
    assert_false(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.disputed ||
                 rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.by_one);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
    rig_close(&rig);
}

static const struct liar lies[] = {{0, VALUE, -502346}, {0, VALUE, 0.001}, {0, VALUE, NAN},      {0, VALUE, 900},
                                   {0, VALUE, 1.9},     {0, TOKENS, 0},    {0, SUM_ONLY, 0},     {0, NEGATIVE_PART, 0},
                                   {2, VALUE, 0.001},   {2, VALUE, NAN},   {1, VALUE, -INFINITY}};

/* Three workers: the liar is named, its value is not used, and it evaluates no more. */
TEST(test_liar_among_three_is_refused)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        open_at_evaluation(3, "train.max_steps=20");
        assert_true(answer_all(3, lies[i]) > 0);
        assert_true(val_loss() == TRUTH);
        assert_false(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.disputed);
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 1);
        assert_true(rig_faults(&rig, "refused its evaluation after round 1", "it evaluates no more"));
        char name[16];
        snprintf(name, sizeof name, "worker-%d", lies[i].worker);
        assert_string_equal(rig_last(&rig, ENGINE_EVENT_FAULT, NULL)->line.worker, name);
        next_round(3);
        assert_int_equal(answer_all(3, lies[i]), 0);
        assert_true(val_loss() == TRUTH);
        rig_close(&rig);
    }
}

/* Two workers: a value that is wrong by itself, or outside the bounds, is refused. Otherwise both are named, and the
 * larger value counts. */
TEST(test_liar_among_two_never_flatters)
{
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        if (lies[i].worker == 2) continue;
        bool disputed = lies[i].lie == VALUE && lies[i].value > 0 && lies[i].value < 3;
        open_at_evaluation(2, "train.max_steps=20");
        assert_true(answer_all(2, lies[i]) > 0);
        assert_true(fabs(val_loss() - TRUTH) < 1e-12);
        assert_int_equal(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.disputed, disputed);
        if (disputed)
            assert_true(rig_faults(&rig, "disputed evaluation", "worker-0 gives") &&
                        rig_faults(&rig, "worker-1 gives", "the larger value counts"));
        else
            assert_true(rig_faults(&rig, "refused its evaluation after round 1", "it evaluates no more"));
        next_round(2);
        assert_int_equal(answer_all(2, lies[i]) > 0, disputed);
        rig_close(&rig);
    }
}

/* Workers that agree are believed: a diverged run is reported. */
TEST(test_diverged_model_is_believed)
{
    for (int i = 0; i < 2; i++) {
        open_at_evaluation(2, "train.max_steps=20");
        rig_answer_evals(&rig, 2, i ? 900 : NAN);
        assert_true(i ? val_loss() == 900 : isinf(val_loss()));
        assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), !i);
        if (!i) assert_true(rig_faults(&rig, "training diverged", "is not finite"));
        rig_close(&rig);
    }
}

TEST(test_single_worker_is_believed_within_bounds)
{
    open_at_evaluation(1, "train.max_steps=20");
    rig_answer_evals(&rig, 1, 3);
    assert_true(val_loss() == 3);
    assert_true(rig_last(&rig, ENGINE_EVENT_EVAL, NULL)->eval.by_one &&
                rig_last(&rig, ENGINE_EVENT_ROUND, NULL)->round.val_by_one);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_FAULT), 0);
    next_round(1);
    rig_answer_evals(&rig, 1, 900);
    assert_true(val_loss() == 900);
    assert_true(rig_faults(&rig, "900 nats per token (8 tokens) in windows 1 to 1, above 2 ln(model.vocab_size)",
                           "no other worker could check it"));
    next_round(1);
    rig_answer_evals(&rig, 1, -1);
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_EVAL), 0);
    assert_true(rig_faults(&rig, "no validation loss after round 3", "the results of all workers were refused"));
    rig_beat(&rig, 0, WORKER_READY);
    rig_assigned(&rig, 0); /* the run continues */
    rig_close(&rig);
}

/* Heartbeats of both workers, every second. */
static void beat_both(int seconds, enum worker_state second)
{
    for (int i = 0; i < seconds; i++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 0, WORKER_READY);
        rig_beat(&rig, 1, second);
    }
}

/* A worker that sends only heartbeats loses its share. It gets no other one until it answers. */
TEST(test_late_share_goes_to_other_worker)
{
    struct msg again, m;
    open_at_evaluation(2, "train.max_steps=20");
    struct msg mine = newest_eval(0), stuck = newest_eval(1);
    rig_eval_result(&rig, 0, &mine, TRUTH, &m);
    rig_say(&rig, rig.workers[0].control, &m);
    beat_both(14, WORKER_EVALUATING);
    rig_expect_none(&rig, 0, MSG_EVAL);
    beat_both(2, WORKER_EVALUATING);
    again = newest_eval(0);
    assert_int_equal(again.eval.start, stuck.eval.start);
    assert_int_equal(again.eval.count, stuck.eval.count);
    assert_true(rig_faults(&rig, "is late: no result within 15 s", "another worker gets its share"));
    rig_eval_result(&rig, 0, &again, TRUTH, &m);
    rig_say(&rig, rig.workers[0].control, &m);
    assert_true(val_loss() == TRUTH);
    next_round(2);
    rig_expect_none(&rig, 1, MSG_EVAL);
    rig_answer_evals(&rig, 1, TRUTH);
    assert_true(val_loss() == TRUTH);
    rig_eval_result(&rig, 1, &stuck, TRUTH, &m); /* it answers at last */
    rig_say(&rig, rig.workers[1].control, &m);
    next_round(2);
    rig_expect(&rig, 1, MSG_EVAL, &m);
    rig_close(&rig);
}

/* One worker alone sends only heartbeats: the run ends, and says why it has no validation loss. */
TEST(test_run_ends_without_final_evaluation)
{
    struct engine_summary sum;
    open_at_evaluation(1, "train.max_steps=4");
    rig_answer_evals(&rig, 1, TRUTH);
    next_round(1);
    for (int i = 0; i < 595; i++) {
        rig_wait(&rig, 1000000);
        rig_beat(&rig, 0, WORKER_EVALUATING);
    }
    engine_summary(rig.engine, &sum);
    assert_false(sum.done);
    for (int i = 0; i < 10; i++) {
        rig_wait(&rig, 1000000);
        if (i < 3) rig_beat(&rig, 0, WORKER_EVALUATING);
    }
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && isnan(sum.final_val_loss));
    assert_true(rig_faults(&rig, "no validation loss after round 2", "no worker has answered in time"));
    assert_int_equal(rig_events(&rig, ENGINE_EVENT_ROUND), 1);
    rig_restart(&rig, false, 0);
    engine_summary(rig.engine, &sum);
    assert_true(sum.done && isnan(sum.final_val_loss));
    rig_close(&rig);
}

TEST_MAIN(NULL, NULL)
