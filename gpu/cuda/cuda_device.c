/* The CUDA device: opens and closes the parts of this folder, memory, copies, the plugin's entry. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/mem.h"
#include "gpu/cuda/comm/cuda_comm.h"
#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/rt/cuda_peak.h"
#include "gpu/cuda_plugin.h"

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

static enum status cuda_use_bf16(struct device *dev, struct err *err)
{
    struct cuda_device *cuda = cuda_of(dev);
    assert(dev->act_bytes == gemm_number_bytes(cuda->bf16));
    if (cuda->plans)
        return err_set(err, STATUS_STATE, "device %s: bf16 must be chosen before the first plan", dev->name);
    if (cuda->bf16) return STATUS_OK;
    TRY(cuda_attn_use_bf16(cuda, err));
    cuda->bf16 = true;
    dev->peak_flops = cuda_peak_bf16(dev->name);
    dev->act_bytes = sizeof(uint16_t);
    return STATUS_OK;
}

/* --- open and close ----------------------------------------------------------------------------------------------- */

/* In the order of opening. Plans come last: they are freed before anything that they use. */
static const struct {
    enum status (*open)(struct cuda_device *cuda);
    void (*close)(struct cuda_device *cuda); /* NULL: nothing to close */
} parts[] = {{cuda_bf16_weights_open, cuda_bf16_weights_close},
             {cuda_stage_open, cuda_stage_close},
             {cuda_vectors_open, cuda_vectors_close},
             {cuda_rows_open, cuda_rows_close},
             {cuda_attn_open, cuda_attn_close},
             {cuda_head_open, cuda_head_close},
             {cuda_muon_open, cuda_muon_close},
             {cuda_lin_open, NULL},
             {cuda_outer_open, NULL},
             {cuda_plans_open, cuda_plans_close}};
enum { PARTS = sizeof parts / sizeof *parts };

static void cuda_close(struct device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    for (int i = PARTS; i-- > 0;)
        if (parts[i].close) parts[i].close(cuda);
    cuda_rt_close(cuda->rt);
    mem_free(cuda);
}

static const struct device_ops own_ops = {
    .close = cuda_close,
    .collective = cuda_collective_open,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .sync = cuda_sync,
    .host_alloc = cuda_host_alloc,
    .host_release = cuda_host_release,
    .mark = cuda_mark,
    .reached = cuda_reached,
    .use_bf16 = cuda_use_bf16,
};

static enum status cuda_open(int index, struct device **out, struct err *err)
{
    char name[64] = "";
    struct cuda_device *cuda = mem_alloc(1, sizeof *cuda);
    if (!cuda) return err_set(err, STATUS_NOMEM, "device cuda:%d: out of memory", index);
    cuda->ops = own_ops;
    enum status status = cuda_rt_open(index, &cuda->rt, name, sizeof name, err);
    if (status == STATUS_OK) {
        for (int i = 0; i < PARTS && status == STATUS_OK; i++) status = parts[i].open(cuda);
        if (status != STATUS_OK)
            err_set(err, status,
                    "device cuda:%d: %s has no memory left: check nvidia-smi for other processes, or use another GPU",
                    index, name);
    }
    cuda->base = (struct device){.ops = &cuda->ops, .act_bytes = sizeof(float), .threads = 1};
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
