/* Every operation of the CUDA device, its kernels run by the emulation (tests/cuda/emulate.h), against the CPU
 * device: odd sizes around every block, threads in three orders, outputs full of NaN beforehand; then the same with
 * activations and weights in bf16, where the CPU gets the same rounded numbers.
 * ctest: labels=asan timeout=240 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "gpu/cuda_act.h"
#include "gpu/cuda_impl.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulate.h"
#include "tests/lib/device_case.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The same operation on both devices: BOTH(norm_fwd, n, c, V(x), ...) with V(x) the one's and the other's memory. */
static struct device *devs[2];
#define ON(which, op, ...) devs[which]->ops->op(devs[which], __VA_ARGS__)

static bool bf16; /* what the CUDA device computes in at the moment */

static double tol(double fp32, double half)
{
    return bf16 ? half : fp32;
}

/* A vector in the memory of both; an activation is bf16 on the CUDA device when that computes in it. */
struct vec {
    size_t n;
    bool act;
    float *at[2];
};

static struct vec vec_make(size_t n, const float *values, bool act)
{
    struct vec v = {.n = n, .act = act && bf16};
    uint16_t *half = mem_alloc(n, sizeof *half);
    float *wide = mem_alloc(n, sizeof *wide);
    assert_true(half && wide);
    for (size_t i = 0; i < n; i++) half[i] = bf16_of(values[i]);
    for (size_t i = 0; i < n; i++) wide[i] = v.act ? bf16_value(half[i]) : values[i];
    for (int d = 0; d < 2; d++) {
        bool narrow = v.act && d == 1;
        v.at[d] = devs[d]->ops->alloc(devs[d], n * (narrow ? sizeof *half : sizeof *wide));
        assert_non_null(v.at[d]);
        ON(d, upload, v.at[d], narrow ? (void *)half : wide, n * (narrow ? sizeof *half : sizeof *wide));
        assert_int_equal(devs[d]->ops->sync(devs[d], NULL), STATUS_OK);
    }
    mem_free(half);
    mem_free(wide);
    return v;
}

static struct vec vec_of(size_t n, const float *values)
{
    return vec_make(n, values, false);
}

static struct vec vec_random(size_t n, uint64_t stream, float sigma, bool act)
{
    float *values = case_normal(n, stream, sigma);
    struct vec v = vec_make(n, values, act);
    mem_free(values);
    return v;
}

static struct vec vec_normal(size_t n, uint64_t stream, float sigma)
{
    return vec_random(n, stream, sigma, false);
}

static struct vec act_normal(size_t n, uint64_t stream, float sigma)
{
    return vec_random(n, stream, sigma, true);
}

static struct vec poisoned(size_t n, bool act)
{
    float *values = case_poisoned(n);
    struct vec v = vec_make(n, values, act);
    mem_free(values);
    return v;
}

static struct vec vec_poisoned(size_t n)
{
    return poisoned(n, false);
}

static struct vec act_poisoned(size_t n)
{
    return poisoned(n, true);
}

/* Parameters of matrix products: rounded beforehand where the device would round them. */
static struct vec vec_params(size_t n, uint64_t stream, float sigma)
{
    float *values = case_normal(n, stream, sigma);
    for (size_t i = 0; i < n && bf16; i++) values[i] = bf16_value(bf16_of(values[i]));
    struct vec v = vec_of(n, values);
    mem_free(values);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(devs[d]->ops->params_plan(devs[d], n), STATUS_OK);
        ON(d, params, v.at[d], n, 0, n);
    }
    return v;
}

static void vec_free(struct vec *v)
{
    for (int d = 0; d < 2; d++) devs[d]->ops->release(devs[d], v->at[d]);
}

static float *vec_host(const struct vec *v, int which)
{
    bool narrow = v->act && which == 1;
    float *host = mem_alloc(v->n, sizeof *host);
    assert_non_null(host);
    devs[which]->ops->download(devs[which], host, v->at[which], v->n * (narrow ? sizeof(uint16_t) : sizeof *host));
    struct err err = {0};
    if (devs[which]->ops->sync(devs[which], &err) != STATUS_OK) fail_msg("%s", err.msg);
    const uint16_t *half = (const uint16_t *)(const void *)host;
    for (size_t i = v->n; i-- > 0 && narrow;) host[i] = bf16_value(half[i]); /* from the end: it grows over itself */
    return host;
}

