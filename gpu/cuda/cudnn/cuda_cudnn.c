#include "gpu/cuda/cudnn/cuda_cudnn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

enum {
    ACT_BYTES = 2, /* bf16 */
    ALIGN = 256,
    SCRATCH_MAX = 1 << 30, /* limit for several sequences: more sequences at a time are not faster */
    SCRATCH_SHARE = 8      /* one sequence may use 1/8 of the GPU's memory; it cannot be cut (T*T if exact) */
};

struct cuda_cudnn {
    struct cuda_rt *rt;
    struct cudnn_rt *dnn;
    bool exact;
    size_t scratch_max, single_max; /* bytes; single_max: for one sequence */
};

/* The scratch buffers of a plan, at offsets at[] in its scratch memory. */
enum { PART_DOT, PART_DQ_SUM, PART_LSE, PART_WORKSPACE, PARTS };

struct cuda_cudnn_attn {
    struct cuda_cudnn *owner;
    struct attn_graph_shape each; /* shape of one part of the batch */
    size_t parts, at[PARTS], scratch_bytes;
    bool inference;
    struct cudnn_kernel *forward, *backward;
    unsigned char *scratch;
};

enum status cuda_attention_wish(enum cuda_attention *out, struct err *err)
{
    static const char *const words[] = {"", "plain", "cudnn", "exact"};
    const char *value = getenv("ATOLL_ATTENTION");
    for (int i = 0; i < 4; i++) {
        if (strcmp(value ? value : "", words[i]) != 0) continue;
        *out = (enum cuda_attention)i;
        return STATUS_OK;
    }
    if (!strcmp(value, "own"))
        return err_set(err, STATUS_INVALID,
                       "ATOLL_ATTENTION is \"own\": those kernels are gone: set it to exact, which gives equal bits "
                       "with cuDNN, or to plain");
    return err_set(err, STATUS_INVALID, "ATOLL_ATTENTION is \"%.40s\": set it to exact, cudnn or plain", value);
}

static size_t single_room(struct cuda_rt *rt)
{
    uint64_t left, total;
    cuda_rt_memory(rt, &left, &total);
    return total / SCRATCH_SHARE > SCRATCH_MAX ? (size_t)(total / SCRATCH_SHARE) : SCRATCH_MAX;
}

enum status cuda_cudnn_open(struct cuda_rt *rt, bool exact, size_t scratch_max, struct cuda_cudnn **out, char *name,
                            size_t name_size, struct err *err)
{
    struct cuda_cudnn *dnn = mem_alloc(1, sizeof *dnn);
    if (!dnn) return err_set(err, STATUS_NOMEM, "no memory for cuDNN");
    *dnn = (struct cuda_cudnn){.rt = rt, .exact = exact, .scratch_max = scratch_max ? scratch_max : SCRATCH_MAX};
    dnn->single_max = scratch_max ? scratch_max : single_room(rt);
    enum status status = cudnn_rt_open(rt, &dnn->dnn, name, name_size, err);
    if (status == STATUS_OK)
        *out = dnn;
    else
        mem_free(dnn);
    return status;
}

