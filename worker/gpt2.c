#include "worker/gpt2.h"

#include "common/mem.h"
#include "worker/activations.h"

/* Shapes in comments: N = batch*seq rows, C width, H heads. */

/* What one block's forward pass leaves for its backward pass. Elements a token, by level of recompute: 16C with
 * everything kept, 12C without h, 10C without y1 and y2, C with x alone. */
struct block_acts {
    void *x;             /* [N,C] residual stream entering the block */
    void *y1;            /* [N,C] first norm */
    void *qkv;           /* [N,3C] */
    void *o;             /* [N,C] attention output, heads side by side */
    void *xm;            /* [N,C] residual stream between attention and MLP */
    void *y2;            /* [N,C] second norm */
    void *h;             /* [N,4C] GELU output */
    void *aux;           /* [N,4C] what went into the GELU; NULL without training */
    float *lse;          /* [B,H,T] */
    float *mean1, *rstd1, *mean2, *rstd2; /* [N] */
};

struct model {
    struct model_config config;
    struct gpt2_offsets at;
    struct device *dev;
    size_t batch, seq, n; /* n = batch * seq */
    unsigned uses;
    void *memory;              /* everything below, one piece of device memory */
    struct block_acts *blocks; /* host array [n_layer]; without training all share their buffers */
    void *x_last, *yf;         /* [N,C] stream after the last block, final norm */
    float *meanf, *rstdf;      /* [N] */
    void *dx, *dy, *d_o;       /* [N,C] gradients of the residual stream, of a norm's output, of attention's output */
    void *dqkv, *dh;           /* [N,3C], [N,4C] */
    void *logits;              /* [V], MODEL_LOGITS */
    void *host_logits;         /* [V], host staging when activations are not fp32 */
    struct lin_plan *plan_qkv, *plan_proj, *plan_fc, *plan_fcproj, *plan_logits;
    struct attn_plan *plan_attn;
    struct head_plan *plan_head_train, *plan_head_loss;
};

/* --- memory: one walk counts (base NULL), the same walk places ---------------------------------------------------- */

static void carve_block(struct carve *carve, struct model *m, size_t l, size_t act)
{
    const struct block_acts *first = &m->blocks[0];
    struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->uses);
    size_t c = m->n * m->config.n_embd * act, rows = m->n * sizeof(float);
    bool train = m->uses & MODEL_TRAIN, whole = train && level < MODEL_AGAIN_BLOCK;
    bool norms = train && level < MODEL_AGAIN_NORM, acts = train && level < MODEL_AGAIN_ACT;
    /* Without training the stream goes in place: the block's last layer may write over its input. */
    b->x = carve_layer(carve, l, train, first->x, c);
    b->y1 = carve_layer(carve, l, norms, first->y1, c);
    b->qkv = carve_layer(carve, l, whole, first->qkv, 3 * c);
    b->o = carve_layer(carve, l, whole, first->o, c);
    b->xm = carve_layer(carve, l, whole, first->xm, c);
    b->y2 = carve_layer(carve, l, norms, first->y2, c);
    b->h = carve_layer(carve, l, acts, first->h, 4 * c);
    b->aux = train ? carve_layer(carve, l, whole, first->aux, 4 * c) : NULL;
    b->lse = carve_layer(carve, l, whole, first->lse, m->config.n_head * rows);
    b->mean1 = carve_layer(carve, l, whole, first->mean1, rows);
    b->rstd1 = carve_layer(carve, l, whole, first->rstd1, rows);
    b->mean2 = carve_layer(carve, l, whole, first->mean2, rows);
    b->rstd2 = carve_layer(carve, l, whole, first->rstd2, rows);
}

static void carve_model(struct carve *carve, struct model *m, size_t act)
{
    size_t n = m->n, c = m->config.n_embd;
    bool train = m->uses & MODEL_TRAIN;
    for (size_t l = 0; l < m->config.n_layer; l++) carve_block(carve, m, l, act);
    m->x_last = train ? carve_take(carve, n * c * act) : m->blocks[0].x;
    m->yf = carve_take(carve, n * c * act);
    m->meanf = carve_take(carve, n * sizeof(float));
    m->rstdf = carve_take(carve, n * sizeof(float));
    if (train) {
        m->dx = carve_take(carve, n * c * act);
        m->dy = carve_take(carve, n * c * act);
        m->d_o = carve_take(carve, n * c * act);
        m->dqkv = carve_take(carve, n * 3 * c * act);
        m->dh = carve_take(carve, n * 4 * c * act);
    }
    if (m->uses & MODEL_LOGITS) m->logits = carve_take(carve, m->config.vocab_size * act);
}

