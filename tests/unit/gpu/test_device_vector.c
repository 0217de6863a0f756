/* Reductions, optimizers, vector operations and elementary functions of the CPU device.
 * Also: the same bits with any number of threads, errors that stick, and refused device names. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/device.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

static const size_t lengths[] = {1, 7, 16, 1000, 5000, 300001};

static void check_reductions(struct device *dev)
{
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t n = lengths[i];
        float *x = case_normal(n, 1, 1), *sum = case_poisoned(1), *sumsq = case_poisoned(1);
        double want = 0, want_sq = 0, magnitude = 0;
        for (size_t j = 0; j < n; j++) {
            want += x[j];
            want_sq += (double)x[j] * x[j];
            magnitude += fabs((double)x[j]);
        }
        dev->ops->sum(dev, n, x, sum);
        dev->ops->sumsq(dev, n, x, sumsq);
        assert_true(fabs(*sum - want) <= 2e-7 * magnitude);
        case_close("sumsq", sumsq, &want_sq, 1, 1e-6);
        case_free_poisoned(sum, 1);
        case_free_poisoned(sumsq, 1);
        mem_free(x);
    }
}

static void check_clip(struct device *dev)
{
    float sumsq = 25, scale, norm;
    dev->ops->clip_scale(dev, &sumsq, 1, &scale, &norm);
    assert_float_equal(scale, 0.2, 1e-7);
    assert_float_equal(norm, 5, 1e-6);
    dev->ops->clip_scale(dev, &sumsq, 10, &scale, &norm);
    assert_true(scale == 1);
    dev->ops->clip_scale(dev, &sumsq, 0, &scale, &norm);
    assert_true(scale == 1);
    sumsq = 3e38f;
    dev->ops->clip_scale(dev, &sumsq, 1e-38f, &scale, &norm);
    assert_true(scale > 0 && isfinite(norm));
    sumsq = NAN;
    dev->ops->clip_scale(dev, &sumsq, 0, &scale, &norm);
    assert_true(scale == 0 && isnan(norm));
    sumsq = INFINITY;
    dev->ops->clip_scale(dev, &sumsq, 1, &scale, &norm);
    assert_true(scale == 0 && isinf(norm));
}

/* Spans that leave a gap, one with decay and one without, over several steps. */
static void check_adamw(struct device *dev)
{
    enum { N = 5000 };
    const struct adamw_span spans[] = {{.offset = 0, .count = 1237, .decay = true},
                                       {.offset = 1240, .count = 3, .decay = false},
                                       {.offset = 1250, .count = N - 1250, .decay = true}};
    float *theta = case_normal(N, 1, 1), *grad = case_normal(N, 2, 1), *m = case_normal(N, 3, 0.0f);
    float *v = case_normal(N, 3, 0.0f), scale = 0.5f, none = 0;
    float *theta2 = case_normal(N, 1, 1), *m2 = case_normal(N, 3, 0.0f), *v2 = case_normal(N, 3, 0.0f);
    struct step_count count = {.correct = {NAN, NAN}};
    double *want = case_widen(theta, N), *wm = case_widen(m, N), *wv = case_widen(v, N);
    for (uint64_t step = 1; step <= 3; step++) {
        struct adamw_hyper h = {
            .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .step = step};
        for (size_t s = 0; s < 3; s++)
            for (size_t i = spans[s].offset; i < spans[s].offset + spans[s].count; i++) {
                double g = grad[i] * 0.5;
                wm[i] = 0.9 * wm[i] + 0.1 * g;
                wv[i] = 0.95 * wv[i] + 0.05 * g * g;
                if (spans[s].decay) want[i] -= 0.01 * 0.1 * want[i];
                want[i] -=
                    0.01 * wm[i] / (1 - pow(0.9, (double)step)) / (sqrt(wv[i] / (1 - pow(0.95, (double)step))) + 1e-8);
            }
        dev->ops->adamw(dev, spans, 3, theta, grad, m, v, &h, &scale);
        case_close("adamw theta", theta, want, N, 1e-6);
        case_close("adamw m", m, wm, N, 1e-6);
        case_close("adamw v", v, wv, N, 1e-6);
        double before = theta[0];
        dev->ops->count_step(dev, &scale, h.beta1, h.beta2, &count);
        dev->ops->count_step(dev, &none, h.beta1, h.beta2, &count);
        assert_int_equal(count.steps, step);
        h.count = &count;
        dev->ops->adamw(dev, spans, 3, theta2, grad, m2, v2, &h, &scale);
        case_equal("adamw with a count of the device's", theta2, theta, N);
        dev->ops->adamw(dev, spans, 3, theta, grad, m, v, &h, &none); /* refused */
        assert_true(theta[0] == (float)before);
    }
    mem_free(theta2);
    mem_free(m2);
    mem_free(v2);
    mem_free(theta);
    mem_free(grad);
    mem_free(m);
    mem_free(v);
    mem_free(want);
    mem_free(wm);
    mem_free(wv);
}