void cuda_cudnn_close(struct cuda_cudnn *dnn)
{
    if (!dnn) return;
    cudnn_rt_close(dnn->dnn);
    mem_free(dnn);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Estimated scratch bytes of a part with `batch` sequences. */
static size_t estimate(const struct attn_graph_shape *s, bool inference, size_t batch)
{
    struct attn_graph_shape part = *s;
    part.batch = batch;
    size_t rows = batch * s->heads * s->seq, floats = aligned(rows * sizeof(float)); /* lse, or dot */
    if (inference) return floats + ALIGN; /* the workspace of forward is smaller than ALIGN */
    if (!s->exact) floats += aligned(rows * s->head_dim * sizeof(float));
    return floats + aligned(attn_graph_workspace(&part));
}

static size_t room(const struct cuda_cudnn *dnn, size_t batch)
{
    return batch == 1 ? dnn->single_max : dnn->scratch_max;
}

/* The smallest number of equal parts, at least `parts`, whose scratch memory fits. Larger than the batch if none fits.
 * A part begins at a 16-byte boundary, for vector loads. */
static size_t parts_from(const struct cuda_cudnn *dnn, const struct attn_graph_shape *s, bool inference, size_t parts)
{
    for (; parts <= s->batch; parts++) {
        size_t each = s->batch / parts;
        bool loads = parts == 1 || each * s->heads * s->seq * sizeof(float) % 16 == 0;
        if (s->batch % parts == 0 && loads && estimate(s, inference, each) <= room(dnn, each)) break;
    }
    return parts;
}

static struct attn_graph_shape graph_shape(const struct cuda_cudnn *dnn, const struct attn_shape *s)
{
    return (struct attn_graph_shape){.batch = s->batch,
                                     .heads = s->heads,
                                     .seq = s->seq,
                                     .head_dim = s->head_dim,
                                     .kv_heads = s->kv_heads ? s->kv_heads : s->heads,
                                     .exact = dnn->exact,
                                     .capability = cuda_rt_capability(dnn->rt),
                                     .type = ATTN_BF16};
}

static bool supports_heads(const struct attn_shape *s)
{
    return s->head_dim % 8 == 0 && s->head_dim <= 128;
}

size_t cuda_cudnn_attn_bytes(const struct cuda_cudnn *dnn, const struct attn_shape *shape)
{
    struct attn_graph_shape s = graph_shape(dnn, shape);
    size_t parts = parts_from(dnn, &s, shape->inference, 1);
    return supports_heads(shape) && parts <= s.batch ? estimate(&s, shape->inference, s.batch / parts) : 0;
}

/* Compiles the kernels and lays out the scratch memory for parts of each.batch sequences. */
static enum status build(struct cuda_cudnn_attn *p, struct err *err)
{
    struct attn_graph graph;
    size_t most = room(p->owner, p->each.batch), rows = p->each.batch * p->each.heads * p->each.seq;
    size_t sizes[PARTS] = {[PART_LSE] = p->inference ? rows * sizeof(float) : 0}, fixed = 0, forward = 0, backward = 0;
    attn_graph_backward(&graph, &p->each);
    if (!p->inference) sizes[PART_DOT] = attn_graph_scratch(&graph, ATTN_DOT);
    if (!p->inference) sizes[PART_DQ_SUM] = attn_graph_scratch(&graph, ATTN_DQ_SUM);
    for (int i = 0; i < PARTS; i++) fixed += aligned(sizes[i]);
    if (fixed > most) return err_set(err, STATUS_LIMIT, "attention needs %zu bytes of scratch memory", fixed);
    if (!p->inference)
        TRY(cudnn_rt_compile(p->owner->dnn, &graph, most - fixed, p->owner->exact, &p->backward, &backward, err));
    attn_graph_forward(&graph, &p->each);
    TRY(cudnn_rt_compile(p->owner->dnn, &graph, most - fixed, p->owner->exact, &p->forward, &forward, err));
    sizes[PART_WORKSPACE] = forward > backward ? forward : backward;
    p->scratch_bytes = 0;
    for (int i = 0; i < PARTS; i++) {
        p->at[i] = p->scratch_bytes;
        p->scratch_bytes += aligned(sizes[i]);
    }
    return STATUS_OK;
}

static void kernels_free(struct cuda_cudnn_attn *p)
{
    cudnn_rt_free(p->forward);
    cudnn_rt_free(p->backward);
    p->forward = p->backward = NULL;
}

/* Cuts the batch into as few equal parts as the scratch memory allows. */
static enum status build_parts(struct cuda_cudnn_attn *p, struct err *err)
{
    const struct attn_graph_shape whole = p->each;
    const struct cuda_cudnn *dnn = p->owner;
    for (size_t parts = 1; (parts = parts_from(dnn, &whole, p->inference, parts)) <= whole.batch; parts++) {
        p->parts = parts;
        p->each.batch = whole.batch / parts;
        assert(whole.batch % parts == 0);
        enum status status = build(p, err);
        if (status != STATUS_LIMIT) return status;
        kernels_free(p);
    }
    return err_set(err, STATUS_UNSUPPORTED, "attention of one sequence needs more than %zu bytes of scratch memory",
                   dnn->single_max);
}

enum status cuda_cudnn_attn_create(struct cuda_cudnn *dnn, const struct attn_shape *shape, struct cuda_cudnn_attn **out,
                                   struct err *err)
{
    if (!supports_heads(shape))
        return err_set(err, STATUS_UNSUPPORTED, "cuDNN supports heads of 8, 16 .. 128 columns, not %zu",
                       shape->head_dim);
    struct cuda_cudnn_attn *p = mem_alloc(1, sizeof *p);
    if (!p) return err_set(err, STATUS_NOMEM, "no memory for an attention plan");
    p->owner = dnn;
    p->inference = shape->inference;
    p->each = graph_shape(dnn, shape);
    enum status status = build_parts(p, err);
    if (status == STATUS_OK) {
        p->scratch = cuda_rt_alloc(dnn->rt, p->scratch_bytes);
        if (!p->scratch)
            status = err_set(err, STATUS_NOMEM, "the GPU lacks %zu bytes of memory for attention", p->scratch_bytes);
    }
    if (status == STATUS_OK)
        *out = p;
    else
        cuda_cudnn_attn_free(p);
    return status;
}

void cuda_cudnn_attn_free(struct cuda_cudnn_attn *p)
{
    if (!p) return;
    cuda_rt_release(p->owner->rt, p->scratch); /* waits until the device no longer uses it */
    kernels_free(p);
    mem_free(p);
}

size_t cuda_cudnn_attn_parts(const struct cuda_cudnn_attn *p)
{
    return p->parts;
}

size_t cuda_cudnn_attn_scratch(const struct cuda_cudnn_attn *p)
{
    return p->scratch_bytes;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

/* Address of a part of a tensor. cuDNN's interface has no pointers to const; the graph defines which tensors are read
 * only. */
static void *part_address(const struct cuda_cudnn_attn *p, const void *base, size_t part, size_t row, size_t column,
                          size_t size)
{
    size_t rows = part * p->each.batch * p->each.seq;
    assert(part < p->parts);
    return (unsigned char *)(uintptr_t)base + (rows * row + column) * size;
}

/* One call a part of the batch: forward, or with d_o backward. */
static void run(struct cuda_cudnn_attn *p, const void *qkv, const void *o, const float *lse, const void *d_o,
                void *dqkv)
{
    static const enum attn_graph_role roles[] = {ATTN_Q, ATTN_K, ATTN_V, ATTN_DQ, ATTN_DK, ATTN_DV};
    size_t row = (p->each.heads + 2 * p->each.kv_heads) * p->each.head_dim, c = p->each.heads * p->each.head_dim;
    for (size_t part = 0; part < p->parts; part++) {
        void *memory[ATTN_ROLES] = {NULL};
        for (int i = 0; i < (d_o ? 6 : 3); i++)
            memory[roles[i]] =
                part_address(p, i < 3 ? qkv : dqkv, part, row, attn_graph_offset(&p->each, roles[i]), ACT_BYTES);
        memory[ATTN_O] = part_address(p, o, part, c, 0, ACT_BYTES);
        memory[ATTN_LSE] =
            lse ? part_address(p, lse, part, p->each.heads, 0, sizeof(float)) : p->scratch + p->at[PART_LSE];
        if (d_o) {
            memory[ATTN_DO] = part_address(p, d_o, part, c, 0, ACT_BYTES);
            memory[ATTN_DOT] = p->scratch + p->at[PART_DOT];
            memory[ATTN_DQ_SUM] = p->scratch + p->at[PART_DQ_SUM];
        }
        cudnn_rt_run(p->owner->dnn, d_o ? p->backward : p->forward, memory, p->scratch + p->at[PART_WORKSPACE]);
    }
}

void cuda_cudnn_attn_fwd(struct cuda_cudnn_attn *p, const void *qkv, void *o, float *lse)
{
    assert(p->forward && p->parts > 0);
    assert(lse || p->inference);
    run(p, qkv, o, lse, NULL, NULL);
}

void cuda_cudnn_attn_bwd(struct cuda_cudnn_attn *p, const void *qkv, const void *o, const float *lse, const void *d_o,
                         void *dqkv)
{
    assert(p->backward && !p->inference && lse);
    run(p, qkv, o, lse, d_o, dqkv);
}
