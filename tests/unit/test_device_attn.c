/* Causal attention of the CPU device against plain loops in double; backward against finite differences. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "gpu/device.h"
#include "tests/lib/device_case.h"

struct attn_case {
    struct attn_shape s;
    double *qkv, *g, *o, *lse; /* loss = sum of g * o */
};

static double attn_loss(void *ctx)
{
    struct attn_case *k = ctx;
    size_t t = k->s.seq, hd = k->s.head_dim, c = k->s.heads * hd;
    double loss = 0, *p = mem_alloc(t, sizeof *p);
    memset(k->o, 0, k->s.batch * t * c * sizeof *k->o);
    for (size_t bh = 0; bh < k->s.batch * k->s.heads; bh++) {
        const double *base = k->qkv + bh / k->s.heads * t * 3 * c + bh % k->s.heads * hd;
        for (size_t i = 0; i < t; i++) {
            double top = -INFINITY, sum = 0;
            for (size_t j = 0; j <= i; j++) {
                p[j] = 0;
                for (size_t d = 0; d < hd; d++)
                    p[j] += base[i * 3 * c + d] * base[j * 3 * c + c + d] / sqrt((double)hd);
                top = fmax(top, p[j]);
            }
            for (size_t j = 0; j <= i; j++) sum += exp(p[j] - top);
            k->lse[bh * t + i] = top + log(sum);
            for (size_t d = 0; d < hd; d++) {
                size_t at = (bh / k->s.heads * t + i) * c + bh % k->s.heads * hd + d;
                for (size_t j = 0; j <= i; j++) k->o[at] += exp(p[j] - top) / sum * base[j * 3 * c + 2 * c + d];
                loss += k->g[at] * k->o[at];
            }
        }
    }
    mem_free(p);
    return loss;
}

static void attn_one(struct device *dev, struct attn_shape s, float sigma, size_t most)
{
    size_t c = s.heads * s.head_dim, n = s.batch * s.seq, rows = s.batch * s.heads * s.seq;
    float *qkv = case_normal(n * 3 * c, 1, sigma), *g = case_normal(n * c, 2, 1), *o = case_poisoned(n * c);
    float *lse = case_poisoned(rows), *dqkv = case_poisoned(n * 3 * c), *again = case_poisoned(n * c);
    struct attn_case k = {.s = s, .qkv = case_widen(qkv, n * 3 * c), .g = case_widen(g, n * c),
                          .o = mem_alloc(n * c, sizeof(double)), .lse = mem_alloc(rows, sizeof(double))};
    struct attn_plan *plan, *infer;
    assert_int_equal(dev->ops->attn_plan(dev, &s, &plan), STATUS_OK);
    s.inference = true;
    assert_int_equal(dev->ops->attn_plan(dev, &s, &infer), STATUS_OK);
    attn_loss(&k);
    dev->ops->attn_fwd(dev, plan, qkv, o, lse);
    case_close("attn o", o, k.o, n * c, 3e-6);
    case_close("attn lse", lse, k.lse, rows, 3e-6);
    dev->ops->attn_fwd(dev, infer, qkv, again, NULL);
    case_equal("attn o, inference", again, o, n * c);
    dev->ops->attn_bwd(dev, plan, qkv, o, lse, g, dqkv);
    if (most) case_gradient("attn dqkv", attn_loss, &k, k.qkv, n * 3 * c, dqkv, 2e-5, most);
    case_free_poisoned(o, n * c);
    case_free_poisoned(lse, rows);
    case_free_poisoned(dqkv, n * 3 * c);
    case_free_poisoned(again, n * c);
    void *rest[] = {qkv, g, k.qkv, k.g, k.o, k.lse};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) mem_free(rest[i]);
}

static void check_attn(struct device *dev)
{
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 1, .heads = 1, .head_dim = 1}, 1, 3);
    attn_one(dev, (struct attn_shape){.batch = 2, .seq = 3, .heads = 1, .head_dim = 5}, 1, 100);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 31, .heads = 2, .head_dim = 8}, 1, 60);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 32, .heads = 1, .head_dim = 16}, 1, 60);
    attn_one(dev, (struct attn_shape){.batch = 2, .seq = 33, .heads = 2, .head_dim = 32}, 1, 40);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 70, .heads = 1, .head_dim = 40}, 1, 30);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 100, .heads = 1, .head_dim = 64}, 6, 0); /* peaked scores */
}

/* A later token must not change an earlier output, nor a gradient leave it. */
static void check_causal(struct device *dev)
{
    enum { T = 40, HD = 16, N = T * HD };
    struct attn_shape s = {.batch = 1, .seq = T, .heads = 1, .head_dim = HD};
    float *qkv = case_normal(3 * N, 1, 1), *a = case_poisoned(N), *b = case_poisoned(N), *lse = case_poisoned(T);
    float *g = case_normal(N, 2, 1), *d = case_poisoned(3 * N);
    struct attn_plan *plan;
    assert_int_equal(dev->ops->attn_plan(dev, &s, &plan), STATUS_OK);
    dev->ops->attn_fwd(dev, plan, qkv, a, lse);
    memset(g + 20 * HD, 0, (T - 20) * HD * sizeof *g);
    dev->ops->attn_bwd(dev, plan, qkv, a, lse, g, d);
    for (size_t i = 20 * 3 * HD; i < T * 3 * HD; i++) assert_true(d[i] == 0);
    for (size_t i = 20 * 3 * HD; i < T * 3 * HD; i++) qkv[i] = 9;
    dev->ops->attn_fwd(dev, plan, qkv, b, lse);
    case_equal("attn before the change", a, b, 20 * HD);
    assert_memory_not_equal(a + 20 * HD, b + 20 * HD, HD * sizeof *a);
    case_free_poisoned(a, N);
    case_free_poisoned(b, N);
    case_free_poisoned(lse, T);
    case_free_poisoned(d, 3 * N);
    mem_free(qkv);
    mem_free(g);
}

static void test_attn(void **state)
{
    (void)state;
    device_case_each(check_attn);
}

static void test_causal(void **state)
{
    (void)state;
    device_case_each(check_causal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attn), cmocka_unit_test(test_causal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
