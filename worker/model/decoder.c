/* Creation of a decoder: memory, plans, rotary tables. The passes are in worker/model/decoder_pass.c. */
#include "worker/model/decoder.h"

#include <assert.h>
#include <math.h>

#include "common/base/mem.h"
#include "common/base/units.h"
#include "worker/model/decoder_impl.h"

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* All activations lie in one block of device memory. The walk over all buffers runs twice: first to count (base NULL),
 * then to place.
 *
 * train.recompute decides how much of a layer is kept for backward. The rest is recomputed layer by layer in buffers
 * that all layers share. The last layer's forward results are still in these buffers when backward starts. */
struct carve {
    unsigned char *base; /* NULL: only count */
    size_t used;
};

/* Returns the next `bytes`, aligned to MEM_ALIGN; NULL while counting. */
static void *carve_take(struct carve *carve, size_t bytes)
{
    void *piece = carve->base ? carve->base + carve->used : NULL;
    carve->used += (bytes + MEM_ALIGN - 1) & ~(size_t)(MEM_ALIGN - 1);
    return piece;
}

/* Returns a buffer of `bytes` of layer l. A kept buffer and that of layer 0 are taken from `carve`; every other layer
 * shares `first`, the buffer of layer 0. */
static void *carve_layer(struct carve *carve, size_t l, bool kept, void *first, size_t bytes)
{
    return l && !kept ? first : carve_take(carve, bytes);
}

static struct norm_stats carve_stats(struct carve *carve, const struct model *m, size_t l, bool kept,
                                     struct norm_stats first)
{
    size_t rows = m->n * sizeof(float);
    struct norm_stats s = {.rstd = carve_layer(carve, l, kept, first.rstd, rows)};
    if (!m->kind.rms) s.mean = carve_layer(carve, l, kept, first.mean, rows);
    return s;
}

static void carve_block(struct carve *carve, struct model *m, size_t l, size_t act)
{
    const struct block_acts *first = &m->blocks[0];
    struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->uses);
    size_t c = m->n * m->config.n_embd * act, k = m->n * m->kind.kv * act, f = m->n * m->kind.hidden * act;
    bool train = m->uses & MODEL_TRAIN, whole = train && level < MODEL_RECOMPUTE_BLOCK;
    bool norms = train && level < MODEL_RECOMPUTE_NORM, acts = train && level < MODEL_RECOMPUTE_ACT;
    /* Without training the residual stream is updated in place: the block's last product may overwrite its input. */
    b->x = carve_layer(carve, l, train, first->x, c);
    b->y1 = carve_layer(carve, l, norms, first->y1, c);
    b->qkv = carve_layer(carve, l, whole, first->qkv, c + 2 * k);
    b->o = carve_layer(carve, l, whole, first->o, c);
    b->xm = carve_layer(carve, l, whole, first->xm, c);
    b->y2 = carve_layer(carve, l, norms, first->y2, c);
    b->h = carve_layer(carve, l, acts, first->h, f);
    if (m->kind.gated || train) b->z = carve_layer(carve, l, whole, first->z, m->kind.gated ? 2 * f : f);
    b->lse = carve_layer(carve, l, whole, first->lse, m->n * m->config.n_head * sizeof(float));
    b->stats1 = carve_stats(carve, m, l, whole, first->stats1);
    b->stats2 = carve_stats(carve, m, l, whole, first->stats2);
}

static void carve_model(struct model *m, struct carve *carve, size_t act)
{
    size_t c = m->config.n_embd, row = m->n * c * act;
    bool train = m->uses & MODEL_TRAIN;
    for (size_t l = 0; l < m->config.n_layer; l++) carve_block(carve, m, l, act);
    if (m->kind.rotary) m->angles = carve_take(carve, m->seq * (c / m->config.n_head) * sizeof(float));
    m->x_last = train ? carve_take(carve, row) : m->blocks[0].x;
    m->yf = carve_take(carve, row);
    m->statsf = carve_stats(carve, m, 0, true, (struct norm_stats){0});
    if (train) {
        m->dx = carve_take(carve, row);
        m->dy = carve_take(carve, row);
        m->d_o = carve_take(carve, row);
        m->dqkv = carve_take(carve, m->n * (c + 2 * m->kind.kv) * act);
        m->dh = carve_take(carve, m->n * m->kind.hidden * act);
    }
    if (m->uses & MODEL_LOGITS) m->logits = carve_take(carve, m->config.vocab_size * act);
}

