/* Timeouts from measured durations. */

#include <stdlib.h>

#include "common/base/rng.h"
#include "coordinator/round/deadline.h"
#include "tests/lib/test.h"

TEST(test_too_few_samples_give_no_limit)
{
    struct deadline d = {0};
    struct deadline_limit limit = deadline_of(&d, 4, 100, 1000, 500);
    assert_int_equal(limit.limit_us, 500);
    assert_int_equal(limit.n, 0);
    assert_int_equal(deadline_of(&d, 4, 100, 1000, 5).limit_us, 100);
    assert_int_equal(deadline_of(&d, 4, 100, 1000, 5000).limit_us, 1000);
    deadline_add(&d, 7);
    deadline_add(&d, 7);
    assert_int_equal(deadline_of(&d, 4, 0, 1000, 500).n, 0); /* two samples are too few */
    deadline_add(&d, 19);
    assert_int_equal(deadline_of(&d, 4, 0, 1000, 500).limit_us, 7);
}

TEST(test_limit_follows_median_and_mad)
{
    struct deadline d = {0};
    const uint64_t samples[] = {30, 10, 20, 1000, 40}; /* median 30, deviations 0 10 10 20 970: MAD 10 */
    for (int i = 0; i < 5; i++) deadline_add(&d, samples[i]);
    struct deadline_limit limit = deadline_of(&d, 4, 0, 100000, 0);
    assert_int_equal(limit.median_us, 30);
    assert_int_equal(limit.mad_us, 10);
    assert_int_equal(limit.limit_us, 70); /* one outlier does not move it */
    assert_int_equal(limit.n, 5);
    assert_int_equal(deadline_of(&d, 4, 80, 100000, 0).limit_us, 80);
    assert_int_equal(deadline_of(&d, 4, 0, 50, 0).limit_us, 50);
    assert_int_equal(deadline_of(&d, 1e30, 0, UINT64_MAX, 0).limit_us, UINT64_MAX); /* must not overflow */
}

/* Every sample counts, including the first and the last. */
TEST(test_every_sample_counts)
{
    struct deadline d = {0};
    const uint64_t samples[] = {100, 130, 160}; /* deviations 30 0 30 */
    for (int i = 0; i < 3; i++) deadline_add(&d, samples[i]);
    assert_int_equal(deadline_of(&d, 1, 0, 1000, 0).mad_us, 30);
    assert_int_equal(deadline_of(&d, 1, 0, 1000, 0).limit_us, 160);
}

TEST(test_old_samples_are_dropped)
{
    struct deadline d = {0};
    for (int i = 0; i < 1000; i++) deadline_add(&d, 5);
    for (int i = 0; i < DEADLINE_SAMPLES; i++) deadline_add(&d, 900);
    assert_int_equal(deadline_of(&d, 4, 0, 100000, 0).limit_us, 900);
    assert_int_equal(deadline_of(&d, 4, 0, 100000, 0).n, DEADLINE_SAMPLES);
}

static int by_size(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Sorts v[n] and returns the lower of its middle values. */
static uint64_t sorted_median(uint64_t *v, uint32_t n)
{
    qsort(v, n, sizeof *v, by_size);
    return v[(n - 1) / 2];
}

TEST(test_kept_numbers_equal_those_of_a_sort)
{
    struct deadline d = {0};
    uint64_t v[DEADLINE_SAMPLES];
    for (uint64_t i = 0; i < 2000; i++) {
        uint64_t range = i / 500 ? UINT64_C(1) << 12 * (i / 500) : 4; /* also many equal ones */
        deadline_add(&d, rng_u64(5, 0, i) % range);
        if (d.n < 3) continue;
        memcpy(v, d.samples_us, d.n * sizeof *v);
        uint64_t median = sorted_median(v, d.n);
        assert_int_equal(deadline_of(&d, 4, 0, UINT64_MAX, 0).median_us, median);
        for (uint32_t k = 0; k < d.n; k++) v[k] = v[k] > median ? v[k] - median : median - v[k];
        assert_int_equal(deadline_of(&d, 4, 0, UINT64_MAX, 0).mad_us, sorted_median(v, d.n));
    }
}

TEST(test_text_names_samples_of_limit)
{
    struct deadline d = {0};
    char text[160];
    struct deadline_limit limit = deadline_of(&d, 4, 0, 10000000, 2000000);
    assert_string_equal(deadline_text(&limit, text, sizeof text), "2 s (default, nothing measured yet)");
    for (int i = 0; i < 4; i++) deadline_add(&d, 1000000 + (uint64_t)i * 500000);
    limit = deadline_of(&d, 4, 0, 10000000, 0);
    assert_non_null(strstr(deadline_text(&limit, text, sizeof text), "3.5 s (median 1.5 s + 4 x MAD 500 ms of 4"));
}

TEST_MAIN(NULL, NULL)