static void check_vector(struct device *dev)
{
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t n = lengths[i];
        float *x = case_normal(n, 1, 1), *y = case_poisoned(n), half = 0.5f;
        double *want = mem_alloc(n, sizeof *want);
        dev->ops->fill(dev, y, n, 2);
        dev->ops->axpy(dev, n, 3, x, y);
        dev->ops->sgd(dev, n, y, x, 0.1f, 0.75f, &half);
        for (size_t j = 0; j < n; j++) want[j] = 0.75 * (2 + 3.0 * x[j]) - 0.05 * x[j];
        case_close("fill, axpy, sgd", y, want, n, 1e-6);
        dev->ops->copy(dev, y, x, n * sizeof *x);
        case_equal("copy", x, y, n);
        case_free_poisoned(y, n);
        mem_free(x);
        mem_free(want);
    }
}

/* Tests exp and log through the head: for two classes the loss is log(1 + exp(d)), known to full precision. */
static void check_functions(struct device *dev)
{
    struct head_shape shape = {.n = 1, .c = 1, .v = 64};
    struct head_plan *plan;
    float one = 1, wte[64], loss, dx, dwte[64];
    const int32_t target = 0;
    assert_int_equal(dev->ops->head_plan(dev, &shape, &plan), STATUS_OK);
    for (double d = -80; d <= 80; d += 0.37) {
        for (size_t i = 0; i < 64; i++) wte[i] = i == 1 ? (float)d : i ? -3e4f : 0;
        dev->ops->head(dev, plan, &one, wte, &target, 1, &loss, &dx, dwte, false);
        double x = (float)d, p = 1 / (1 + exp(-x)), want = x > 30 ? x + exp(-x) : log1p(exp(x));
        assert_true(fabs(loss - want) <= 2e-6 * (1 + fabs(x)));
        assert_true(fabs(dwte[1] - p) <= 4e-6 * p * (1 + fabs(x)) + 1e-36);
    }
}

/* Runs a transformer-like pass whose bits must be independent of the number of threads. */
static void pass(int threads, float *out, size_t n_out)
{
    enum { B = 2, T = 50, H = 3, HD = 16, C = H * HD, N = B * T };
    struct device *dev;
    assert_int_equal(device_open("cpu", threads, &dev, NULL), STATUS_OK);
    const struct device_ops *ops = dev->ops;
    float *x = case_normal(N * C, 1, 1), *w = case_normal(C * 3 * C, 2, 0.1f), *b = case_normal(3 * C, 3, 1);
    float *qkv = case_poisoned(N * 3 * C), *o = case_poisoned(N * C), *lse = case_poisoned(N * H);
    float *dqkv = case_poisoned(N * 3 * C), *y = case_poisoned(N * C), *mean = case_poisoned(N),
          *rstd = case_poisoned(N);
    struct lin_plan *lin;
    struct attn_plan *attn;
    assert_int_equal(ops->lin_plan(dev, &(struct lin_shape){.n = N, .k = C, .m = 3 * C}, &lin), STATUS_OK);
    assert_int_equal(ops->attn_plan(dev, &(struct attn_shape){.batch = B, .seq = T, .heads = H, .head_dim = HD}, &attn),
                     STATUS_OK);
    assert_true(n_out == N * C + C * 3 * C + 3 * C + 2 * C + 1);
    float *dw = out + N * C, *db = dw + C * 3 * C, *dln = db + 3 * C;
    ops->norm_fwd(dev, N, C, x, b, b + C, y, mean, rstd);
    ops->lin_fwd(dev, lin, y, w, b, NULL, qkv, NULL);
    ops->attn_fwd(dev, attn, qkv, o, lse);
    ops->attn_bwd(dev, attn, qkv, o, lse, x, dqkv);
    ops->lin_bwd_w(dev, lin, y, dqkv, dw, db, false);
    ops->lin_bwd_x(dev, lin, dqkv, w, NULL, o, false);
    ops->norm_bwd(dev, N, C, o, x, b, mean, rstd, NULL, out, dln, dln + C, false);
    ops->sumsq(dev, n_out - 1, out, dln + 2 * C);
    device_close(dev);
    void *all[] = {x, w, b, qkv, o, lse, dqkv, y, mean, rstd};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
}

