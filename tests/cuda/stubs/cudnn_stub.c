/* Stub of libcudnn.so.9 for machines without GPUs (ATOLL_CUDNN_LIBRARY).
 * - It does not read graphs, and executing one writes nothing: tests/cuda/emulator executes graphs.
 * - It has two engines; the first reports a nondeterministic order of sums.
 * - ATOLL_STUB_CUDNN_VERSION=90500 sets the version. cudnn_faults makes one call fail. */
#include <cudnn_backend.h>

#include "tests/cuda/stubs/cudart_stub.h"

enum { ENGINES = 2, WORKSPACE = 512 };

struct descriptor {
    int which; /* engine, for engines and their configurations */
};

struct cudnnContext {
    cudaStream_t stream;
};

extern struct stub_faults cudnn_faults;
struct stub_faults cudnn_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define FAILS() stub_fault(&cudnn_faults, __func__)
#define FAILED ((cudnnStatus_t)cudnn_faults.status)

size_t cudnnGetVersion(void)
{
    const char *set = getenv("ATOLL_STUB_CUDNN_VERSION");
    return set && *set ? (size_t)strtoul(set, NULL, 10) : 91900;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_BAD_PARAM";
}

void cudnnGetLastErrorString(char *message, size_t size)
{
    snprintf(message, size, "as the stub found");
}

static cudnnStatus_t create(void *out, size_t bytes, bool fails)
{
    void *made = STUB_NOTHING;
    if (!fails && !(made = calloc(1, bytes))) abort();
    memcpy(out, &made, sizeof made);
    if (!fails) stub_made(&cudnn_faults, 1);
    return fails ? FAILED : CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t destroy(void *object, bool fails)
{
    free(object);
    stub_made(&cudnn_faults, -1);
    return fails ? FAILED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    return create(handle, sizeof **handle, FAILS());
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    return destroy(handle, FAILS());
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    if (FAILS()) return FAILED;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    (void)type;
    return create(out, sizeof(struct descriptor), FAILS());
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    return destroy(descriptor, FAILS());
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    (void)descriptor, (void)name, (void)type, (void)n, (void)values;
    return FAILS() ? FAILED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    (void)descriptor;
    return FAILS() ? FAILED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *n, void *values)
{
    int which = ((const struct descriptor *)descriptor)->which;
    struct descriptor **out = values;
    *n = room;
    if (FAILS()) {
        if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) memset(values, 0x57, (size_t)room * sizeof(int));
        return FAILED;
    }
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        for (int i = 0; i < ENGINES; i++) out[i]->which = i;
        *n = ENGINES;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
        out[0]->which = which;
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        *n = which == 0;
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)values = WORKSPACE;
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    default: return CUDNN_STATUS_BAD_PARAM;
    }
}

static void run(void *args, bool dead)
{
    (void)args, (void)dead;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    (void)plan, (void)pack;
    if (FAILS()) return FAILED;
    handle->stream->submit(handle->stream, run, "", 1);
    return CUDNN_STATUS_SUCCESS;
}
