#ifdef ATOLL_CUDNN

#include "gpu/cuda/cudnn/cuda_cudnn_plan.h"

#include <string.h>

#include "common/base/mem.h"

enum {
    DESCRIPTORS = ATTN_GRAPH_TENSORS + 2 * ATTN_GRAPH_OPS + 4,
    ENGINES = 16, /* limit of engines tried */
    PACKS = 256   /* cached sets of pointers: layers times parts of the batch */
};

typedef cudnnBackendDescriptor_t desc;

struct pack {
    void *memory[ATTN_ROLES], *workspace;
    desc made;
};

struct cudnn_kernel {
    const struct cudnn_lib *lib;
    struct cudnn_target target;
    struct attn_graph graph;
    struct cudnn_plan_facts facts;
    desc all[DESCRIPTORS]; /* all descriptors of the plan, in the order of creation */
    int n_all;
    desc tensors[ATTN_GRAPH_TENSORS], ops[ATTN_GRAPH_OPS], engines[ENGINES], plan;
    struct pack packs[PACKS];
    size_t n_packs;
    cudnnStatus_t status; /* the first failure in the graph, an engine or a call */
};

/* --- descriptors: the first error stays, and later calls do nothing ----------------------------------------------- */

static bool good(struct cudnn_kernel *p, cudnnStatus_t status)
{
    if (p->status == CUDNN_STATUS_SUCCESS) p->status = status;
    return p->status == CUDNN_STATUS_SUCCESS;
}

/* Leaves *out unchanged on failure, because the library does not specify what it writes then. */
static cudnnStatus_t make_one(const struct cudnn_lib *lib, cudnnBackendDescriptorType_t type, desc *out)
{
    desc d;
    cudnnStatus_t status = lib->make(type, &d);
    if (status == CUDNN_STATUS_SUCCESS) *out = d;
    return status;
}

static desc make(struct cudnn_kernel *p, cudnnBackendDescriptorType_t type)
{
    desc d = NULL;
    if (p->status != CUDNN_STATUS_SUCCESS || !good(p, make_one(p->lib, type, &d))) return NULL;
    p->all[p->n_all++] = d;
    return d;
}

static void set(struct cudnn_kernel *p, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n, const void *values)
{
    if (p->status == CUDNN_STATUS_SUCCESS) (void)good(p, p->lib->set(d, name, type, n, values));
}

