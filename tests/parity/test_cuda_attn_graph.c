/* Tests the attention graphs for cuDNN (gpu/cuda/cudnn/cuda_attn_graph.h) against the attention of the CPU device. An
 * interpreter executes the operations one by one (tests/cuda/emulator/graph_run.h). Tolerances are the rounding of fp32
 * and of bf16. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/cuda/cudnn/cuda_attn_graph.h"
#include "tests/cuda/emulator/graph_run.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

static struct device *cpu;

/* One case: rows of H + 2G heads. */
struct attn_case {
    struct attn_graph_shape s;
    size_t n, c, row, stats;
    float *qkv, *d_o;      /* inputs of both */
    float *o, *lse, *dqkv; /* expected, from the CPU device */
    float *got_lse, *dot, *dq_sum;
    void *act[ATTN_ROLES]; /* the graph's buffers in its type; Q and DQ are the packed ones */
};

static void reference(struct attn_case *k)
{
    const struct attn_graph_shape *s = &k->s;
    struct attn_shape shape = {
        .batch = s->batch, .seq = s->seq, .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim};
    struct attn_plan *plan;
    assert_int_equal(cpu->ops->attn_plan(cpu, &shape, &plan), STATUS_OK);
    cpu->ops->attn_fwd(cpu, plan, k->qkv, k->o, k->lse);
    cpu->ops->attn_bwd(cpu, plan, k->qkv, k->o, k->lse, k->d_o, k->dqkv);
    assert_int_equal(cpu->ops->sync(cpu, NULL), STATUS_OK);
    cpu->ops->plan_free(cpu, plan);
}

/* Allocate an activation in the graph's type: a copy of `from`, or NaN if `from` is NULL. */
static void *activation(const struct attn_case *k, const float *from, size_t n)
{
    float *p = case_poisoned(n);
    if (from) memcpy(p, from, n * sizeof *p);
    for (size_t i = 0; i < n && k->s.type == ATTN_BF16; i++) ((uint16_t *)(void *)p)[i] = graph_bf16(p[i]);
    return p;
}