/* Frees v, too: every output is compared once. */
static void vec_same(const char *what, struct vec *v, double allowed)
{
    float *cpu = vec_host(v, 0), *cuda = vec_host(v, 1);
    double *want = case_widen(cpu, v->n);
    case_close(what, cuda, want, v->n, allowed);
    mem_free(cpu);
    mem_free(cuda);
    mem_free(want);
    vec_free(v);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static void check_vectors(void)
{
    static const size_t lengths[] = {1, 31, 255, 256, 257, 1000, 70001};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        size_t n = lengths[i];
        float half = 0.5f, none = 0;
        struct vec x = vec_normal(n, 1, 1), y = vec_poisoned(n), sum = vec_poisoned(1), sumsq = vec_poisoned(1);
        struct vec scale = vec_of(1, &half), zero = vec_of(1, &none);
        for (int d = 0; d < 2; d++) {
            ON(d, fill, y.at[d], n, 2);
            ON(d, axpy, n, 3, x.at[d], y.at[d]);
            ON(d, scale, n, -0.5f, y.at[d]);
            ON(d, sgd, n, y.at[d], x.at[d], 0.1f, 0.75f, scale.at[d]);
            ON(d, sgd, n, y.at[d], x.at[d], 0.1f, 0.5f, zero.at[d]); /* refused */
            ON(d, sgd, n, y.at[d], x.at[d], 0.3f, 1, NULL);
            ON(d, sum, n, y.at[d], sum.at[d]);
            ON(d, sumsq, n, x.at[d], sumsq.at[d]);
            ON(d, fill, y.at[d], 0, 1);
        }
        vec_same("sum", &sum, 1e-5);
        vec_same("sumsq", &sumsq, 1e-6);
        vec_same("fill, axpy, scale, sgd", &y, 1e-7);
        vec_free(&x);
        vec_free(&scale);
        vec_free(&zero);
    }
}

static void check_clip(void)
{
    static const float squares[] = {25, 0, NAN, INFINITY, 3e38f}, limits[] = {0, 1, 10, 1e-38f};
    for (size_t i = 0; i < COUNT(squares); i++)
        for (size_t j = 0; j < COUNT(limits); j++) {
            struct vec sumsq = vec_of(1, &squares[i]), scale = vec_poisoned(1), norm = vec_poisoned(1);
            for (int d = 0; d < 2; d++) ON(d, clip_scale, sumsq.at[d], limits[j], scale.at[d], norm.at[d]);
            float *n0 = vec_host(&norm, 0), *n1 = vec_host(&norm, 1);
            float *s0 = vec_host(&scale, 0), *s1 = vec_host(&scale, 1);
            assert_true(*s0 == *s1 && (*n0 == *n1 || (isnan(*n0) && isnan(*n1))) && (*s1 != 0) == !!isfinite(*n1));
            void *host[] = {n0, n1, s0, s1};
            for (size_t k = 0; k < 4; k++) mem_free(host[k]);
            vec_free(&sumsq);
            vec_free(&scale);
            vec_free(&norm);
        }
}

static void check_adamw(void)
{
    enum { N = 3000 };
    const struct adamw_span spans[] = {{.offset = 0, .count = 1237, .decay = true},
                                       {.offset = 1240, .count = 3, .decay = false},
                                       {.offset = 1250, .count = N - 1250, .decay = true}};
    const float half = 0.5f, none = 0;
    struct vec theta = vec_normal(N, 1, 1), grad = vec_normal(N, 2, 1), m = vec_normal(N, 3, 0);
    struct vec v = vec_normal(N, 3, 0), scale = vec_of(1, &half), zero = vec_of(1, &none);
    struct vec steps = vec_normal(2, 1, 0), correct = vec_poisoned(2); /* steps: a uint64_t, 0 */
    for (uint64_t step = 1; step <= 4; step++)
        for (int d = 0; d < 2; d++) {
            struct adamw_hyper h = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                                    .step = step, .correct = step % 2 ? NULL : correct.at[d]};
            ON(d, count_step, scale.at[d], 0.9f, 0.95f, (uint64_t *)(void *)steps.at[d], correct.at[d]);
            ON(d, count_step, zero.at[d], 0.9f, 0.95f, (uint64_t *)(void *)steps.at[d], correct.at[d]);
            ON(d, adamw, spans, 3, theta.at[d], grad.at[d], m.at[d], v.at[d], &h, step == 3 ? NULL : scale.at[d]);
            ON(d, adamw, spans, 3, theta.at[d], grad.at[d], m.at[d], v.at[d], &h, zero.at[d]);
        }
    vec_same("corrections", &correct, 1e-7);
    vec_free(&steps);
    vec_same("adamw theta", &theta, 1e-7);
    vec_same("adamw m", &m, 1e-7);
    vec_same("adamw v", &v, 1e-7);
    vec_free(&grad);
    vec_free(&scale);
    vec_free(&zero);
}

