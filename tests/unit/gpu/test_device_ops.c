/* Linear layers, layer norm, embedding and head of the CPU device against plain loops in double, at every
 * instruction-set level; each backward also against finite differences of the forward. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/cpu/cpu_impl.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static double gelu(double z)
{
    return 0.5 * z * (1 + tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
}

static double gelu_derivative(double z)
{
    double t = tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
    return 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * z * z);
}

static double weight(const float *w, const struct lin_shape *s, size_t k, size_t m)
{
    return s->out_in ? w[m * s->k + k] : w[k * s->m + m];
}

/* Odd, tiny and block-crossing sizes: several blocks of k, of columns and of rows; 1 in every dimension; rows a
 * power of two apart, which are packed. */
static const size_t lin_sizes[][3] = {{1, 1, 1},      {3, 5, 2},      {14, 32, 32},   {15, 17, 33},
                                      {29, 384, 31},  {7, 385, 65},   {64, 800, 16},  {130, 3, 545},
                                      {2, 129, 1030}, {37, 1200, 70}, {30, 1024, 40}, {70, 512, 33}};

static void lin_forward(struct device *dev, const size_t *size, bool out_in, bool act, bool with_res)
{
    struct lin_shape s = {.n = size[0],
                          .k = size[1],
                          .m = size[2],
                          .act = act ? LIN_ACT_GELU : LIN_ACT_NONE,
                          .bias = true,
                          .out_in = out_in};
    size_t ny = s.n * s.m;
    float *x = case_normal(s.n * s.k, 1, 1), *w = case_normal(s.k * s.m, 2, 1 / sqrtf((float)s.k));
    float *b = case_normal(s.m, 3, 1), *res = case_normal(ny, 4, 1), *y = case_poisoned(ny), *aux = case_poisoned(ny);
    double *want = mem_alloc(ny, sizeof *want), *slope = mem_alloc(ny, sizeof *slope);
    struct lin_plan *plan;
    assert_int_equal(dev->ops->lin_plan(dev, &s, &plan), STATUS_OK);
    for (size_t i = 0; i < s.n; i++)
        for (size_t j = 0; j < s.m; j++) {
            double sum = b[j];
            for (size_t k = 0; k < s.k; k++) sum += (double)x[i * s.k + k] * weight(w, &s, k, j);
            slope[i * s.m + j] = gelu_derivative(sum);
            want[i * s.m + j] = (act ? gelu(sum) : sum) + (with_res ? (double)res[i * s.m + j] : 0);
        }
    dev->ops->lin_fwd(dev, plan, x, w, b, with_res ? res : NULL, y, act ? aux : NULL);
    case_close("lin_fwd", y, want, ny, 2e-6);
    if (with_res) { /* in place gives the same bits */
        dev->ops->lin_fwd(dev, plan, x, w, b, res, res, NULL);
        case_equal("lin_fwd in place", res, y, ny);
    }
    if (act) { /* dx through aux must be the derivative: dy = identity-like rows, w = I is too small */
        float *again = case_poisoned(ny);
        dev->ops->act_recompute(dev, plan, aux, again);
        case_equal("act_recompute", again, y, ny);
        case_free_poisoned(again, ny);
        struct lin_shape id = {.n = s.n, .k = s.m, .m = 1, .act = LIN_ACT_NONE};
        struct lin_plan *probe;
        float *ones = case_normal(s.n, 5, 0), *wone = case_normal(s.m, 6, 0), *dx = case_poisoned(ny);
        for (size_t i = 0; i < s.n; i++) ones[i] = 1;
        for (size_t i = 0; i < s.m; i++) wone[i] = 1;
        assert_int_equal(dev->ops->lin_plan(dev, &id, &probe), STATUS_OK);
        dev->ops->lin_bwd_x(dev, probe, ones, wone, aux, dx, false);
        case_close("gelu slope", dx, slope, ny, 2e-6);
        case_free_poisoned(dx, ny);
        mem_free(ones);
        mem_free(wone);
    }
    case_free_poisoned(y, ny);
    case_free_poisoned(aux, ny);
    mem_free(x);
    mem_free(w);
    mem_free(b);
    mem_free(res);
    mem_free(want);
    mem_free(slope);
}

