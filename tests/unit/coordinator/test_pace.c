/* Medians of rounds and evaluations, and the verdict about the link. */
#include <math.h>

#include "coordinator/round/pace.h"
#include "tests/lib/test.h"

/* An outage of an hour in one round changes neither the time of a round nor the speed. */
TEST(test_median_ignores_a_pause)
{
    struct pace p = {0};
    assert_true(isnan(pace_round_s(&p)) && isnan(pace_tokens_per_s(&p)) && isnan(pace_eval_s(&p)));
    for (int i = 0; i < 20; i++) pace_rounds(&p, 1, 2, 1000);
    pace_rounds(&p, 1, 3600, 1000);
    assert_true(pace_round_s(&p) == 2 && pace_tokens_per_s(&p) == 500);
    for (int i = 0; i < 8; i++) pace_rounds(&p, 1, 1, 1000); /* another worker joined */
    assert_true(pace_round_s(&p) == 1);
    pace_eval(&p, 7);
    assert_true(pace_eval_s(&p) == 7);
}

TEST(test_restart_forgets_rounds_only)
{
    struct pace p = {0};
    pace_rounds(&p, 4, 8, 400);
    pace_eval(&p, 7);
    pace_restart(&p);
    assert_true(isnan(pace_round_s(&p)) && pace_eval_s(&p) == 7);
    pace_rounds(&p, 1, 30, 600);
    assert_true(pace_round_s(&p) == 30 && pace_tokens_per_s(&p) == 20);
}

/* async: one delta may end several rounds. */
TEST(test_rounds_that_end_together_share_the_time)
{
    struct pace p = {0};
    pace_rounds(&p, 3, 6, 300);
    assert_true(pace_round_s(&p) == 2 && pace_tokens_per_s(&p) == 50);
}

TEST(test_link_verdict_changes_after_three_rounds)
{
    struct pace p = {0};
    assert_false(pace_link(&p, 6, 10));
    assert_false(pace_link(&p, 6, 10));
    assert_false(pace_link(&p, NAN, 10)); /* unknown: no vote */
    assert_true(pace_link(&p, 6, 10) && p.link_bound);
    for (int i = 0; i < 9; i++) assert_false(pace_link(&p, 6, 10)); /* said once */
    assert_false(pace_link(&p, 4, 10));
    assert_false(pace_link(&p, 4, 10));
    assert_true(pace_link(&p, 4, 10) && !p.link_bound);
    for (int i = 0; i < 9; i++) assert_false(pace_link(&p, 0.04, 0.05)); /* rounds of milliseconds */
}

TEST_MAIN(NULL, NULL)
