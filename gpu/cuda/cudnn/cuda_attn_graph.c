#include "gpu/cuda/cudnn/cuda_attn_graph.h"

#include <assert.h>
#include <float.h>
#include <math.h>

/* Builder of a graph. */
struct writer {
    struct attn_graph *graph;
    const struct attn_graph_shape *shape;
    int64_t b, h, g, t, d, row; /* copies from the shape; row: elements of one token in the packed memory */
};

static struct writer begin(struct attn_graph *graph, const struct attn_graph_shape *s)
{
    *graph = (struct attn_graph){.n_ops = 0};
    return (struct writer){.graph = graph,
                           .shape = s,
                           .b = (int64_t)s->batch,
                           .h = (int64_t)s->heads,
                           .g = (int64_t)s->kv_heads,
                           .t = (int64_t)s->seq,
                           .d = (int64_t)s->head_dim,
                           .row = (int64_t)((s->heads + 2 * s->kv_heads) * s->head_dim)};
}

static int put(struct writer *w, struct attn_graph_tensor tensor)
{
    assert(w->graph->n_tensors < ATTN_GRAPH_TENSORS);
    w->graph->tensors[w->graph->n_tensors] = tensor;
    return w->graph->n_tensors++;
}

/* A tensor [B,heads,m,n] without gaps. */
static int dense(struct writer *w, enum attn_graph_role role, enum attn_graph_type type, int64_t heads, int64_t m,
                 int64_t n)
{
    return put(w, (struct attn_graph_tensor){
                      .type = type, .role = role, .dim = {w->b, heads, m, n}, .stride = {heads * m * n, m * n, n, 1}});
}

/* The same for an intermediate result [B,H,m,n]. */
static int inside(struct writer *w, enum attn_graph_type type, int64_t m, int64_t n)
{
    return dense(w, ATTN_INSIDE, type, w->h, m, n);
}

/* An activation [B,heads,T,hd] in rows of `row` elements, or its transposed view [B,heads,hd,T]. */
static int rows(struct writer *w, enum attn_graph_role role, int64_t heads, int64_t row, bool transposed)
{
    struct attn_graph_tensor t = {
        .type = w->shape->type, .role = role, .dim = {w->b, heads, w->t, w->d}, .stride = {w->t * row, w->d, row, 1}};
    if (transposed) {
        t.dim[2] = w->d;
        t.dim[3] = w->t;
        t.stride[2] = 1;
        t.stride[3] = row;
    }
    return put(w, t);
}

static int value(struct writer *w, float x)
{
    return put(w, (struct attn_graph_tensor){
                      .type = ATTN_F32, .role = ATTN_VALUE, .value = x, .dim = {1, 1, 1, 1}, .stride = {1, 1, 1, 1}});
}

/* Adds an operation and returns y. */
static int op(struct writer *w, enum attn_graph_kind kind, int x, int b, int y)
{
    assert(w->graph->n_ops < ATTN_GRAPH_OPS);
    w->graph->ops[w->graph->n_ops++] = (struct attn_graph_op){.kind = kind, .x = x, .b = b, .t = -1, .y = y};
    return y;
}

/* The causal mask: keeps scores where key <= query, and writes -infinity elsewhere. */
static int causal(struct writer *w, int scores)
{
    int query = op(w, ATTN_INDEX, scores, -1, inside(w, ATTN_I32, w->t, w->t));
    w->graph->ops[w->graph->n_ops - 1].axis = 2;
    int key = op(w, ATTN_INDEX, scores, -1, inside(w, ATTN_I32, w->t, w->t));
    w->graph->ops[w->graph->n_ops - 1].axis = 3;
    int seen = op(w, ATTN_GE, query, key, inside(w, ATTN_BOOL, w->t, w->t));
    int out = op(w, ATTN_SELECT, scores, value(w, -INFINITY), inside(w, ATTN_F32, w->t, w->t));
    w->graph->ops[w->graph->n_ops - 1].t = seen;
    return out;
}

