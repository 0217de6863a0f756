#include "cli/plan/plan_box.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/minmax.h"
#include "common/config/sync_points.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/outer_memory.h"

/* The context of CUDA, NCCL's buffers and workspaces of cuBLAS. */
static const uint64_t reserve_bytes = (uint64_t)2 << 30;

enum {
    FP32 = sizeof(float),
    MOMENTS = 2,         /* of AdamW, in fp32 */
    LOSS_COPIES = 3,     /* cross entropy in fp32: log-probabilities and two gradients */
    NORMS = 2,           /* of a layer */
    MLP_GATED = 4,       /* tensors of the MLP's width that the gradient needs: gate, silu, up, product */
    MLP_GELU = 5,        /* input, cube's input, tanh, half of the input, product */
    MLP_GELU_WIDTH = 4,  /* width of GPT-2's MLP over n_embd */
    GATHERED_LAYERS = 2, /* the one that is computed, and the next one on its way */
};

const char *plan_way_name(enum plan_way way)
{
    static const char *const names[PLAN_WAYS] = {"DDP", "FSDP2", "LoRA", "LoRA on FSDP2"};
    assert(way < PLAN_WAYS);
    return names[way];
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* Whether the tensor belongs to the first layer, by the names of Hugging Face. */
static bool in_first_layer(const char *name)
{
    return strstr(name, "layers.0.") || !strncmp(name, "h.0.", strlen("h.0.")) || strstr(name, ".h.0.");
}

static void count_parameters(struct plan_box_memory *m, const struct layout *layout, uint32_t n_layer, uint32_t rank)
{
    uint64_t ends = 0; /* rows and columns of the first layer's matrices */
    m->layer = 0;
    for (uint32_t i = 0; i < layout->n_tensors; i++) {
        const struct tensor *t = &layout->tensors[i];
        if (!in_first_layer(t->name)) continue;
        m->layer += t->count;
        if (t->ndim == 2) ends += t->shape[0] + t->shape[1];
    }
    assert(m->layer * n_layer <= layout->n_params);
    m->root = layout->n_params - m->layer * n_layer;
    m->adapters = ends * rank * n_layer;
}

/* --- a GPU -------------------------------------------------------------------------------------------------------- */

/* What a step needs of the model, per token and in bytes: with scaled dot-product attention, RMSNorm computed in fp32,
 * and products in elements of `element` bytes. */
struct step_bytes {
    uint64_t norm, layer, boundary, logits;
};

static struct step_bytes step_bytes_of(const struct config *c, uint64_t element)
{
    uint64_t width = c->model.n_embd, ffn = c->model.ffn, heads = c->model.n_head;
    uint64_t kv = width / heads * (c->model.n_kv_head ? c->model.n_kv_head : heads);
    uint64_t mlp = ffn ? MLP_GATED * ffn : MLP_GELU * MLP_GELU_WIDTH * width;
    struct step_bytes s = {
        .norm = (FP32 + 2 * element) * width, /* the input in fp32, the normalized one, the result */
        .boundary = element * width,
        .logits = (element + LOSS_COPIES * FP32) * c->model.vocab_size,
    };
    /* Beside the norms: queries and attention's result, keys and values, the MLP. */
    s.layer = NORMS * s.norm + element * (2 * width + 2 * kv + mlp);
    return s;
}

static uint64_t share_of(uint64_t parameters, uint32_t gpus)
{
    return (parameters + gpus - 1) / gpus;
}

/* Copies during a step of FSDP2: the root stays gathered, layers come and go. Gradients of trained parameters are whole
 * until the reduce-scatter, which works in fp32. */
static uint64_t gathered_bytes(const struct plan_box_memory *m, uint64_t element, bool trained)
{
    uint64_t weights = element * (m->root + GATHERED_LAYERS * m->layer);
    uint64_t gradients = element * (m->root + m->layer) + FP32 * max_u64(m->root, m->layer);
    return trained ? weights + gradients : weights;
}

static void fill_model(struct plan_gpu *g, const struct plan_box_memory *m, enum plan_way way, uint64_t params,
                       uint32_t gpus, uint64_t element)
{
    bool sharded = way == PLAN_WAY_FSDP2 || way == PLAN_WAY_LORA_FSDP2;
    bool lora = way == PLAN_WAY_LORA || way == PLAN_WAY_LORA_FSDP2;
    uint64_t trained = share_of(lora ? m->adapters : params, sharded ? gpus : 1);
    uint64_t base = lora ? share_of(params, sharded ? gpus : 1) : 0;
    g->bytes[PLAN_GPU_PARAMS] = FP32 * trained + element * base;
    g->bytes[PLAN_GPU_GRADIENTS] = FP32 * trained * (sharded ? 1 : 2); /* DDP: its buckets */
    g->bytes[PLAN_GPU_MOMENTS] = MOMENTS * FP32 * trained;
    if (sharded)
        g->bytes[PLAN_GPU_IN_USE] = gathered_bytes(m, element, !lora);
    else if (element < FP32) /* autocast keeps a copy of each weight */
        g->bytes[PLAN_GPU_IN_USE] = element * trained;
}

static void fill_step(struct plan_gpu *g, const struct step_bytes *s, uint32_t layers, uint64_t tokens)
{
    uint64_t kept = g->recompute ? layers * s->boundary + s->layer : layers * s->layer;
    g->bytes[PLAN_GPU_ACTIVATIONS] = (kept + s->norm) * tokens;
    g->bytes[PLAN_GPU_LOGITS] = s->logits * tokens;
    g->bytes[PLAN_GPU_RESERVE] = reserve_bytes;
    g->total = 0;
    for (int c = 0; c < PLAN_GPU_CLASSES; c++) g->total += g->bytes[c];
}

/* --- the host ----------------------------------------------------------------------------------------------------- */

static enum status fill_host(struct plan_box_memory *m, const struct config *c, const struct layout *layout,
                             uint32_t workers, struct err *err)
{
    struct replica_outer outer;
    TRY(outer_memory_bytes(&outer, c, layout, workers, true, err));
    m->theta = outer.host.anchor;
    m->change = outer.host.residual + (outer_loop_adds(c) ? 0 : FP32 * layout->n_params);
    m->messages = outer.host.messages;
    m->inbox = outer.inbox;
    m->host = m->theta + m->change + m->messages + m->inbox;
    m->saved = outer.host.anchor + outer.host.residual + MOMENTS * FP32 * layout->n_params;
    return STATUS_OK;
}

void plan_box_add_payload(struct plan_box_memory *m, const struct config *c, uint64_t payload)
{
    m->saved += payload;
    m->copy = config_saves_auto(c) || sync_overlaps(c) || c->train.method == METHOD_ASYNC ? m->saved : 0;
}

enum status plan_box_make(struct plan_box_memory *m, const struct plan_box *box, const struct config *c,
                          const struct layout *layout, uint32_t workers, struct err *err)
{
    uint64_t element = c->train.precision == PRECISION_BF16 ? 2 : FP32;
    uint64_t gpu_bytes = (uint64_t)(box->gpu_gib * (1 << 30));
    struct step_bytes step = step_bytes_of(c, element);
    if (c->train.batch_size % box->gpus)
        return err_set(err, STATUS_INVALID,
                       "train.batch_size is %u, for all GPUs of a box: give a multiple of --gpus %u",
                       c->train.batch_size, box->gpus);
    uint64_t tokens = (uint64_t)c->train.batch_size / box->gpus * c->model.block_size;
    *m = (struct plan_box_memory){0};
    count_parameters(m, layout, c->model.n_layer, box->lora_rank);
    for (int way = 0; way < PLAN_WAYS; way++) {
        struct plan_gpu *g = &m->ways[way];
        fill_model(g, m, (enum plan_way)way, layout->n_params, box->gpus, element);
        g->recompute = c->train.recompute != RECOMPUTE_NONE && c->train.recompute != RECOMPUTE_AUTO;
        fill_step(g, &step, c->model.n_layer, tokens);
        if (g->total > gpu_bytes && c->train.recompute == RECOMPUTE_AUTO) {
            g->recompute = true;
            fill_step(g, &step, c->model.n_layer, tokens);
        }
        g->fits = g->total <= gpu_bytes;
    }
    return fill_host(m, c, layout, workers, err);
}
