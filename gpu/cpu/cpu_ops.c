/* Linear layers, head and attention of the CPU device. */
#include "gpu/cpu/cpu_impl.h"

#include <math.h>

#include "gpu/cpu/gemm.h"

static void run_gemm(struct cpu_device *cpu, const struct gemm *g)
{
    gemm_run(g, cpu->kernels, cpu->pool, cpu->scratch);
}

static void lin_fwd(struct device *dev, const struct lin_plan *plan, const void *x, const float *w, const float *b,
                    const void *res, void *y, void *aux)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin;
    if (res && s->act != LIN_ACT_NONE) {
        cpu_fail(cpu, STATUS_INVALID, "lin_fwd: a residual cannot follow an activation");
        return;
    }
    run_gemm(cpu, &(struct gemm){.m = s->n,
                                 .n = s->m,
                                 .k = s->k,
                                 .a = x,
                                 .b = w,
                                 .b_trans = s->out_in,
                                 .c = y,
                                 .bias = b,
                                 .add = res,
                                 .gelu = s->act == LIN_ACT_GELU,
                                 .aux_out = aux});
}

struct act_job {
    const struct cpu_kernels *kernels;
    size_t n;
    const float *z;
    float *y;
};

static void act_thread(void *ctx, int thread, int threads)
{
    const struct act_job *job = ctx;
    size_t begin, end;
    pool_share(job->n, 1024, thread, threads, &begin, &end);
    job->kernels->gelu_run(end - begin, job->z + begin, job->y + begin);
}

static void act_recompute(struct device *dev, const struct lin_plan *plan, const void *aux, void *y)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_LIN);
    if (!p) return;
    if (p->as.lin.act == LIN_ACT_NONE) {
        cpu_fail(cpu, STATUS_INVALID, "act_recompute: the plan has no activation");
        return;
    }
    struct act_job job = {.kernels = cpu->kernels, .n = p->as.lin.n * p->as.lin.m, .z = aux, .y = y};
    pool_run(cpu->pool, act_thread, &job);
}

static void lin_bwd_x(struct device *dev, const struct lin_plan *plan, const void *dy, const float *w, const void *aux,
                      void *dx, bool accumulate)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin;
    run_gemm(cpu, &(struct gemm){.m = s->n,
                                 .n = s->k,
                                 .k = s->m,
                                 .a = dy,
                                 .b = w,
                                 .b_trans = !s->out_in,
                                 .c = dx,
                                 .add = accumulate ? dx : NULL,
                                 .aux_in = aux});
}

static void lin_bwd_w(struct device *dev, const struct lin_plan *plan, const void *x, const void *dy, float *dw,
                      float *db, bool accumulate)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_LIN);
    if (!p) return;
    const struct lin_shape *s = &p->as.lin;
    bool swap = s->out_in; /* dw = dy^T x */
    if (swap && db) {
        cpu_fail(cpu, STATUS_UNSUPPORTED, "lin_bwd_w: no bias gradient for an [out,in] weight");
        return;
    }
    struct gemm g = {.m = swap ? s->m : s->k,
                     .n = swap ? s->k : s->m,
                     .k = s->n,
                     .a = swap ? dy : x,
                     .a_trans = true,
                     .b = swap ? x : dy,
                     .c = dw,
                     .add = accumulate ? dw : NULL,
                     .colsum = db,
                     .colsum_add = accumulate};
    run_gemm(cpu, &g);
}

struct xent_job {
    struct cpu_device *cpu;
    size_t n, v, ld;
    const int32_t *targets;
    float dscale, *loss;
    bool loss_only;
};

static void xent_thread(void *ctx, int thread, int threads)
{
    const struct xent_job *job = ctx;
    size_t begin, end;
    pool_share(job->n, 1, thread, threads, &begin, &end);
    job->cpu->kernels->xent_rows(end - begin, job->v, job->ld, job->cpu->logits + begin * job->ld, job->targets + begin,
                                 job->dscale, job->loss + begin, job->loss_only);
}

