/* Plans of the CUDA device: products and buffers of an operation for one shape. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/mem.h"

static void head_gemms_free(struct cuda_head_gemms *g)
{
    cuda_rt_gemm_free(g->logits);
    cuda_rt_gemm_free(g->dx);
    cuda_rt_gemm_free(g->dwte);
    cuda_rt_gemm_free(g->dwte_rest);
}

const struct cuda_plan *cuda_plan_of(struct cuda_device *cuda, const void *plan, enum cuda_plan_kind kind)
{
    const struct cuda_plan *p = plan;
    if (p && p->kind == kind) return p;
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "operation called with a plan of another kind");
    return NULL;
}

static void plan_destroy(struct cuda_device *cuda, struct cuda_plan *plan)
{
    switch (plan->kind) {
    case CUDA_PLAN_LIN: cuda_lin_free(plan); break;
    case CUDA_PLAN_ATTN:
        cuda_rt_release(cuda->rt, plan->as.attn.dot);
        cuda_cudnn_attn_free(plan->as.attn.cudnn);
        break;
    case CUDA_PLAN_HEAD:
        head_gemms_free(&plan->as.head.whole);
        head_gemms_free(&plan->as.head.rest);
        break;
    case CUDA_PLAN_DELTA: cuda_rt_release(cuda->rt, plan->as.delta.pieces); break;
    case CUDA_PLAN_MUON: cuda_muon_free(cuda, plan); break;
    }
    mem_free(plan);
}

/* Keeps the plan in the device's list, or destroys it if filling it failed with `status`. */
static enum status plan_keep(struct cuda_device *cuda, struct cuda_plan *plan, enum status status)
{
    assert(!plan->next && plan->kind <= CUDA_PLAN_MUON);
    if (status == STATUS_UNSUPPORTED && plan->kind != CUDA_PLAN_ATTN) /* attn_fill writes its own note */
        snprintf(cuda->base.note, sizeof cuda->base.note, "cuBLASLt has no matrix product for this shape: %.100s",
                 cuda_rt_gemm_refusal(cuda->rt));
    if (status != STATUS_OK) {
        plan_destroy(cuda, plan);
        return status;
    }
    plan->next = cuda->plans;
    cuda->plans = plan;
    return STATUS_OK;
}

void cuda_plans_free(struct cuda_device *cuda)
{
    for (struct cuda_plan *plan = cuda->plans, *next; plan; plan = next) {
        next = plan->next;
        plan_destroy(cuda, plan);
    }
    cuda->plans = NULL;
}

void cuda_op_plan_free(struct device *dev, void *plan)
{
    for (struct cuda_plan **at = &cuda_of(dev)->plans; *at; at = &(*at)->next) {
        if (*at != plan) continue;
        *at = (*at)->next;
        plan_destroy(cuda_of(dev), plan);
        return;
    }
}

enum status cuda_op_lin_plan(struct device *dev, const struct lin_shape *shape, struct lin_plan **out)
{
    if (!shape->n || !shape->k || !shape->m) return STATUS_INVALID;
    struct cuda_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = CUDA_PLAN_LIN;
    plan->as.lin.shape = *shape;
    TRY(plan_keep(cuda_of(dev), plan, cuda_lin_fill(cuda_of(dev), plan)));
    *out = (struct lin_plan *)plan;
    return STATUS_OK;
}

static size_t plain_bytes(const struct attn_shape *s)
{
    return s->inference ? 0 : s->batch * s->heads * s->seq * sizeof(float);
}

size_t cuda_attn_bytes(struct device *dev, const struct attn_shape *shape)
{
    struct cuda_cudnn *cudnn = cuda_of(dev)->cudnn;
    size_t bytes = cudnn ? cuda_cudnn_attn_bytes(cudnn, shape) : 0;
    return bytes ? bytes : plain_bytes(shape);
}

/* The plain loops, if cuDNN is missing or does not support the shape. */
static enum status attn_plain(struct cuda_device *cuda, struct cuda_plan *plan)
{
    const struct attn_shape *s = &plan->as.attn.shape;
    if (s->head_dim > CUDA_ATTN_HEAD_MAX) {
        snprintf(cuda->base.note, sizeof cuda->base.note,
                 "heads of %zu columns (n_embd / n_head): a GPU supports at most %d", s->head_dim, CUDA_ATTN_HEAD_MAX);
        return STATUS_UNSUPPORTED;
    }
    if (s->batch * s->heads > CUDA_GRID_Y_MAX) {
        snprintf(cuda->base.note, sizeof cuda->base.note,
                 "%zu sequences of %zu heads: a GPU supports %d heads in one batch: lower train.batch_size and raise "
                 "train.grad_accum for the same step",
                 s->batch, s->heads, CUDA_GRID_Y_MAX);
        return STATUS_UNSUPPORTED;
    }
    if (s->inference) return STATUS_OK;
    plan->as.attn.dot = cuda_rt_alloc(cuda->rt, plain_bytes(s));
    return plan->as.attn.dot ? STATUS_OK : STATUS_NOMEM;
}

