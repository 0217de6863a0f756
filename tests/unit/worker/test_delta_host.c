/* Deltas in host memory: exact in every form and at any length, with the same bits and norm for any number of
 * threads. ctest: labels=threads */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/tensor/sum_squares.h"
#include "tests/lib/test.h"
#include "worker/outer/delta_host.h"

/* More blocks than one batch of sums. */
enum { BLOCK = SUM_BLOCK, MOST = (SUM_BLOCKS + 1) * BLOCK + 5, THREADS_MAX = 8 };

static float *base, *values, *out;
static struct pool *pools[THREADS_MAX + 1];

static double check(enum delta_form form, size_t n)
{
    static const char *const names[] = {"pseudo-gradient", "parameters", "gradient"};
    double norm = delta_host(NULL, form, base, values, out, n);
    long double square = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)base[i] - (double)values[i];
        float want = form == DELTA_PSEUDO_GRADIENT ? (float)d : values[i];
        if (memcmp(&out[i], &want, sizeof want)) fail_msg("%s of %zu floats: value %zu", names[form], n, i);
        square += form == DELTA_GRADIENT ? (long double)values[i] * values[i] : (long double)d * d;
    }
    if (fabsl(norm - sqrtl(square)) > 1e-12L * sqrtl(square))
        fail_msg("%s of %zu floats: norm %.17g, expected %.17Lg", names[form], n, norm, sqrtl(square));
    return norm;
}

TEST(test_every_form_is_exact)
{
    static const size_t sizes[] = {1, 15, 16, 17, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3, SUM_BLOCKS * BLOCK, MOST};
    static const enum delta_form forms[] = {DELTA_PSEUDO_GRADIENT, DELTA_PARAMETERS, DELTA_GRADIENT};
    float *alone = mem_alloc(MOST, sizeof *alone);
    assert_non_null(alone);
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            size_t n = sizes[s];
            double norm = check(forms[f], n);
            memcpy(alone, out, n * sizeof *out);
            for (int threads = n > 100000 ? 4 : 1; threads <= THREADS_MAX; threads += n > 100000 ? 3 : 1) {
                memset(out, 0x55, n * sizeof *out);
                assert_true(delta_host(pools[threads], forms[f], base, values, out, n) == norm);
                assert_memory_equal(out, alone, n * sizeof *out);
            }
        }
    mem_free(alone);
}

TEST(test_nonfinite_values_are_detected)
{
    enum { N = 9 * BLOCK + 2 };
    static const size_t places[] = {0, BLOCK - 1, BLOCK, 4 * BLOCK + 7, N - 1};
    for (int threads = 0; threads <= THREADS_MAX; threads++) {
        assert_true(delta_host_finite(pools[threads], values, N));
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            float was = values[places[i]];
            values[places[i]] = i % 2 ? INFINITY : NAN;
            assert_false(delta_host_finite(pools[threads], values, N));
            values[places[i]] = was;
        }
        values[N] = NAN; /* past the end */
        assert_true(delta_host_finite(pools[threads], values, N));
        values[N] = 0;
    }
}

static int setup(void **state)
{
    (void)state;
    base = mem_alloc(MOST, sizeof *base);
    values = mem_alloc(MOST, sizeof *values);
    out = mem_alloc(MOST, sizeof *out);
    if (!base || !values || !out) return -1;
    rng_normal_fill(1, RNG_TEST, 0, 1, base, MOST);
    rng_normal_fill(2, RNG_TEST, 0, 1e-3f, values, MOST);
    for (size_t i = 0; i < MOST; i++) values[i] += base[i];
    for (int i = 1; i <= THREADS_MAX; i++)
        if (pool_create(i, POOL_FLOATS_EXACT, &pools[i]) != STATUS_OK) return -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (int i = 1; i <= THREADS_MAX; i++) pool_destroy(pools[i]);
    mem_free(base);
    mem_free(values);
    mem_free(out);
    return mem_live_bytes() ? -1 : 0;
}

TEST_MAIN(setup, teardown)