TEST(test_bits_are_independent_of_threads)
{
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    enum { C = 48, N = 100, OUT = N * C + C * 3 * C + 3 * C + 2 * C + 1 };
    for (size_t i = 0; i < 3; i++) {
        struct device *probe;
        setenv("ATOLL_CPU", levels[i], 1);
        if (device_open("cpu", 1, &probe, NULL) != STATUS_OK) continue;
        device_close(probe);
        float *one = case_poisoned(OUT), *many = case_poisoned(OUT);
        pass(1, one, OUT);
        for (int threads = 1; threads <= 5; threads++) {
            pass(threads, many, OUT);
            case_equal(levels[i], one, many, OUT);
        }
        case_free_poisoned(one, OUT);
        case_free_poisoned(many, OUT);
    }
    unsetenv("ATOLL_CPU");
}

TEST(test_invalid_device_names_are_refused)
{
    struct device *dev = NULL;
    struct err err = {0};
    if (device_open("cuda:0", 1, &dev, &err) == STATUS_OK) { /* a machine with a GPU */
        device_close(dev);
    } else {
        assert_int_equal(err.code, STATUS_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "CUDA"));
    }
    assert_int_equal(device_open("cuda:0,1", 1, &dev, &err), STATUS_INVALID); /* only the replica accepts a list */
    assert_int_equal(device_open("cuda:x", 1, &dev, &err), STATUS_INVALID);
    assert_int_equal(device_open("tpu", 1, &dev, &err), STATUS_INVALID);
    assert_int_equal(device_open("cpu", 0, &dev, &err), STATUS_INVALID);
    setenv("ATOLL_CPU", "sse9", 1);
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_INVALID);
    assert_string_equal(err.msg, "ATOLL_CPU=sse9: want portable, avx2 or avx512");
    unsetenv("ATOLL_CPU");
    enum status status = err_set(&err, STATUS_UNSUPPORTED, "ATOLL_CPU=avx512: not a level of this CPU");
    assert_int_equal(device_advise(status, "cpu", "--device cpu", &err), STATUS_UNSUPPORTED);
    assert_null(strstr(err.msg, "--device")); /* the CPU lacks the level: the error must not suggest --device */
    status = err_set(&err, STATUS_UNSUPPORTED, "no driver");
    assert_int_equal(device_advise(status, "cuda:1", NULL, &err), STATUS_UNSUPPORTED);
    assert_int_equal(device_advise(status, "cuda:1", "--device cpu", &err), STATUS_UNSUPPORTED);
    assert_string_equal(err.msg, "no driver; use --device cpu instead");
    status = err_set(&err, STATUS_NOMEM, "no memory");
    assert_int_equal(device_advise(status, "cuda", "--device cpu", &err), STATUS_NOMEM);
    assert_string_equal(err.msg, "no memory");
    for (long nth = 1; nth <= 5; nth++) { /* every allocation of open may fail */
        size_t live = mem_live_bytes();
        mem_fail_after(nth);
        assert_int_equal(device_open("cpu", 2, &dev, &err), STATUS_NOMEM);
        mem_fail_after(0);
        assert_int_equal(mem_live_bytes(), live);
    }
}

TEST(test_first_error_stays)
{
    struct device *dev;
    struct err err = {0};
    struct lin_plan *lin;
    float x = 1;
    assert_int_equal(device_open("cpu", 1, &dev, &err), STATUS_OK);
    assert_int_equal(dev->ops->lin_plan(dev, &(struct lin_shape){.n = 1, .k = 0, .m = 1}, &lin), STATUS_INVALID);
    assert_int_equal(dev->ops->lin_plan(dev, &(struct lin_shape){.n = 1, .k = 1, .m = 1}, &lin), STATUS_OK);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_OK);
    dev->ops->attn_fwd(dev, (struct attn_plan *)lin, &x, &x, &x); /* a plan of another kind */
    dev->ops->fill(dev, &x, 1, 3);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "plan"));
    dev->ops->plan_free(dev, lin);
    dev->ops->plan_free(dev, NULL);
    device_close(dev);
    device_close(NULL);
}

#define EACH(name)                                                                                                     \
    TEST(test_##name)                                                                                                  \
    {                                                                                                                  \
        device_case_each(check_##name);                                                                                \
    }
EACH(reductions)
EACH(clip)
EACH(adamw)
EACH(vector)
EACH(functions)

TEST_MAIN(NULL, NULL)