/* All layers after the first take the same. */
static size_t gpt2_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct block_acts blocks[2] = {0};
    struct model m = {.config = *config, .n = batch * seq, .uses = uses, .blocks = blocks};
    struct carve one = {0}, two = {0};
    m.config.n_layer = 1;
    carve_model(&one, &m, act_bytes);
    m.config.n_layer = 2;
    carve_model(&two, &m, act_bytes);
    return one.used + (config->n_layer - 1) * (two.used - one.used);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static enum status plan_linear(struct model *m, size_t k, size_t out, enum lin_act act, struct lin_plan **plan)
{
    struct lin_shape shape = {.n = m->n, .k = k, .m = out, .act = act, .bias = true,
                              .inference = !(m->uses & MODEL_TRAIN)};
    return m->dev->ops->lin_plan(m->dev, &shape, plan);
}

static void gpt2_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses,
                        struct attn_shape *attn, struct head_shape *head)
{
    bool inference = !(uses & MODEL_TRAIN);
    *attn = (struct attn_shape){.batch = batch, .seq = seq, .heads = config->n_head,
                                .head_dim = config->n_embd / config->n_head, .inference = inference};
    *head = (struct head_shape){.n = batch * seq, .c = config->n_embd, .v = config->vocab_size,
                                .inference = inference};
}

static enum status make_plans(struct model *m)
{
    struct device *dev = m->dev;
    size_t c = m->config.n_embd, v = m->config.vocab_size;
    bool train = m->uses & MODEL_TRAIN;
    TRY(plan_linear(m, c, 3 * c, LIN_ACT_NONE, &m->plan_qkv));
    TRY(plan_linear(m, c, c, LIN_ACT_NONE, &m->plan_proj));
    TRY(plan_linear(m, c, 4 * c, LIN_ACT_GELU, &m->plan_fc));
    TRY(plan_linear(m, 4 * c, c, LIN_ACT_NONE, &m->plan_fcproj));
    struct attn_shape attn;
    struct head_shape head;
    gpt2_shapes(&m->config, m->batch, m->seq, m->uses, &attn, &head);
    TRY(dev->ops->attn_plan(dev, &attn, &m->plan_attn));
    if (train) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_train));
    head.inference = true;
    if (m->uses & MODEL_LOSS) TRY(dev->ops->head_plan(dev, &head, &m->plan_head_loss));
    struct lin_shape logits = {.n = 1, .k = c, .m = v, .out_in = true, .inference = true};
    if (m->uses & MODEL_LOGITS) TRY(dev->ops->lin_plan(dev, &logits, &m->plan_logits));
    return STATUS_OK;
}

static void gpt2_destroy(struct model *m)
{
    if (!m) return;
    void *plans[] = {m->plan_qkv, m->plan_proj, m->plan_fc, m->plan_fcproj, m->plan_logits, m->plan_attn,
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
    return STATUS_OK;
}

static enum status gpt2_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                               unsigned uses, struct model **out, struct err *err)
{
    if (!batch || !seq || seq > config->block_size || !uses)
        return err_set(err, STATUS_INVALID, "no model of %zu sequences of %zu tokens (block_size %u)", batch, seq,
                       config->block_size);
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "no memory for the model");
    m->config = *config;
    m->at = gpt2_offsets_of(config);
    m->dev = dev;
    m->batch = batch;
    m->seq = seq;
    m->n = batch * seq;
    m->uses = uses;
    enum status status = fill_model(m, err);
    if (status == STATUS_OK)
        *out = m;
    else
        gpt2_destroy(m);
    return status;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Parameter (or gradient) j of block l. */
static uint64_t place(const struct model *m, size_t l, enum gpt2_block_tensor j)
{
    return m->at.block0 + l * m->at.block_stride + m->at.block[j];
}

