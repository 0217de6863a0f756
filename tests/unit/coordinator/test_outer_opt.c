/* Outer optimizers against plain scalar recurrences, and identities that hold exactly. */
#include <math.h>

#include "common/base/rng.h"
#include "coordinator/outer/outer_opt.h"
#include "tests/lib/test.h"

enum { N = 37, STEPS = 9 };

static void draw(float *x, size_t n, uint64_t counter)
{
    rng_normal_fill(3, RNG_TEST, counter << 20, 1.0f, x, n);
}

static void assert_close(double a, double b)
{
    double scale = fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    if (fabs(a - b) > 1e-6 * scale + 1e-7) fail_msg("%.9g, expected %.9g", a, b);
}

/* One worker, lr 1: the mean of parameters is the new theta, including signs of zeros and large differences. */
TEST(test_sgd_of_parameters_is_exact)
{
    float theta[] = {1.0f, 1e30f, -0.0f, 0.0f, 3.0f}, worker[] = {1e-20f, 1.0f, -0.0f, -0.0f, 3.0f}, acc[5];
    memcpy(acc, worker, sizeof acc);
    struct outer_in in = {.theta = theta, .acc = acc, .n = 5, .parameters = true};
    outer_sgd(&in, 1);
    assert_memory_equal(acc, worker, sizeof acc);
}

TEST(test_sgd_matches_recurrence)
{
    float theta[N], g[N], acc[N];
    draw(theta, N, 1);
    draw(g, N, 2);
    memcpy(acc, g, sizeof acc);
    struct outer_in in = {.theta = theta, .acc = acc, .n = N};
    outer_sgd(&in, 0.5);
    for (int i = 0; i < N; i++) assert_true(acc[i] == (float)((double)theta[i] - 0.5 * (double)g[i]));
    memcpy(acc, g, sizeof acc);
    in.increment = true;
    outer_sgd(&in, 0.5);
    for (int i = 0; i < N; i++) assert_true(acc[i] == (float)(-0.5 * (double)g[i]));
    memcpy(acc, g, sizeof acc); /* acc as a mean of parameters */
    in.parameters = true;
    outer_sgd(&in, 0.5);
    for (int i = 0; i < N; i++) assert_true(acc[i] == (float)(-0.5 * ((double)theta[i] - (double)g[i])));
}

/* PyTorch: buf = mu buf + g; p -= lr (g + mu buf), from buf = g at the first step. */
TEST(test_nesterov_matches_pytorch)
{
    float theta[N], v[N] = {0}, acc[N], g[N];
    double p[N], buf[N] = {0};
    draw(theta, N, 1);
    for (int i = 0; i < N; i++) p[i] = (double)theta[i];
    for (uint64_t t = 0; t < STEPS; t++) {
        draw(g, N, 10 + t);
        memcpy(acc, g, sizeof acc);
        struct outer_in in = {.theta = theta, .acc = acc, .n = N};
        outer_nesterov(&in, v, 0.7, 0.9);
        memcpy(theta, acc, sizeof theta);
        for (int i = 0; i < N; i++) {
            buf[i] = 0.9 * buf[i] + (double)g[i];
            p[i] -= 0.7 * ((double)g[i] + 0.9 * buf[i]);
            assert_close((double)theta[i], p[i]);
        }
    }
}

/* N arrivals of weight 1 move theta as one Nesterov step of their mean does; u is mu times the momentum at a flush. */
TEST(test_delayed_nesterov_equals_step_of_mean)
{
    enum { BUFFER = 4 };
    float theta[N], u[N] = {0}, acc[N], g[N];
    double p[N], ref_m[N] = {0}, mean[N];
    draw(theta, N, 1);
    for (int i = 0; i < N; i++) p[i] = (double)theta[i];
    for (uint64_t t = 0; t < 3 * BUFFER; t++) {
        if (t % BUFFER == 0) memset(mean, 0, sizeof mean);
        draw(g, N, 100 + t);
        memcpy(acc, g, sizeof acc);
        struct outer_delayed d = {
            .lr = 0.7, .mu = 0.9, .weight = 1, .n_buffer = BUFFER, .flush = t % BUFFER == BUFFER - 1};
        struct outer_in in = {.theta = theta, .acc = acc, .n = N};
        outer_delayed_nesterov(&in, u, &d);
        memcpy(theta, acc, sizeof theta);
        for (int i = 0; i < N; i++) {
            mean[i] += (double)g[i] / BUFFER;
            p[i] -= 0.7 * (double)g[i] / BUFFER;
            if (!d.flush) continue;
            ref_m[i] = 0.9 * ref_m[i] + mean[i];
            p[i] -= 0.7 * 0.9 * ref_m[i];
            assert_close((double)u[i], 0.9 * ref_m[i]);
        }
        for (int i = 0; i < N; i++)
            if (fabs((double)theta[i] - p[i]) > 1e-5)
                fail_msg("step %d: %g, expected %g", (int)t, (double)theta[i], p[i]);
    }
}

TEST(test_delayed_nesterov_scales_by_weight)
{
    float theta = 1, u = 0, acc = 2;
    struct outer_in in = {.theta = &theta, .acc = &acc, .n = 1};
    struct outer_delayed d = {.lr = 0.5, .mu = 0.9, .weight = 0.25, .n_buffer = 2};
    outer_delayed_nesterov(&in, &u, &d);
    assert_true(acc == 1 - 0.5f * 0.25f * 2 / 2);
    assert_true(u == 0.25f);
}

/* PyTorch's AdamW, in double. */
TEST(test_adamw_matches_pytorch)
{
    float theta[N], m[N] = {0}, v[N] = {0}, acc[N], g[N];
    double p[N], rm[N] = {0}, rv[N] = {0};
    draw(theta, N, 1);
    for (int i = 0; i < N; i++) p[i] = (double)theta[i];
    for (uint64_t t = 1; t <= STEPS; t++) {
        struct outer_adamw a = {
            .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1, .scale = 0.5, .t = t};
        draw(g, N, 200 + t);
        memcpy(acc, g, sizeof acc);
        struct outer_in in = {.theta = theta, .acc = acc, .n = N};
        outer_adamw(&in, m, v, &a);
        memcpy(theta, acc, sizeof theta);
        for (int i = 0; i < N; i++) {
            double x = 0.5 * (double)g[i];
            p[i] *= 1 - 1e-2 * 0.1;
            rm[i] = 0.9 * rm[i] + 0.1 * x;
            rv[i] = 0.95 * rv[i] + 0.05 * x * x;
            double c1 = 1 - pow(0.9, (double)t), c2 = 1 - pow(0.95, (double)t);
            p[i] -= 1e-2 * (rm[i] / c1) / (sqrt(rv[i] / c2) + 1e-8);
            assert_close((double)theta[i], p[i]);
        }
    }
}

TEST(test_norm_is_clipped_and_nan_detected)
{
    float x[9] = {3, 4};
    assert_true(outer_clip_scale(5, 0) == 1);
    assert_true(outer_clip_scale(5, 10) == 1);
    assert_close(outer_clip_scale(5, 1), 0.2);
    assert_true(outer_finite(x, 9));
    x[8] = INFINITY;
    assert_false(outer_finite(x, 9));
    assert_true(outer_finite(x, 8));
    x[8] = 0;
    x[0] = -NAN;
    assert_false(outer_finite(x, 9));
    x[0] = 3.4028235e38f;
    assert_true(outer_finite(x, 9));
    assert_true(outer_finite(x, 0));
}

TEST_MAIN(NULL, NULL)
