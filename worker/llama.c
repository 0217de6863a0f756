#include "worker/llama.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "worker/activations.h"

/* Shapes in comments: N = batch*seq rows, C width, H heads of hd columns, K the width of all keys, F gated units. */

/* What one block's forward pass leaves for its backward pass. Elements a token, by level of recompute: 6C + 2K + 3F
 * with everything kept, 6C + 2K + 2F without h, 4C + 2K + 2F without y1 and y2, C with x alone. */
struct block_acts {
    void *x;             /* [N,C] residual stream entering the block */
    void *y1;            /* [N,C] first norm */
    void *qkv;           /* [N,C+2K], queries and keys turned to their positions */
    void *o;             /* [N,C] attention output, heads side by side */
    void *xm;            /* [N,C] residual stream between attention and MLP */
    void *y2;            /* [N,C] second norm */
    void *gu;            /* [N,2F] gate | up; in backward their gradients */
    void *h;             /* [N,F] gated units */
    float *lse;          /* [B,H,T] */
    float *rstd1, *rstd2; /* [N] */
};

struct model {
    struct model_config config;
    struct llama_offsets at;
    struct device *dev;
    size_t batch, seq, n; /* n = batch * seq */
    size_t kv;            /* K */
    unsigned uses;
    void *memory;              /* everything below, one piece of device memory */
    struct block_acts *blocks; /* host array [n_layer]; without training all share their buffers */
    float *angles;             /* [T,hd] cosines and sines, see device_ops.rope */
    void *x_last, *yf;         /* [N,C] stream after the last block, final norm */
    float *rstdf;              /* [N] */
    void *dx, *dy, *d_o;       /* [N,C] gradients of the residual stream, of a norm's output, of attention's output */
    void *dqkv, *dh;           /* [N,C+2K], [N,F] */
    void *logits;              /* [V], MODEL_LOGITS */
    void *host_logits;         /* [V], host staging when activations are not fp32 */
    struct rope_shape rope;
    struct lin_plan *plan_qkv, *plan_o, *plan_gu, *plan_down, *plan_logits;
    struct attn_plan *plan_attn;
    struct head_plan *plan_head_train, *plan_head_loss;
};

/* --- memory: one walk counts (base NULL), the same walk places ---------------------------------------------------- */

static void carve_block(struct carve *carve, struct model *m, size_t l, size_t act)
{
    const struct block_acts *first = &m->blocks[0];
    struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->uses);
    size_t c = m->n * m->config.n_embd * act, k = m->n * m->kv * act, f = m->n * m->config.ffn * act;
    size_t rows = m->n * sizeof(float);
    bool train = m->uses & MODEL_TRAIN, whole = train && level < MODEL_AGAIN_BLOCK;
    bool norms = train && level < MODEL_AGAIN_NORM, acts = train && level < MODEL_AGAIN_ACT;
    /* Without training the stream goes in place: the block's last layer may write over its input. */
    b->x = carve_layer(carve, l, train, first->x, c);
    b->y1 = carve_layer(carve, l, norms, first->y1, c);
    b->qkv = carve_layer(carve, l, whole, first->qkv, c + 2 * k);
    b->o = carve_layer(carve, l, whole, first->o, c);
    b->xm = carve_layer(carve, l, whole, first->xm, c);
    b->y2 = carve_layer(carve, l, norms, first->y2, c);
    b->gu = carve_layer(carve, l, whole, first->gu, 2 * f);
    b->h = carve_layer(carve, l, acts, first->h, f);
    b->lse = carve_layer(carve, l, whole, first->lse, m->config.n_head * rows);
    b->rstd1 = carve_layer(carve, l, whole, first->rstd1, rows);
    b->rstd2 = carve_layer(carve, l, whole, first->rstd2, rows);
}

/* blocks[n_layer] may be a scratch array when only the size is wanted. */
static void carve_model(struct carve *carve, struct model *m, size_t act)
{
    size_t n = m->n, c = m->config.n_embd;
    bool train = m->uses & MODEL_TRAIN;
    m->angles = carve_take(carve, m->seq * (c / m->config.n_head) * sizeof(float));
    for (size_t l = 0; l < m->config.n_layer; l++) carve_block(carve, m, l, act);
    m->x_last = train ? carve_take(carve, n * c * act) : m->blocks[0].x;
    m->yf = carve_take(carve, n * c * act);
    m->rstdf = carve_take(carve, n * sizeof(float));
    if (train) {
        m->dx = carve_take(carve, n * c * act);
        m->dy = carve_take(carve, n * c * act);
        m->d_o = carve_take(carve, n * c * act);
        m->dqkv = carve_take(carve, n * (c + 2 * m->kv) * act);
        m->dh = carve_take(carve, n * m->config.ffn * act);
    }
    if (m->uses & MODEL_LOGITS) m->logits = carve_take(carve, m->config.vocab_size * act);
}

