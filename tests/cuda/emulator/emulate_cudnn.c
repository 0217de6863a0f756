/* gpu/cuda/cudnn/cuda_cudnn_rt.h on the CPU: executes graphs operation by operation. It is slow, so it is available
 * only with ATOLL_EMULATE_CUDNN. It needs as much workspace as cuDNN 9.19 and fills it with garbage. */
#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/cuda/emulator/emulate_impl.h"
#include "tests/cuda/emulator/graph_run.h"

struct cudnn_rt {
    struct cuda_rt *rt;
};

struct cudnn_kernel {
    struct attn_graph graph;
    size_t workspace;
};

enum status cudnn_rt_open(struct cuda_rt *rt, struct cudnn_rt **out, char *name, size_t name_size, struct err *err)
{
    if (!getenv("ATOLL_EMULATE_CUDNN")) /* with quotes, like the message of a loader */
        return err_set(err, STATUS_UNSUPPORTED, "\"libcudnn.so.9\": the emulation has no cuDNN");
    struct cudnn_rt *dnn = mem_alloc(1, sizeof *dnn);
    if (!dnn) return err_set(err, STATUS_NOMEM, "no memory for cuDNN");
    dnn->rt = rt;
    snprintf(name, name_size, "emulated cuDNN");
    *out = dnn;
    return STATUS_OK;
}

void cudnn_rt_close(struct cudnn_rt *dnn)
{
    mem_free(dnn);
}

enum status cudnn_rt_compile(struct cudnn_rt *dnn, const struct attn_graph *graph, size_t workspace_max, bool exact,
                             struct cudnn_kernel **out, size_t *workspace, struct err *err)
{
    const int64_t *q = graph->tensors[0].dim; /* q and k are the first tensors of both graphs */
    size_t rows = (size_t)(q[0] * q[1] * q[2]), bytes = 256;
    bool backward = attn_graph_scratch(graph, ATTN_DOT) > 0;
    if (graph->tensors[0].role != ATTN_Q || (exact && attn_graph_scratch(graph, ATTN_DQ_SUM)))
        return err_set(err, STATUS_UNSUPPORTED, "an unexpected graph");
    size_t square = (size_t)((q[2] + 63) / 64 * 64) * (size_t)((q[2] + 127) / 128 * 128);
    int kind = cuda_rt_capability(dnn->rt) / 10;
    if (backward && !exact && (kind == 8 || kind == 12)) bytes += rows * (size_t)q[3] * 4;
    if (backward && exact) bytes += (size_t)(q[0] * q[1]) * square * 2;
    if (backward && graph->tensors[1].dim[1] != q[1]) bytes += 2 * rows * (size_t)q[3] * 2;
    if (bytes > workspace_max) return err_set(err, STATUS_LIMIT, "%zu bytes of workspace", bytes);
    struct cudnn_kernel *kernel = mem_alloc(1, sizeof *kernel);
    if (!kernel) return err_set(err, STATUS_NOMEM, "no memory for a kernel");
    *kernel = (struct cudnn_kernel){.graph = *graph, .workspace = bytes};
    *workspace = bytes;
    *out = kernel;
    return STATUS_OK;
}

void cudnn_rt_free(struct cudnn_kernel *kernel)
{
    mem_free(kernel);
}

/* Record the accesses of a tensor, in runs of adjacent elements. */
static void touch(struct cuda_rt *rt, const struct attn_graph_tensor *t, const void *p, bool forward)
{
    bool write = t->role >= ATTN_DQ || (forward && (t->role == ATTN_O || t->role == ATTN_LSE));
    int side = t->stride[3] == 1 ? 3 : 2, other = 5 - side;
    size_t size = t->type == ATTN_BF16 ? sizeof(uint16_t) : sizeof(float);
    for (int64_t b = 0; b < t->dim[0]; b++)
        for (int64_t h = 0; h < t->dim[1]; h++)
            for (int64_t i = 0; i < t->dim[other]; i++) {
                size_t at = (size_t)(b * t->stride[0] + h * t->stride[1] + i * t->stride[other]);
                emulate_touch(rt, (const char *)p + at * size, (size_t)t->dim[side] * size, write);
            }
}

struct call {
    const struct cudnn_kernel *kernel; /* freed after its plan's workspace, whose release waits for this call */
    void *memory[ATTN_ROLES], *workspace;
};

static void run(struct cuda_rt *rt, const void *args)
{
    const struct call *call = args;
    const struct attn_graph *graph = &call->kernel->graph;
    struct graph_memory bound[ATTN_ROLES];
    struct err err = {.code = STATUS_OK};
    bool forward = attn_graph_scratch(graph, ATTN_DOT) == 0;
    for (int i = 0; i < ATTN_ROLES; i++) {
        bound[i] = (struct graph_memory){call->memory[i], SIZE_MAX / 8}; /* guard pages check the bounds */
        if ((uintptr_t)call->memory[i] % 16 != 0) cuda_rt_fail(rt, STATUS_INVALID, "a pointer is not aligned");
    }
    for (int i = 0; i < graph->n_tensors; i++)
        if (graph->tensors[i].role > ATTN_VALUE)
            touch(rt, &graph->tensors[i], call->memory[graph->tensors[i].role], forward);
    emulate_touch(rt, call->workspace, call->kernel->workspace, true);
    memset(call->workspace, 0xff, call->kernel->workspace);
    if (graph_run(graph, bound, &err) != STATUS_OK) cuda_rt_fail(rt, STATUS_INVALID, err.msg);
    memset(call->workspace, 0xff, call->kernel->workspace);
}

void cudnn_rt_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, void *const memory[ATTN_ROLES], void *workspace)
{
    struct call call = {.kernel = kernel, .workspace = workspace};
    memcpy(call.memory, memory, sizeof call.memory);
    emulate_submit(dnn->rt, CUDA_MAIN, "attention by cuDNN", run, &call, sizeof call);
}
