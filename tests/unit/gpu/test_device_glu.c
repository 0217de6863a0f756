/* RMS norm, rotary positions and gated units of the CPU device against plain loops in double, at every
 * instruction-set level; each backward also against finite differences. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/device.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* An operation in double, and its loss: the sum of g * y. */
struct op_case {
    size_t n, c;
    double *x, *w, *g, *y;
    struct rope_shape rope;
    double eps;
    const float *table;
};

/* --- RMS norm ----------------------------------------------------------------------------------------------------- */

static double rms_loss(void *ctx)
{
    struct op_case *s = ctx;
    double loss = 0;
    for (size_t r = 0; r < s->n; r++) {
        const double *x = s->x + r * s->c;
        double mean = 0;
        for (size_t i = 0; i < s->c; i++) mean += x[i] * x[i] / (double)s->c;
        for (size_t i = 0; i < s->c; i++) {
            double y = x[i] / sqrt(mean + s->eps) * s->w[i];
            s->y[r * s->c + i] = y;
            loss += y * s->g[r * s->c + i];
        }
    }
    return loss;
}

/* Rows as small as eps detect a wrong place of eps. */
static void rms_one(struct device *dev, size_t n, size_t c, float sigma, float eps, size_t most)
{
    size_t all = n * c;
    float *x = case_normal(all, 1, sigma), *w = case_normal(c, 2, 1), *g = case_normal(all, 4, 1);
    float *y = case_poisoned(all), *rstd = case_poisoned(n), *dx = case_poisoned(all), *dw = case_poisoned(c);
    float *dres = case_normal(all, 5, 1);
    struct op_case s = {.n = n,
                        .c = c,
                        .x = case_widen(x, all),
                        .w = case_widen(w, c),
                        .g = case_widen(g, all),
                        .y = mem_alloc(all, sizeof(double)),
                        .eps = eps};
    rms_loss(&s);
    dev->ops->rms_fwd(dev, n, c, eps, x, w, y, rstd);
    case_close("rms_fwd", y, s.y, all, 2e-6);
    dev->ops->rms_bwd(dev, n, c, g, x, w, rstd, NULL, dx, dw, false);
    case_gradient("rms dx", rms_loss, &s, s.x, all, dx, 1e-5, most);
    case_gradient("rms dw", rms_loss, &s, s.w, c, dw, 1e-5, most);
    double *want = mem_alloc(all, sizeof *want), *want_w = mem_alloc(c, sizeof *want_w);
    for (size_t i = 0; i < all; i++) want[i] = (double)dx[i] + dres[i];
    for (size_t i = 0; i < c; i++) want_w[i] = 2.0 * dw[i];
    dev->ops->rms_bwd(dev, n, c, g, x, w, rstd, dres, dres, dw, true);
    case_close("rms dx onto the residual, in place", dres, want, all, 1e-6);
    case_close("rms dw accumulated", dw, want_w, c, 1e-6);
    case_free_poisoned(y, all);
    case_free_poisoned(rstd, n);
    case_free_poisoned(dx, all);
    case_free_poisoned(dw, c);
    void *rest[] = {x, w, g, dres, s.x, s.w, s.g, s.y, want, want_w};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_rms(struct device *dev)
{
    rms_one(dev, 1, 1, 1, 0.5f, 10);
    rms_one(dev, 3, 7, 2, 1e-5f, 100);
    rms_one(dev, 5, 16, 0.1f, 1e-2f, 100);
    rms_one(dev, 33, 33, 1, 1e-6f, 50);
    rms_one(dev, 100, 130, 0.5f, 0.1f, 20);
}

/* --- rotary positions --------------------------------------------------------------------------------------------- */

/* The formula of Hugging Face: x cos + rotate_half(x) sin with rotate_half(x) = (-second half, first half). */
static double rope_loss(void *ctx)
{
    struct op_case *s = ctx;
    size_t hd = s->rope.head_dim, half = hd / 2;
    double loss = 0;
    memcpy(s->y, s->x, s->rope.n * s->rope.ld * sizeof *s->y);
    for (size_t r = 0; r < s->rope.n; r++)
        for (size_t h = 0; h < s->rope.heads; h++)
            for (size_t i = 0; i < hd; i++) {
                const double *x = s->x + r * s->rope.ld + h * hd;
                const float *angle = s->table + r % s->rope.seq * hd + i % half;
                double turned = i < half ? -x[i + half] : x[i - half];
                s->y[r * s->rope.ld + h * hd + i] = x[i] * angle[0] + turned * angle[half];
            }
    for (size_t i = 0; i < s->rope.n * s->rope.ld; i++) loss += s->g[i] * s->y[i];
    return loss;
}

static void rope_one(struct device *dev, struct rope_shape shape, size_t most)
{
    size_t all = shape.n * shape.ld, angles = shape.seq * shape.head_dim;
    float *x = case_normal(all, 1, 1), *g = case_normal(all, 2, 1), *table = case_normal(angles, 3, 1);
    struct op_case s = {.rope = shape,
                        .table = table,
                        .x = case_widen(x, all),
                        .g = case_widen(g, all),
                        .y = mem_alloc(all, sizeof(double))};
    rope_loss(&s);
    dev->ops->rope(dev, &shape, table, x, false);
    case_close("rope", x, s.y, all, 1e-6);
    for (size_t r = 0; r < shape.n; r++)
        for (size_t i = shape.heads * shape.head_dim; i < shape.ld; i++)
            assert_true((double)x[r * shape.ld + i] == s.x[r * shape.ld + i]); /* values outside the heads stay */
    dev->ops->rope(dev, &shape, table, g, true);
    case_gradient("rope back", rope_loss, &s, s.x, all, g, 1e-5, most);
    void *rest[] = {x, g, table, s.x, s.g, s.y};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_rope(struct device *dev)
{
    rope_one(dev, (struct rope_shape){.n = 1, .seq = 1, .heads = 1, .head_dim = 2, .ld = 2}, 10);
    rope_one(dev, (struct rope_shape){.n = 6, .seq = 3, .heads = 2, .head_dim = 6, .ld = 15}, 100);
    rope_one(dev, (struct rope_shape){.n = 10, .seq = 5, .heads = 3, .head_dim = 32, .ld = 128}, 100);
    rope_one(dev, (struct rope_shape){.n = 9, .seq = 9, .heads = 1, .head_dim = 66, .ld = 66}, 100);
}

/* --- gated units -------------------------------------------------------------------------------------------------- */

static double glu_loss(void *ctx)
{
    struct op_case *s = ctx;
    double loss = 0;
    for (size_t r = 0; r < s->n; r++)
        for (size_t i = 0; i < s->c; i++) {
            double z = s->x[r * 2 * s->c + i], y = z / (1 + exp(-z)) * s->x[r * 2 * s->c + s->c + i];
            s->y[r * s->c + i] = y;
            loss += y * s->g[r * s->c + i];
        }
    return loss;
}

static void glu_one(struct device *dev, size_t n, size_t f, float sigma)
{
    size_t all = n * f;
    float *gu = case_normal(2 * all, 1, sigma), *g = case_normal(all, 2, 1), *h = case_poisoned(all);
    float *dgu = case_poisoned(2 * all);
    struct op_case s = {
        .n = n, .c = f, .x = case_widen(gu, 2 * all), .g = case_widen(g, all), .y = mem_alloc(all, sizeof(double))};
    glu_loss(&s);
    dev->ops->glu_fwd(dev, n, f, gu, h);
    case_close("glu_fwd", h, s.y, all, 2e-6);
    dev->ops->glu_bwd(dev, n, f, gu, g, dgu);
    case_gradient("glu_bwd", glu_loss, &s, s.x, 2 * all, dgu, 1e-5, 150);
    dev->ops->glu_bwd(dev, n, f, gu, g, gu);
    case_equal("glu_bwd in place", gu, dgu, 2 * all);
    case_free_poisoned(h, all);
    case_free_poisoned(dgu, 2 * all);
    void *rest[] = {gu, g, s.x, s.g, s.y};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_glu(struct device *dev)
{
    glu_one(dev, 1, 1, 1);
    glu_one(dev, 3, 5, 1);
    glu_one(dev, 7, 32, 3);
    glu_one(dev, 11, 67, 30); /* large values: exp must not overflow */
}

TEST(test_rms_norm_matches_plain_loops)
{
    device_case_each(check_rms);
}

TEST(test_rope_matches_plain_loops)
{
    device_case_each(check_rope);
}

TEST(test_glu_matches_plain_loops)
{
    device_case_each(check_glu);
}

TEST_MAIN(NULL, NULL)
