#include "gpu/cuda/cuda_head.h"

#include <assert.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/cuda_plans.h"

enum {
    HEAD_PART = 64,           /* logits in memory at a time take 1/64 of the GPU's memory, */
    HEAD_BYTES = 256 << 20,   /* but at least so many bytes, */
    HEAD_BYTES_MAX = 1 << 30, /* and at most so many */
    HEAD_ROWS = 128           /* chunks of logits have a multiple of so many rows: tiles of matrix products */
};

struct head_gemms { /* products of one chunk of rows */
    size_t rows;
    struct cuda_gemm *logits, *dx, *dwte, *dwte_rest; /* dwte_rest: the last words; NULL: dwte covers all words */
};

struct plan {
    struct cuda_plan base;
    struct head_shape shape;
    size_t ld;
    struct head_gemms whole, rest; /* rest.rows 0: the last chunk is whole */
};

static void gemms_free(struct head_gemms *g)
{
    cuda_rt_gemm_free(g->logits);
    cuda_rt_gemm_free(g->dx);
    cuda_rt_gemm_free(g->dwte);
    cuda_rt_gemm_free(g->dwte_rest);
}

static void free_plan(struct cuda_device *cuda, void *plan)
{
    struct plan *p = plan;
    (void)cuda;
    gemms_free(&p->whole);
    gemms_free(&p->rest);
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
                              struct head_gemms *g)
{
    bool bf16 = cuda->bf16;
    size_t words = head_words(cuda, s), rest = words > s->v && s->v > CUDA_WIDE ? s->v % CUDA_WIDE : 0;
    assert(words >= s->v && words <= ld && rest < s->v);
    struct cuda_gemm_shape logits = {
        .m = rows, .n = words, .k = s->c, .b_trans = true, .ldc = ld, .bf16 = bf16, .bf16_out = bf16};
    struct cuda_gemm_shape dx = {.m = rows, .n = s->c, .k = words, .lda = ld, .bf16 = bf16, .bf16_out = bf16};
    struct cuda_gemm_shape dwte = {.m = s->v - rest, .n = s->c, .k = rows, .lda = ld, .a_trans = true, .bf16 = bf16};
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
    size_t most = cuda->head->most / *row_bytes ? cuda->head->most / *row_bytes : 1;
    size_t rows = blocks_of(s->n, blocks_of(s->n, most));
    size_t whole = blocks_of(rows, HEAD_ROWS) * HEAD_ROWS;
    assert(rows > 0 && rows <= s->n);
    return whole <= most && whole < s->n ? whole : rows;
}

static size_t head_bytes(struct device *dev, const struct head_shape *shape)
{
    size_t ld, row_bytes, rows = head_rows(cuda_of(dev), shape, &ld, &row_bytes), had = cuda_of(dev)->head->bytes;
    return rows * row_bytes > had ? rows * row_bytes - had : 0;
}

static enum status head_fill(struct cuda_device *cuda, struct plan *plan)
{
    const struct head_shape *s = &plan->shape;
    size_t ld, row_bytes, rows = head_rows(cuda, s, &ld, &row_bytes);
    plan->ld = ld;
    assert(ld >= s->v);
    if (rows * row_bytes > cuda->head->bytes) {
        void *logits = cuda_rt_alloc(cuda->rt, rows * row_bytes);
        if (!logits) return STATUS_NOMEM;
        cuda_rt_release(cuda->rt, cuda->head->logits);
        cuda->head->logits = logits;
        cuda->head->bytes = rows * row_bytes;
    }
    TRY(head_gemms(cuda, s, rows, ld, &plan->whole));
    return head_gemms(cuda, s, s->n % rows, ld, &plan->rest);
}

