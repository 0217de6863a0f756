/* Repeated lines become one line a second with their count. */

#include "coordinator/limits/repeat.h"
#include "tests/lib/test.h"

static struct repeat repeat;

static int setup(void **state)
{
    (void)state;
    memset(&repeat, 0, sizeof repeat);
    return 0;
}

TEST_WITH(test_repetitions_are_counted, setup, NULL)
{
    struct repeat_line line;
    int written = 0, counted = 0;
    for (uint64_t now = 5000000; now < 15000000; now += 1000) { /* a thousand lines a second, for ten seconds */
        char text[64];
        snprintf(text, sizeof text, "refused the delta of round %u", (unsigned)(now / 1000));
        written += repeat_note(&repeat, 1, "w1", text, true, now);
        while (repeat_take(&repeat, now, &line)) {
            written++;
            counted += (int)line.more;
            assert_string_equal(line.worker, "w1");
            assert_string_equal(line.text, text); /* the last one */
        }
    }
    assert_in_range(written, 10, 11);
    assert_in_range(counted, 9000, 9999);
    assert_in_range(repeat_deadline_us(&repeat), 15000000, 15100000);
    assert_true(repeat_take(&repeat, 16000000, &line));
    assert_int_equal(counted + (int)line.more, 9999);
    assert_int_equal(repeat_deadline_us(&repeat), UINT64_MAX);
}

TEST_WITH(test_other_lines_are_written, setup, NULL)
{
    assert_true(repeat_note(&repeat, 1, "w1", "left", false, 1));
    assert_false(repeat_note(&repeat, 1, "w1", "any text", false, 2));
    assert_true(repeat_note(&repeat, 2, "w1", "left", false, 3));
    assert_true(repeat_note(&repeat, 1, "w2", "left", false, 3));
    assert_true(repeat_note(&repeat, 1, NULL, "left", false, 3));
    assert_true(repeat_note(&repeat, 3, "w1", "skipped 2 steps", true, 3));
    assert_false(repeat_note(&repeat, 3, "w1", "skipped 13 steps", true, 4));
    assert_true(repeat_note(&repeat, 3, "w1", "refused a delta", true, 5));
    assert_true(repeat_note(&repeat, 2, "w1", "left", false, 3 + REPEAT_US)); /* a second later */
}

TEST_WITH(test_kinds_without_room_are_counted, setup, NULL)
{
    int written = 0;
    for (int i = 0; i < 1000; i++) written += repeat_note(&repeat, i, "w", "text", false, 1000);
    assert_int_equal(written, REPEAT_KINDS);
    assert_int_equal(repeat_take_lost(&repeat, 1000), 0);
    assert_int_equal(repeat_deadline_us(&repeat), 1000 + REPEAT_US);
    assert_int_equal(repeat_take_lost(&repeat, 1000 + REPEAT_US), 1000 - REPEAT_KINDS);
    assert_int_equal(repeat_deadline_us(&repeat), UINT64_MAX);
}

TEST_WITH(test_long_texts_are_cut, setup, NULL)
{
    struct repeat_line line;
    char text[1000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    assert_true(repeat_note(&repeat, 1, "w", text, true, 1));
    assert_false(repeat_note(&repeat, 1, "w", text, true, 2));
    assert_true(repeat_take(&repeat, 2 + REPEAT_US, &line));
    assert_int_equal(strlen(line.text), sizeof line.text - 1);
}

TEST_MAIN(NULL, NULL)
