#include "worker/gpt2.h"

#include "common/mem.h"
#include "worker/decoder.h"

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
    struct decoder d;
    struct gpt2_offsets at;
    struct block_acts *blocks; /* host array [n_layer]; without training all share their buffers */
    void *x_last;              /* [N,C] stream after the last block */
    float *meanf, *rstdf;      /* [N] */
    void *dx, *dy, *d_o;       /* [N,C] gradients of the residual stream, of a norm's output, of attention's output */
    void *dqkv, *dh;           /* [N,3C], [N,4C] */
    struct lin_plan *plan_qkv, *plan_proj, *plan_fc, *plan_fcproj;
};

/* --- memory: one walk counts (base NULL), the same walk places ---------------------------------------------------- */

static void carve_block(struct carve *carve, struct model *m, size_t l, size_t act)
{
    const struct block_acts *first = &m->blocks[0];
    struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->d.uses);
    size_t c = m->d.n * m->d.config.n_embd * act, rows = m->d.n * sizeof(float);
    bool train = m->d.uses & MODEL_TRAIN, whole = train && level < MODEL_AGAIN_BLOCK;
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
    b->lse = carve_layer(carve, l, whole, first->lse, m->d.config.n_head * rows);
    b->mean1 = carve_layer(carve, l, whole, first->mean1, rows);
    b->rstd1 = carve_layer(carve, l, whole, first->rstd1, rows);
    b->mean2 = carve_layer(carve, l, whole, first->mean2, rows);
    b->rstd2 = carve_layer(carve, l, whole, first->rstd2, rows);
}

static void carve_model(struct model *m, struct carve *carve, size_t act)
{
    size_t n = m->d.n, c = m->d.config.n_embd;
    bool train = m->d.uses & MODEL_TRAIN;
    for (size_t l = 0; l < m->d.config.n_layer; l++) carve_block(carve, m, l, act);
    m->x_last = train ? carve_take(carve, n * c * act) : m->blocks[0].x;
    m->d.yf = carve_take(carve, n * c * act);
    m->meanf = carve_take(carve, n * sizeof(float));
    m->rstdf = carve_take(carve, n * sizeof(float));
    if (train) {
        m->dx = carve_take(carve, n * c * act);
        m->dy = carve_take(carve, n * c * act);
        m->d_o = carve_take(carve, n * c * act);
        m->dqkv = carve_take(carve, n * 3 * c * act);
        m->dh = carve_take(carve, n * 4 * c * act);
    }
}

static size_t gpt2_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct block_acts blocks[2] = {0};
    struct model m = {.d = decoder_of(config, batch, seq, uses), .blocks = blocks};
    return decoder_count(&m.d, &m, carve_model, act_bytes);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static enum status plan_linear(struct model *m, struct lin_shape shape, struct lin_plan **plan)
{
    shape.n = m->d.n;
    shape.bias = true;
    shape.inference = !(m->d.uses & MODEL_TRAIN);
    return m->d.dev->ops->lin_plan(m->d.dev, &shape, plan);
}

static enum status make_plans(struct model *m)
{
    size_t c = m->d.config.n_embd;
    TRY(plan_linear(m, (struct lin_shape){.k = c, .m = 3 * c}, &m->plan_qkv));
    TRY(plan_linear(m, (struct lin_shape){.k = c, .m = c}, &m->plan_proj));
    TRY(plan_linear(m, (struct lin_shape){.k = c, .m = 4 * c, .act = LIN_ACT_GELU}, &m->plan_fc));
    return plan_linear(m, (struct lin_shape){.k = 4 * c, .m = c, .after_act = true}, &m->plan_fcproj);
}

static void gpt2_destroy(struct model *m)
{
    if (!m) return;
    void *plans[] = {m->plan_qkv, m->plan_proj, m->plan_fc, m->plan_fcproj};
    decoder_finish(&m->d, plans, sizeof plans / sizeof *plans);
    mem_free(m->blocks);
    mem_free(m);
}

static enum status fill_model(struct model *m, struct err *err)
{
    m->blocks = mem_alloc(m->d.config.n_layer, sizeof *m->blocks);
    if (!m->blocks) return err_set(err, STATUS_NOMEM, "no memory for the model");
    return decoder_fill(&m->d, m, m->at.n_params, carve_model, make_plans, err);
}

static enum status gpt2_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                               unsigned uses, struct model **out, struct err *err)
{
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "no memory for the model");
    m->d = decoder_of(config, batch, seq, uses);
    m->d.dev = dev;
    m->at = gpt2_offsets_of(config);
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
    const struct device_ops *ops = m->d.dev->ops;
    struct device *dev = m->d.dev;
    const struct block_acts *b = &m->blocks[l];
    size_t n = m->d.n, c = m->d.config.n_embd;
