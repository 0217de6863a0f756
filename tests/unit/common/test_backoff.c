/* Retries wait twice as long each time, up to a limit, and not all at once. */
#include "common/base/backoff.h"
#include "tests/lib/test.h"

TEST(test_waits_double_up_to_the_limit)
{
    assert_int_equal(backoff_us(250, 0, 10000), 250);
    assert_int_equal(backoff_us(250, 3, 10000), 2000);
    assert_int_equal(backoff_us(250, 6, 10000), 10000);
    assert_int_equal(backoff_us(250, UINT32_MAX, 10000), 10000);
    assert_int_equal(backoff_us(20000, 0, 10000), 10000);
    assert_int_equal(backoff_us(0, 2, 10000), 0);
}

TEST(test_seeds_spread_a_wait_by_an_eighth)
{
    uint64_t least = UINT64_MAX, most = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        uint64_t wait = backoff_spread_us(8000, seed);
        if (wait < least) least = wait;
        if (wait > most) most = wait;
    }
    assert_in_range(least, 7000, 7100);
    assert_in_range(most, 8900, 9000);
}

TEST_MAIN(NULL, NULL)