static void set_desc(struct cudnn_kernel *p, desc d, cudnnBackendAttributeName_t name, desc value)
{
    if (value) set(p, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

/* Reads at most `most` values; returns how many there are, 0 after an error. */
static int64_t get(struct cudnn_kernel *p, desc d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   int64_t most, void *values)
{
    int64_t n = 0;
    return p->status == CUDNN_STATUS_SUCCESS && good(p, p->lib->get(d, name, type, most, &n, values)) ? n : 0;
}

static desc finish(struct cudnn_kernel *p, desc d)
{
    if (p->status == CUDNN_STATUS_SUCCESS) (void)good(p, p->lib->finalize(d));
    return d;
}

static enum status refused(const struct cudnn_lib *lib, cudnnStatus_t status, const char *what, struct err *err)
{
    char more[256] = "";
    lib->last_error(more, sizeof more);
    for (char *c = more; *c; c++) /* keep the message on one line */
        if ((unsigned char)*c < ' ') *c = ' ';
    return err_set(err, STATUS_UNSUPPORTED, "cuDNN %zu.%zu.%zu: %s: %s %.200s", lib->number / 10000,
                   lib->number / 100 % 100, lib->number % 100, what, lib->status_text(status), more);
}

/* --- the graph ---------------------------------------------------------------------------------------------------- */

static int64_t id_of(int tensor)
{
    return tensor + 1;
}

static desc tensor(struct cudnn_kernel *p, int i)
{
    static const cudnnDataType_t types[] = {CUDNN_DATA_FLOAT, CUDNN_DATA_BFLOAT16, CUDNN_DATA_INT32,
                                            CUDNN_DATA_BOOLEAN};
    const struct attn_graph_tensor *t = &p->graph.tensors[i];
    bool inside = t->role == ATTN_INSIDE, value = t->role == ATTN_VALUE;
    int64_t id = id_of(i), align = value ? sizeof(float) : 16;
    desc d = make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(p, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &types[t->type]);
    set(p, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, t->dim);
    set(p, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, t->stride);
    set(p, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(p, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
    set(p, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside);
    set(p, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value);
    return finish(p, d);
}

static desc matmul(struct cudnn_kernel *p, desc x, desc b, desc y)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    desc kind = make(p, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set(p, kind, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    desc o = make(p, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_desc(p, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, finish(p, kind));
    set_desc(p, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_desc(p, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    set_desc(p, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    return o;
}

static desc reduction(struct cudnn_kernel *p, cudnnReduceTensorOp_t mode, desc x, desc y)
{
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    desc kind = make(p, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set(p, kind, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode);
    set(p, kind, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    desc o = make(p, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_desc(p, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, finish(p, kind));
    set_desc(p, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_desc(p, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    return o;
}

static desc transpose(struct cudnn_kernel *p, desc x, desc y)
{
    desc o = make(p, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    set_desc(p, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    set_desc(p, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
    return o;
}

static desc pointwise(struct cudnn_kernel *p, const struct attn_graph_op *op, desc x, desc b, desc t, desc y)
{
    static const cudnnPointwiseMode_t modes[] = {
        [ATTN_MUL] = CUDNN_POINTWISE_MUL,       [ATTN_ADD] = CUDNN_POINTWISE_ADD,
        [ATTN_SUB] = CUDNN_POINTWISE_SUB,       [ATTN_DIV] = CUDNN_POINTWISE_DIV,
        [ATTN_EXP] = CUDNN_POINTWISE_EXP,       [ATTN_LOG] = CUDNN_POINTWISE_LOG,
        [ATTN_COPY] = CUDNN_POINTWISE_IDENTITY, [ATTN_INDEX] = CUDNN_POINTWISE_GEN_INDEX,
        [ATTN_GE] = CUDNN_POINTWISE_CMP_GE,     [ATTN_SELECT] = CUDNN_POINTWISE_BINARY_SELECT};
    cudnnDataType_t precision = op->kind == ATTN_GE      ? CUDNN_DATA_BOOLEAN
                                : op->kind == ATTN_INDEX ? CUDNN_DATA_INT32
                                                         : CUDNN_DATA_FLOAT;
    int64_t axis = op->axis;
    desc kind = make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(p, kind, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &modes[op->kind]);
    set(p, kind, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision);
    if (op->kind == ATTN_INDEX) set(p, kind, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    desc o = make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_desc(p, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finish(p, kind));
    set_desc(p, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    set_desc(p, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set_desc(p, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
    set_desc(p, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return o;
}

static desc operation(struct cudnn_kernel *p, const struct attn_graph_op *op)
{
    desc x = p->tensors[op->x], y = p->tensors[op->y];
    desc b = op->b >= 0 ? p->tensors[op->b] : NULL, t = op->t >= 0 ? p->tensors[op->t] : NULL;
    switch (op->kind) {
    case ATTN_MATMUL: return finish(p, matmul(p, x, b, y));
    case ATTN_MAX: return finish(p, reduction(p, CUDNN_REDUCE_TENSOR_MAX, x, y));
    case ATTN_SUM: return finish(p, reduction(p, CUDNN_REDUCE_TENSOR_ADD, x, y));
    case ATTN_TRANSPOSE: return finish(p, transpose(p, x, y));
    default: return finish(p, pointwise(p, op, x, b, t, y));
    }
}

/* --- engines ------------------------------------------------------------------------------------------------------ */

/* Builds the graph and fills p->engines from the heuristics. */
static void find_engines(struct cudnn_kernel *p)
{
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    for (int i = 0; i < p->graph.n_tensors; i++) p->tensors[i] = tensor(p, i);
    for (int i = 0; i < p->graph.n_ops; i++) p->ops[i] = operation(p, &p->graph.ops[i]);
    desc graph = make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, p->graph.n_ops, p->ops);
    if (p->target.handle) set(p, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->target.handle);
    desc heuristics = make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, finish(p, graph));
    set(p, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
#if CUDNN_VERSION >= 90800
    set_desc(p, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, p->target.properties);
#endif
    finish(p, heuristics);
    for (int i = 0; i < ENGINES && p->status == CUDNN_STATUS_SUCCESS; i++)
        (void)good(p, make_one(p->lib, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &p->engines[i]));
    int64_t n = get(p, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, ENGINES, p->engines);
    p->facts.engines = n < ENGINES ? (int)n : ENGINES; /* n counts all engines, also those beyond ENGINES */
}

/* True if the engine is declared nondeterministic. */
static bool any_order(struct cudnn_kernel *p, desc config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    desc engine = NULL;
    bool any = false;
    if (!good(p, make_one(p->lib, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine))) return false;
    (void)get(p, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
    int64_t n = get(p, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < n; i++) any = any || notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
    p->lib->unmake(engine);
    return any;
}

/* Compiles one engine: sets p->plan and the facts, or returns the reason of the failure. */
static enum status compile(struct cudnn_kernel *p, int which, size_t workspace_max, bool exact, struct err *err)
{
    enum status result = STATUS_OK;
    int64_t bytes = 0;
    desc plan = NULL;
    p->status = CUDNN_STATUS_SUCCESS; /* the failures of other engines do not count */
    if (exact && any_order(p, p->engines[which]))
        return err_set(err, STATUS_UNSUPPORTED, "cuDNN has no kernel with a fixed order of sums");
    if (p->status == CUDNN_STATUS_SUCCESS)
        (void)good(p, make_one(p->lib, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &plan));
    set_desc(p, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, p->engines[which]);
    if (p->target.handle) set(p, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &p->target.handle);
#if CUDNN_VERSION >= 90800
    set_desc(p, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, p->target.properties);
#endif
    (void)get(p, finish(p, plan), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &bytes);
    if (p->status != CUDNN_STATUS_SUCCESS)
        result = refused(p->lib, p->status, "cannot compile an engine", err);
    else if (bytes < 0 || (size_t)bytes > workspace_max)
        result = err_set(err, STATUS_LIMIT, "cuDNN needs %lld bytes of workspace, but at most %zu are allowed",
                         (long long)bytes, workspace_max);
    if (result != STATUS_OK) {
        if (plan) p->lib->unmake(plan);
        return result;
    }
    p->plan = plan;
    p->facts.chosen = which;
    p->facts.workspace = (size_t)bytes;
    return STATUS_OK;
}

enum status cudnn_plan_create(const struct cudnn_lib *lib, const struct cudnn_target *target,
                              const struct attn_graph *graph, size_t workspace_max, bool exact,
                              struct cudnn_kernel **out, struct err *err)
{
    struct cudnn_kernel *p = mem_alloc(1, sizeof *p);
    if (!p) return err_set(err, STATUS_NOMEM, "no memory for a cuDNN kernel");
    p->lib = lib;
    p->target = *target;
    p->graph = *graph;
    find_engines(p);
    enum status status = STATUS_UNSUPPORTED;
    if (p->facts.engines < 1)
        status = refused(lib, p->status,
                         p->status != CUDNN_STATUS_SUCCESS ? "graph rejected" : "no engine for this shape", err);
    bool large = false;
    for (int i = 0; i < p->facts.engines && status != STATUS_OK; i++) {
        status = compile(p, i, workspace_max, exact, err);
        large = large || status == STATUS_LIMIT;
    }
    if (status == STATUS_OK)
        *out = p;
    else
        cudnn_rt_free(p);
    return status != STATUS_OK && large ? STATUS_LIMIT : status;
}

void cudnn_rt_free(struct cudnn_kernel *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_packs && i < PACKS; i++) p->lib->unmake(p->packs[i].made);
    if (p->plan) p->lib->unmake(p->plan);
    for (int i = 0; i < ENGINES; i++)
        if (p->engines[i]) p->lib->unmake(p->engines[i]);
    while (p->n_all > 0) p->lib->unmake(p->all[--p->n_all]);
    mem_free(p);
}

struct cudnn_plan_facts cudnn_plan_facts(const struct cudnn_kernel *plan)
{
    return plan->facts;
}

/* --- execution ---------------------------------------------------------------------------------------------------- */

static desc pack_make(struct cudnn_kernel *p, const struct pack *pack)
{
    void *pointers[ATTN_GRAPH_TENSORS];
    int64_t ids[ATTN_GRAPH_TENSORS], n = 0;
    desc made = NULL;
    for (int i = 0; i < p->graph.n_tensors; i++) {
        struct attn_graph_tensor *t = &p->graph.tensors[i];
        if (t->role == ATTN_INSIDE) continue;
        ids[n] = id_of(i);
        pointers[n++] = t->role == ATTN_VALUE ? (void *)&t->value : pack->memory[t->role];
    }
    if (!good(p, make_one(p->lib, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &made))) return NULL;
    set(p, made, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointers);
    set(p, made, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, ids);
    set(p, made, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &pack->workspace);
    (void)finish(p, made);
    if (p->status == CUDNN_STATUS_SUCCESS) return made;
    p->lib->unmake(made);
    return NULL;
}

/* The variant pack of these pointers, created at first use; it replaces the oldest one. NULL: p->status says why. */
static desc pack_of(struct cudnn_kernel *p, void *const memory[ATTN_ROLES], void *workspace)
{
    for (size_t i = 0; i < p->n_packs && i < PACKS; i++) {
        const struct pack *pack = &p->packs[i];
        if (pack->workspace == workspace && memcmp(pack->memory, memory, sizeof pack->memory) == 0) return pack->made;
    }
    struct pack pack = {.workspace = workspace}, *place = &p->packs[p->n_packs % PACKS];
    memcpy(pack.memory, memory, sizeof pack.memory);
    pack.made = pack_make(p, &pack);
    if (!pack.made) return NULL;
    if (p->n_packs++ >= PACKS) p->lib->unmake(place->made);
    *place = pack;
    return pack.made;
}

enum status cudnn_plan_execute(struct cudnn_kernel *p, void *const memory[ATTN_ROLES], void *workspace, struct err *err)
{
    p->status = CUDNN_STATUS_SUCCESS;
    desc pack = pack_of(p, memory, workspace);
    if (pack && good(p, p->lib->execute(p->target.handle, p->plan, pack))) return STATUS_OK;
    return refused(p->lib, p->status, "cannot execute attention", err);
}

#else
typedef int atoll_cudnn_plans_are_not_in_this_build;
#endif