static float scale_of(const struct attn_graph_shape *s)
{
    return 1.0f / sqrtf((float)s->head_dim);
}

void attn_graph_forward(struct attn_graph *graph, const struct attn_graph_shape *shape)
{
    struct writer w = begin(graph, shape);
    int64_t t = w.t;
    int q = rows(&w, ATTN_Q, w.h, w.row, false), k = rows(&w, ATTN_K, w.g, w.row, true);
    int v = rows(&w, ATTN_V, w.g, w.row, false), o = rows(&w, ATTN_O, w.h, w.h * w.d, false);
    int s = op(&w, ATTN_MATMUL, q, k, inside(&w, ATTN_F32, t, t));
    s = op(&w, ATTN_MUL, s, value(&w, scale_of(shape)), inside(&w, ATTN_F32, t, t));
    s = causal(&w, s);
    int row_max = op(&w, ATTN_MAX, s, -1, inside(&w, ATTN_F32, t, 1));
    int e = op(&w, ATTN_SUB, s, row_max, inside(&w, ATTN_F32, t, t));
    e = op(&w, ATTN_EXP, e, -1, inside(&w, ATTN_F32, t, t));
    int sum = op(&w, ATTN_SUM, e, -1, inside(&w, ATTN_F32, t, 1));
    int logarithm = op(&w, ATTN_LOG, sum, -1, inside(&w, ATTN_F32, t, 1));
    op(&w, ATTN_ADD, row_max, logarithm, dense(&w, ATTN_LSE, ATTN_F32, w.h, t, 1));
    int p = op(&w, ATTN_DIV, e, sum, inside(&w, shape->type, t, t));
    op(&w, ATTN_MATMUL, p, v, o);
}

/* out[B,G,T,hd] = x^T y for x[B,H,T,T] in fp32 or bf16 and y[B,H,T,hd]. Sums over the heads of one group. */
static void transposed_product(struct writer *w, int x, int y, enum attn_graph_role role)
{
    struct attn_graph_tensor t = {.type = w->shape->type,
                                  .role = ATTN_INSIDE,
                                  .dim = {w->b, w->h, w->t, w->t},
                                  .stride = {w->h * w->t * w->t, w->t * w->t, 1, w->t}};
    int transposed = op(w, ATTN_TRANSPOSE, x, -1, put(w, t)), out = rows(w, role, w->g, w->row, false);
    if (w->h == w->g) {
        op(w, ATTN_MATMUL, transposed, y, out);
        return;
    }
    int all = op(w, ATTN_MATMUL, transposed, y, inside(w, w->shape->type, w->t, w->d));
    op(w, ATTN_SUM, all, -1, out);
}

