/* Stub of libcudnn.so.9 for machines without GPUs (ATOLL_CUDNN_LIBRARY).
 *
 * - It reads graphs back from their descriptors, as the library documents them. tests/cuda/emulator/graph_run.c
 * executes them on the handle's stream (cudart_stub.h).
 * - It has two engines; the first reports a nondeterministic order of sums. Both need workspace and fill it with
 * garbage.
 * - It refuses a descriptor that is changed after finalization, used before it, or incomplete. Using a descriptor that
 *   does not exist ends the process with a line.
 * - ATOLL_STUB_CUDNN_VERSION=90500 sets the version, ATOLL_STUB_CUDNN_ENGINES=1 the number of engines. cudnn_faults
 * makes one call fail. */
#include <cudnn_backend.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/emulator/graph_run.h"
#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/cuda/stubs/stub_faults.h"

enum { ENGINES = 2, WORKSPACE = 512 };

struct attribute {
    struct attribute *next;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t n;
    void *values;
};

struct descriptor {
    struct descriptor *next;
    cudnnBackendDescriptorType_t type;
    bool final;
    int which; /* engine, for engines and their configurations */
    struct attribute *attributes;
};

struct cudnnContext {
    cudnnHandle_t next;
    cudaStream_t stream;
};

extern struct stub_faults cudnn_faults;
struct stub_faults cudnn_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Known objects by address; a thread per device creates them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct descriptor *descriptors;
static cudnnHandle_t handles;

#define FAILS() stub_fault(&cudnn_faults, __func__)
#define FAILED ((cudnnStatus_t)cudnn_faults.status)

/* Find a known descriptor; out: remove it. */
static struct descriptor *known(const void *p, bool out, const char *call)
{
    pthread_mutex_lock(&lock);
    struct descriptor **at = &descriptors;
    while (*at && *at != p) at = &(*at)->next;
    struct descriptor *found = *at;
    if (found && out) *at = found->next;
    pthread_mutex_unlock(&lock);
    if (!found) stub_wrong("cudnn_stub", "a descriptor that does not exist", call);
    return found;
}

static void known_handle(cudnnHandle_t handle, bool out, const char *call)
{
    pthread_mutex_lock(&lock);
    cudnnHandle_t *at = &handles;
    while (*at && *at != handle) at = &(*at)->next;
    bool found = *at;
    if (found && out) *at = handle->next;
    pthread_mutex_unlock(&lock);
    if (!found) stub_wrong("cudnn_stub", "a handle that does not exist", call);
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

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

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    *handle = STUB_NOTHING;
    if (FAILS()) return FAILED;
    cudnnHandle_t made = calloc(1, sizeof *made);
    if (!made) abort();
    pthread_mutex_lock(&lock);
    made->next = handles;
    *handle = handles = made;
    pthread_mutex_unlock(&lock);
    stub_made(&cudnn_faults, 1);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    bool fails = FAILS();
    known_handle(handle, true, __func__);
    free(handle);
    stub_made(&cudnn_faults, -1);
    return fails ? FAILED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    known_handle(handle, false, __func__);
    if (FAILS()) return FAILED;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    *out = STUB_NOTHING;
    if (FAILS()) return FAILED;
    struct descriptor *d = calloc(1, sizeof *d);
    if (!d) abort();
    d->type = type;
    pthread_mutex_lock(&lock);
    d->next = descriptors;
    descriptors = d;
    pthread_mutex_unlock(&lock);
    stub_made(&cudnn_faults, 1);
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    bool fails = FAILS();
    struct descriptor *d = known(descriptor, true, __func__);
    for (struct attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        free(a->values);
        free(a);
    }
    free(d);
    stub_made(&cudnn_faults, -1);
    return fails ? FAILED : CUDNN_STATUS_SUCCESS;
}