/* Bytes that carve_model counts for this kind and shape. All blocks after the first take the same. */
static size_t memory_of(struct model m, size_t act)
{
    struct block_acts blocks[2] = {0};
    struct carve one = {0}, two = {0};
    size_t n_layer = m.config.n_layer;
    m.blocks = blocks;
    m.config.n_layer = 1;
    carve_model(&m, &one, act);
    m.config.n_layer = 2;
    carve_model(&m, &two, act);
    assert(two.used >= one.used);
    return one.used + (n_layer - 1) * (two.used - one.used);
}

static enum status allocate_activations(struct model *m, struct err *err)
{
    size_t act = m->dev->act_bytes;
    struct carve carve = {0};
    carve_model(m, &carve, act);
    size_t counted = carve.used;
    assert(counted == memory_of(*m, act)); /* worker/replica/memory_plan.c plans with this number */
    m->memory = m->dev->ops->alloc(m->dev, carve.used);
    if (!m->memory)
        return err_set(err, STATUS_NOMEM, "no memory for %s of activations on %s: lower train.batch_size",
                       units_bytes((double)carve.used).text, m->dev->name);
    carve = (struct carve){.base = m->memory};
    carve_model(m, &carve, act);
    assert(carve.used == counted);
    return STATUS_OK;
}

static void check_kind(const struct decoder_kind *kind, const struct model_config *config)
{
    uint64_t in_block[] = {kind->norm1, kind->qkv, kind->proj, kind->norm2, kind->up, kind->down};
    for (size_t i = 0; i < sizeof in_block / sizeof *in_block; i++) {
        assert(in_block[i] < kind->block_stride);
        assert(!i || in_block[i - 1] < in_block[i]);
    }
    assert(kind->embed < kind->block0 && kind->positions < kind->block0);
    assert(kind->block0 + config->n_layer * kind->block_stride == kind->norm);
    assert(kind->head == kind->embed || (kind->norm < kind->head && kind->head < kind->n_params));
}

static struct model model_of(const struct model_family *family, const struct model_config *config, size_t batch,
                             size_t seq, unsigned uses)
{
    struct decoder_kind kind = family->kind_of(config);
    check_kind(&kind, config);
    return (struct model){.kind = kind, .config = *config, .batch = batch, .seq = seq, .n = batch * seq, .uses = uses};
}

size_t decoder_memory(const struct model_family *family, const struct model_config *config, size_t act_bytes,
                      size_t batch, size_t seq, unsigned uses)
{
    return memory_of(model_of(family, config, batch, seq, uses), act_bytes);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

void decoder_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses, struct attn_shape *attn,
                    struct head_shape *head)
{
    bool inference = !(uses & MODEL_TRAIN);
    assert(config->n_embd % config->n_head == 0);
    *attn = (struct attn_shape){.batch = batch,
                                .seq = seq,
                                .heads = config->n_head,
                                .head_dim = config->n_embd / config->n_head,
                                .kv_heads = config->n_kv_head,
                                .inference = inference};
    *head = (struct head_shape){.n = batch * seq, .c = config->n_embd, .v = config->vocab_size, .inference = inference};
}

/* The caller sets k, m, act and after_act of `shape`. */
static enum status plan_linear(struct model *m, struct linear *lin, uint64_t w, struct lin_shape shape)
{
    shape.n = m->n;
    shape.bias = m->kind.bias;
    shape.out_in = m->kind.out_in;
    shape.inference = !(m->uses & MODEL_TRAIN);
    lin->w = w;
    lin->bias = m->kind.bias ? shape.k * shape.m : 0;
    return m->dev->ops->lin_plan(m->dev, &shape, &lin->plan);
}

static enum status plan_block(struct model *m)
{
    const struct decoder_kind *kind = &m->kind;
    size_t c = m->config.n_embd, f = kind->hidden, heads = m->config.n_head;
    enum lin_act act = kind->gated ? LIN_ACT_NONE : LIN_ACT_GELU;
    size_t z = kind->gated ? 2 * f : f;
    TRY(plan_linear(m, &m->qkv, kind->qkv, (struct lin_shape){.k = c, .m = c + 2 * kind->kv}));
    TRY(plan_linear(m, &m->proj, kind->proj, (struct lin_shape){.k = c, .m = c}));
    TRY(plan_linear(m, &m->up, kind->up, (struct lin_shape){.k = c, .m = z, .act = act}));
    TRY(plan_linear(m, &m->down, kind->down, (struct lin_shape){.k = f, .m = c, .after_act = !kind->gated}));
    m->rope = (struct rope_shape){
        .n = m->n, .seq = m->seq, .heads = heads + m->config.n_kv_head, .head_dim = c / heads, .ld = c + 2 * kind->kv};
    return STATUS_OK;
}