static size_t llama_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct model m = {.config = *config, .n = batch * seq, .seq = seq, .kv = llama_kv_width(config), .uses = uses};
    struct block_acts blocks[2] = {0};
    struct carve one = {0}, two = {0};
    m.blocks = blocks;
    m.config.n_layer = 1; /* all layers after the first take the same */
    carve_model(&one, &m, act_bytes);
    m.config.n_layer = 2;
    carve_model(&two, &m, act_bytes);
    return one.used + (config->n_layer - 1) * (two.used - one.used);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static enum status plan_linear(struct model *m, size_t k, size_t out, struct lin_plan **plan)
{
    struct lin_shape shape = {.n = m->n, .k = k, .m = out, .out_in = true, .inference = !(m->uses & MODEL_TRAIN)};
    return m->dev->ops->lin_plan(m->dev, &shape, plan);
}

static void llama_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses,
                         struct attn_shape *attn, struct head_shape *head)
{
    bool inference = !(uses & MODEL_TRAIN);
    *attn = (struct attn_shape){.batch = batch, .seq = seq, .heads = config->n_head,
                                .head_dim = config->n_embd / config->n_head, .kv_heads = config->n_kv_head,
                                .inference = inference};
    *head = (struct head_shape){.n = batch * seq, .c = config->n_embd, .v = config->vocab_size,
                                .inference = inference};
}

static enum status make_plans(struct model *m)
{
    struct device *dev = m->dev;
    size_t c = m->config.n_embd, f = m->config.ffn, v = m->config.vocab_size, heads = m->config.n_head;
    bool train = m->uses & MODEL_TRAIN;
    TRY(plan_linear(m, c, c + 2 * m->kv, &m->plan_qkv));
    TRY(plan_linear(m, c, c, &m->plan_o));
    TRY(plan_linear(m, c, 2 * f, &m->plan_gu));
    TRY(plan_linear(m, f, c, &m->plan_down));
    struct attn_shape attn;
    struct head_shape head;
    llama_shapes(&m->config, m->batch, m->seq, m->uses, &attn, &head);
    TRY(dev->ops->attn_plan(dev, &attn, &m->plan_attn));
    m->rope = (struct rope_shape){.n = m->n, .seq = m->seq, .heads = heads + m->config.n_kv_head,
                                  .head_dim = c / heads, .ld = c + 2 * m->kv};
    if (train) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_train));
    head.inference = true;
    if (m->uses & MODEL_LOSS) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_loss));
    struct lin_shape logits = {.n = 1, .k = c, .m = v, .out_in = true, .inference = true};
    if (m->uses & MODEL_LOGITS) TRY(dev->ops->lin_plan(dev, &logits, &m->plan_logits));
    return STATUS_OK;
}

/* Pair i of a head turns by position * rope_theta^(-2i/hd); taken in double, as late positions are many turns on. */
static enum status fill_angles(struct model *m, struct err *err)
{
    size_t hd = m->rope.head_dim, half = hd / 2;
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

static void llama_destroy(struct model *m)
{
    if (!m) return;
    void *plans[] = {m->plan_qkv, m->plan_o, m->plan_gu, m->plan_down, m->plan_logits, m->plan_attn,
                     m->plan_head_train, m->plan_head_loss};
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) m->dev->ops->plan_free(m->dev, plans[i]);
    m->dev->ops->release(m->dev, m->memory);
    mem_free(m->blocks);
    mem_free(m->host_logits);
    mem_free(m);
}

static enum status fill_model(struct model *m, struct err *err)
{
    size_t act = m->dev->act_bytes;
    m->blocks = mem_alloc(m->config.n_layer, sizeof *m->blocks);
    m->host_logits = mem_alloc(m->config.vocab_size, act);
    if (!m->blocks || !m->host_logits) return err_set(err, STATUS_NOMEM, "no memory for the model");
    struct carve carve = {0};
    enum status status = m->dev->ops->params_plan(m->dev, m->at.n_params);
    if (status != STATUS_OK)
        return err_set(err, status, "no memory for %llu parameters in bf16 on %s",
                       (unsigned long long)m->at.n_params, m->dev->name);
    carve_model(&carve, m, act);
    m->memory = m->dev->ops->alloc(m->dev, carve.used);
    if (!m->memory)
        return err_set(err, STATUS_NOMEM, "no memory for activations: %zu MiB on %s; lower train.batch_size",
                       carve.used >> 20, m->dev->name);
    carve = (struct carve){.base = m->memory};
    carve_model(&carve, m, act);
    status = make_plans(m);
    if (status != STATUS_OK) return err_set(err, status, "cannot plan the model: %s", status_text(status));
    return fill_angles(m, err);
}

