/* Progress and rate of a transfer. */

#include "coordinator/round/transfer.h"
#include "tests/lib/test.h"

static char text[64];

TEST(test_progress_and_rate)
{
    struct transfer t = {0};
    assert_string_equal(transfer_text(&t, text, sizeof text), "");
    transfer_note(&t, 0, 4000000, 1000000);
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 0 %");
    transfer_note(&t, 500000, 4000000, 1200000); /* too short to measure */
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 12 %");
    transfer_note(&t, 1000000, 4000000, 2000000);
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 25 % at 8 Mbit/s");
    transfer_note(&t, 1000000, 4000000, 9000000); /* a report without more bytes leaves the rate */
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 25 % at 8 Mbit/s");
}

/* Until the next transfer is measured, the last rate stands. */
TEST(test_next_transfer_begins_at_its_first_report)
{
    struct transfer t = {0};
    transfer_note(&t, 0, 100, 0);
    transfer_note(&t, 100, 100, 1000000);
    transfer_note(&t, 0, 0, 2000000);
    assert_string_equal(transfer_text(&t, text, sizeof text), "");
    transfer_note(&t, 1000000, 5000000, 3000000);
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 20 % at 0.0008 Mbit/s");
    transfer_note(&t, 2000000, 5000000, 4000000);
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 40 % at 8 Mbit/s");
    transfer_note(&t, 0, 5000000, 5000000); /* lost: again from the beginning */
    assert_string_equal(transfer_text(&t, text, sizeof text), ", 0 % at 8 Mbit/s");
}

TEST_MAIN(NULL, NULL)