static void norm_one(size_t n, size_t c)
{
    struct vec x = act_normal(n * c, 1, 2), w = vec_normal(c, 2, 1), b = vec_normal(c, 3, 1);
    struct vec g = act_normal(n * c, 4, 1), y = act_poisoned(n * c), mean = vec_poisoned(n), rstd = vec_poisoned(n);
    struct vec dx = act_poisoned(n * c);
    struct vec dw = vec_poisoned(c), db = vec_poisoned(c), dres = act_normal(n * c, 5, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, norm_fwd, n, c, x.at[d], w.at[d], b.at[d], y.at[d], mean.at[d], rstd.at[d]);
        ON(d, norm_bwd, n, c, g.at[d], x.at[d], w.at[d], mean.at[d], rstd.at[d], NULL, dx.at[d], dw.at[d], db.at[d],
           false);
        ON(d, norm_bwd, n, c, g.at[d], x.at[d], w.at[d], mean.at[d], rstd.at[d], dres.at[d], dres.at[d], dw.at[d],
           db.at[d], true);
    }
    vec_same("norm y", &y, tol(2e-6, 4e-3));
    vec_same("norm mean", &mean, 1e-5);
    vec_same("norm rstd", &rstd, 2e-6);
    if (c > 2) vec_same("norm dx", &dx, tol(1e-5, 4e-3));
    else vec_free(&dx); /* nothing but rounding: the true gradient is (nearly) zero */
    vec_same("norm dx onto the residual", &dres, c > 2 ? tol(1e-5, 3e-3) : 1e-2);
    vec_same("norm dw", &dw, 1e-5);
    vec_same("norm db", &db, 1e-5);
    vec_free(&x);
    vec_free(&w);
    vec_free(&b);
    vec_free(&g);
}

static void check_norm(void)
{
    static const size_t sizes[][2] = {{1, 1}, {3, 7}, {8, 32}, {9, 33}, {65, 31}, {130, 64}, {17, 257},
                                      {70, 300}, {601, 9}};
    for (size_t i = 0; i < COUNT(sizes); i++) norm_one(sizes[i][0], sizes[i][1]);
}

static void rms_one(size_t n, size_t c, float eps)
{
    struct vec x = act_normal(n * c, 1, 0.5f), w = vec_normal(c, 2, 1), g = act_normal(n * c, 4, 1);
    struct vec y = act_poisoned(n * c), rstd = vec_poisoned(n), dx = act_poisoned(n * c), dw = vec_poisoned(c);
    struct vec dres = act_normal(n * c, 5, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, rms_fwd, n, c, eps, x.at[d], w.at[d], y.at[d], rstd.at[d]);
        ON(d, rms_bwd, n, c, g.at[d], x.at[d], w.at[d], rstd.at[d], NULL, dx.at[d], dw.at[d], false);
        ON(d, rms_bwd, n, c, g.at[d], x.at[d], w.at[d], rstd.at[d], dres.at[d], dres.at[d], dw.at[d], true);
    }
    vec_same("rms y", &y, tol(2e-6, 4e-3));
    vec_same("rms rstd", &rstd, 2e-6);
    vec_same("rms dx", &dx, tol(1e-5, 4e-3));
    vec_same("rms dx onto the residual", &dres, tol(1e-5, 4e-3));
    vec_same("rms dw", &dw, 1e-5);
    vec_free(&x);
    vec_free(&w);
    vec_free(&g);
}

