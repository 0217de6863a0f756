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

enum status cuda_lin_fill(struct cuda_device *cuda, struct cuda_plan *plan)
{
    const struct lin_shape *s = &plan->as.lin.shape;
    struct cuda_rt *rt = cuda->rt;
    bool bf16 = cuda->bf16;
    size_t ldw = s->out_in ? s->k : s->m;
    assert(plan->kind == CUDA_PLAN_LIN && !plan->as.lin.fwd);
    struct cuda_gemm_shape fwd = {.m = s->n,
                                  .n = s->m,
                                  .k = s->k,
                                  .lda = s->k,
                                  .ldb = ldw,
                                  .b_trans = s->out_in,
                                  .ldc = s->m,
                                  .bf16 = bf16,
                                  .bf16_out = bf16,
                                  .bias = s->bias};
    struct cuda_gemm_shape bwd_x = {.m = s->n,
                                    .n = s->k,
                                    .k = s->m,
                                    .lda = s->m,
                                    .ldb = ldw,
                                    .b_trans = !s->out_in,
                                    .ldc = s->k,
                                    .bf16 = bf16,
                                    .bf16_out = bf16};
    struct cuda_gemm_shape bwd_w = {
        .m = s->k, .n = s->m, .k = s->n, .lda = s->k, .a_trans = true, .ldb = s->m, .ldc = s->m, .bf16 = bf16};
    if (s->out_in) /* dw = dy^T x */
        bwd_w = (struct cuda_gemm_shape){
            .m = s->m, .n = s->k, .k = s->n, .lda = s->m, .a_trans = true, .ldb = s->k, .ldc = s->k, .bf16 = bf16};
    TRY(cuda_rt_gemm_create(rt, &fwd, &plan->as.lin.fwd));
    if (s->inference) return STATUS_OK;
    TRY(cuda_rt_gemm_create(rt, &bwd_x, &plan->as.lin.bwd_x));
    TRY(cuda_rt_gemm_create(rt, &bwd_w, &plan->as.lin.bwd_w));
    if (!bf16 || !s->after_act) return STATUS_OK;
    bwd_x.dgelu = true;
    enum status status = cuda_rt_gemm_create(rt, &bwd_x, &plan->as.lin.bwd_x_dgelu);
    return status == STATUS_UNSUPPORTED ? STATUS_OK : status;
}

void cuda_lin_free(struct cuda_plan *plan)
{
    cuda_rt_gemm_free(plan->as.lin.fwd);
    cuda_rt_gemm_free(plan->as.lin.bwd_x);
    cuda_rt_gemm_free(plan->as.lin.bwd_w);
    cuda_rt_gemm_free(plan->as.lin.bwd_x_dgelu);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

void cuda_op_lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                     const void *res, void *y, void *aux)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin.shape;
    bool gelu = s->act == LIN_ACT_GELU;
    if (s->bias != (b != NULL)) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "lin_fwd: the bias does not match the plan");
        return;
    }
    if (res && gelu) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "lin_fwd: a residual cannot follow an activation");
        return;
    }
    void *z = gelu && aux ? aux : y; /* backward through GELU needs its input */
    cuda_rt_gemm(cuda->rt, p->as.lin.fwd,
                 &(struct cuda_gemm_call){
                     .a = x, .b = cuda_weights(cuda, w), .c = res, .out = z, .bias = b ? cuda_weights(cuda, b) : NULL});
    if (gelu)
        LAUNCH(cuda, cuda_gelu_fwd, wide_blocks(s->n * s->m, s->n * s->m, CUDA_BLOCK), 1, cuda_gelu_args,
               .n = s->n * s->m, .bf16 = cuda->bf16, .z = z, .y = y);
}

void cuda_op_act_recompute(struct device *dev, const struct lin_plan *plan, const void *aux, void *y)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    size_t n = p->as.lin.shape.n * p->as.lin.shape.m;
    if (p->as.lin.shape.act == LIN_ACT_NONE)
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "act_recompute: the plan has no activation");
    else
        LAUNCH(cuda, cuda_gelu_fwd, wide_blocks(n, n, CUDA_BLOCK), 1, cuda_gelu_args, .n = n, .bf16 = cuda->bf16,
               .z = aux, .y = y);
}

static bool has_backward(struct cuda_device *cuda, const struct cuda_plan *p)
{
    if (!p->as.lin.shape.inference) return true;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "backward of a linear layer: the plan is for inference");
    return false;
}

void cuda_op_lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                       void *dx, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    if (!has_backward(cuda, p)) return;
    struct cuda_gemm_call call = {
        .a = dy, .b = cuda_weights(cuda, w), .c = accumulate ? dx : NULL, .out = dx, .aux = aux};
    size_t n = p->as.lin.shape.n * p->as.lin.shape.k;
    assert(!aux || !accumulate);
    bool fused = aux && cuda_rt_gemm_takes(p->as.lin.bwd_x_dgelu, &call);
    cuda_rt_gemm(cuda->rt, fused ? p->as.lin.bwd_x_dgelu : p->as.lin.bwd_x, &call);
    if (aux && !fused)
        LAUNCH(cuda, cuda_gelu_bwd, wide_blocks(n, n, CUDA_BLOCK), 1, cuda_gelu_args, .n = n, .bf16 = cuda->bf16,
               .z = aux, .y = dx);
}

/* db = or += the column sums of dy. */
static void bias_grad(struct cuda_device *cuda, const struct lin_shape *s, const void *dy, float *db, bool accumulate)
{
    size_t block = cuda_row_block(cuda, s->n, s->m);
    if (!block) return;
    LAUNCH(cuda, cuda_columns, wide_blocks(s->m, s->m, CUDA_COLUMN_THREADS), blocks_of(s->n, block), cuda_columns_args,
           .n = s->n, .c = s->m, .block = block, .stride = s->m, .bf16 = cuda->bf16, .x = dy,
           .partials = cuda->partials);
    cuda_columns_sum(cuda, s->m, blocks_of(s->n, block), s->m, cuda->partials, db, accumulate);
}

void cuda_op_lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                       float *db, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin.shape;
    if (!has_backward(cuda, p)) return;
    cuda_rt_gemm(cuda->rt, p->as.lin.bwd_w,
                 &(struct cuda_gemm_call){
                     .a = s->out_in ? dy : x, .b = s->out_in ? x : dy, .c = accumulate ? dw : NULL, .out = dw});
    if (db) bias_grad(cuda, s, dy, db, accumulate);
}
