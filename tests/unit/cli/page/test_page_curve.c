/* The page's curves: bounded, and right after repeated and taken-back rounds. */
#include <math.h>

#include "cli/page/page_curve.h"
#include "tests/lib/test.h"

static struct page_curve curve;

static void assert_near(double a, double b, double most)
{
    if (!(fabs(a - b) <= most)) fail_msg("%.17g is not %.17g", a, b);
}

static void add(uint64_t round, double loss)
{
    const struct curve_place place = {100.0 * (double)round, 2.0 * (double)round, 7.0 * (double)round};
    curve_add(&curve, round, &place, loss);
}

static void fill(uint64_t rounds)
{
    curve_reset(&curve);
    for (uint64_t round = 1; round <= rounds; round++) add(round, (double)round);
}

TEST(test_short_curve_has_each_round)
{
    fill(CURVE_MAX);
    assert_int_equal(curve.n, CURVE_MAX);
    assert_int_equal(curve.stride, 1);
    for (size_t i = 0; i < curve.n; i++) {
        assert_int_equal(curve.points[i].last, i + 1);
        assert_near(curve.points[i].sum, (double)i + 1, 0);
    }
}

/* No round is lost: the points hold all losses, in order, and their places are those of their last rounds. */
TEST(test_long_curve_is_bounded)
{
    const uint64_t rounds = 10000;
    fill(rounds);
    double sum = 0;
    uint64_t n = 0, next = 1;
    assert_in_range(curve.n, CURVE_MAX / 2, CURVE_MAX);
    for (size_t i = 0; i < curve.n; i++) {
        const struct curve_point *p = &curve.points[i];
        assert_int_equal(p->first, next);
        assert_int_equal(p->last - p->first + 1, p->n);
        assert_near(p->least, (double)p->first, 0);
        assert_near(p->largest, (double)p->last, 0);
        assert_near(p->place.tokens, 100.0 * (double)p->last, 0);
        sum += p->sum;
        n += p->n;
        next = p->last + 1;
    }
    assert_int_equal(n, rounds);
    assert_near(sum, 0.5 * (double)rounds * (double)(rounds + 1), 0);
}

TEST(test_a_jump_stays_visible)
{
    fill(5000);
    add(5001, 1e6);
    for (uint64_t round = 5002; round <= 20000; round++) add(round, 1);
    double largest = 0;
    for (size_t i = 0; i < curve.n; i++) largest = fmax(largest, curve.points[i].largest);
    assert_near(largest, 1e6, 0);
}

TEST(test_repeated_round_counts_once)
{
    fill(3);
    add(3, 30);
    assert_int_equal(curve.n, 3);
    assert_near(curve.points[2].sum, 30, 0);
}

/* A run that was rolled back: only the kept history is shown. */
TEST(test_rounds_that_are_taken_back)
{
    fill(8);
    add(4, 40);
    assert_int_equal(curve.n, 4);
    assert_int_equal(curve.points[3].last, 4);
    assert_near(curve.points[3].sum, 40, 0);
    curve_cut(&curve, 1);
    assert_int_equal(curve.n, 0);
}

TEST(test_cut_inside_a_point)
{
    fill(CURVE_MAX + 2);
    assert_int_equal(curve.stride, 2);
    curve_cut(&curve, 4);
    assert_int_equal(curve.n, 2);
    assert_int_equal(curve.points[1].last, 3);
    add(4, 9);
    assert_int_equal(curve.points[curve.n - 1].last, 4);
}

TEST(test_loss_that_is_not_finite_is_left_out)
{
    fill(2);
    add(3, NAN);
    add(4, INFINITY);
    assert_int_equal(curve.n, 2);
}

/* A reader that drops its points from `from` on and appends the new ones has the curve. */
TEST(test_changes_rebuild_the_curve)
{
    double copy[CURVE_MAX + 1];
    size_t n = 0;
    curve_reset(&curve);
    for (uint64_t round = 1; round <= 9000; round++) {
        add(round, sin((double)round));
        if (round == 5000) add(4000, 3);
        if (round % 37) continue;
        json_t *news = curve_json(&curve, curve.changed), *list = json_object_get(news, "loss");
        size_t from = (size_t)json_integer_value(json_object_get(news, "from")), more = json_array_size(list);
        assert_true(from <= n);
        for (size_t i = 0; i < more; i++) copy[from + i] = json_real_value(json_array_get(list, i));
        n = from + more;
        curve.changed = curve.n;
        json_decref(news);
    }
    json_t *all = curve_json(&curve, 0);
    const json_t *list = json_object_get(all, "loss");
    for (size_t i = 0; i < n; i++) assert_near(copy[i], json_real_value(json_array_get(list, i)), 0);
    assert_true(n + 37 > curve.n);
    json_decref(all);
}

TEST_MAIN(NULL, NULL)
