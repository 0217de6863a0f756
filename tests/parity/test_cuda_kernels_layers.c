/* Tests linear layers, output layer and attention of the CUDA device against the CPU (tests/lib/device/device_pair.h),
 * in fp32 and bf16: odd sizes around every block size, outputs filled with NaN before; and refused arguments. ctest:
 * labels=asan timeout=240 */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_head.h"
#include "gpu/cuda_plugin.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Derivative of a layer's activation, which `aux` stores in the device's own format: the gradient that a layer of ones,
 * in the first of eight columns, propagates through it. */
static struct vec dgelu_of(const struct vec *aux, size_t n, size_t m)
{
    struct lin_shape probe = {.n = n, .k = m, .m = 8};
    size_t most = (n > m ? n : m) * probe.m;
    float *ones = mem_alloc(most, sizeof *ones);
    assert_non_null(ones);
    for (size_t i = 0; i < most; i += probe.m) ones[i] = 1;
    struct vec dy = vec_of(n * probe.m, ones, true), w = vec_of(m * probe.m, ones, false), dgelu = act_poisoned(n * m);
    for (int d = 0; d < 2; d++) {
        struct lin_plan *plan;
        assert_int_equal(device_params_plan(pair.devs[d], m * probe.m), STATUS_OK);
        device_params(pair.devs[d], w.at[d], m * probe.m, 0, m * probe.m);
        assert_int_equal(ON(d, lin_plan, &probe, &plan), STATUS_OK);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], aux->at[d], dgelu.at[d], false);
        assert_int_equal(ON(d, sync, NULL), STATUS_OK);
        ON(d, plan_free, plan);
    }
    mem_free(ones);
    return dgelu;
}

static void lin_one(size_t n, size_t k, size_t m, bool out_in, bool act)
{
    struct lin_shape s = {
        .n = n, .k = k, .m = m, .out_in = out_in, .act = act ? LIN_ACT_GELU : LIN_ACT_NONE, .after_act = true};
    struct vec x = act_normal(n * k, 1, 1), w = vec_params(k * m + m, 2, 1 / sqrtf((float)k));
    struct vec res = act_normal(n * m, 4, 1), y = act_poisoned(n * m), y2 = act_poisoned(n * m);
    struct vec aux = act_poisoned(n * m), dy = act_normal(n * m, 5, 1), dx = act_poisoned(n * k);
    struct vec dx2 = act_normal(n * k, 6, 1), again = act_poisoned(n * m);
    struct vec z = act_normal(n * k, 7, 1), dz = act_poisoned(n * k);
    struct vec dw = vec_poisoned(k * m), db = vec_poisoned(m);
    for (int d = 0; d < 2; d++) {
        struct lin_plan *plan, *bare;
        struct lin_shape with_bias = s;
        const float *b = w.at[d] + k * m;
        with_bias.bias = true;
        assert_int_equal(ON(d, lin_plan, &with_bias, &plan), STATUS_OK);
        assert_int_equal(ON(d, lin_plan, &s, &bare), STATUS_OK);
        ON(d, lin_fwd, plan, x.at[d], w.at[d], b, NULL, y.at[d], act ? aux.at[d] : NULL);
        if (act) ON(d, act_recompute, plan, aux.at[d], again.at[d]);
        ON(d, lin_fwd, bare, x.at[d], w.at[d], NULL, act ? NULL : res.at[d], y2.at[d], NULL);
        if (!act) ON(d, lin_fwd, plan, x.at[d], w.at[d], b, res.at[d], res.at[d], NULL);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], NULL, dx.at[d], false);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], NULL, dx2.at[d], true);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d], z.at[d], dz.at[d], false);
        ON(d, lin_bwd_w, plan, x.at[d], dy.at[d], dw.at[d], out_in ? NULL : db.at[d], false);
        ON(d, lin_bwd_w, plan, x.at[d], dy.at[d], dw.at[d], out_in ? NULL : db.at[d], true);
        ON(d, plan_free, bare);
        ON(d, plan_free, plan);
    }
    float *first = vec_host(&y, 1), *second = vec_host(&again, 1);
    if (act) case_equal("act_recompute", first, second, n * m);
    mem_free(first);
    mem_free(second);
    vec_same("lin y", &y, tol(3e-6, act ? 8e-3 : 4e-3));
    vec_same("lin y without bias", &y2, tol(3e-6, act ? 8e-3 : 4e-3));
    vec_same("lin y onto the residual, in place", &res, tol(3e-6, 4e-3));
    vec_same("lin dx", &dx, tol(3e-6, 4e-3));
    vec_same("lin dx accumulated", &dx2, tol(3e-6, 4e-3));
    vec_same("lin dx through an activation", &dz, tol(3e-6, 8e-3));
    vec_same("lin dw", &dw, 3e-6);
    if (!out_in) vec_same("lin db", &db, 3e-6);
    if (act) {
        struct vec dgelu = dgelu_of(&aux, n, m);
        vec_same("dgelu", &dgelu, tol(3e-6, 8e-3));
    }
    vecs_free();
}