static void rope_one(size_t n, size_t seq, size_t heads, size_t head_dim, size_t ld)
{
    struct rope_shape s = {.n = n, .seq = seq, .heads = heads, .head_dim = head_dim, .ld = ld};
    struct vec x = act_normal(n * ld, 1, 1), g = act_normal(n * ld, 2, 1), table = vec_normal(seq * head_dim, 3, 1);
    for (int d = 0; d < 2; d++) {
        ON(d, rope, &s, table.at[d], x.at[d], false);
        ON(d, rope, &s, table.at[d], g.at[d], true);
    }
    vec_same("rope", &x, tol(1e-6, 4e-3));
    vec_same("rope back", &g, tol(1e-6, 4e-3));
    vec_free(&table);
}

static void glu_one(size_t n, size_t f, float sigma)
{
    struct vec gu = act_normal(2 * n * f, 1, sigma), dh = act_normal(n * f, 2, 1), h = act_poisoned(n * f);
    struct vec dgu = act_poisoned(2 * n * f);
    for (int d = 0; d < 2; d++) {
        ON(d, glu_fwd, n, f, gu.at[d], h.at[d]);
        ON(d, glu_bwd, n, f, gu.at[d], dh.at[d], dgu.at[d]);
        ON(d, glu_bwd, n, f, gu.at[d], dh.at[d], gu.at[d]);
    }
    vec_same("glu h", &h, tol(2e-6, 4e-3));
    vec_same("glu dgu", &dgu, tol(2e-6, 4e-3));
    vec_same("glu dgu in place", &gu, tol(2e-6, 4e-3));
    vec_free(&dh);
}

static void check_llama(void)
{
    rms_one(9, 33, 0.1f);
    rms_one(100, 40, 1e-5f);
    rms_one(17, 264, 0.01f);
    rope_one(15, 5, 3, 6, 31);
    rope_one(10, 10, 5, 32, 224);
    rope_one(6, 3, 2, 16, 37); /* heads of whole loads in rows that are not */
    glu_one(7, 37, 2);
    glu_one(9, 64, 30);
}

static void embed_one(size_t n, size_t seq, size_t c, size_t v)
{
    struct vec wte = vec_normal(v * c, 1, 1), wpe = vec_normal(seq * c, 2, 1), dout = act_normal(n * c, 3, 1);
    struct vec out = act_poisoned(n * c), bare = act_poisoned(n * c);
    struct vec dwte = vec_normal(v * c, 4, 1), dwpe = vec_normal(seq * c, 5, 0);
    int32_t *tokens = mem_alloc(n, sizeof *tokens);
    for (size_t r = 0; r < n; r++) tokens[r] = (int32_t)((r * r + 3 * r) % v);
    struct vec ids = vec_of(n, (const float *)(const void *)tokens);
    for (int d = 0; d < 2; d++) {
        const int32_t *t = (const int32_t *)(const void *)ids.at[d];
        ON(d, embed_fwd, n, seq, c, t, wte.at[d], wpe.at[d], out.at[d]);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], dwte.at[d], dwpe.at[d], false);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], dwte.at[d], dwpe.at[d], true);
        ON(d, embed_fwd, n, seq, c, t, wte.at[d], NULL, bare.at[d]);
        ON(d, embed_bwd, n, seq, c, t, dout.at[d], dwte.at[d], NULL, false);
    }
    vec_same("embed out without positions", &bare, tol(1e-7, 4e-3));
    vec_same("embed out", &out, tol(1e-7, 4e-3));
    vec_same("embed dwte", &dwte, 1e-6);
    vec_same("embed dwpe", &dwpe, 1e-6);
    vec_free(&wte);
    vec_free(&wpe);
    vec_free(&dout);
    vec_free(&ids);
    mem_free(tokens);
}

static void check_embed(void)
{
    embed_one(1, 1, 1, 1);
    embed_one(6, 3, 5, 2);
    embed_one(5, 8, 3, 4); /* fewer rows than places */
    embed_one(300, 100, 40, 7);
    embed_one(600, 75, 270, 3);
    embed_one(257, 257, 33, 500);
}

/* The slope of a layer's activation, which `aux` keeps in the device's own way: the gradient that goes back through it
 * from a layer of ones. */