static size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_VOID_PTR: return sizeof(void *);
    case CUDNN_TYPE_INT64: return sizeof(int64_t);
    case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
    case CUDNN_TYPE_DATA_TYPE:
    case CUDNN_TYPE_HEUR_MODE:
    case CUDNN_TYPE_POINTWISE_MODE:
    case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE: return sizeof(int);
    default: return 0;
    }
}

static cudnnStatus_t set(struct descriptor *d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t n, const void *values)
{
    size_t bytes = bytes_of(type) * (size_t)n;
    if (d->final || n < 1 || !bytes) return CUDNN_STATUS_BAD_PARAM;
    for (int64_t i = 0; type == CUDNN_TYPE_BACKEND_DESCRIPTOR && i < n; i++)
        if (!known(((void *const *)values)[i], false, "cudnnBackendSetAttribute")->final) return CUDNN_STATUS_BAD_PARAM;
    struct attribute *a = calloc(1, sizeof *a);
    if (!a || !(a->values = malloc(bytes))) abort();
    a->next = d->attributes;
    a->name = name;
    a->type = type;
    a->n = n;
    memcpy(a->values, values, bytes);
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t n, const void *values)
{
    struct descriptor *d = known(descriptor, false, __func__);
    return FAILS() ? FAILED : set(d, name, type, n, values);
}

/* Returns the n values of an attribute (n 0: any number, *n_p). NULL: not set, or set with another type or number. */
static const void *values_of(const struct descriptor *d, cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t type, int64_t n, int64_t *n_p)
{
    const struct attribute *a = d ? d->attributes : NULL;
    while (a && a->name != name) a = a->next;
    if (!a || a->type != type || (n && a->n != n)) return NULL;
    if (n_p) *n_p = a->n;
    return a->values;
}

static struct descriptor *descriptor_of(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    struct descriptor *const *found = values_of(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, NULL);
    return found ? *found : NULL;
}

static int word_of(const struct descriptor *d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type)
{
    const int *found = values_of(d, name, type, 1, NULL);
    return found ? *found : -1;
}

static bool flag_of(const struct descriptor *d, cudnnBackendAttributeName_t name)
{
    const bool *found = values_of(d, name, CUDNN_TYPE_BOOLEAN, 1, NULL);
    return found && *found;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

struct reader {
    struct attn_graph graph;
    const struct descriptor *tensors[ATTN_GRAPH_TENSORS];
    bool good;
};

/* Returns the index of the tensor in the graph; -1: no tensor. Tensors in memory get their role later. */
static int tensor(struct reader *r, const struct descriptor *d)
{
    static const cudnnDataType_t types[] = {[ATTN_F32] = CUDNN_DATA_FLOAT,
                                            [ATTN_BF16] = CUDNN_DATA_BFLOAT16,
                                            [ATTN_I32] = CUDNN_DATA_INT32,
                                            [ATTN_BOOL] = CUDNN_DATA_BOOLEAN};
    if (!d) return -1;
    for (int i = 0; i < r->graph.n_tensors; i++)
        if (r->tensors[i] == d) return i;
    const int64_t *dim = values_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, NULL);
    const int64_t *stride = values_of(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, NULL);
    int type = word_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE), known = 0;
    while (known < 4 && (int)types[known] != type) known++;
    if (!dim || dim[0] < 1 || !stride || known == 4 || r->graph.n_tensors == ATTN_GRAPH_TENSORS) {
        r->good = false;
        return -1;
    }
    bool inside = flag_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL), value = flag_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    struct attn_graph_tensor *t = &r->graph.tensors[r->graph.n_tensors];
    *t = (struct attn_graph_tensor){.type = (enum attn_graph_type)known,
                                    .role = inside  ? ATTN_INSIDE
                                            : value ? ATTN_VALUE
                                                    : ATTN_ROLES};
    memcpy(t->dim, dim, sizeof t->dim);
    memcpy(t->stride, stride, sizeof t->stride);
    r->tensors[r->graph.n_tensors] = d;
    return r->graph.n_tensors++;
}

