/* Linear layers of the CUDA device: matrix products and the kernels around them. In bf16 two kernels may be fused into
 * a product (cuda_rt_gemm_fuse): the derivative of the GELU before a layer, and the gradient of the bias. GELU itself
 * is never fused: y has to be computed from the rounded z (device.h), and a GELU epilogue uses the unrounded z. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status cuda_epilogue_wish(enum cuda_epilogue *out, struct err *err)
{
    static const char *const words[] = {"timed", "fused", "separate"};
    const char *value = getenv("ATOLL_EPILOGUE");
    for (int i = 0; i < 3; i++) {
        if (strcmp(value && *value ? value : "timed", words[i]) != 0) continue;
        *out = (enum cuda_epilogue)i;
        return STATUS_OK;
    }
    return err_set(err, STATUS_INVALID, "ATOLL_EPILOGUE is \"%.40s\": set it to timed, fused or separate", value);
}

/* --- backward, fused or separate ---------------------------------------------------------------------------------- */

struct lin_user {
    struct cuda_device *cuda;
    const struct cuda_plan *plan;
};

/* dx; multiplied by the derivative of the GELU if aux is set. */
static void run_x(void *ctx, const struct cuda_gemm *gemm, const struct cuda_gemm_call *call)
{
    const struct lin_user *user = ctx;
    struct cuda_device *cuda = user->cuda;
    size_t n = user->plan->as.lin.shape.n * user->plan->as.lin.shape.k;
    assert(!call->aux || !call->c);
    cuda_rt_gemm(cuda->rt, gemm, call);
    if (call->aux && gemm == user->plan->as.lin.bwd_x)
        LAUNCH(cuda, cuda_gelu_bwd, wide_blocks(n, n, CUDA_BLOCK), 1, cuda_gelu_args, .n = n, .bf16 = cuda->bf16,
               .z = call->aux, .y = call->out);
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

/* dw, and db if bias_grad is set. With c both are accumulated. A fused bias gradient overwrites its output, so an
 * accumulated one goes through `partials`. */
static void run_w(void *ctx, const struct cuda_gemm *gemm, const struct cuda_gemm_call *call)
{
    const struct lin_user *user = ctx;
    struct cuda_device *cuda = user->cuda;
    const struct lin_shape *s = &user->plan->as.lin.shape;
    bool fused = gemm != user->plan->as.lin.bwd_w, accumulate = call->c != NULL;
    assert(!fused || (call->bias_grad && s->m <= CUDA_PARTIAL_FLOATS));
    struct cuda_gemm_call product = *call;
    if (fused && accumulate) product.bias_grad = cuda->partials;
    cuda_rt_gemm(cuda->rt, gemm, &product);
    if (!call->bias_grad) return;
    if (!fused)
        bias_grad(cuda, s, s->out_in ? call->a : call->b, call->bias_grad, accumulate);
    else if (accumulate)
        cuda_columns_sum(cuda, s->m, 1, s->m, cuda->partials, call->bias_grad, true);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

/* fp32 is the reference for comparisons, so it never fuses and chooses nothing by time. */
static enum status lin_fuse(struct cuda_device *cuda, struct cuda_plan *plan, struct cuda_gemm_shape bwd_x,
                            struct cuda_gemm_shape bwd_w)
{
    const struct lin_shape *s = &plan->as.lin.shape;
    struct lin_user user = {cuda, plan};
    assert(plan->as.lin.bwd_x && plan->as.lin.bwd_w);
    if (!cuda->bf16) return STATUS_OK;
    bwd_x.dgelu = true;
    if (s->after_act)
        TRY(cuda_rt_gemm_fuse(cuda->rt, &bwd_x, cuda->epilogue, plan->as.lin.bwd_x,
                              &(struct cuda_gemm_user){run_x, &user}, &plan->as.lin.bwd_x_dgelu));
    bwd_w.bias_grad = true; /* cuBLASLt sums columns of B, which is x if weights are [out,in] */
    if (!s->bias || s->out_in || s->m > CUDA_PARTIAL_FLOATS) return STATUS_OK;
    return cuda_rt_gemm_fuse(cuda->rt, &bwd_w, cuda->epilogue, plan->as.lin.bwd_w,
                             &(struct cuda_gemm_user){run_w, &user}, &plan->as.lin.bwd_w_bias_grad);
}

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
    return lin_fuse(cuda, plan, bwd_x, bwd_w);
}

void cuda_lin_free(struct cuda_plan *plan)
{
    cuda_rt_gemm_free(plan->as.lin.fwd);
    cuda_rt_gemm_free(plan->as.lin.bwd_x);
    cuda_rt_gemm_free(plan->as.lin.bwd_w);
    cuda_rt_gemm_free(plan->as.lin.bwd_x_dgelu);
    cuda_rt_gemm_free(plan->as.lin.bwd_w_bias_grad);
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
    bool fused = aux && !accumulate && cuda_rt_gemm_takes(p->as.lin.bwd_x_dgelu, &call);
    run_x(&(struct lin_user){cuda, p}, fused ? p->as.lin.bwd_x_dgelu : p->as.lin.bwd_x, &call);
}

void cuda_op_lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                       float *db, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct cuda_plan *p = cuda_plan_of(cuda, plan, CUDA_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin.shape;
    if (!has_backward(cuda, p)) return;
    struct cuda_gemm_call call = {
        .a = s->out_in ? dy : x, .b = s->out_in ? x : dy, .c = accumulate ? dw : NULL, .out = dw, .bias_grad = db};
    bool fused = db && cuda_rt_gemm_takes(p->as.lin.bwd_w_bias_grad, &call);
    run_w(&(struct lin_user){cuda, p}, fused ? p->as.lin.bwd_w_bias_grad : p->as.lin.bwd_w, &call);
}