static struct vec slope_of(const struct vec *aux, size_t n, size_t m)
{
    struct lin_shape probe = {.n = n, .k = m, .m = 1};
    float *ones = mem_alloc(n > m ? n : m, sizeof *ones);
    assert_non_null(ones);
    for (size_t i = 0; i < (n > m ? n : m); i++) ones[i] = 1;
    struct vec dy = vec_make(n, ones, true), w = vec_of(m, ones), slope = act_poisoned(n * m);
    for (int d = 0; d < 2; d++) {
        struct lin_plan *plan;
        ON(d, params, w.at[d], m, 0, m);
        assert_int_equal(ON(d, lin_plan, &probe, &plan), STATUS_OK);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], aux->at[d], slope.at[d], false);
        assert_int_equal(ON(d, sync, NULL), STATUS_OK);
        ON(d, plan_free, plan);
    }
    vec_free(&dy);
    vec_free(&w);
    mem_free(ones);
    return slope;
}

static void lin_one(size_t n, size_t k, size_t m, bool out_in, bool act)
{
    struct lin_shape s = {.n = n, .k = k, .m = m, .out_in = out_in, .act = act ? LIN_ACT_GELU : LIN_ACT_NONE};
    struct vec x = act_normal(n * k, 1, 1), w = vec_params(k * m + m, 2, 1 / sqrtf((float)k));
    struct vec res = act_normal(n * m, 4, 1), y = act_poisoned(n * m), y2 = act_poisoned(n * m);
    struct vec aux = act_poisoned(n * m), dy = act_normal(n * m, 5, 1), dx = act_poisoned(n * k);
    struct vec dx2 = act_normal(n * k, 6, 1), again = act_poisoned(n * m);
    struct vec dw = vec_poisoned(k * m), db = vec_poisoned(m);
    for (int d = 0; d < 2; d++) {
        struct lin_plan *plan, *bare;
        struct lin_shape with_bias = s;
        const float *b = w.at[d] + k * m;
        with_bias.bias = true;
        assert_int_equal(ON(d, lin_plan, &with_bias, &plan), STATUS_OK);
        assert_int_equal(ON(d, lin_plan, &s, &bare), STATUS_OK);
        ON(d, lin_fwd, plan, x.at[d], w.at[d], b, NULL, y.at[d], act ? aux.at[d] : NULL);
        if (act) ON(d, act_again, plan, aux.at[d], again.at[d]);
        ON(d, lin_fwd, bare, x.at[d], w.at[d], NULL, act ? NULL : res.at[d], y2.at[d], NULL);
        if (!act) ON(d, lin_fwd, plan, x.at[d], w.at[d], b, res.at[d], res.at[d], NULL);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], NULL, dx.at[d], false);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], NULL, dx2.at[d], true);
        ON(d, lin_bwd_w, plan, x.at[d], dy.at[d], dw.at[d], out_in ? NULL : db.at[d], false);
        ON(d, lin_bwd_w, plan, x.at[d], dy.at[d], dw.at[d], out_in ? NULL : db.at[d], true);
        ON(d, plan_free, bare);
        ON(d, plan_free, plan);
    }
    float *first = vec_host(&y, 1), *second = vec_host(&again, 1);
    if (act) case_equal("act_again", first, second, n * m);
    mem_free(first);
    mem_free(second);
    vec_same("lin y", &y, tol(3e-6, act ? 8e-3 : 4e-3));
    vec_same("lin y without bias", &y2, tol(3e-6, act ? 8e-3 : 4e-3));
    vec_same("lin y onto the residual, in place", &res, tol(3e-6, 4e-3));
    vec_same("lin dx", &dx, tol(3e-6, 4e-3));
    vec_same("lin dx accumulated", &dx2, tol(3e-6, 4e-3));
    vec_same("lin dw", &dw, 3e-6);
    if (out_in) vec_free(&db);
    else vec_same("lin db", &db, 3e-6);
    if (act) {
        struct vec slope = slope_of(&aux, n, m);
        vec_same("gelu slope", &slope, tol(3e-6, 8e-3));
    }
    struct vec *rest[] = {&x, &w, &dy, &aux, &again};
    for (size_t i = 0; i < COUNT(rest); i++) vec_free(rest[i]);
}

