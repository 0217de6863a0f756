/* Causal attention of the CPU device against plain loops in double; backward against finite differences. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/device.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

struct attn_case {
    struct attn_shape s;
    double *qkv, *g, *o, *lse; /* loss = sum of g * o */
};

static double attn_loss(void *ctx)
{
    struct attn_case *k = ctx;
    size_t t = k->s.seq, hd = k->s.head_dim, c = k->s.heads * hd;
    size_t groups = k->s.kv_heads ? k->s.kv_heads : k->s.heads, ld = c + 2 * groups * hd;
    double loss = 0, scale = 1 / sqrt((double)hd), *p = mem_alloc(t, sizeof *p);
    memset(k->o, 0, k->s.batch * t * c * sizeof *k->o);
    for (size_t bh = 0; bh < k->s.batch * k->s.heads; bh++) {
        size_t h = bh % k->s.heads;
        const double *q = k->qkv + bh / k->s.heads * t * ld + h * hd;
        const double *key = k->qkv + bh / k->s.heads * t * ld + c + h * groups / k->s.heads * hd;
        const double *value = key + groups * hd;
        for (size_t i = 0; i < t; i++) {
            double top = -INFINITY, sum = 0;
            for (size_t j = 0; j <= i; j++) {
                p[j] = 0;
                for (size_t d = 0; d < hd; d++) p[j] += q[i * ld + d] * key[j * ld + d] * scale;
                top = fmax(top, p[j]);
            }
            for (size_t j = 0; j <= i; j++) sum += p[j] = exp(p[j] - top);
            k->lse[bh * t + i] = top + log(sum);
            for (size_t d = 0; d < hd; d++) {
                size_t at = (bh / k->s.heads * t + i) * c + h * hd + d;
                for (size_t j = 0; j <= i; j++) k->o[at] += p[j] / sum * value[j * ld + d];
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
    size_t nq = n * (c + 2 * (s.kv_heads ? s.kv_heads : s.heads) * s.head_dim);
    float *qkv = case_normal(nq, 1, sigma), *g = case_normal(n * c, 2, 1), *o = case_poisoned(n * c);
    float *lse = case_poisoned(rows), *dqkv = case_poisoned(nq), *again = case_poisoned(n * c);
    struct attn_case k = {.s = s,
                          .qkv = case_widen(qkv, nq),
                          .g = case_widen(g, n * c),
                          .o = mem_alloc(n * c, sizeof(double)),
                          .lse = mem_alloc(rows, sizeof(double))};
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
    if (most) case_gradient("attn dqkv", attn_loss, &k, k.qkv, nq, dqkv, 2e-5, most);
    case_free_poisoned(o, n * c);
    case_free_poisoned(lse, rows);
    case_free_poisoned(dqkv, nq);
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
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 100, .heads = 1, .head_dim = 64}, 6, 0); /* high scores */
}

/* Groups of heads that share keys and values: all, some, and none. */
static void check_groups(struct device *dev)
{
    attn_one(dev, (struct attn_shape){.batch = 2, .seq = 5, .heads = 3, .head_dim = 6, .kv_heads = 1}, 1, 200);
    attn_one(dev, (struct attn_shape){.batch = 2, .seq = 35, .heads = 6, .head_dim = 5, .kv_heads = 2}, 1, 80);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 64, .heads = 4, .head_dim = 32, .kv_heads = 2}, 1, 50);
    attn_one(dev, (struct attn_shape){.batch = 1, .seq = 9, .heads = 2, .head_dim = 8, .kv_heads = 2}, 1, 80);
    struct attn_shape odd = {.batch = 1, .seq = 4, .heads = 4, .head_dim = 8, .kv_heads = 3};
    struct attn_plan *plan;
    assert_int_equal(dev->ops->attn_plan(dev, &odd, &plan), STATUS_INVALID);
}

/* A later token must not change an earlier output or gradient. */
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

TEST(test_attention_matches_plain_loops)
{
    device_case_each(check_attn);
}

TEST(test_grouped_heads_match_plain_loops)
{
    device_case_each(check_groups);
}

TEST(test_later_tokens_do_not_change_earlier_ones)
{
    device_case_each(check_causal);
}

TEST_MAIN(NULL, NULL)