static enum status plan_all(struct model *m)
{
    struct device *dev = m->dev;
    struct attn_shape attn;
    struct head_shape head;
    TRY(plan_block(m));
    decoder_shapes(&m->config, m->batch, m->seq, m->uses, &attn, &head);
    TRY(dev->ops->attn_plan(dev, &attn, &m->plan_attn));
    if (m->uses & MODEL_TRAIN) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_train));
    head.inference = true;
    if (m->uses & MODEL_LOSS) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_loss));
    struct lin_shape logits = {.n = 1, .k = head.c, .m = head.v, .out_in = true, .inference = true};
    return m->uses & MODEL_LOGITS ? dev->ops->lin_plan(dev, &logits, &m->plan_logits) : STATUS_OK;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Pair i of a head rotates by position * rope_theta^(-2i/hd). Computed in double because fp32 loses the phase at late
 * positions. */
static enum status fill_angles(struct model *m, struct err *err)
{
    size_t hd = m->rope.head_dim, half = hd / 2;
    assert(hd % 2 == 0);
    float *table = mem_alloc(m->seq * hd, sizeof *table);
    if (!table) return err_set(err, STATUS_NOMEM, "no memory for the rotary positions");
    for (size_t i = 0; i < half; i++) {
        double step = pow(m->config.rope_theta, -2.0 * (double)i / (double)hd);
        step = rope_scaling_step(&m->config.rope_scaling, step);
        for (size_t t = 0; t < m->seq; t++) {
            table[t * hd + i] = (float)cos((double)t * step);
            table[t * hd + half + i] = (float)sin((double)t * step);
        }
    }
    m->dev->ops->upload(m->dev, m->angles, table, m->seq * hd * sizeof *table);
    enum status status = m->dev->ops->sync(m->dev, err);
    mem_free(table);
    return status;
}

static enum status fill_model(struct model *m, struct err *err)
{
    if (!m->batch || !m->seq || m->seq > m->config.block_size || !m->uses)
        return err_set(err, STATUS_INVALID,
                       "a model takes at least 1 sequence of 1 to block_size tokens: got %zu sequences of %zu tokens, "
                       "block_size %u",
                       m->batch, m->seq, m->config.block_size);
    m->blocks = mem_alloc(m->config.n_layer, sizeof *m->blocks);
    m->host_logits = mem_alloc(m->config.vocab_size, m->dev->act_bytes);
    if (!m->blocks || !m->host_logits) return err_set(err, STATUS_NOMEM, "no memory for the model");
    enum status status = device_params_plan(m->dev, m->kind.n_params);
    if (status != STATUS_OK)
        return err_set(err, status, "no memory for %llu parameters in bf16 on %s: use train.precision=fp32",
                       (unsigned long long)m->kind.n_params, m->dev->name);
    TRY(allocate_activations(m, err));
    status = plan_all(m);
    if (status != STATUS_OK)
        return err_set(err, status, "cannot plan the model on %s: %s", m->dev->name,
                       status == STATUS_UNSUPPORTED && m->dev->note[0] ? m->dev->note : status_text(status));
    return m->kind.rotary ? fill_angles(m, err) : STATUS_OK;
}

enum status decoder_create(const struct model_family *family, const struct model_config *config, struct device *dev,
                           size_t batch, size_t seq, unsigned uses, struct model **out, struct err *err)
{
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "no memory for the model");
    *m = model_of(family, config, batch, seq, uses);
    m->dev = dev;
    enum status status = fill_model(m, err);
    if (status == STATUS_OK)
        *out = m;
    else
        decoder_destroy(m);
    return status;
}

void decoder_destroy(struct model *m)
{
    if (!m) return;
    const struct device_ops *ops = m->dev->ops;
    void *plans[] = {m->qkv.plan,  m->proj.plan,       m->up.plan,        m->down.plan,
                     m->plan_attn, m->plan_head_train, m->plan_head_loss, m->plan_logits};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) ops->plan_free(m->dev, plans[i]);
    ops->release(m->dev, m->memory);
    mem_free(m->host_logits);
    mem_free(m->blocks);
    mem_free(m);
}
