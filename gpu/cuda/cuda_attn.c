/* Attention of the CUDA device: cuDNN in bf16, else the plain loops of kernels/cuda_attention.cu. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_plans.h"
#include "gpu/cuda/cudnn/cuda_cudnn.h"

struct cuda_attn {
    enum cuda_attention wish;
    struct cuda_cudnn *cudnn; /* NULL: the plain loops compute attention */
};

struct plan {
    struct cuda_plan base;
    struct attn_shape shape;
    float *dot;                    /* [B,H,T]; NULL in inference plans */
    struct cuda_cudnn_attn *cudnn; /* not NULL: cuDNN computes attention, and dot is unused */
};

/* Writes into the device's note why cuDNN does not compute attention. */
static void slow_attention(struct cuda_device *cuda, const char *why)
{
    snprintf(cuda->base.note, sizeof cuda->base.note, "attention computes in plain loops, which is slow: %.145s", why);
}

enum status cuda_attn_use_bf16(struct cuda_device *cuda, struct err *err)
{
    char name[32] = "plain attention";
    struct err why = {.code = STATUS_OK};
    TRY(cuda_attention_wish(&cuda->attn->wish, err));
    if (cuda->attn->wish != CUDA_ATTENTION_PLAIN) {
        bool exact = cuda->attn->wish == CUDA_ATTENTION_EXACT;
        enum status status = cuda_cudnn_open(cuda->rt, exact, 0, &cuda->attn->cudnn, name, sizeof name, &why);
        if (status != STATUS_OK) slow_attention(cuda, why.msg);
        if (status != STATUS_OK && (status != STATUS_UNSUPPORTED || cuda->attn->wish == CUDA_ATTENTION_CUDNN))
            return err_set(err, status, "device %s: %s; use ATOLL_ATTENTION=plain instead", cuda->base.name, why.msg);
    }
    size_t used = strlen(cuda->base.name);
    snprintf(cuda->base.name + used, sizeof cuda->base.name - used, " bf16, %s", name);
    return STATUS_OK;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static void free_plan(struct cuda_device *cuda, void *plan)
{
    struct plan *p = plan;
    cuda_rt_release(cuda->rt, p->dot);
    cuda_cudnn_attn_free(p->cudnn);
}

static size_t plain_bytes(const struct attn_shape *s)
{
    return s->inference ? 0 : s->batch * s->heads * s->seq * sizeof(float);
}

static size_t attn_bytes(struct device *dev, const struct attn_shape *shape)
{
    struct cuda_cudnn *cudnn = cuda_of(dev)->attn->cudnn;
    size_t bytes = cudnn ? cuda_cudnn_attn_bytes(cudnn, shape) : 0;
    return bytes ? bytes : plain_bytes(shape);
}

/* The plain loops, if cuDNN is missing or does not support the shape. */
static enum status attn_plain(struct cuda_device *cuda, struct plan *plan)
{
    const struct attn_shape *s = &plan->shape;
    if (s->head_dim > CUDA_ATTN_HEAD_MAX) {
        snprintf(cuda->base.note, sizeof cuda->base.note,
                 "heads of %zu columns (n_embd / n_head): a GPU supports at most %d", s->head_dim, CUDA_ATTN_HEAD_MAX);
        return STATUS_UNSUPPORTED;
    }
    if (s->batch * s->heads > CUDA_GRID_Y_MAX) {
        snprintf(cuda->base.note, sizeof cuda->base.note,
                 "%zu sequences of %zu heads: a GPU supports %d heads in one batch: lower train.batch_size and raise "
                 "train.grad_accum for the same step",
                 s->batch, s->heads, CUDA_GRID_Y_MAX);
        return STATUS_UNSUPPORTED;
    }
    if (s->inference) return STATUS_OK;
    plan->dot = cuda_rt_alloc(cuda->rt, plain_bytes(s));
    return plan->dot ? STATUS_OK : STATUS_NOMEM;
}

static enum status attn_fill(struct cuda_device *cuda, struct plan *plan)
{
    struct cuda_cudnn *cudnn = cuda->attn->cudnn;
    assert(plan->shape.kv_heads > 0 && !plan->cudnn);
    struct err err = {.code = STATUS_OK};
    if (!cudnn) return attn_plain(cuda, plan);
    enum status status = cuda_cudnn_attn_create(cudnn, &plan->shape, &plan->cudnn, &err);
    if (status == STATUS_OK) return status;
    if (status != STATUS_UNSUPPORTED || cuda->attn->wish == CUDA_ATTENTION_CUDNN) {
        snprintf(cuda->base.note, sizeof cuda->base.note, "%.190s", err.msg);
        return status;
    }
    slow_attention(cuda, err.msg);
    return attn_plain(cuda, plan);
}

static enum status attn_plan(struct device *dev, const struct attn_shape *shape, struct attn_plan **out)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct attn_shape own = *shape;
    if (!attn_shape_valid(&own)) return STATUS_INVALID;
    struct plan *plan = cuda_plan_new(sizeof *plan, free_plan);
    if (!plan) return STATUS_NOMEM;
    plan->shape = own;
    return cuda_plan_keep(cuda, plan, attn_fill(cuda, plan), out);
}