static void run(struct attn_case *k, const struct attn_graph *graph)
{
    size_t packed = k->n * k->row, size = k->s.type == ATTN_BF16 ? sizeof(uint16_t) : sizeof(float);
    struct graph_memory memory[ATTN_ROLES] = {[ATTN_O] = {k->act[ATTN_O], k->n * k->c},
                                              [ATTN_DO] = {k->act[ATTN_DO], k->n * k->c},
                                              [ATTN_LSE] = {k->got_lse, k->stats},
                                              [ATTN_DOT] = {k->dot, attn_graph_scratch(graph, ATTN_DOT) / 4},
                                              [ATTN_DQ_SUM] = {k->dq_sum, attn_graph_scratch(graph, ATTN_DQ_SUM) / 4}};
    static const enum attn_graph_role parts[] = {ATTN_Q, ATTN_K, ATTN_V, ATTN_DQ, ATTN_DK, ATTN_DV};
    for (size_t i = 0; i < 6; i++) {
        size_t at = attn_graph_offset(&k->s, parts[i]);
        memory[parts[i]].p = (char *)k->act[i < 3 ? ATTN_Q : ATTN_DQ] + at * size;
        memory[parts[i]].elements = packed - at;
    }
    struct err err = {0};
    if (graph_run(graph, memory, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

/* Scores near -100: exp(0 - lse) overflows, so a score that the mask should hide makes the result infinite. */
static void low_scores(struct attn_case *k)
{
    const struct attn_graph_shape *s = &k->s;
    for (size_t i = 0; i < k->n * (s->heads + s->kv_heads); i++) {
        size_t head = i % (s->heads + s->kv_heads), row = i / (s->heads + s->kv_heads);
        k->qkv[row * k->row + head * s->head_dim] = head < s->heads ? 1.0f : -100 * sqrtf((float)s->head_dim);
    }
}

static void case_open(struct attn_case *k, bool low)
{
    const struct attn_graph_shape *s = &k->s;
    k->n = s->batch * s->seq;
    k->c = s->heads * s->head_dim;
    k->row = (s->heads + 2 * s->kv_heads) * s->head_dim;
    k->stats = k->n * s->heads;
    k->qkv = case_normal(k->n * k->row, 1, 1.3f);
    k->d_o = case_normal(k->n * k->c, 2, 1);
    if (low) low_scores(k);
    for (size_t i = 0; s->type == ATTN_BF16 && i < k->n * k->row; i++) k->qkv[i] = graph_float(graph_bf16(k->qkv[i]));
    for (size_t i = 0; s->type == ATTN_BF16 && i < k->n * k->c; i++) k->d_o[i] = graph_float(graph_bf16(k->d_o[i]));
    float **outputs[] = {&k->o, &k->dqkv, &k->lse, &k->got_lse, &k->dot, &k->dq_sum};
    const size_t sizes[] = {k->n * k->c, k->n * k->row, k->stats, k->stats, k->stats, k->n * k->c};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *outputs[i] = case_poisoned(sizes[i]);
    k->act[ATTN_Q] = activation(k, k->qkv, k->n * k->row);
    k->act[ATTN_DO] = activation(k, k->d_o, k->n * k->c);
    k->act[ATTN_O] = activation(k, NULL, k->n * k->c);
    k->act[ATTN_DQ] = activation(k, NULL, k->n * k->row);
    reference(k);
}

static void case_finish(struct attn_case *k)
{
    void *all[] = {k->qkv, k->d_o, k->o, k->dqkv, k->lse, k->got_lse, k->dot, k->dq_sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) mem_free(all[i]);
    for (size_t i = 0; i < ATTN_ROLES; i++) mem_free(k->act[i]);
}

static void same(const char *what, const struct attn_case *k, const void *got, bool half, const float *wanted, size_t n,
                 double tol)
{
    char text[128];
    const struct attn_graph_shape *s = &k->s;
    float *values = mem_alloc(n, sizeof *values);
    double *want = case_widen(wanted, n);
    for (size_t i = 0; i < n; i++) values[i] = half ? graph_float(((const uint16_t *)got)[i]) : ((const float *)got)[i];
    snprintf(text, sizeof text, "%s of B%zu T%zu H%zu G%zu hd%zu%s", what, s->batch, s->seq, s->heads, s->kv_heads,
             s->head_dim, s->exact ? " exact" : "");
    case_close(text, values, want, n, tol);
    mem_free(values);
    mem_free(want);
}

static bool has_infinity(const struct attn_graph *graph)
{
    bool found = false;
    for (int i = 0; i < graph->n_tensors; i++) found = found || isinf(graph->tensors[i].value);
    return found;
}

/* low: scores near -100, and the mask of old cuDNN versions */
static void check(const struct attn_graph_shape *shape, bool low)
{
    struct attn_case k = {.s = *shape};
    struct attn_graph forward, backward;
    bool half = shape->type == ATTN_BF16;
    double more = low ? 8 : 1; /* scores of 100 have larger rounding errors */
    case_open(&k, low);
    attn_graph_forward(&forward, shape);
    attn_graph_backward(&backward, shape);
    if (low) attn_graph_finite_mask(&forward);
    if (low) attn_graph_finite_mask(&backward);
    assert_int_equal(has_infinity(&forward), !low);
    assert_int_equal(has_infinity(&backward), !low);
    run(&k, &forward);
    run(&k, &backward);
    same("lse", &k, k.got_lse, false, k.lse, k.stats, 3e-6 * more);
    same("o", &k, k.act[ATTN_O], half, k.o, k.n * k.c, (half ? 4e-3 : 3e-6) * more);
    if (shape->seq > 1) same("dqkv", &k, k.act[ATTN_DQ], half, k.dqkv, k.n * k.row, (half ? 1e-2 : 2e-5) * more);
    case_finish(&k);
}

static const struct attn_graph_shape shapes[] = {
    {.batch = 1, .heads = 1, .kv_heads = 1, .seq = 1, .head_dim = 8},
    {2, 3, 3, 5, 8, false, ATTN_F32, 90},
    {1, 2, 2, 33, 16, false, ATTN_F32, 90},
    {2, 2, 2, 17, 64, false, ATTN_F32, 90},
    {1, 1, 1, 40, 128, false, ATTN_F32, 90},
    {2, 4, 2, 9, 8, false, ATTN_F32, 90},
    {2, 6, 2, 20, 16, false, ATTN_F32, 90},
    {1, 4, 1, 12, 80, false, ATTN_F32, 90},
};

TEST(test_graphs)
{
    struct err err = {0};
    if (device_open("cpu", 1, &cpu, &err) != STATUS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < 6; kind++) {
            struct attn_graph_shape shape = shapes[i];
            shape.exact = kind % 2;
            shape.type = kind / 2 == 1 ? ATTN_BF16 : ATTN_F32;
            check(&shape, kind >= 4);
        }
    device_close(cpu);
    assert_int_equal(mem_live_bytes(), 0);
}

/* The interpreter refuses inconsistent graphs. */
TEST(test_refusals)
{
    const struct attn_graph_shape shape = {.batch = 2, .heads = 2, .kv_heads = 1, .seq = 4, .head_dim = 8};
    float memory_of[ATTN_ROLES][4 * 2 * 4 * 8] = {{0}};
    struct graph_memory memory[ATTN_ROLES];
    struct attn_graph graph;
    struct err err = {0};
    for (int i = 0; i < ATTN_ROLES; i++) memory[i] = (struct graph_memory){memory_of[i], 4 * 2 * 4 * 8};
    attn_graph_forward(&graph, &shape);
    assert_int_equal(graph.n_ops, 14);
    assert_int_equal(graph_run(&graph, memory, &err), STATUS_OK);
    graph.tensors[0].stride[0] *= 8;
    assert_int_equal(graph_run(&graph, memory, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "outside"));
    attn_graph_forward(&graph, &shape);
    graph.tensors[1].dim[2] = 4;
    assert_int_equal(graph_run(&graph, memory, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "fit"));
    attn_graph_forward(&graph, &shape);
    memory[ATTN_V].p = NULL;
    assert_int_equal(graph_run(&graph, memory, &err), STATUS_INVALID);
    for (int exact = 0; exact < 2; exact++)
        for (size_t kv = 1; kv <= 2; kv++) {
            struct attn_graph_shape s = shape;
            s.exact = exact;
            s.kv_heads = kv;
            attn_graph_backward(&graph, &s);
            assert_int_equal(graph.n_ops, (kv == 2 ? 22 : 24) - exact);
            assert_int_equal(attn_graph_scratch(&graph, ATTN_DQ_SUM), exact ? 0 : 2 * 2 * 4 * 8 * 4);
            assert_int_equal(attn_graph_scratch(&graph, ATTN_DOT), 2 * 2 * 4 * 4);
        }
}

TEST_MAIN(NULL, NULL)