void attn_graph_backward(struct attn_graph *graph, const struct attn_graph_shape *shape)
{
    struct writer w = begin(graph, shape);
    int64_t t = w.t, c = w.h * w.d;
    int q = rows(&w, ATTN_Q, w.h, w.row, false), k = rows(&w, ATTN_K, w.g, w.row, true);
    int v = rows(&w, ATTN_V, w.g, w.row, true), o = rows(&w, ATTN_O, w.h, c, false);
    int d_o = rows(&w, ATTN_DO, w.h, c, false), lse = dense(&w, ATTN_LSE, ATTN_F32, w.h, t, 1);
    int scale = value(&w, scale_of(shape));

    int x = op(&w, ATTN_MUL, d_o, o, inside(&w, ATTN_F32, t, w.d));
    x = op(&w, ATTN_SUM, x, -1, inside(&w, ATTN_F32, t, 1));
    int dot = op(&w, ATTN_MUL, x, value(&w, 1), dense(&w, ATTN_DOT, ATTN_F32, w.h, t, 1));

    int p = op(&w, ATTN_MATMUL, q, k, inside(&w, ATTN_F32, t, t));
    p = op(&w, ATTN_MUL, p, scale, inside(&w, ATTN_F32, t, t));
    p = op(&w, ATTN_SUB, p, lse, inside(&w, ATTN_F32, t, t));
    p = causal(&w, p); /* after lse, as NVIDIA's front end of cuDNN 9.18 and newer has it (older ones: before) */
    p = op(&w, ATTN_EXP, p, -1, inside(&w, ATTN_F32, t, t));
    transposed_product(&w, p, d_o, ATTN_DV);

    int ds = op(&w, ATTN_MATMUL, d_o, v, inside(&w, ATTN_F32, t, t));
    ds = op(&w, ATTN_SUB, ds, dot, inside(&w, ATTN_F32, t, t));
    ds = op(&w, ATTN_MUL, ds, p, inside(&w, ATTN_F32, t, t));
    ds = op(&w, ATTN_MUL, ds, scale, inside(&w, shape->type, t, t));
    transposed_product(&w, ds, q, ATTN_DK);

    struct attn_graph_tensor straight = {
        .type = shape->type, .role = ATTN_INSIDE, .dim = {w.b, w.g, t, w.d}, .stride = {t * w.row, w.d, w.row, 1}};
    int keys = op(&w, ATTN_TRANSPOSE, k, -1, put(&w, straight)), dq = rows(&w, ATTN_DQ, w.h, w.row, false);
    if (shape->exact) {
        op(&w, ATTN_MATMUL, ds, keys, dq);
        return;
    }
    int sum = op(&w, ATTN_MATMUL, ds, keys, dense(&w, ATTN_DQ_SUM, ATTN_F32, w.h, t, w.d));
    op(&w, ATTN_COPY, sum, -1, dq);
}

void attn_graph_finite_mask(struct attn_graph *graph)
{
    for (int i = 0; i < graph->n_tensors; i++)
        if (graph->tensors[i].role == ATTN_VALUE && isinf(graph->tensors[i].value)) graph->tensors[i].value = -FLT_MAX;
}

size_t attn_graph_scratch(const struct attn_graph *graph, enum attn_graph_role role)
{
    if (role != ATTN_DOT && role != ATTN_DQ_SUM) return 0;
    for (int i = 0; i < graph->n_tensors; i++)
        if (graph->tensors[i].role == role)
            return (size_t)(graph->tensors[i].dim[0] * graph->tensors[i].stride[0]) * sizeof(float);
    return 0;
}

/* Kernels for 8.x and 12.x keep the sums of dq in the workspace. */
static bool sums_in_workspace(const struct attn_graph_shape *s)
{
    return !s->exact && (s->capability / 10 == 8 || s->capability / 10 == 12);
}

/* Exact graphs need ds of all heads in whole tiles. Shared keys need dk and dv of each query head. */
size_t attn_graph_workspace(const struct attn_graph_shape *s)
{
    enum { LEAST = 256, TILE_ROWS = 64, TILE_COLUMNS = 128, ACT_BYTES = 2 };
    size_t heads = s->batch * s->heads, bytes = LEAST;
    size_t rows = (s->seq + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    size_t columns = (s->seq + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS;
    if (s->exact) bytes += heads * rows * columns * ACT_BYTES;
    if (sums_in_workspace(s)) bytes += heads * s->seq * s->head_dim * sizeof(float);
    if (s->kv_heads != s->heads) bytes += 2 * heads * s->seq * s->head_dim * ACT_BYTES;
    return bytes;
}

size_t attn_graph_offset(const struct attn_graph_shape *shape, enum attn_graph_role role)
{
    switch (role) {
    case ATTN_K:
    case ATTN_DK: return shape->heads * shape->head_dim;
    case ATTN_V:
    case ATTN_DV: return (shape->heads + shape->kv_heads) * shape->head_dim;
    default: return 0;
    }
}