static enum status attn_fill(struct cuda_device *cuda, struct cuda_plan *plan)
{
    assert(plan->kind == CUDA_PLAN_ATTN && plan->as.attn.shape.kv_heads > 0);
    struct err err = {.code = STATUS_OK};
    if (!cuda->cudnn) return attn_plain(cuda, plan);
    enum status status = cuda_cudnn_attn_create(cuda->cudnn, &plan->as.attn.shape, &plan->as.attn.cudnn, &err);
    if (status == STATUS_OK) return status;
    if (status != STATUS_UNSUPPORTED || cuda->attention == CUDA_ATTENTION_CUDNN) {
        snprintf(cuda->base.note, sizeof cuda->base.note, "%.190s", err.msg);
        return status;
    }
    cuda_slow_attention(cuda, err.msg);
    return attn_plain(cuda, plan);
}

enum status cuda_op_attn_plan(struct device *dev, const struct attn_shape *shape, struct attn_plan **out)
{
    struct cuda_device *cuda = cuda_of(dev);
    size_t kv_heads = shape->kv_heads ? shape->kv_heads : shape->heads;
    if (!shape->batch || !shape->seq || !shape->heads || !shape->head_dim || shape->heads % kv_heads)
        return STATUS_INVALID;
    struct cuda_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = CUDA_PLAN_ATTN;
    plan->as.attn.shape = *shape;
    plan->as.attn.shape.kv_heads = kv_heads;
    TRY(plan_keep(cuda, plan, attn_fill(cuda, plan)));
    *out = (struct attn_plan *)plan;
    return STATUS_OK;
}

/* Number of words whose logits are computed. In bf16 the vocabulary is rounded up: fast kernels need sides of 16 bytes
 * (cuBLAS, "Tensor Core Usage"), and GPT-2 has 50257 words. The weights of the extra words are the numbers behind them
 * in the image, which are finite because memory starts as zeros. Their logits are ignored, and the gradients of these
 * logits are zero. */
static size_t head_words(const struct cuda_device *cuda, const struct head_shape *s)
{
    size_t words = blocks_of(s->v, CUDA_WIDE) * CUDA_WIDE;
    return cuda->bf16 && (words - s->v) * s->c <= CUDA_IMAGE_SLACK ? words : s->v;
}

static enum status head_gemms(struct cuda_device *cuda, const struct head_shape *s, size_t rows, size_t ld,
                              struct cuda_head_gemms *g)
{
    bool bf16 = cuda->bf16;
    size_t words = head_words(cuda, s), rest = words > s->v && s->v > CUDA_WIDE ? s->v % CUDA_WIDE : 0;
    assert(words >= s->v && words <= ld && rest < s->v);
    struct cuda_gemm_shape logits = {.m = rows,
                                     .n = words,
                                     .k = s->c,
                                     .lda = s->c,
                                     .ldb = s->c,
                                     .b_trans = true,
                                     .ldc = ld,
                                     .bf16 = bf16,
                                     .bf16_out = bf16};
    struct cuda_gemm_shape dx = {
        .m = rows, .n = s->c, .k = words, .lda = ld, .ldb = s->c, .ldc = s->c, .bf16 = bf16, .bf16_out = bf16};
    struct cuda_gemm_shape dwte = {
        .m = s->v - rest, .n = s->c, .k = rows, .lda = ld, .a_trans = true, .ldb = s->c, .ldc = s->c, .bf16 = bf16};
    g->rows = rows;
    if (!rows) return STATUS_OK;
    TRY(cuda_rt_gemm_create(cuda->rt, &logits, &g->logits));
    if (s->inference) return STATUS_OK;
    TRY(cuda_rt_gemm_create(cuda->rt, &dx, &g->dx));
    TRY(cuda_rt_gemm_create(cuda->rt, &dwte, &g->dwte));
    dwte.m = rest; /* dwte cannot be rounded up: other gradients follow it */
    return rest ? cuda_rt_gemm_create(cuda->rt, &dwte, &g->dwte_rest) : STATUS_OK;
}

