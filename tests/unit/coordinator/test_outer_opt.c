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

TEST(test_whole_share_is_nesterov)
{
    float theta[N], v[N] = {0}, w[N] = {0}, acc[N], want[N];
    draw(theta, N, 1);
    for (uint64_t t = 0; t < STEPS; t++) {
        struct outer_share share = {.lr = 0.7, .mu = 0.9, .share = 1, .scale = 1};
        struct outer_in in = {.theta = theta, .acc = acc, .n = N}, as_round = {.theta = theta, .acc = want, .n = N};
        draw(acc, N, 100 + t);
        memcpy(want, acc, sizeof want);
        outer_nesterov_share(&in, v, &share);
        outer_nesterov(&as_round, w, 0.7, 0.9);
        for (int i = 0; i < N; i++) {
            assert_close((double)acc[i], (double)want[i]);
            assert_close((double)v[i], (double)w[i]);
        }
        memcpy(theta, acc, sizeof theta);
    }
}

/* One step of share 1.3 from v = 0.5, and the same in three parts. */
TEST(test_shares_add_up)
{
    static const double parts[] = {0.2, 0.7, 0.4};
    float theta = 0, v = 0.5f, whole = 2, w = 0.5f;
    struct outer_share share = {.lr = 0.7, .mu = 0.9, .share = 1.3, .scale = 0.25};
    struct outer_in in = {.theta = &theta, .acc = &whole, .n = 1};
    outer_nesterov_share(&in, &w, &share);
    for (int i = 0; i < 3; i++) {
        float acc = 2;
        in = (struct outer_in){.theta = &theta, .acc = &acc, .n = 1};
        share.share = parts[i];
        outer_nesterov_share(&in, &v, &share);
        theta = acc;
    }
    assert_close((double)theta, (double)whole);
    assert_close((double)v, (double)w);
}

/* A delta moves theta by lr share g / (1 - mu) in the end. */
TEST(test_share_sets_the_whole_way)
{
    float v = 0;
    double way = 0;
    for (int i = 0; i < 1000; i++) {
        float theta = 0, acc = i ? 0 : 3;
        struct outer_in in = {.theta = &theta, .acc = &acc, .n = 1, .increment = true};
        struct outer_share share = {.lr = 0.5, .mu = 0.9, .share = 0.25, .scale = 2};
        outer_nesterov_share(&in, &v, &share);
        way += (double)acc;
    }
    assert_close(way, -0.5 * 0.25 * (2 * 3) / (1 - 0.9));
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
