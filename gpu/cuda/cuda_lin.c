/* Linear layers of the CUDA device: matrix products and the kernels around them.
 *
 * In bf16 the derivative of the GELU before a layer is an epilogue of the product (DGELU). On an H100 that was faster
 * than a kernel for five of six shapes; the layers of GPT-2 that have it (4C to C) gained 13 and 24 %. It stays a
 * kernel where the library has no such product, and for operands that are not aligned. The column sums of the bias
 * gradient were faster as an epilogue (BGRADA) for no shape. GELU itself is never fused: y has to be computed from the
 * rounded z (device.h), and a GELU epilogue uses the unrounded z. fp32 is the reference for comparisons, so it never
 * fuses. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>

#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/cuda_plans.h"
#include "gpu/cuda/cuda_rows.h"

struct plan {
    struct cuda_plan base;
    struct lin_shape shape;
    struct cuda_gemm *fwd, *bwd_x, *bwd_w;
    struct cuda_gemm *bwd_x_dgelu; /* with the derivative of the GELU; NULL: bwd_x and a kernel */
};

/* Creates the products. Errors: NOMEM, UNSUPPORTED. */
static enum status fill(struct cuda_device *cuda, struct plan *plan)
{
    const struct lin_shape *s = &plan->shape;
    struct cuda_rt *rt = cuda->rt;
    bool bf16 = cuda->bf16;
    assert(!plan->fwd);
    struct cuda_gemm_shape fwd = {
        .m = s->n, .n = s->m, .k = s->k, .b_trans = s->out_in, .bf16 = bf16, .bf16_out = bf16, .bias = s->bias};
    struct cuda_gemm_shape bwd_x = {
        .m = s->n, .n = s->k, .k = s->m, .b_trans = !s->out_in, .bf16 = bf16, .bf16_out = bf16};
    size_t rows = s->out_in ? s->m : s->k, cols = s->out_in ? s->k : s->m; /* of dw; out_in: dw = dy^T x */
    struct cuda_gemm_shape bwd_w = {.m = rows, .n = cols, .k = s->n, .a_trans = true, .bf16 = bf16};
    TRY(cuda_rt_gemm_create(rt, &fwd, &plan->fwd));
    if (s->inference) return STATUS_OK;
    TRY(cuda_rt_gemm_create(rt, &bwd_x, &plan->bwd_x));
    TRY(cuda_rt_gemm_create(rt, &bwd_w, &plan->bwd_w));
    if (!bf16 || !s->after_act) return STATUS_OK;
    bwd_x.dgelu = true;
    enum status status = cuda_rt_gemm_create(rt, &bwd_x, &plan->bwd_x_dgelu);
    return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

static void free_plan(struct cuda_device *cuda, void *plan)
{
    struct plan *p = plan;
    (void)cuda;
    cuda_rt_gemm_free(p->fwd);
    cuda_rt_gemm_free(p->bwd_x);
    cuda_rt_gemm_free(p->bwd_w);
    cuda_rt_gemm_free(p->bwd_x_dgelu);
}

static enum status lin_plan(struct device *dev, const struct lin_shape *shape, struct lin_plan **out)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (!shape->n || !shape->k || !shape->m) return STATUS_INVALID;
    struct plan *plan = cuda_plan_new(sizeof *plan, free_plan);
    if (!plan) return STATUS_NOMEM;
    plan->shape = *shape;
    return cuda_plan_keep(cuda, plan, cuda_plan_refused(cuda, fill(cuda, plan)), out);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static void gelu(struct cuda_device *cuda, size_t n, const void *z, void *y)
{
    LAUNCH(cuda, cuda_gelu_fwd, wide_blocks(n, n, CUDA_BLOCK), 1, cuda_gelu_args, .n = n, .bf16 = cuda->bf16, .z = z,
           .y = y);
}

static void lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                    const void *res, void *y, void *aux)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct lin_shape *s = &p->shape;
    bool act = s->act == LIN_ACT_GELU;
    if (s->bias != (b != NULL)) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "lin_fwd: the bias does not match the plan");
        return;
    }
    if (res && act) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "lin_fwd: a residual cannot follow an activation");
        return;
    }
    void *z = act && aux ? aux : y; /* backward through GELU needs its input */
    cuda_rt_gemm(cuda->rt, p->fwd,
                 &(struct cuda_gemm_call){
                     .a = x, .b = cuda_weights(cuda, w), .c = res, .out = z, .bias = b ? cuda_weights(cuda, b) : NULL});
    if (act) gelu(cuda, s->n * s->m, z, y);
}

static void act_recompute(struct device *dev, const struct lin_plan *plan, const void *aux, void *y)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    if (p->shape.act == LIN_ACT_NONE)
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "act_recompute: the plan has no activation");
    else
        gelu(cuda, p->shape.n * p->shape.m, aux, y);
}

static bool has_backward(struct cuda_device *cuda, const struct plan *p)
{
    if (!p->shape.inference) return true;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "backward of a linear layer: the plan is for inference");
    return false;
}

static void lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                      void *dx, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    if (!has_backward(cuda, p)) return;
    struct cuda_gemm_call call = {
        .a = dy, .b = cuda_weights(cuda, w), .c = accumulate ? dx : NULL, .out = dx, .aux = aux};
    size_t n = p->shape.n * p->shape.k;
    assert(!aux || !accumulate);
    bool fused = aux && cuda_rt_gemm_takes(p->bwd_x_dgelu, &call);
    cuda_rt_gemm(cuda->rt, fused ? p->bwd_x_dgelu : p->bwd_x, &call);
    if (aux && !fused)
        LAUNCH(cuda, cuda_gelu_bwd, wide_blocks(n, n, CUDA_BLOCK), 1, cuda_gelu_args, .n = n, .bf16 = cuda->bf16,
               .z = aux, .y = dx);
}

static void lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                      float *db, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct lin_shape *s = &p->shape;
    if (!has_backward(cuda, p)) return;
    cuda_rt_gemm(cuda->rt, p->bwd_w,
                 &(struct cuda_gemm_call){
                     .a = s->out_in ? dy : x, .b = s->out_in ? x : dy, .c = accumulate ? dw : NULL, .out = dw});
    if (db) cuda_columns_of(cuda, s->n, s->m, dy, db, accumulate);
}

enum status cuda_lin_open(struct cuda_device *cuda)
{
    cuda->ops.lin_plan = lin_plan;
    cuda->ops.lin_fwd = lin_fwd;
    cuda->ops.act_recompute = act_recompute;
    cuda->ops.lin_bwd_x = lin_bwd_x;
    cuda->ops.lin_bwd_w = lin_bwd_w;
    return STATUS_OK;
}
