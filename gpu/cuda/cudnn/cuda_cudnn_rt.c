#include "gpu/cuda/cudnn/cuda_cudnn_rt.h"

#include <stdio.h>

#include "common/base/mem.h"
#include "gpu/cuda/cudnn/cuda_cudnn_plan.h"

#ifdef ATOLL_CUDNN

struct cudnn_rt {
    struct cuda_rt *rt;
    struct cudnn_lib lib;
    cudnnHandle_t handle;
};

/* NVIDIA's own front end refuses 9.10.0 and 9.10.1 for 16-bit attention, forward and backward ("known bugs"). */
static enum status check_version(size_t number, struct err *err)
{
    if (number != 91000 && number != 91001) return STATUS_OK;
    return err_set(err, STATUS_UNSUPPORTED, "cuDNN %zu.%zu.%zu computes attention wrongly: install 9.10.2 or newer",
                   number / 10000, number / 100 % 100, number % 100);
}

enum status cudnn_rt_open(struct cuda_rt *rt, struct cudnn_rt **out, char *name, size_t name_size, struct err *err)
{
    struct cudnn_rt *dnn = mem_alloc(1, sizeof *dnn);
    if (!dnn) return err_set(err, STATUS_NOMEM, "no memory for cuDNN");
    dnn->rt = rt;
    enum status status = cudnn_lib_open(&dnn->lib, err);
    if (status == STATUS_OK) status = check_version(dnn->lib.number, err);
    if (status == STATUS_OK) {
        cudaStream_t stream = cuda_rt_stream(rt, CUDA_MAIN); /* makes the device current in this thread */
        cudnnHandle_t handle;
        cudnnStatus_t code = dnn->lib.create(&handle);
        if (code == CUDNN_STATUS_SUCCESS) dnn->handle = handle;
        if (code == CUDNN_STATUS_SUCCESS) code = dnn->lib.set_stream(dnn->handle, stream);
        if (code != CUDNN_STATUS_SUCCESS)
            status = err_set(err, STATUS_UNSUPPORTED, "cuDNN cannot start: %s", dnn->lib.status_text(code));
    }
    if (status != STATUS_OK) {
        cudnn_rt_close(dnn);
        return status;
    }
    size_t number = dnn->lib.number;
    snprintf(name, name_size, "cuDNN %zu.%zu.%zu", number / 10000, number / 100 % 100, number % 100);
    *out = dnn;
    return STATUS_OK;
}

void cudnn_rt_close(struct cudnn_rt *dnn)
{
    if (!dnn) return;
    if (dnn->handle) (void)dnn->lib.destroy(dnn->handle);
    cudnn_lib_close(&dnn->lib);
    mem_free(dnn);
}

/* Up to 9.15 backward is wrong if the keys do not fill the last tile. NVIDIA's own front end adds a padding mask in
 * that case, from cudnn-frontend 1.15 on. */
static bool known_wrong(const struct cudnn_lib *lib, const struct attn_graph *graph)
{
    bool backward = false, ragged = false;
    for (int i = 0; i < graph->n_tensors; i++) {
        backward = backward || graph->tensors[i].role == ATTN_DO;
        ragged = ragged || (graph->tensors[i].role == ATTN_Q && graph->tensors[i].dim[2] % 128 != 0);
    }
    return lib->number <= 91500 && backward && ragged;
}

enum status cudnn_rt_compile(struct cudnn_rt *dnn, const struct attn_graph *graph, size_t workspace_max, bool exact,
                             struct cudnn_kernel **out, size_t *workspace, struct err *err)
{
    if (known_wrong(&dnn->lib, graph))
        return err_set(err, STATUS_UNSUPPORTED,
                       "cuDNN %zu.%zu computes wrong gradients for a sequence length that is no multiple of 128: "
                       "install 9.16 or newer",
                       dnn->lib.number / 10000, dnn->lib.number / 100 % 100);
    struct cudnn_target target = {.handle = dnn->handle};
    struct attn_graph own = *graph;
    if (dnn->lib.number < 91000) attn_graph_finite_mask(&own);
    (void)cuda_rt_stream(dnn->rt, CUDA_MAIN); /* makes the device current in this thread */
    TRY(cudnn_plan_create(&dnn->lib, &target, &own, workspace_max, exact, out, err));
    *workspace = cudnn_plan_facts(*out).workspace;
    return STATUS_OK;
}

void cudnn_rt_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, void *const memory[ATTN_ROLES], void *workspace)
{
    struct err err = {.code = STATUS_OK};
    (void)cuda_rt_stream(dnn->rt, CUDA_MAIN);
    if (cudnn_plan_execute(kernel, memory, workspace, &err) != STATUS_OK) cuda_rt_fail(dnn->rt, STATUS_IO, err.msg);
}

#else

enum status cudnn_rt_open(struct cuda_rt *rt, struct cudnn_rt **out, char *name, size_t name_size, struct err *err)
{
    (void)rt, (void)out, (void)name, (void)name_size;
    return err_set(err, STATUS_UNSUPPORTED, "this build has no cuDNN (its headers were not found)");
}

void cudnn_rt_close(struct cudnn_rt *dnn)
{
    (void)dnn;
}

enum status cudnn_rt_compile(struct cudnn_rt *dnn, const struct attn_graph *graph, size_t workspace_max, bool exact,
                             struct cudnn_kernel **out, size_t *workspace, struct err *err)
{
    (void)dnn, (void)graph, (void)workspace_max, (void)exact, (void)out, (void)workspace;
    return err_set(err, STATUS_UNSUPPORTED, "this build has no cuDNN");
}

void cudnn_rt_free(struct cudnn_kernel *kernel)
{
    (void)kernel;
}

void cudnn_rt_run(struct cudnn_rt *dnn, struct cudnn_kernel *kernel, void *const memory[ATTN_ROLES], void *workspace)
{
    (void)dnn, (void)kernel, (void)memory, (void)workspace;
}

#endif
