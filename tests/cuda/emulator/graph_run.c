#include "tests/cuda/emulator/graph_run.h"

#include <math.h>
#include <string.h>

#include "common/base/mem.h"

/* Memory of a tensor. A view uses the memory of another tensor with its own strides. */
struct place {
    void *p;
    size_t elements;
    bool half; /* true: bf16, false: float */
    bool own;  /* allocated here */
};

struct run {
    const struct attn_graph *graph;
    const struct attn_graph_op *op; /* current operation */
    struct place places[ATTN_GRAPH_TENSORS];
    struct err error;
};

uint16_t graph_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float graph_float(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void complain(struct run *r, const char *what)
{
    static const char *const names[] = {"matmul", "mul",   "add", "sub",    "div", "exp", "log",
                                        "copy",   "index", "ge",  "select", "max", "sum", "turn"};
    if (r->error.code == STATUS_OK)
        err_set(&r->error, STATUS_INVALID, "operation %d (%s): %s", (int)(r->op - r->graph->ops), names[r->op->kind],
                what);
}

static const struct attn_graph_tensor *tensor_of(const struct run *r, int tensor)
{
    return &r->graph->tensors[tensor];
}

static size_t offset_of(struct run *r, int tensor, const int64_t at[4])
{
    const struct attn_graph_tensor *t = tensor_of(r, tensor);
    int64_t offset = 0;
    for (int i = 0; i < 4; i++) offset += at[i] * t->stride[i];
    if (offset >= 0 && (size_t)offset < r->places[tensor].elements) return (size_t)offset;
    complain(r, "a stride leads outside of a tensor's memory");
    return 0;
}

static float rounded(enum attn_graph_type type, float x)
{
    return type == ATTN_BF16 ? graph_float(graph_bf16(x)) : x;
}

static float get(struct run *r, int tensor, const int64_t at[4])
{
    const struct place *place = &r->places[tensor];
    if (!place->p) {
        complain(r, "reads a tensor that is not written yet");
        return 0;
    }
    size_t i = offset_of(r, tensor, at);
    return rounded(tensor_of(r, tensor)->type,
                   place->half ? graph_float(((uint16_t *)place->p)[i]) : ((float *)place->p)[i]);
}

static void set(struct run *r, int tensor, const int64_t at[4], double x)
{
    const struct place *place = &r->places[tensor];
    size_t i = offset_of(r, tensor, at);
    float y = rounded(tensor_of(r, tensor)->type, (float)x);
    if (place->half)
        ((uint16_t *)place->p)[i] = graph_bf16(y);
    else
        ((float *)place->p)[i] = y;
}

/* Dimensions of 1 are broadcast. */
static float get_broadcast(struct run *r, int tensor, const int64_t at[4])
{
    int64_t mine[4];
    for (int i = 0; i < 4; i++) mine[i] = tensor_of(r, tensor)->dim[i] == 1 ? 0 : at[i];
    return get(r, tensor, mine);
}

static bool next(const int64_t dim[4], int64_t at[4])
{
    for (int i = 3; i >= 0; i--) {
        if (++at[i] < dim[i]) return true;
        at[i] = 0;
    }
    return false;
}

static void run_matmul(struct run *r, const struct attn_graph_op *o)
{
    const int64_t *x = tensor_of(r, o->x)->dim, *b = tensor_of(r, o->b)->dim, *y = tensor_of(r, o->y)->dim;
    if (x[0] != y[0] || b[0] != y[0] || x[1] != y[1] || y[1] % b[1] != 0 || x[2] != y[2] || b[3] != y[3] ||
        x[3] != b[2]) {
        complain(r, "dimensions do not fit");
        return;
    }
    int64_t at[4] = {0};
    do {
        double sum = 0;
        for (int64_t k = 0; k < x[3]; k++)
            sum += (double)get(r, o->x, (int64_t[]){at[0], at[1], at[2], k}) *
                   (double)get(r, o->b, (int64_t[]){at[0], at[1] / (y[1] / b[1]), k, at[3]});
        set(r, o->y, at, sum);
    } while (r->error.code == STATUS_OK && next(y, at));
}

static double pointwise(struct run *r, const struct attn_graph_op *o, const int64_t at[4])
{
    double x = o->kind == ATTN_INDEX ? 0 : (double)get(r, o->x, at);
    double b = o->b >= 0 ? (double)get_broadcast(r, o->b, at) : 0;
    switch (o->kind) {
    case ATTN_MUL: return x * b;
    case ATTN_ADD: return x + b;
    case ATTN_SUB: return x - b;
    case ATTN_DIV: return x / b;
    case ATTN_EXP: return exp(x);
    case ATTN_LOG: return log(x);
    case ATTN_COPY: return x;
    case ATTN_INDEX: return (double)at[o->axis];
    case ATTN_GE: return x >= b;
    case ATTN_SELECT: return get(r, o->t, at) != 0 ? x : b;
    default: complain(r, "not a pointwise operation"); return 0;
    }
}

static void run_pointwise(struct run *r, const struct attn_graph_op *o)
{
    const int64_t *x = tensor_of(r, o->x)->dim, *y = tensor_of(r, o->y)->dim;
    for (int i = 0; i < 4; i++) {
        int64_t b = o->b >= 0 ? tensor_of(r, o->b)->dim[i] : 1, t = o->t >= 0 ? tensor_of(r, o->t)->dim[i] : y[i];
        if (x[i] != y[i] || (b != y[i] && b != 1) || t != y[i]) complain(r, "dimensions do not fit");
    }
    bool binary = (o->kind >= ATTN_MUL && o->kind <= ATTN_DIV) || o->kind == ATTN_GE || o->kind == ATTN_SELECT;
    if (binary != (o->b >= 0) || (o->kind == ATTN_SELECT) != (o->t >= 0)) complain(r, "operands are missing");
    int64_t at[4] = {0};
    while (r->error.code == STATUS_OK) {
        set(r, o->y, at, pointwise(r, o, at));
        if (!next(y, at)) break;
    }
}

static void run_reduction(struct run *r, const struct attn_graph_op *o)
{
    const int64_t *x = tensor_of(r, o->x)->dim, *y = tensor_of(r, o->y)->dim;
    int64_t each[4], at[4] = {0};
    for (int i = 0; i < 4; i++) {
        each[i] = y[i] ? x[i] / y[i] : 0;
        if (!y[i] || x[i] % y[i] != 0 || (y[i] != x[i] && y[i] != 1 && i != 1)) complain(r, "dimensions do not fit");
    }
    while (r->error.code == STATUS_OK) {
        double total = o->kind == ATTN_MAX ? -INFINITY : 0;
        int64_t in[4] = {0};
        do {
            int64_t from[4];
            for (int i = 0; i < 4; i++) from[i] = at[i] * each[i] + in[i];
            double v = (double)get(r, o->x, from);
            total = o->kind == ATTN_SUM ? total + v : v > total ? v : total;
        } while (next(each, in));
        set(r, o->y, at, total);
        if (!next(y, at)) break;
    }
}

/* Transpose: another view of the same memory. */
static void run_turn(struct run *r, const struct attn_graph_op *o)
{
    const int64_t *x = tensor_of(r, o->x)->dim, *y = tensor_of(r, o->y)->dim;
    if (x[0] != y[0] || x[1] != y[1] || x[2] != y[3] || x[3] != y[2]) complain(r, "dimensions do not fit");
    if (tensor_of(r, o->y)->role != ATTN_INSIDE) complain(r, "a view has memory of its own");
    r->places[o->y] = r->places[o->x];
    r->places[o->y].own = false;
}

static bool prepare(struct run *r, const struct graph_memory memory[ATTN_ROLES])
{
    for (int i = 0; i < r->graph->n_tensors; i++) {
        const struct attn_graph_tensor *t = &r->graph->tensors[i];
        struct place *place = &r->places[i];
        *place = (struct place){.elements = 1};
        for (int d = 0; d < 4; d++) place->elements += (size_t)((t->dim[d] - 1) * t->stride[d]);
        if (t->role != ATTN_INSIDE && t->role != ATTN_VALUE) {
            *place = (struct place){
                .p = memory[t->role].p, .elements = memory[t->role].elements, .half = t->type == ATTN_BF16};
            continue;
        }
        place->own = true;
        place->p = mem_alloc(place->elements, sizeof(float));
        if (!place->p) return false;
        for (size_t e = 0; e < place->elements; e++) ((float *)place->p)[e] = t->role == ATTN_VALUE ? t->value : NAN;
    }
    return true;
}

enum status graph_run(const struct attn_graph *graph, const struct graph_memory memory[ATTN_ROLES], struct err *err)
{
    struct run r = {.graph = graph, .op = graph->ops};
    struct place made[ATTN_GRAPH_TENSORS];
    if (!prepare(&r, memory)) err_set(&r.error, STATUS_NOMEM, "no memory for the tensors of a graph");
    memcpy(made, r.places, sizeof made); /* views replace entries of places */
    for (int i = 0; i < graph->n_ops && r.error.code == STATUS_OK; i++) {
        r.op = &graph->ops[i];
        switch (r.op->kind) {
        case ATTN_MATMUL: run_matmul(&r, r.op); break;
        case ATTN_MAX:
        case ATTN_SUM: run_reduction(&r, r.op); break;
        case ATTN_TRANSPOSE: run_turn(&r, r.op); break;
        default: run_pointwise(&r, r.op); break;
        }
    }
    for (int i = 0; i < graph->n_tensors; i++)
        if (made[i].own) mem_free(made[i].p);
    return r.error.code == STATUS_OK ? STATUS_OK : err_set(err, r.error.code, "%s", r.error.msg);
}