static void head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                 const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_HEAD);
    if (!p) return;
    const struct head_shape *s = &p->as.head.shape;
    size_t c = s->c, v = s->v, ld = p->as.head.ld;
    const float *in = x;
    float *din = dx;
    for (size_t r = 0; r < s->n; r += p->as.head.rows) {
        size_t rows = s->n - r < p->as.head.rows ? s->n - r : p->as.head.rows;
        struct xent_job xent = {.cpu = cpu,
                                .n = rows,
                                .v = v,
                                .ld = ld,
                                .targets = targets + r,
                                .dscale = dscale,
                                .loss = loss + r,
                                .loss_only = s->inference};
        run_gemm(
            cpu,
            &(struct gemm){
                .m = rows, .n = v, .k = c, .a = in + r * c, .b = wte, .b_trans = true, .c = cpu->logits, .ldc = ld});
        pool_run(cpu->pool, xent_thread, &xent);
        if (s->inference) continue;
        run_gemm(cpu,
                 &(struct gemm){.m = rows, .n = c, .k = v, .a = cpu->logits, .lda = ld, .b = wte, .c = din + r * c});
        run_gemm(cpu, &(struct gemm){.m = v,
                                     .n = c,
                                     .k = rows,
                                     .a = cpu->logits,
                                     .lda = ld,
                                     .a_trans = true,
                                     .b = in + r * c,
                                     .c = dwte,
                                     .add = accumulate || r > 0 ? dwte : NULL});
    }
}

struct attn_job {
    struct cpu_device *cpu;
    const struct attn_shape *shape;
    const float *qkv, *o, *lse, *d_o;
    float *out, *lse_out, *dqkv; /* out: forward; dqkv: backward */
};

/* Threads take heads; backward, groups of heads, so that one thread sums a key's gradient over its group. */
static void attn_thread(void *ctx, int thread, int threads)
{
    const struct attn_job *job = ctx;
    const struct attn_shape *s = job->shape;
    const struct cpu_kernels *kernels = job->cpu->kernels;
    size_t hd = s->head_dim, c = s->heads * hd, kv = s->kv_heads * hd, ld = c + 2 * kv, group = s->heads / s->kv_heads;
    struct attn_dims dims = {
        .seq = s->seq, .head_dim = hd, .ld_qkv = ld, .ld_o = c, .group = group, .scale = 1.0f / sqrtf((float)hd)};
    size_t begin, end, step = job->dqkv ? group : 1;
    pool_share(s->batch * s->heads / step, 1, thread, threads, &begin, &end);
    for (size_t i = begin * step; i < end * step; i += step) {
        size_t row = i / s->heads * s->seq, head = i % s->heads, col = head * hd, shared = c + head / group * hd;
        const float *at = job->qkv + row * ld;
        if (job->dqkv) {
            float *d = job->dqkv + row * ld;
            kernels->attn_bwd_group(&dims, at + col, at + shared, at + shared + kv, job->o + row * c + col,
                                    job->lse + i * s->seq, job->d_o + row * c + col, d + col, d + shared,
                                    d + shared + kv, job->cpu->scratch[thread]);
        } else {
            kernels->attn_fwd_head(&dims, at + col, at + shared, at + shared + kv, job->out + row * c + col,
                                   job->lse_out ? job->lse_out + i * s->seq : NULL, job->cpu->scratch[thread]);
        }
    }
}

static void attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_ATTN);
    if (!p) return;
    struct attn_job job = {.cpu = cpu, .shape = &p->as.attn, .qkv = qkv, .out = o, .lse_out = lse};
    pool_run(cpu->pool, attn_thread, &job);
}

static void attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o, const float *lse,
                     const void *d_o, void *dqkv)
{
    struct cpu_device *cpu = cpu_of(dev);
    const struct cpu_plan *p = cpu_plan_of(cpu, plan, CPU_PLAN_ATTN);
    if (!p) return;
    struct attn_job job = {.cpu = cpu, .shape = &p->as.attn, .qkv = qkv, .o = o, .lse = lse, .d_o = d_o, .dqkv = dqkv};
    pool_run(cpu->pool, attn_thread, &job);
}

void cpu_matrix_ops(struct device_ops *ops)
{
    ops->lin_fwd = lin_fwd;
    ops->act_recompute = act_recompute;
    ops->lin_bwd_x = lin_bwd_x;
    ops->lin_bwd_w = lin_bwd_w;
    ops->head = head;
    ops->attn_fwd = attn_fwd;
    ops->attn_bwd = attn_bwd;
}
