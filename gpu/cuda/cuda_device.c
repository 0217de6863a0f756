#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "gpu/cuda/comm/cuda_comm.h"
#include "gpu/cuda/rt/cuda_peak.h"
#include "gpu/cuda_plugin.h"

static void cuda_close(struct device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    cuda_plans_free(cuda);
    if (cuda->rt) {
        cuda_stage_finish(cuda);
        cuda_rt_release(cuda->rt, cuda->logits);
        cuda_rt_release(cuda->rt, cuda->partials);
        cuda_rt_release(cuda->rt, cuda->sums);
        cuda_rt_release(cuda->rt, cuda->image.values);
        cuda_rt_release(cuda->rt, cuda->spans_device);
    }
    mem_free(cuda->spans);
    cuda_cudnn_close(cuda->cudnn);
    cuda_rt_close(cuda->rt);
    mem_free(cuda);
}

static void cuda_memory(struct device *dev, uint64_t *free_p, uint64_t *total_p)
{
    cuda_rt_memory(cuda_of(dev)->rt, free_p, total_p);
}

static void *cuda_alloc(struct device *dev, size_t bytes)
{
    return cuda_rt_alloc(cuda_of(dev)->rt, bytes);
}

static void cuda_release(struct device *dev, void *p)
{
    cuda_rt_release(cuda_of(dev)->rt, p);
}

static void cuda_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    cuda_written(cuda_of(dev), dst, bytes);
    cuda_rt_copy(cuda_of(dev)->rt, dst, src, bytes, CUDA_UPLOAD);
}

static void cuda_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    cuda_rt_copy(cuda_of(dev)->rt, dst, src, bytes, CUDA_DOWNLOAD);
}

static void cuda_copy(struct device *dev, void *dst, const void *src, size_t bytes)
{
    cuda_written(cuda_of(dev), dst, bytes);
    cuda_rt_copy(cuda_of(dev)->rt, dst, src, bytes, CUDA_INSIDE);
}

static enum status cuda_sync(struct device *dev, struct err *err)
{
    return cuda_rt_sync(cuda_of(dev)->rt, err);
}

static void *cuda_host_alloc(struct device *dev, size_t bytes)
{
    return cuda_rt_host_alloc(cuda_of(dev)->rt, bytes);
}

static void cuda_host_release(struct device *dev, void *p)
{
    cuda_rt_host_release(cuda_of(dev)->rt, p);
}

static void cuda_mark(struct device *dev, int slot)
{
    cuda_rt_mark(cuda_of(dev)->rt, slot);
}

static enum status cuda_reached(struct device *dev, int slot, struct err *err)
{
    return cuda_rt_reached(cuda_of(dev)->rt, slot, err);
}

/* --- bf16 --------------------------------------------------------------------------------------------------------- */

void cuda_slow_attention(struct cuda_device *cuda, const char *why)
{
    snprintf(cuda->base.note, sizeof cuda->base.note, "attention computes in plain loops, which is slow: %.145s", why);
}

/* Opens cuDNN for attention in bf16, if it is available. Appends to the device's name what computes attention. */
static enum status open_attention(struct cuda_device *cuda, struct err *err)
{
    char name[32] = "plain attention";
    struct err why = {.code = STATUS_OK};
    TRY(cuda_attention_wish(&cuda->attention, err));
    if (cuda->attention != CUDA_ATTENTION_PLAIN) {
        bool exact = cuda->attention == CUDA_ATTENTION_EXACT;
        enum status status = cuda_cudnn_open(cuda->rt, exact, 0, &cuda->cudnn, name, sizeof name, &why);
        if (status != STATUS_OK) cuda_slow_attention(cuda, why.msg);
        if (status != STATUS_OK && (status != STATUS_UNSUPPORTED || cuda->attention == CUDA_ATTENTION_CUDNN))
            return err_set(err, status, "device %s: %s; use ATOLL_ATTENTION=plain instead", cuda->base.name, why.msg);
    }
    size_t used = strlen(cuda->base.name);
    snprintf(cuda->base.name + used, sizeof cuda->base.name - used, " bf16, %s", name);
    return STATUS_OK;
}