/* x_next NULL: up to what backward needs. */
static void block_forward(struct model *m, size_t l, const float *theta, void *x_next)
{
    const struct device_ops *ops = m->dev->ops;
    struct device *dev = m->dev;
    const struct block_acts *b = &m->blocks[l];
    size_t n = m->n, c = m->config.n_embd;
#define P(j) (theta + place(m, l, j))
    ops->norm_fwd(dev, n, c, b->x, P(GPT2_LN1_W), P(GPT2_LN1_B), b->y1, b->mean1, b->rstd1);
    ops->lin_fwd(dev, m->plan_qkv, b->y1, P(GPT2_QKV_W), P(GPT2_QKV_B), NULL, b->qkv, NULL);
    ops->attn_fwd(dev, m->plan_attn, b->qkv, b->o, b->lse);
    ops->lin_fwd(dev, m->plan_proj, b->o, P(GPT2_PROJ_W), P(GPT2_PROJ_B), b->x, b->xm, NULL);
    ops->norm_fwd(dev, n, c, b->xm, P(GPT2_LN2_W), P(GPT2_LN2_B), b->y2, b->mean2, b->rstd2);
    ops->lin_fwd(dev, m->plan_fc, b->y2, P(GPT2_FC_W), P(GPT2_FC_B), NULL, b->h, b->aux);
    if (x_next) ops->lin_fwd(dev, m->plan_fcproj, b->h, P(GPT2_FCPROJ_W), P(GPT2_FCPROJ_B), b->xm, x_next, NULL);
#undef P
}

/* Leaves the final norm in yf. */
static void forward(struct model *m, const float *theta, const int32_t *tokens, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->dev->ops;
    size_t layers = m->config.n_layer, c = m->config.n_embd;
    uint64_t all = m->at.n_params;
    model_needs(m->dev, theta, all, hooks, 0, m->at.block0);
    ops->embed_fwd(m->dev, m->n, m->seq, c, tokens, theta + m->at.wte, theta + m->at.wpe, m->blocks[0].x);
    for (size_t l = 0; l < layers; l++) {
        model_needs(m->dev, theta, all, hooks, place(m, l, 0), m->at.block_stride);
        block_forward(m, l, theta, l + 1 < layers ? m->blocks[l + 1].x : m->x_last);
    }
    model_needs(m->dev, theta, all, hooks, m->at.lnf_w, all - m->at.lnf_w);
    ops->norm_fwd(m->dev, m->n, c, m->x_last, theta + m->at.lnf_w, theta + m->at.lnf_b, m->yf, m->meanf, m->rstdf);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What block l did not keep. */
static void block_again(struct model *m, size_t l, const float *theta)
{
    const struct device_ops *ops = m->dev->ops;
    const struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->uses);
    size_t n = m->n, c = m->config.n_embd;
    if (l + 1 == m->config.n_layer) return; /* forward came here last: all is in the shared buffers still */
#define P(j) (theta + place(m, l, j))
    if (level == MODEL_AGAIN_BLOCK) {
        block_forward(m, l, theta, NULL);
        return;
    }
    if (level >= MODEL_AGAIN_ACT) ops->act_again(m->dev, m->plan_fc, b->aux, b->h);
    if (level < MODEL_AGAIN_NORM) return;
    ops->norm_fwd(m->dev, n, c, b->x, P(GPT2_LN1_W), P(GPT2_LN1_B), b->y1, b->mean1, b->rstd1);
    ops->norm_fwd(m->dev, n, c, b->xm, P(GPT2_LN2_W), P(GPT2_LN2_B), b->y2, b->mean2, b->rstd2);
#undef P
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
    ops->lin_bwd_w(dev, m->plan_fcproj, b->h, m->dx, G(GPT2_FCPROJ_W), G(GPT2_FCPROJ_B), accumulate);
    ops->lin_bwd_x(dev, m->plan_fcproj, m->dx, P(GPT2_FCPROJ_W), b->aux, m->dh, false);
    ops->lin_bwd_w(dev, m->plan_fc, b->y2, m->dh, G(GPT2_FC_W), G(GPT2_FC_B), accumulate);
    ops->lin_bwd_x(dev, m->plan_fc, m->dh, P(GPT2_FC_W), NULL, m->dy, false);
    ops->norm_bwd(dev, n, c, m->dy, b->xm, P(GPT2_LN2_W), b->mean2, b->rstd2, m->dx, m->dx, G(GPT2_LN2_W),
                  G(GPT2_LN2_B), accumulate);
    ops->lin_bwd_w(dev, m->plan_proj, b->o, m->dx, G(GPT2_PROJ_W), G(GPT2_PROJ_B), accumulate);
    ops->lin_bwd_x(dev, m->plan_proj, m->dx, P(GPT2_PROJ_W), NULL, m->d_o, false);
    ops->attn_bwd(dev, m->plan_attn, b->qkv, b->o, b->lse, m->d_o, m->dqkv);
    ops->lin_bwd_w(dev, m->plan_qkv, b->y1, m->dqkv, G(GPT2_QKV_W), G(GPT2_QKV_B), accumulate);
    ops->lin_bwd_x(dev, m->plan_qkv, m->dqkv, P(GPT2_QKV_W), NULL, m->dy, false);
    ops->norm_bwd(dev, n, c, m->dy, b->x, P(GPT2_LN1_W), b->mean1, b->rstd1, m->dx, m->dx, G(GPT2_LN1_W),
                  G(GPT2_LN1_B), accumulate);
#undef P
#undef G
}