#define P(j) (theta + place(m, l, j))
    ops->norm_fwd(dev, n, c, b->x, P(GPT2_LN1_W), P(GPT2_LN1_B), b->y1, b->mean1, b->rstd1);
    ops->lin_fwd(dev, m->plan_qkv, b->y1, P(GPT2_QKV_W), P(GPT2_QKV_B), NULL, b->qkv, NULL);
    ops->attn_fwd(dev, m->d.plan_attn, b->qkv, b->o, b->lse);
    ops->lin_fwd(dev, m->plan_proj, b->o, P(GPT2_PROJ_W), P(GPT2_PROJ_B), b->x, b->xm, NULL);
    ops->norm_fwd(dev, n, c, b->xm, P(GPT2_LN2_W), P(GPT2_LN2_B), b->y2, b->mean2, b->rstd2);
    ops->lin_fwd(dev, m->plan_fc, b->y2, P(GPT2_FC_W), P(GPT2_FC_B), NULL, b->h, b->aux);
    if (x_next) ops->lin_fwd(dev, m->plan_fcproj, b->h, P(GPT2_FCPROJ_W), P(GPT2_FCPROJ_B), b->xm, x_next, NULL);
#undef P
}

/* Leaves the final norm in yf. */
static void forward(struct model *m, const float *theta, const int32_t *tokens, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->d.dev->ops;
    size_t layers = m->d.config.n_layer, c = m->d.config.n_embd;
    uint64_t all = m->at.n_params;
    model_needs(m->d.dev, theta, all, hooks, 0, m->at.block0);
    ops->embed_fwd(m->d.dev, m->d.n, m->d.seq, c, tokens, theta + m->at.wte, theta + m->at.wpe, m->blocks[0].x);
    for (size_t l = 0; l < layers; l++) {
        model_needs(m->d.dev, theta, all, hooks, place(m, l, 0), m->at.block_stride);
        block_forward(m, l, theta, l + 1 < layers ? m->blocks[l + 1].x : m->x_last);
    }
    model_needs(m->d.dev, theta, all, hooks, m->at.lnf_w, all - m->at.lnf_w);
    ops->norm_fwd(m->d.dev, m->d.n, c, m->x_last, theta + m->at.lnf_w, theta + m->at.lnf_b, m->d.yf, m->meanf,
                  m->rstdf);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What block l did not keep. */
static void block_again(struct model *m, size_t l, const float *theta)
{
    const struct device_ops *ops = m->d.dev->ops;
    const struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->d.uses);
    size_t n = m->d.n, c = m->d.config.n_embd;
    if (l + 1 == m->d.config.n_layer) return; /* forward came here last: all is in the shared buffers still */
#define P(j) (theta + place(m, l, j))
    if (level == MODEL_AGAIN_BLOCK) {
        block_forward(m, l, theta, NULL);
        return;
    }
    if (level >= MODEL_AGAIN_ACT) ops->act_again(m->d.dev, m->plan_fc, b->aux, b->h);
    if (level < MODEL_AGAIN_NORM) return;
    ops->norm_fwd(m->d.dev, n, c, b->x, P(GPT2_LN1_W), P(GPT2_LN1_B), b->y1, b->mean1, b->rstd1);
    ops->norm_fwd(m->d.dev, n, c, b->xm, P(GPT2_LN2_W), P(GPT2_LN2_B), b->y2, b->mean2, b->rstd2);
#undef P
}

/* dx holds the gradient of the block's output on entry and of its input on return. */
static void block_backward(struct model *m, size_t l, const float *theta, float *grad, bool accumulate)
{
    const struct device_ops *ops = m->d.dev->ops;
    struct device *dev = m->d.dev;
    const struct block_acts *b = &m->blocks[l];
    size_t n = m->d.n, c = m->d.config.n_embd;
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
    ops->attn_bwd(dev, m->d.plan_attn, b->qkv, b->o, b->lse, m->d_o, m->dqkv);
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
    const struct device_ops *ops = m->d.dev->ops;
    struct device *dev = m->d.dev;
    size_t c = m->d.config.n_embd;
    const float *wte = theta + m->at.wte;
    forward(m, theta, tokens, hooks);
    if (!grad) {
        ops->head(dev, m->d.plan_head_loss, m->d.yf, wte, targets, 1, loss, NULL, NULL, false);
        return;
    }
    /* The head writes d(wte) before the embedding adds to it: the two uses of the tied weight. */
    ops->head(dev, m->d.plan_head_train, m->d.yf, wte, targets, dscale, loss, m->dy, grad + m->at.wte, accumulate);
    ops->norm_bwd(dev, m->d.n, c, m->dy, m->x_last, theta + m->at.lnf_w, m->meanf, m->rstdf, NULL, m->dx,
                  grad + m->at.lnf_w, grad + m->at.lnf_b, accumulate);
    model_ready(hooks, m->at.lnf_w, m->at.n_params - m->at.lnf_w);
    for (size_t l = m->d.config.n_layer; l-- > 0;) {
        block_again(m, l, theta);
        block_backward(m, l, theta, grad, accumulate);
        model_ready(hooks, place(m, l, 0), m->at.block_stride);
    }
    ops->embed_bwd(dev, m->d.n, m->d.seq, c, tokens, m->dx, grad + m->at.wte, grad + m->at.wpe, accumulate);
    model_ready(hooks, 0, m->at.block0);
}

static enum status gpt2_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                               float *out, struct err *err)
{
    TRY(decoder_check_rows(&m->d, first, n, err));
    forward(m, theta, tokens, NULL);
    return decoder_logits(&m->d, theta + m->at.wte, first, n, out, err);
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
    .shapes = decoder_shapes,
    .memory = gpt2_memory,
};