static enum status cuda_use_bf16(struct device *dev, struct err *err)
{
    struct cuda_device *cuda = cuda_of(dev);
    assert(dev->act_bytes == gemm_number_bytes(cuda->bf16));
    if (cuda->plans)
        return err_set(err, STATUS_STATE, "device %s: bf16 must be chosen before the first plan", dev->name);
    if (cuda->bf16) return STATUS_OK;
    TRY(open_attention(cuda, err));
    cuda->bf16 = true;
    dev->peak_flops = cuda_peak_bf16(dev->name);
    dev->act_bytes = sizeof(uint16_t);
    return STATUS_OK;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const struct device_ops cuda_ops = {
    .close = cuda_close,
    .collective = cuda_collective_open,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .fill = cuda_op_fill,
    .sync = cuda_sync,
    .host_alloc = cuda_host_alloc,
    .host_release = cuda_host_release,
    .stage_plan = cuda_op_stage_plan,
    .send = cuda_op_send,
    .fetch = cuda_op_fetch,
    .mark = cuda_mark,
    .reached = cuda_reached,
    .lin_plan = cuda_op_lin_plan,
    .attn_plan = cuda_op_attn_plan,
    .head_plan = cuda_op_head_plan,
    .delta_plan = cuda_op_delta_plan,
    .muon_plan = cuda_op_muon_plan,
    .attn_bytes = cuda_attn_bytes,
    .head_bytes = cuda_head_bytes,
    .muon_bytes = cuda_muon_bytes,
    .plan_free = cuda_op_plan_free,
    .use_bf16 = cuda_use_bf16,
    .params_plan = cuda_op_params_plan,
    .params_bytes = cuda_params_bytes,
    .params = cuda_op_params,
    .embed_fwd = cuda_op_embed_fwd,
    .embed_bwd = cuda_op_embed_bwd,
    .norm_fwd = cuda_op_norm_fwd,
    .norm_bwd = cuda_op_norm_bwd,
    .rms_fwd = cuda_op_rms_fwd,
    .rms_bwd = cuda_op_rms_bwd,
    .rope = cuda_op_rope,
    .glu_fwd = cuda_op_glu_fwd,
    .glu_bwd = cuda_op_glu_bwd,
    .lin_fwd = cuda_op_lin_fwd,
    .act_recompute = cuda_op_act_recompute,
    .lin_bwd_x = cuda_op_lin_bwd_x,
    .lin_bwd_w = cuda_op_lin_bwd_w,
    .attn_fwd = cuda_op_attn_fwd,
    .attn_bwd = cuda_op_attn_bwd,
    .head = cuda_op_head,
    .sum = cuda_op_sum,
    .sumsq = cuda_op_sumsq,
    .clip_scale = cuda_op_clip_scale,
    .count_step = cuda_op_count_step,
    .adamw = cuda_op_adamw,
    .muon = cuda_op_muon,
    .sgd = cuda_op_sgd,
    .axpy = cuda_op_axpy,
    .delta = cuda_op_delta,
    .delta_add = cuda_op_delta_add,
};

static size_t head_room(struct cuda_rt *rt)
{
    uint64_t left, total;
    cuda_rt_memory(rt, &left, &total);
    size_t room = total / CUDA_HEAD_PART < CUDA_HEAD_BYTES_MAX ? (size_t)(total / CUDA_HEAD_PART) : CUDA_HEAD_BYTES_MAX;
    return room > CUDA_HEAD_BYTES ? room : CUDA_HEAD_BYTES;
}

static enum status cuda_open(int index, struct device **out, struct err *err)
{
    char name[64] = "";
    struct cuda_device *cuda = mem_alloc(1, sizeof *cuda);
    if (!cuda) return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", index);
    cuda->embed_rows = CUDA_EMBED_ROWS;
    cuda->muon_floats = CUDA_MUON_FLOATS;
    enum status status = cuda_rt_open(index, &cuda->rt, name, sizeof name, err);
    if (status == STATUS_OK) {
        cuda->head_bytes = head_room(cuda->rt);
        cuda->partials = cuda_rt_alloc(cuda->rt, CUDA_PARTIAL_FLOATS * sizeof *cuda->partials);
        cuda->sums = cuda_rt_alloc(cuda->rt, CUDA_SEGMENTS * sizeof *cuda->sums);
        cuda->spans_device = cuda_rt_alloc(cuda->rt, CUDA_SPANS * sizeof *cuda->spans_device);
        cuda->spans = mem_alloc(CUDA_SPANS, sizeof *cuda->spans);
        if (!cuda->partials || !cuda->sums || !cuda->spans_device || !cuda->spans)
            status = err_set(err, STATUS_NOMEM,
                             "device cuda:%d: %s has no memory left: check nvidia-smi for other processes, or "
                             "use another GPU",
                             index, name);
    }
    cuda->base = (struct device){.ops = &cuda_ops, .act_bytes = sizeof(float), .threads = 1};
    snprintf(cuda->base.name, sizeof cuda->base.name, "cuda:%d %s", index, name);
    if (status != STATUS_OK) {
        cuda_close(&cuda->base);
        return status;
    }
    *out = &cuda->base;
    return STATUS_OK;
}

__attribute__((visibility("default"))) const struct cuda_plugin atoll_cuda_plugin = {
    .version = ATOLL_VERSION,
    .device_bytes = sizeof(struct device) + sizeof(struct device_ops),
    .count = cuda_rt_count,
    .together = cuda_comm_check,
    .open = cuda_open,
};