static enum status llama_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                                unsigned uses, struct model **out, struct err *err)
{
    if (!batch || !seq || seq > config->block_size || !uses)
        return err_set(err, STATUS_INVALID, "no model of %zu sequences of %zu tokens (block_size %u)", batch, seq,
                       config->block_size);
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "no memory for the model");
    m->config = *config;
    m->at = llama_offsets_of(config);
    m->dev = dev;
    m->batch = batch;
    m->seq = seq;
    m->n = batch * seq;
    m->kv = llama_kv_width(config);
    m->uses = uses;
    enum status status = fill_model(m, err);
    if (status == STATUS_OK)
        *out = m;
    else
        llama_destroy(m);
    return status;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Parameter (or gradient) j of block l. */
static uint64_t place(const struct model *m, size_t l, enum llama_block_tensor j)
{
    return m->at.block0 + l * m->at.block_stride + m->at.block[j];
}

static void norm_forward(struct model *m, const void *x, const float *w, void *y, float *rstd)
{
    m->dev->ops->rms_fwd(m->dev, m->n, m->config.n_embd, (float)m->config.norm_eps, x, w, y, rstd);
}

/* x_next NULL: up to what backward needs. */
static void block_forward(struct model *m, size_t l, const float *theta, void *x_next)
{
    const struct device_ops *ops = m->dev->ops;
    struct device *dev = m->dev;
    const struct block_acts *b = &m->blocks[l];
#define P(j) (theta + place(m, l, j))
    norm_forward(m, b->x, P(LLAMA_NORM1), b->y1, b->rstd1);
    ops->lin_fwd(dev, m->plan_qkv, b->y1, P(LLAMA_Q), NULL, NULL, b->qkv, NULL);
    ops->rope(dev, &m->rope, m->angles, b->qkv, false);
    ops->attn_fwd(dev, m->plan_attn, b->qkv, b->o, b->lse);
    ops->lin_fwd(dev, m->plan_o, b->o, P(LLAMA_O), NULL, b->x, b->xm, NULL);
    norm_forward(m, b->xm, P(LLAMA_NORM2), b->y2, b->rstd2);
    ops->lin_fwd(dev, m->plan_gu, b->y2, P(LLAMA_GATE), NULL, NULL, b->gu, NULL);
    ops->glu_fwd(dev, m->n, m->config.ffn, b->gu, b->h);
    if (x_next) ops->lin_fwd(dev, m->plan_down, b->h, P(LLAMA_DOWN), NULL, b->xm, x_next, NULL);
#undef P
}

/* Leaves the final norm in yf. */
static void forward(struct model *m, const float *theta, const int32_t *tokens, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->dev->ops;
    size_t layers = m->config.n_layer;
    uint64_t all = m->at.n_params;
    model_needs(m->dev, theta, all, hooks, m->at.embed, m->at.block0);
    ops->embed_fwd(m->dev, m->n, m->seq, m->config.n_embd, tokens, theta + m->at.embed, NULL, m->blocks[0].x);
    for (size_t l = 0; l < layers; l++) {
        model_needs(m->dev, theta, all, hooks, place(m, l, 0), m->at.block_stride);
        block_forward(m, l, theta, l + 1 < layers ? m->blocks[l + 1].x : m->x_last);
    }
    model_needs(m->dev, theta, all, hooks, m->at.norm, m->at.n_params - m->at.norm);
    norm_forward(m, m->x_last, theta + m->at.norm, m->yf, m->rstdf);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What block l did not keep. */
static void block_again(struct model *m, size_t l, const float *theta)
{
    const struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->uses);
    if (l + 1 == m->config.n_layer) return; /* forward came here last: all is in the shared buffers still */
    if (level == MODEL_AGAIN_BLOCK) {
        block_forward(m, l, theta, NULL);
        return;
    }
    if (level >= MODEL_AGAIN_ACT) m->dev->ops->glu_fwd(m->dev, m->n, m->config.ffn, b->gu, b->h);
    if (level < MODEL_AGAIN_NORM) return;
    norm_forward(m, b->x, theta + place(m, l, LLAMA_NORM1), b->y1, b->rstd1);
    norm_forward(m, b->xm, theta + place(m, l, LLAMA_NORM2), b->y2, b->rstd2);
}