/* Rows of one chunk of logits. Chunks have one size and are as few as memory allows, since each chunk reads and writes
 * the gradient of all words (fp32: [derived] 1 GB each way with 128256 words of 2048). A row takes *row_bytes bytes and
 * *ld numbers; *ld is a multiple of 64 for wide loads and fast matrix products. */
static size_t head_rows(const struct cuda_device *cuda, const struct head_shape *s, size_t *ld, size_t *row_bytes)
{
    *ld = (s->v + 63) / 64 * 64;
    *row_bytes = *ld * cuda->base.act_bytes;
    size_t most = cuda->head_bytes / *row_bytes ? cuda->head_bytes / *row_bytes : 1;
    size_t rows = blocks_of(s->n, blocks_of(s->n, most));
    size_t whole = blocks_of(rows, CUDA_HEAD_ROWS) * CUDA_HEAD_ROWS;
    assert(rows > 0 && rows <= s->n);
    return whole <= most && whole < s->n ? whole : rows;
}

size_t cuda_head_bytes(struct device *dev, const struct head_shape *shape)
{
    size_t ld, row_bytes, rows = head_rows(cuda_of(dev), shape, &ld, &row_bytes), had = cuda_of(dev)->logits_bytes;
    return rows * row_bytes > had ? rows * row_bytes - had : 0;
}

static enum status head_fill(struct cuda_device *cuda, struct cuda_plan *plan)
{
    const struct head_shape *s = &plan->as.head.shape;
    size_t ld, row_bytes, rows = head_rows(cuda, s, &ld, &row_bytes);
    plan->as.head.ld = ld;
    assert(plan->kind == CUDA_PLAN_HEAD && ld >= s->v);
    if (rows * row_bytes > cuda->logits_bytes) {
        void *logits = cuda_rt_alloc(cuda->rt, rows * row_bytes);
        if (!logits) return STATUS_NOMEM;
        cuda_rt_release(cuda->rt, cuda->logits);
        cuda->logits = logits;
        cuda->logits_bytes = rows * row_bytes;
    }
    TRY(head_gemms(cuda, s, rows, ld, &plan->as.head.whole));
    return head_gemms(cuda, s, s->n % rows, ld, &plan->as.head.rest);
}

enum status cuda_op_head_plan(struct device *dev, const struct head_shape *shape, struct head_plan **out)
{
    if (!shape->n || !shape->c || !shape->v) return STATUS_INVALID;
    struct cuda_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = CUDA_PLAN_HEAD;
    plan->as.head.shape = *shape;
    TRY(plan_keep(cuda_of(dev), plan, head_fill(cuda_of(dev), plan)));
    *out = (struct head_plan *)plan;
    return STATUS_OK;
}

static enum status delta_fill(struct cuda_device *cuda, struct cuda_plan *plan, const struct piece_range *pieces)
{
    size_t bytes = plan->as.delta.shape.n_pieces * sizeof *pieces;
    assert(plan->kind == CUDA_PLAN_DELTA && bytes > 0);
    plan->as.delta.pieces = cuda_rt_alloc(cuda->rt, bytes);
    if (!plan->as.delta.pieces) return STATUS_NOMEM;
    cuda_rt_copy(cuda->rt, plan->as.delta.pieces, pieces, bytes, CUDA_UPLOAD);
    return cuda_rt_sync(cuda->rt, NULL); /* the caller may free its table */
}

enum status cuda_op_delta_plan(struct device *dev, const struct delta_format *shape, const struct piece_range *pieces,
                               struct delta_plan **out)
{
    if (!shape->n_pieces) return STATUS_INVALID;
    if (shape->kind <= PIECE_HALF && (shape->longest > CUDA_CHUNK_MAX || shape->k_max > CUDA_CHOSEN_MAX))
        return STATUS_UNSUPPORTED;
    struct cuda_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = CUDA_PLAN_DELTA;
    plan->as.delta.shape = *shape;
    TRY(plan_keep(cuda_of(dev), plan, delta_fill(cuda_of(dev), plan, pieces)));
    *out = (struct delta_plan *)plan;
    return STATUS_OK;
}

enum status cuda_op_muon_plan(struct device *dev, const struct muon_matrix *matrices, size_t n, struct muon_plan **out)
{
    struct cuda_plan *plan = mem_alloc(1, sizeof *plan);
    if (!plan) return STATUS_NOMEM;
    plan->kind = CUDA_PLAN_MUON;
    TRY(plan_keep(cuda_of(dev), plan, cuda_muon_fill(cuda_of(dev), plan, matrices, n)));
    *out = (struct muon_plan *)plan;
    return STATUS_OK;
}