static enum status head_plan(struct device *dev, const struct head_shape *shape, struct head_plan **out)
{
    if (!shape->n || !shape->c || !shape->v) return STATUS_INVALID;
    struct plan *plan = cuda_plan_new(sizeof *plan, free_plan);
    if (!plan) return STATUS_NOMEM;
    plan->shape = *shape;
    struct cuda_device *cuda = cuda_of(dev);
    return cuda_plan_keep(cuda, plan, cuda_plan_refused(cuda, head_fill(cuda, plan)), out);
}

/* dwte of one chunk: all words, or the aligned part and then the last few words. */
static void head_weights(struct cuda_device *cuda, const struct head_gemms *g, const struct head_shape *s,
                         const void *x, float *dwte, bool accumulate)
{
    size_t most = g->dwte_rest ? s->v / CUDA_WIDE * CUDA_WIDE : s->v;
    float *rest = dwte + most * s->c;
    cuda_rt_gemm(cuda->rt, g->dwte,
                 &(struct cuda_gemm_call){.a = cuda->head->logits, .b = x, .c = accumulate ? dwte : NULL, .out = dwte});
    if (g->dwte_rest)
        cuda_rt_gemm(cuda->rt, g->dwte_rest,
                     &(struct cuda_gemm_call){.a = (const char *)cuda->head->logits + most * cuda->base.act_bytes,
                                              .b = x,
                                              .c = accumulate ? rest : NULL,
                                              .out = rest});
}

static void head(struct device *dev, const struct head_plan *plan, const void *x, const float *wte,
                 const int32_t *targets, float dscale, float *loss, void *dx, float *dwte, bool accumulate)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct head_shape *s = &p->shape;
    const void *weights = cuda_weights(cuda, wte);
    size_t row_bytes = s->c * dev->act_bytes;
    assert(p->whole.rows > 0 && p->whole.rows * p->ld * dev->act_bytes <= cuda->head->bytes);
    assert(s->inference == (dx == NULL) && s->inference == (dwte == NULL));
    for (size_t row = 0; row < s->n; row += p->whole.rows) {
        bool whole = s->n - row >= p->whole.rows;
        const struct head_gemms *g = whole ? &p->whole : &p->rest;
        assert(g->rows <= s->n - row);
        const void *in = (const char *)x + row * row_bytes;
        cuda_rt_gemm(cuda->rt, g->logits, &(struct cuda_gemm_call){.a = in, .b = weights, .out = cuda->head->logits});
        LAUNCH(cuda, cuda_xent, g->rows, 1, cuda_xent_args, .v = s->v, .ld = p->ld, .dscale = dscale,
               .loss_only = s->inference, .bf16 = cuda->bf16, .logits = cuda->head->logits, .loss = loss + row,
               .targets = targets + row);
        if (s->inference) continue;
        head_weights(cuda, g, s, in, dwte, accumulate || row > 0);
        cuda_rt_gemm(
            cuda->rt, g->dx,
            &(struct cuda_gemm_call){.a = cuda->head->logits, .b = weights, .out = (char *)dx + row * row_bytes});
    }
}

static size_t head_room(struct cuda_rt *rt)
{
    uint64_t left, total;
    cuda_rt_memory(rt, &left, &total);
    size_t room = total / HEAD_PART < HEAD_BYTES_MAX ? (size_t)(total / HEAD_PART) : HEAD_BYTES_MAX;
    return room > HEAD_BYTES ? room : HEAD_BYTES;
}

enum status cuda_head_open(struct cuda_device *cuda)
{
    cuda->ops.head_plan = head_plan;
    cuda->ops.head_bytes = head_bytes;
    cuda->ops.head = head;
    cuda->head = mem_alloc(1, sizeof *cuda->head);
    if (!cuda->head) return STATUS_NOMEM;
    cuda->head->most = head_room(cuda->rt);
    return STATUS_OK;
}

void cuda_head_close(struct cuda_device *cuda)
{
    if (cuda->head) cuda_rt_release(cuda->rt, cuda->head->logits);
    mem_free(cuda->head);
}
