/* A worker with invalid values: values that it detects itself, and values that the coordinator refuses. */
#include <math.h>

#include "tests/lib/rigs/scripted.h"
#include "tests/lib/test.h"

static struct scripted *const s = &scripted;

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

TEST_MAIN(NULL, NULL)