static int kind_of(const struct descriptor *pointwise)
{
    int precision = word_of(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE);
    switch (word_of(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE)) {
    case CUDNN_POINTWISE_MUL: return ATTN_MUL;
    case CUDNN_POINTWISE_ADD: return ATTN_ADD;
    case CUDNN_POINTWISE_SUB: return ATTN_SUB;
    case CUDNN_POINTWISE_DIV: return ATTN_DIV;
    case CUDNN_POINTWISE_EXP: return ATTN_EXP;
    case CUDNN_POINTWISE_LOG: return ATTN_LOG;
    case CUDNN_POINTWISE_IDENTITY: return ATTN_COPY;
    case CUDNN_POINTWISE_GEN_INDEX: return precision == CUDNN_DATA_INT32 ? ATTN_INDEX : -1;
    case CUDNN_POINTWISE_CMP_GE: return precision == CUDNN_DATA_BOOLEAN ? ATTN_GE : -1;
    case CUDNN_POINTWISE_BINARY_SELECT: return ATTN_SELECT;
    default: return -1;
    }
}

static void operation(struct reader *r, const struct descriptor *d)
{
    struct attn_graph_op o = {.x = -1, .b = -1, .t = -1, .y = -1};
    int kind = -1;
    if (d->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
        const struct descriptor *matmul = descriptor_of(d, CUDNN_ATTR_OPERATION_MATMUL_DESC);
        if (word_of(matmul, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE) == CUDNN_DATA_FLOAT) kind = ATTN_MATMUL;
        o.x = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC));
        o.b = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
        o.y = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    } else if (d->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
        const struct descriptor *reduction = descriptor_of(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
        int how = word_of(reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
        kind = how == CUDNN_REDUCE_TENSOR_MAX ? ATTN_MAX : how == CUDNN_REDUCE_TENSOR_ADD ? ATTN_SUM : -1;
        o.x = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
        o.y = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
    } else if (d->type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR) {
        kind = ATTN_TRANSPOSE;
        o.x = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC));
        o.y = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
    } else if (d->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
        const struct descriptor *pointwise = descriptor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
        const int64_t *axis = values_of(pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, NULL);
        kind = kind_of(pointwise);
        o.axis = axis ? (int)*axis : 0;
        o.x = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
        o.b = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
        o.t = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC));
        o.y = tensor(r, descriptor_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
        if (kind == ATTN_INDEX && !axis) kind = -1;
    }
    if (kind < 0 || o.x < 0 || o.y < 0 || r->graph.n_ops == ATTN_GRAPH_OPS) r->good = false;
    o.kind = (enum attn_graph_kind)kind;
    if (r->good) r->graph.ops[r->graph.n_ops++] = o;
}

static struct reader read_back(const struct descriptor *graph)
{
    int64_t n = 0;
    struct reader r = {.good = true};
    struct descriptor *const *ops =
        values_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &n);
    if (!ops) r.good = false;
    for (int64_t i = 0; r.good && i < n; i++) operation(&r, ops[i]);
    return r;
}

/* ---- engines ----------------------------------------------------------------------------------------------------- */

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    struct descriptor *d = known(descriptor, false, __func__);
    if (FAILS()) return FAILED;
    if (d->final) return CUDNN_STATUS_BAD_PARAM;
    if (d->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR &&
        (!read_back(d).good || !values_of(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, NULL)))
        return CUDNN_STATUS_BAD_PARAM;
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR &&
        !values_of(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, NULL))
        return CUDNN_STATUS_BAD_PARAM;
    d->final = true;
    return CUDNN_STATUS_SUCCESS;
}