/* --- operations --------------------------------------------------------------------------------------------------- */

/* The arguments of every kernel of the plain loops. */
static struct cuda_attn_args args_of(const struct cuda_device *cuda, const struct attn_shape *s, const void *qkv)
{
    return (struct cuda_attn_args){.seq = s->seq,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim,
                                   .bf16 = cuda->bf16,
                                   .scale = 1.0f / sqrtf((float)s->head_dim),
                                   .qkv = qkv};
}

static void attn_fwd(struct device *dev, const struct attn_plan *plan, const void *qkv, void *o, float *lse)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct attn_shape *s = &p->shape;
    if (p->cudnn) {
        cuda_cudnn_attn_fwd(p->cudnn, qkv, o, lse);
        return;
    }
    struct cuda_attn_args args = args_of(cuda, s, qkv);
    args.o = o;
    args.lse_out = lse;
    LAUNCH_ARGS(cuda, cuda_attn_fwd, blocks_of(s->seq, CUDA_ATTN_ROWS), s->batch * s->heads, &args);
}

static void attn_bwd(struct device *dev, const struct attn_plan *plan, const void *qkv, const void *o, const float *lse,
                     const void *d_o, void *dqkv)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct attn_shape *s = &p->shape;
    if (p->cudnn && !s->inference) {
        cuda_cudnn_attn_bwd(p->cudnn, qkv, o, lse, d_o, dqkv);
        return;
    }
    if (!p->dot) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "attn_bwd: the plan is for inference");
        return;
    }
    size_t blocks = blocks_of(s->seq, CUDA_ATTN_ROWS), heads = s->batch * s->heads, kv_heads = s->batch * s->kv_heads;
    struct cuda_attn_args args = args_of(cuda, s, qkv);
    args.o_in = o;
    args.lse = lse;
    args.d_o = d_o;
    args.dot = p->dot;
    args.dqkv = dqkv;
    LAUNCH_ARGS(cuda, cuda_attn_dot, blocks, heads, &args);
    LAUNCH_ARGS(cuda, cuda_attn_bwd_q, blocks, heads, &args);
    LAUNCH_ARGS(cuda, cuda_attn_bwd_kv, blocks, kv_heads, &args);
}

enum status cuda_attn_open(struct cuda_device *cuda)
{
    cuda->ops.attn_plan = attn_plan;
    cuda->ops.attn_bytes = attn_bytes;
    cuda->ops.attn_fwd = attn_fwd;
    cuda->ops.attn_bwd = attn_bwd;
    cuda->attn = mem_alloc(1, sizeof *cuda->attn);
    return cuda->attn ? STATUS_OK : STATUS_NOMEM;
}

void cuda_attn_close(struct cuda_device *cuda)
{
    if (cuda->attn) cuda_cudnn_close(cuda->attn->cudnn);
    mem_free(cuda->attn);
}