static void check_lin_fwd(struct device *dev)
{
    for (size_t i = 0; i < COUNT(lin_sizes); i++) {
        lin_forward(dev, lin_sizes[i], false, false, false);
        lin_forward(dev, lin_sizes[i], false, false, true);
        lin_forward(dev, lin_sizes[i], false, true, false);
        lin_forward(dev, lin_sizes[i], true, false, false);
    }
}

static void lin_backward(struct device *dev, const size_t *size, bool out_in)
{
    struct lin_shape s = {.n = size[0], .k = size[1], .m = size[2], .out_in = out_in};
    size_t nx = s.n * s.k, nw = s.k * s.m;
    float *x = case_normal(nx, 1, 1), *w = case_normal(nw, 2, 1), *dy = case_normal(s.n * s.m, 3, 1);
    float *aux = case_normal(nx, 4, 1), *dx = case_poisoned(nx), *dw = case_poisoned(nw), *db = case_poisoned(s.m);
    double *want_x = mem_alloc(nx, sizeof *want_x), *want_w = mem_alloc(nw, sizeof *want_w);
    double *want_b = mem_alloc(s.m, sizeof *want_b);
    struct lin_plan *plan;
    assert_int_equal(dev->ops->lin_plan(dev, &s, &plan), STATUS_OK);
    for (size_t i = 0; i < s.n; i++)
        for (size_t j = 0; j < s.m; j++) {
            double d = dy[i * s.m + j];
            want_b[j] += d;
            for (size_t k = 0; k < s.k; k++) {
                want_x[i * s.k + k] += d * weight(w, &s, k, j);
                want_w[out_in ? j * s.k + k : k * s.m + j] += d * x[i * s.k + k];
            }
        }
    dev->ops->lin_bwd_x(dev, plan, dy, w, NULL, dx, false);
    case_close("lin_bwd_x", dx, want_x, nx, 2e-6);
    dev->ops->lin_bwd_x(dev, plan, dy, w, NULL, dx, true);
    for (size_t i = 0; i < nx; i++) want_x[i] *= 2;
    case_close("lin_bwd_x accumulated", dx, want_x, nx, 2e-6);
    dev->ops->lin_bwd_x(dev, plan, dy, w, aux, dx, false);
    for (size_t i = 0; i < nx; i++) want_x[i] *= 0.5 * gelu_derivative(aux[i]);
    case_close("lin_bwd_x through an activation", dx, want_x, nx, 2e-6);
    for (int pass = 1; pass <= 2; pass++) {
        dev->ops->lin_bwd_w(dev, plan, x, dy, dw, out_in ? NULL : db, pass > 1);
        case_close("lin_bwd_w dw", dw, want_w, nw, 2e-6);
        if (!out_in) case_close("lin_bwd_w db", db, want_b, s.m, 2e-6);
        for (size_t i = 0; i < nw; i++) want_w[i] *= 2;
        for (size_t i = 0; i < s.m; i++) want_b[i] *= 2;
    }
    case_free_poisoned(dx, nx);
    case_free_poisoned(dw, nw);
    case_free_poisoned(db, s.m);
    mem_free(x);
    mem_free(w);
    mem_free(dy);
    mem_free(aux);
    mem_free(want_x);
    mem_free(want_w);
    mem_free(want_b);
}

static void check_lin_bwd(struct device *dev)
{
    for (size_t i = 0; i < COUNT(lin_sizes); i++) {
        lin_backward(dev, lin_sizes[i], false);
        lin_backward(dev, lin_sizes[i], true);
    }
}

/* --- layer norm --------------------------------------------------------------------------------------------------- */

