#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cpu/cpu_kernels.h"

enum { SLACK = 32 };

void device_case_each(void (*check)(struct device *dev))
{
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        if (!cpu_kernels_select(levels[i])) continue;
        assert_int_equal(setenv("ATOLL_CPU", levels[i], 1), 0);
        for (int threads = 1; threads <= 3; threads++) {
            struct device *dev;
            struct err err = {0};
            if (device_open("cpu", threads, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
            check(dev);
            assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
            device_close(dev);
        }
    }
    unsetenv("ATOLL_CPU");
}

float *case_normal(size_t n, uint64_t stream, float sigma)
{
    float *p = mem_alloc(n, sizeof *p);
    assert_non_null(p);
    rng_normal_fill(7, RNG_TEST, stream << 40, sigma, p, n);
    return p;
}

float *case_poisoned(size_t n)
{
    float *p = mem_alloc(n + SLACK, sizeof *p);
    assert_non_null(p);
    memset(p, 0xff, (n + SLACK) * sizeof *p);
    return p;
}

void case_free_poisoned(float *p, size_t n)
{
    const unsigned char *slack = (const unsigned char *)(p + n);
    for (size_t i = 0; i < SLACK * sizeof *p; i++)
        if (slack[i] != 0xff) fail_msg("%zu bytes past the end were written", i);
    mem_free(p);
}

/* Appends one line per comparison to the file that ATOLL_CASE_LOG names, for tables. */
static void record(const char *what, double off, double tol)
{
    const char *path = getenv("ATOLL_CASE_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file) return;
    fprintf(file, "%s\t%.3e\t%.3e\n", what, off, tol);
    fclose(file);
}

void case_close(const char *what, const float *got, const double *want, size_t n, double tol)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) fail_msg("%s[%zu] is %g, want %g", what, i, (double)got[i], want[i]);
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    record(what, norm > 0 ? sqrt(diff / norm) : sqrt(diff), tol);
    if (sqrt(diff) > tol * sqrt(norm)) fail_msg("%s: relative error %.2e, allowed %.2e", what, sqrt(diff / norm), tol);
}

void case_equal(const char *what, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0)
            fail_msg("%s[%zu]: %.9g and %.9g", what, i, (double)a[i], (double)b[i]);
}

double *case_widen(const float *x, size_t n)
{
    double *p = mem_alloc(n, sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) p[i] = x[i];
    return p;
}

void case_gradient(const char *what, double (*loss)(void *ctx), void *ctx, double *x, size_t n, const float *grad,
                   double tol, size_t most)
{
    size_t step = n > most ? n / most : 1;
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i += step) {
        double at = x[i], h = 1e-5;
        x[i] = at + h;
        double up = loss(ctx);
        x[i] = at - h;
        double down = loss(ctx);
        x[i] = at;
        double want = (up - down) / (2 * h);
        if (!isfinite(grad[i])) fail_msg("%s: gradient[%zu] is %g, want %g", what, i, (double)grad[i], want);
        diff += (grad[i] - want) * (grad[i] - want);
        norm += want * want;
    }
    if (sqrt(diff) > tol * sqrt(norm))
        fail_msg("%s: relative error of the gradient %.2e, allowed %.2e", what, sqrt(diff / norm), tol);
}

void *case_put(struct device *dev, const void *values, size_t bytes)
{
    void *p = dev->ops->alloc(dev, bytes);
    assert_non_null(p);
    if (values) dev->ops->upload(dev, p, values, bytes);
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    return p;
}

void case_get(struct device *dev, void *values, const void *from, size_t bytes)
{
    struct err err = {0};
    dev->ops->download(dev, values, from, bytes);
    if (dev->ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
}