static void gpt2_run(struct model *m, const float *theta, const int32_t *tokens, const int32_t *targets, float dscale,
                     float *loss, float *grad, bool accumulate, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->dev->ops;
    struct device *dev = m->dev;
    size_t c = m->config.n_embd;
    const float *wte = theta + m->at.wte;
    forward(m, theta, tokens, hooks);
    if (!grad) {
        ops->head(dev, m->plan_head_loss, m->yf, wte, targets, 1, loss, NULL, NULL, false);
        return;
    }
    /* The head writes d(wte) before the embedding adds to it: the two uses of the tied weight. */
    ops->head(dev, m->plan_head_train, m->yf, wte, targets, dscale, loss, m->dy, grad + m->at.wte, accumulate);
    ops->norm_bwd(dev, m->n, c, m->dy, m->x_last, theta + m->at.lnf_w, m->meanf, m->rstdf, NULL, m->dx,
                  grad + m->at.lnf_w, grad + m->at.lnf_b, accumulate);
    model_ready(hooks, m->at.lnf_w, m->at.n_params - m->at.lnf_w);
    for (size_t l = m->config.n_layer; l-- > 0;) {
        block_again(m, l, theta);
        block_backward(m, l, theta, grad, accumulate);
        model_ready(hooks, place(m, l, 0), m->at.block_stride);
    }
    ops->embed_bwd(dev, m->n, m->seq, c, tokens, m->dx, grad + m->at.wte, grad + m->at.wpe, accumulate);
    model_ready(hooks, 0, m->at.block0);
}

static enum status gpt2_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                               float *out, struct err *err)
{
    const struct device_ops *ops = m->dev->ops;
    size_t c = m->config.n_embd, v = m->config.vocab_size, act = m->dev->act_bytes;
    if (!(m->uses & MODEL_LOGITS) || n > m->n || first > m->n - n)
        return err_set(err, STATUS_INVALID, "no logits of rows %zu to %zu of %zu", first, first + n, m->n);
    forward(m, theta, tokens, NULL);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row = (const unsigned char *)m->yf + (first + i) * c * act;
        ops->lin_fwd(m->dev, m->plan_logits, row, theta + m->at.wte, NULL, NULL, m->logits, NULL);
        ops->download(m->dev, m->host_logits, m->logits, v * act);
        TRY(ops->sync(m->dev, err));
        activations_widen(m->host_logits, act, v, out + i * v);
    }
    return STATUS_OK;
}

const struct model_family gpt2_family = {
    .name = "gpt2",
    .n_embeddings = 2,
    .hidden_blocks = gpt2_hidden_blocks,
    .layout = gpt2_layout,
    .config_json = gpt2_config_json,
    .create = gpt2_create,
    .destroy = gpt2_destroy,
    .run = gpt2_run,
    .logits = gpt2_logits,
    .shapes = gpt2_shapes,
    .memory = gpt2_memory,
};