static void check_lin(void)
{
    static const size_t sizes[][3] = {{1, 1, 1}, {3, 5, 2}, {14, 32, 32}, {65, 17, 33}, {130, 3, 257},
                                      {5, 300, 70}, {517, 4, 8}, {9, 40, 24}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], false, false);
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], false, true);
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], true, false);
    }
}

static void head_one(size_t n, size_t c, size_t v, size_t rows)
{
    struct head_shape s = {.n = n, .c = c, .v = v};
    struct vec x = act_normal(n * c, 1, 1), wte = vec_params(v * c, 2, 1), loss = vec_poisoned(n);
    struct vec dx = act_poisoned(n * c), dwte = vec_poisoned(v * c), loss_only = vec_poisoned(n);
    int32_t *targets = mem_alloc(n, sizeof *targets);
    for (size_t r = 0; r < n; r++) targets[r] = r % 5 == 3 ? -1 : (int32_t)((7 * r + v - 1) % v);
    struct vec ids = vec_of(n, (const float *)(const void *)targets);
    cuda_of(devs[1])->head_bytes = rows * ((v + 63) / 64 * 64) * devs[1]->act_bytes;
    for (int d = 0; d < 2; d++) {
        const int32_t *t = (const int32_t *)(const void *)ids.at[d];
        struct head_plan *plan, *infer;
        struct head_shape only = s;
        only.inference = true;
        assert_int_equal(ON(d, head_plan, &s, &plan), STATUS_OK);
        assert_int_equal(ON(d, head_plan, &only, &infer), STATUS_OK);
        ON(d, head, plan, x.at[d], wte.at[d], t, 0.25f, loss.at[d], dx.at[d], dwte.at[d], false);
        ON(d, head, plan, x.at[d], wte.at[d], t, 0.25f, loss.at[d], dx.at[d], dwte.at[d], true);
        ON(d, head, infer, x.at[d], wte.at[d], t, 1, loss_only.at[d], NULL, NULL, false);
    }
    /* one class: the loss is zero and everything else rounding */
    if (v > 1) vec_same("head dx", &dx, tol(1e-5, 1e-2));
    else vec_free(&dx);
    if (v > 1) vec_same("head dwte", &dwte, tol(1e-5, 1e-2));
    else vec_free(&dwte);
    vec_same("head loss", &loss, tol(1e-5, 5e-3));
    vec_same("head loss alone", &loss_only, tol(1e-5, 5e-3));
    vec_free(&x);
    vec_free(&wte);
    vec_free(&ids);
    mem_free(targets);
}

static void check_head(void)
{
    head_one(1, 1, 1, 1);
    head_one(5, 3, 2, 2);
    head_one(9, 8, 255, 3);
    head_one(7, 8, 256, 7);
    head_one(11, 5, 257, 4);
    head_one(6, 20, 1000, 100);
}

static void attn_one(size_t batch, size_t seq, size_t heads, size_t kv_heads, size_t head_dim, float sigma)
{
    struct attn_shape s = {.batch = batch, .seq = seq, .heads = heads, .head_dim = head_dim, .kv_heads = kv_heads};
    size_t n = batch * seq * heads * head_dim, all = n + 2 * batch * seq * kv_heads * head_dim;
    struct vec qkv = act_normal(all, 1, sigma), g = act_normal(n, 2, 1), o = act_poisoned(n), o2 = act_poisoned(n);
    struct vec lse = vec_poisoned(batch * heads * seq), dqkv = act_poisoned(all);
    for (int d = 0; d < 2; d++) {
        struct attn_plan *plan, *infer;
        struct attn_shape only = s;
        only.inference = true;
        assert_int_equal(ON(d, attn_plan, &s, &plan), STATUS_OK);
        assert_int_equal(ON(d, attn_plan, &only, &infer), STATUS_OK);
        ON(d, attn_fwd, plan, qkv.at[d], o.at[d], lse.at[d]);
        ON(d, attn_fwd, infer, qkv.at[d], o2.at[d], NULL);
        ON(d, attn_bwd, plan, qkv.at[d], o.at[d], lse.at[d], g.at[d], dqkv.at[d]);
        ON(d, plan_free, plan);
        ON(d, plan_free, infer);
    }
    vec_same("attn o", &o, tol(3e-6, 4e-3));
    vec_same("attn o, inference", &o2, tol(3e-6, 4e-3));
    vec_same("attn lse", &lse, 3e-6);
    vec_same("attn dqkv", &dqkv, tol(2e-5, 1e-2));
    vec_free(&qkv);
    vec_free(&g);
}