struct norm_case {
    size_t n, c;
    double *x, *w, *b, *g; /* loss = sum of g * y */
    double *y;
};

static double norm_loss(void *ctx)
{
    struct norm_case *s = ctx;
    double loss = 0;
    for (size_t r = 0; r < s->n; r++) {
        const double *x = s->x + r * s->c;
        double mean = 0, var = 0;
        for (size_t i = 0; i < s->c; i++) mean += x[i] / (double)s->c;
        for (size_t i = 0; i < s->c; i++) var += (x[i] - mean) * (x[i] - mean) / (double)s->c;
        for (size_t i = 0; i < s->c; i++) {
            double y = (x[i] - mean) / sqrt(var + 1e-5) * s->w[i] + s->b[i];
            s->y[r * s->c + i] = y;
            loss += y * s->g[r * s->c + i];
        }
    }
    return loss;
}

static void norm_one(struct device *dev, size_t n, size_t c, size_t most)
{
    size_t all = n * c;
    float *x = case_normal(all, 1, 2), *w = case_normal(c, 2, 1), *b = case_normal(c, 3, 1),
          *g = case_normal(all, 4, 1);
    float *y = case_poisoned(all), *mean = case_poisoned(n), *rstd = case_poisoned(n), *dx = case_poisoned(all);
    float *dw = case_poisoned(c), *db = case_poisoned(c), *dres = case_normal(all, 5, 1);
    struct norm_case s = {.n = n,
                          .c = c,
                          .x = case_widen(x, all),
                          .w = case_widen(w, c),
                          .b = case_widen(b, c),
                          .g = case_widen(g, all),
                          .y = mem_alloc(all, sizeof(double))};
    norm_loss(&s);
    dev->ops->norm_fwd(dev, n, c, x, w, b, y, mean, rstd);
    case_close("norm_fwd", y, s.y, all, 2e-6);
    dev->ops->norm_bwd(dev, n, c, g, x, w, mean, rstd, NULL, dx, dw, db, false);
    if (c > 1) case_gradient("norm dx", norm_loss, &s, s.x, all, dx, 1e-5, most);
    case_gradient("norm dw", norm_loss, &s, s.w, c, dw, 1e-5, most);
    case_gradient("norm db", norm_loss, &s, s.b, c, db, 1e-5, most);
    double *want = mem_alloc(all, sizeof *want), *want_w = mem_alloc(c, sizeof *want_w);
    for (size_t i = 0; i < all; i++) want[i] = (double)dx[i] + dres[i];
    for (size_t i = 0; i < c; i++) want_w[i] = 2.0 * dw[i];
    dev->ops->norm_bwd(dev, n, c, g, x, w, mean, rstd, dres, dres, dw, db, true);
    case_close("norm dx onto the residual, in place", dres, want, all, 1e-6);
    case_close("norm dw accumulated", dw, want_w, c, 1e-6);
    case_free_poisoned(y, all);
    case_free_poisoned(mean, n);
    case_free_poisoned(rstd, n);
    case_free_poisoned(dx, all);
    case_free_poisoned(dw, c);
    case_free_poisoned(db, c);
    void *rest[] = {x, w, b, g, dres, s.x, s.w, s.b, s.g, s.y, want, want_w};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_norm(struct device *dev)
{
    norm_one(dev, 1, 1, 100);
    norm_one(dev, 3, 7, 100);
    norm_one(dev, 5, 16, 100);
    norm_one(dev, 33, 33, 50);
    norm_one(dev, 100, 130, 20);
}

/* --- embedding ---------------------------------------------------------------------------------------------------- */

static void embed_one(struct device *dev, size_t batch, size_t seq, size_t c, size_t v)
{
    size_t n = batch * seq;
    float *wte = case_normal(v * c, 1, 1), *wpe = case_normal(seq * c, 2, 1), *dout = case_normal(n * c, 3, 1);
    float *out = case_poisoned(n * c), *dwte = case_normal(v * c, 4, 1), *dwpe = case_poisoned(seq * c);
    double *want = mem_alloc(n * c, sizeof *want), *want_t = case_widen(dwte, v * c);
    double *want_p = mem_alloc(seq * c, sizeof *want_p);
    int32_t *tokens = mem_alloc(n, sizeof *tokens);
    for (size_t r = 0; r < n; r++) {
        tokens[r] = (int32_t)((r * r + 3 * r) % v);
        for (size_t i = 0; i < c; i++) {
            want[r * c + i] = (double)wte[(size_t)tokens[r] * c + i] + wpe[r % seq * c + i];
            want_t[(size_t)tokens[r] * c + i] += dout[r * c + i];
            want_p[r % seq * c + i] += dout[r * c + i];
        }
    }
    dev->ops->embed_fwd(dev, n, seq, c, tokens, wte, wpe, out);
    case_close("embed_fwd", out, want, n * c, 1e-7);
    dev->ops->embed_bwd(dev, n, seq, c, tokens, dout, dwte, dwpe, false);
    case_close("embed dwte", dwte, want_t, v * c, 1e-6);
    case_close("embed dwpe", dwpe, want_p, seq * c, 1e-6);
    for (size_t i = 0; i < seq * c; i++) want_p[i] *= 2;
    dev->ops->embed_bwd(dev, n, seq, c, tokens, dout, dwte, dwpe, true);
    case_close("embed dwpe accumulated", dwpe, want_p, seq * c, 1e-6);
    memset(wpe, 0, seq * c * sizeof *wpe); /* no positions: as with zero positions */
    float *bare = case_poisoned(n * c), *dbare = case_normal(v * c, 4, 1), *dzero = case_normal(v * c, 4, 1);
    dev->ops->embed_fwd(dev, n, seq, c, tokens, wte, wpe, out);
    dev->ops->embed_fwd(dev, n, seq, c, tokens, wte, NULL, bare);
    case_equal("embed_fwd without positions", bare, out, n * c);
    dev->ops->embed_bwd(dev, n, seq, c, tokens, dout, dbare, NULL, false);
    dev->ops->embed_bwd(dev, n, seq, c, tokens, dout, dzero, dwpe, false);
    case_equal("embed dwte without positions", dbare, dzero, v * c);
    case_free_poisoned(bare, n * c);
    case_free_poisoned(out, n * c);
    case_free_poisoned(dwpe, seq * c);
    void *rest[] = {dbare, dzero, wte, wpe, dout, dwte, want, want_t, want_p, tokens};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_embed(struct device *dev)
{
    embed_one(dev, 1, 1, 1, 1);
    embed_one(dev, 3, 5, 17, 4);
    embed_one(dev, 2, 9, 64, 50);
}

/* --- head --------------------------------------------------------------------------------------------------------- */

struct head_case {
    size_t n, c, v;
    double *x, *wte, *loss, dscale;
    const int32_t *targets;
};

static double head_loss(void *ctx)
{
    struct head_case *s = ctx;
    double total = 0, *z = mem_alloc(s->v, sizeof *z);
    for (size_t r = 0; r < s->n; r++) {
        double top = -INFINITY, sum = 0;
        for (size_t j = 0; j < s->v; j++) {
            z[j] = 0;
            for (size_t i = 0; i < s->c; i++) z[j] += s->x[r * s->c + i] * s->wte[j * s->c + i];
            top = fmax(top, z[j]);
        }
        for (size_t j = 0; j < s->v; j++) sum += exp(z[j] - top);
        s->loss[r] = s->targets[r] < 0 ? 0 : top + log(sum) - z[s->targets[r]];
        total += s->loss[r] * s->dscale;
    }
    mem_free(z);
    return total;
}

static void head_one(struct device *dev, size_t n, size_t c, size_t v, float sigma)
{
    struct head_shape shape = {.n = n, .c = c, .v = v};
    float *x = case_normal(n * c, 1, sigma), *wte = case_normal(v * c, 2, 1), *loss = case_poisoned(n);
    float *dx = case_poisoned(n * c), *dwte = case_poisoned(v * c), *again = case_poisoned(n);
    int32_t *targets = mem_alloc(n, sizeof *targets);
    for (size_t r = 0; r < n; r++) targets[r] = r % 5 == 3 ? -1 : (int32_t)(r * 7 % v);
    struct head_case s = {.n = n,
                          .c = c,
                          .v = v,
                          .x = case_widen(x, n * c),
                          .wte = case_widen(wte, v * c),
                          .loss = mem_alloc(n, sizeof(double)),
                          .dscale = 0.25,
                          .targets = targets};
    struct head_plan *plan, *infer;
    assert_int_equal(dev->ops->head_plan(dev, &shape, &plan), STATUS_OK);
    shape.inference = true;
    assert_int_equal(dev->ops->head_plan(dev, &shape, &infer), STATUS_OK);
    head_loss(&s);
    dev->ops->head(dev, plan, x, wte, targets, 0.25f, loss, dx, dwte, false);
    if (v > 1) {
        case_close("head loss", loss, s.loss, n, 1e-5);
        case_gradient("head dx", head_loss, &s, s.x, n * c, dx, 2e-5, 60);
        case_gradient("head dwte", head_loss, &s, s.wte, v * c, dwte, 2e-5, 60);
        double *want = mem_alloc(v * c, sizeof *want);
        for (size_t i = 0; i < v * c; i++) want[i] = 2.0 * dwte[i];
        dev->ops->head(dev, plan, x, wte, targets, 0.25f, loss, dx, dwte, true);
        case_close("head dwte accumulated", dwte, want, v * c, 1e-6);
        mem_free(want);
    }
    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < c; i++) assert_true(targets[r] >= 0 || dx[r * c + i] == 0);
    dev->ops->head(dev, infer, x, wte, targets, 1, again, NULL, NULL, false);
    case_equal("head loss, inference", again, loss, n);
    ((struct cpu_plan *)plan)->as.head.rows = 2; /* many chunks, as with a large vocabulary */
    double *want_x = case_widen(dx, n * c), *want_w = case_widen(dwte, v * c);
    dev->ops->head(dev, plan, x, wte, targets, 0.25f, again, dx, dwte, false);
    case_equal("head loss, chunked", again, loss, n);
    case_close("head dx, chunked", dx, want_x, n * c, 1e-6);
    for (size_t i = 0; i < v * c; i++) want_w[i] /= v > 1 ? 2 : 1; /* dwte was accumulated above */
    case_close("head dwte, chunked", dwte, want_w, v * c, 1e-6);
    mem_free(want_x);
    mem_free(want_w);
    case_free_poisoned(loss, n);
    case_free_poisoned(again, n);
    case_free_poisoned(dx, n * c);
    case_free_poisoned(dwte, v * c);
    void *rest[] = {x, wte, targets, s.x, s.wte, s.loss};
    for (size_t i = 0; i < COUNT(rest); i++) mem_free(rest[i]);
}

static void check_head(struct device *dev)
{
    head_one(dev, 1, 1, 1, 1);
    head_one(dev, 4, 3, 2, 1);
    head_one(dev, 9, 8, 33, 1);
    head_one(dev, 21, 20, 100, 3); /* logits of tens: the softmax must not overflow */
}

TEST(test_linear_forward_matches_plain_loops)
{
    device_case_each(check_lin_fwd);
}

TEST(test_linear_backward_matches_plain_loops)
{
    device_case_each(check_lin_bwd);
}

TEST(test_layer_norm_matches_plain_loops)
{
    device_case_each(check_norm);
}

TEST(test_embedding_matches_plain_loops)
{
    device_case_each(check_embed);
}

TEST(test_head_matches_plain_loops)
{
    device_case_each(check_head);
}

TEST_MAIN(NULL, NULL)