/* Turn a descriptor of the caller into engine `which` of the graph. */
static void become(struct descriptor *d, int which, struct descriptor *graph)
{
    d->which = which;
    (void)set(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    d->final = true;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t *n, void *values)
{
    struct descriptor *d = known(descriptor, false, __func__), **out = values;
    if (FAILS()) {
        *n = room;
        if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) memset(values, 0x57, (size_t)room * sizeof(int));
        return FAILED;
    }
    if (!d->final) return CUDNN_STATUS_BAD_PARAM;
    if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS && type == CUDNN_TYPE_BACKEND_DESCRIPTOR && room >= ENGINES) {
        struct descriptor *graph = descriptor_of(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        if (word_of(d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE) != CUDNN_HEUR_MODE_A)
            return CUDNN_STATUS_BAD_PARAM;
        const char *set = getenv("ATOLL_STUB_CUDNN_ENGINES");
        *n = set && *set ? atoi(set) : ENGINES;
        for (int i = 0; i < *n; i++) become(known(out[i], false, __func__), i, graph);
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINECFG_ENGINE && type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        become(known(out[0], false, __func__), d->which, descriptor_of(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_ENGINE_NUMERICAL_NOTE && type == CUDNN_TYPE_NUMERICAL_NOTE && room > 0) {
        *n = d->which == 0;
        if (*n) *(cudnnBackendNumericalNote_t *)values = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        return CUDNN_STATUS_SUCCESS;
    }
    if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && type == CUDNN_TYPE_INT64) {
        *(int64_t *)values = WORKSPACE;
        *n = 1;
        return CUDNN_STATUS_SUCCESS;
    }
    return CUDNN_STATUS_BAD_PARAM;
}

/* ---- execution --------------------------------------------------------------------------------------------------- */

struct execution {
    struct attn_graph graph;
    struct graph_memory memory[ATTN_ROLES];
    void *workspace;
};

static void run(void *args, bool dead)
{
    const struct execution *e = args;
    struct err err = {.code = STATUS_OK};
    if (dead) return;
    memset(e->workspace, 0xff, WORKSPACE);
    if (graph_run(&e->graph, e->memory, &err) == STATUS_OK) return;
    fprintf(stderr, "cudnn_stub: %s\n", err.msg);
    abort();
}

/* Bind the tensors in memory: one role per pointer. */
static bool bind(struct reader *r, const struct descriptor *pack, struct execution *e)
{
    int64_t n = 0;
    int roles = ATTN_Q; /* the first role in memory */
    void *const *pointers = values_of(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 0, &n);
    const int64_t *ids = values_of(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, NULL);
    for (int t = 0; t < r->graph.n_tensors; t++) {
        struct attn_graph_tensor *tensor_t = &r->graph.tensors[t];
        const int64_t *id = values_of(r->tensors[t], CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, NULL), *align;
        int64_t at = 0;
        if (tensor_t->role == ATTN_INSIDE) continue;
        align = values_of(r->tensors[t], CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, NULL);
        while (pointers && ids && id && at < n && ids[at] != *id) at++;
        if (!pointers || !ids || !id || !align || at == n || (uintptr_t)pointers[at] % (uintptr_t)*align != 0)
            return false;
        if (tensor_t->role == ATTN_VALUE) {
            tensor_t->value = *(const float *)pointers[at];
            continue;
        }
        int role = ATTN_Q;
        while (role < roles && e->memory[role].p != pointers[at]) role++;
        if (role == ATTN_ROLES) return false;
        if (role == roles) e->memory[roles++] = (struct graph_memory){pointers[at], SIZE_MAX / 8};
        tensor_t->role = (enum attn_graph_role)role;
    }
    return true;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    known_handle(handle, false, __func__);
    bool final = known(plan, false, __func__)->final && known(pack, false, __func__)->final;
    if (!final) stub_wrong("cudnn_stub", "a descriptor that is not finalized", __func__);
    if (FAILS()) return FAILED;
    const struct descriptor *config = descriptor_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    struct reader r = read_back(descriptor_of(config, CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
    struct execution e = {.workspace = NULL};
    void *const *workspace = values_of(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, NULL);
    if (!r.good || !workspace || !bind(&r, pack, &e)) return CUDNN_STATUS_BAD_PARAM;
    e.graph = r.graph;
    e.workspace = *workspace;
    handle->stream->submit(handle->stream, run, &e, sizeof e);
    return CUDNN_STATUS_SUCCESS;
}