static void check_attn(void)
{
    attn_one(1, 1, 1, 1, 1, 1);
    attn_one(2, 3, 1, 1, 5, 1);
    attn_one(1, 31, 2, 2, 8, 1);
    attn_one(2, 33, 3, 3, 32, 1);
    attn_one(1, 70, 1, 1, 40, 1);
    attn_one(1, 41, 2, 2, 128, 1);
    attn_one(1, 100, 1, 1, 64, 3); /* peaked scores */
    attn_one(2, 11, 3, 1, 6, 1); /* shared keys and values */
    attn_one(2, 35, 6, 2, 16, 1);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void test_refusals(void **state)
{
    (void)state;
    struct err err = {0};
    struct device *dev;
    struct lin_plan *lin;
    struct attn_plan *attn;
    int count = 0;
    assert_int_equal(atoll_cuda_plugin.count(&count, &err), STATUS_OK);
    assert_int_equal(atoll_cuda_plugin.open(7, &dev, &err), STATUS_INVALID);
    assert_int_equal(atoll_cuda_plugin.open(0, &dev, &err), STATUS_OK);
    assert_false(dev->host_memory);
    assert_int_equal(dev->ops->lin_plan(dev, &(struct lin_shape){.n = 1, .m = 1}, &lin), STATUS_INVALID);
    struct attn_shape wide = {.batch = 1, .seq = 1, .heads = 1, .head_dim = CUDA_ATTN_HEAD_MAX + 1};
    assert_int_equal(dev->ops->attn_plan(dev, &wide, &attn), STATUS_UNSUPPORTED);
    struct lin_shape shape = {.n = 1, .k = 1, .m = 1, .inference = true};
    assert_int_equal(dev->ops->lin_plan(dev, &shape, &lin), STATUS_OK);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_OK);
    dev->ops->attn_fwd(dev, (struct attn_plan *)lin, NULL, NULL, NULL);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "plan"));
    assert_int_equal(dev->ops->use_bf16(dev, &err), STATUS_STATE); /* too late */
    dev->ops->lin_bwd_x(dev, lin, NULL, NULL, NULL, NULL, false); /* refused, and the first error stays */
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_INVALID);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
    for (long nth = 1; nth <= 5; nth++) { /* each allocation of open fails once */
        mem_fail_after(nth);
        if (atoll_cuda_plugin.open(0, &dev, &err) == STATUS_OK) device_close(dev);
        else assert_int_equal(err.code, STATUS_NOMEM);
        mem_fail_after(0);
        assert_int_equal(mem_live_bytes(), 0);
    }
}

/* Both devices, and threads from first to last, from last to first, and shuffled, then in bf16; where a checker
 * watches, which does not care about the order, once each. */
static void each_order(void (*check)(void))
{
    struct err err = {0};
    for (unsigned order = 0; order < 4; order++) {
        if (emulate_watch && (order == 1 || order == 2)) continue;
        emulate_order(order % 3);
        bf16 = order == 3;
        if (device_open("cpu", 1, &devs[0], &err) != STATUS_OK) fail_msg("%s", err.msg);
        if (atoll_cuda_plugin.open(0, &devs[1], &err) != STATUS_OK) fail_msg("%s", err.msg);
        if (bf16) assert_int_equal(ON(1, use_bf16, &err), STATUS_OK);
        check();
        for (int d = 0; d < 2; d++) {
            if (devs[d]->ops->sync(devs[d], &err) != STATUS_OK) fail_msg("%s", err.msg);
            device_close(devs[d]);
        }
        assert_int_equal(mem_live_bytes(), 0);
    }
}

#define EACH(name)                                                                                                     \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        each_order(check_##name);                                                                                      \
    }
EACH(vectors)
EACH(clip)
EACH(adamw)
EACH(norm)
EACH(llama)
EACH(embed)
EACH(lin)
EACH(head)
EACH(attn)

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors), cmocka_unit_test(test_clip), cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_norm),    cmocka_unit_test(test_embed), cmocka_unit_test(test_lin),
        cmocka_unit_test(test_head),    cmocka_unit_test(test_attn), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_llama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