/* Parameters and gradients at an offset of one element: their alignment depends on the layout. */
static void lin_unaligned(size_t n, size_t k, size_t m)
{
    struct lin_shape s = {.n = n, .k = k, .m = m, .bias = true, .after_act = true};
    size_t n_theta = 1 + k * m + m;
    struct vec w = vec_params(n_theta, 2, 0.25f), x = act_normal(n * k, 1, 1), dy = act_normal(n * m, 5, 1);
    struct vec z = act_normal(n * k, 7, 1), dz = act_poisoned(n * k), grad = vec_normal(n_theta, 8, 1);
    for (int d = 0; d < 2; d++) {
        struct lin_plan *plan;
        float *dw = grad.at[d] + 1, *db = dw + k * m;
        assert_int_equal(ON(d, lin_plan, &s, &plan), STATUS_OK);
        ON(d, lin_bwd_x, plan, dy.at[d], w.at[d] + 1, z.at[d], dz.at[d], false);
        ON(d, lin_bwd_w, plan, x.at[d], dy.at[d], dw, db, true);
        ON(d, plan_free, plan);
    }
    vec_same("lin dx through an activation, not aligned", &dz, tol(3e-6, 8e-3));
    vec_same("lin dw and db, not aligned", &grad, 3e-6);
    vecs_free();
}

static void check_lin(void)
{
    /* Shapes of models come first: a library may refuse one of the later shapes. */
    static const size_t sizes[][3] = {{14, 32, 32},  {9, 40, 24},  {517, 4, 8}, {65, 17, 33},
                                      {130, 3, 257}, {5, 300, 70}, {3, 5, 2},   {1, 1, 1}};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], false, false);
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], false, true);
        lin_one(sizes[i][0], sizes[i][1], sizes[i][2], true, false);
    }
    lin_unaligned(24, 16, 40);
}

static void head_one(size_t n, size_t c, size_t v, size_t rows)
{
    struct head_shape s = {.n = n, .c = c, .v = v};
    struct vec x = act_normal(n * c, 1, 1), wte = vec_params(v * c, 2, 1), loss = vec_poisoned(n);
    struct vec dx = act_poisoned(n * c), dwte = vec_poisoned(v * c), loss_only = vec_poisoned(n);
    int32_t *targets = mem_alloc(n, sizeof *targets);
    for (size_t r = 0; r < n; r++) targets[r] = r % 5 == 3 ? -1 : (int32_t)((7 * r + v - 1) % v);
    struct vec ids = vec_of(n, (const float *)(const void *)targets, false);
    cuda_of(pair.devs[1])->head->most = rows * ((v + 63) / 64 * 64) * pair.devs[1]->act_bytes;
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
    /* one class: the loss is zero, the gradients are rounding noise */
    if (v > 1) vec_same("head dx", &dx, tol(1e-5, 1e-2));
    if (v > 1) vec_same("head dwte", &dwte, tol(1e-5, 1e-2));
    vec_same("head loss", &loss, tol(1e-5, 5e-3));
    vec_same("head loss alone", &loss_only, tol(1e-5, 5e-3));
    vecs_free();
    mem_free(targets);
}

static void check_head(void)
{
    head_one(7, 8, 256, 7);
    head_one(9, 8, 255, 3);
    head_one(6, 20, 1000, 100);
    head_one(11, 5, 257, 4);
    head_one(5, 3, 2, 2);
    head_one(1, 1, 1, 1);
    head_one(2, 3, 4159, 2); /* vocabularies larger than one and two loads of a block */
    head_one(1, 2, 12301, 1);
    head_one(330, 3, 2, 300); /* split at a multiple of 128 rows */
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
    vecs_free();
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
    attn_one(2, 11, 3, 1, 6, 1);   /* grouped keys and values */
    attn_one(2, 35, 6, 2, 16, 1);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

TEST(test_refusals)
{
    struct err err = {0};
    struct device *dev;
    struct lin_plan *lin;
    struct attn_plan *attn;
    int count = 0;
    assert_int_equal(atoll_cuda_plugin.count(&count, &err), STATUS_OK);
    assert_int_equal(atoll_cuda_plugin.open(1000, &dev, &err), STATUS_INVALID);
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
    assert_int_equal(device_use_bf16(dev, &err), STATUS_STATE);   /* too late */
    dev->ops->lin_bwd_x(dev, lin, NULL, NULL, NULL, NULL, false); /* refused; the first error stays */
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_INVALID);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
    for (long nth = 1; nth <= 5; nth++) { /* every allocation of open fails once */
        mem_fail_after(nth);
        if (atoll_cuda_plugin.open(0, &dev, &err) == STATUS_OK)
            device_close(dev);
        else
            assert_int_equal(err.code, STATUS_NOMEM);
        mem_fail_after(0);
        assert_int_equal(mem_live_bytes(), 0);
    }
}

/* Every allocation of a plan with its products fails once. */
TEST(test_emulated_plans_without_memory)
{
    struct err err = {0};
    struct device *dev;
    struct lin_shape s = {.n = 16, .k = 32, .m = 24, .bias = true, .after_act = true};
    struct lin_plan *plan = NULL;
    int failed = 0;
    assert_int_equal(atoll_cuda_plugin.open(0, &dev, &err), STATUS_OK);
    assert_int_equal(device_use_bf16(dev, &err), STATUS_OK);
    for (long nth = 1; nth <= 20; nth++) {
        mem_fail_after(nth);
        enum status status = dev->ops->lin_plan(dev, &s, &plan);
        mem_fail_after(0);
        failed += status != STATUS_OK;
        if (status == STATUS_OK)
            dev->ops->plan_free(dev, plan);
        else
            assert_int_equal(status, STATUS_NOMEM);
    }
    assert_true(failed >= 5); /* the plan and its four products */
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_OK);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

PAIR_TEST(lin)
PAIR_TEST(head)
PAIR_TEST(attn)

TEST_MAIN(NULL, NULL)