/* dx holds the gradient of the block's output on entry and of its input on return. */
static void block_backward(struct model *m, size_t l, const float *theta, float *grad, bool accumulate)
{
    const struct device_ops *ops = m->dev->ops;
    struct device *dev = m->dev;
    const struct block_acts *b = &m->blocks[l];
    size_t n = m->n, c = m->config.n_embd;
#define P(j) (theta + place(m, l, j))
#define G(j) (grad + place(m, l, j))
    ops->lin_bwd_w(dev, m->plan_down, b->h, m->dx, G(LLAMA_DOWN), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_down, m->dx, P(LLAMA_DOWN), NULL, m->dh, false);
    ops->glu_bwd(dev, n, m->config.ffn, b->gu, m->dh, b->gu);
    ops->lin_bwd_w(dev, m->plan_gu, b->y2, b->gu, G(LLAMA_GATE), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_gu, b->gu, P(LLAMA_GATE), NULL, m->dy, false);
    ops->rms_bwd(dev, n, c, m->dy, b->xm, P(LLAMA_NORM2), b->rstd2, m->dx, m->dx, G(LLAMA_NORM2), accumulate);
    ops->lin_bwd_w(dev, m->plan_o, b->o, m->dx, G(LLAMA_O), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_o, m->dx, P(LLAMA_O), NULL, m->d_o, false);
    ops->attn_bwd(dev, m->plan_attn, b->qkv, b->o, b->lse, m->d_o, m->dqkv);
    ops->rope(dev, &m->rope, m->angles, m->dqkv, true);
    ops->lin_bwd_w(dev, m->plan_qkv, b->y1, m->dqkv, G(LLAMA_Q), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_qkv, m->dqkv, P(LLAMA_Q), NULL, m->dy, false);
    ops->rms_bwd(dev, n, c, m->dy, b->x, P(LLAMA_NORM1), b->rstd1, m->dx, m->dx, G(LLAMA_NORM1), accumulate);
#undef P
#undef G
}

static void llama_run(struct model *m, const float *theta, const int32_t *tokens, const int32_t *targets, float dscale,
                      float *loss, float *grad, bool accumulate, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->dev->ops;
    struct device *dev = m->dev;
    size_t c = m->config.n_embd;
    const float *head = theta + m->at.head;
    forward(m, theta, tokens, hooks);
    if (!grad) {
        ops->head(dev, m->plan_head_loss, m->yf, head, targets, 1, loss, NULL, NULL, false);
        return;
    }
    /* A tied head writes d(embedding) before the embedding adds to it; otherwise that begins at zero. */
    ops->head(dev, m->plan_head_train, m->yf, head, targets, dscale, loss, m->dy, grad + m->at.head, accumulate);
    ops->rms_bwd(dev, m->n, c, m->dy, m->x_last, theta + m->at.norm, m->rstdf, NULL, m->dx, grad + m->at.norm,
                 accumulate);
    model_ready(hooks, m->at.norm, m->at.n_params - m->at.norm);
    for (size_t l = m->config.n_layer; l-- > 0;) {
        block_again(m, l, theta);
        block_backward(m, l, theta, grad, accumulate);
        model_ready(hooks, place(m, l, 0), m->at.block_stride);
    }
    if (!m->config.tied && !accumulate) ops->fill(dev, grad + m->at.embed, m->config.vocab_size * c, 0);
    ops->embed_bwd(dev, m->n, m->seq, c, tokens, m->dx, grad + m->at.embed, NULL, accumulate);
    model_ready(hooks, m->at.embed, m->at.block0);
}

static enum status llama_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                                float *out, struct err *err)
{
    const struct device_ops *ops = m->dev->ops;
    size_t c = m->config.n_embd, v = m->config.vocab_size, act = m->dev->act_bytes;
    if (!(m->uses & MODEL_LOGITS) || n > m->n || first > m->n - n)
        return err_set(err, STATUS_INVALID, "no logits of rows %zu to %zu of %zu", first, first + n, m->n);
    forward(m, theta, tokens, NULL);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row = (const unsigned char *)m->yf + (first + i) * c * act;
        ops->lin_fwd(m->dev, m->plan_logits, row, theta + m->at.head, NULL, NULL, m->logits, NULL);
        ops->download(m->dev, m->host_logits, m->logits, v * act);
        TRY(ops->sync(m->dev, err));
        activations_widen(m->host_logits, act, v, out + i * v);
    }
    return STATUS_OK;
}

const struct model_family llama_family = {
    .name = "llama",
    .n_embeddings = 1,
    .hidden_blocks = llama_hidden_blocks,
    .layout = llama_layout,
    .config_json = llama_config_json,
    .create = llama_create,
    .destroy = llama_destroy,
    .run = llama_run,
    .logits = llama_logits,
    .shapes = llama_shapes,
    .memory = llama_memory,
};
