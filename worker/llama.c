#include "worker/llama.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "worker/decoder.h"

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
    struct decoder d;
    struct llama_offsets at;
    size_t kv;            /* K */
    struct block_acts *blocks; /* host array [n_layer]; without training all share their buffers */
    float *angles;             /* [T,hd] cosines and sines, see device_ops.rope */
    void *x_last;              /* [N,C] stream after the last block */
    float *rstdf;              /* [N] */
    void *dx, *dy, *d_o;       /* [N,C] gradients of the residual stream, of a norm's output, of attention's output */
    void *dqkv, *dh;           /* [N,C+2K], [N,F] */
    struct rope_shape rope;
    struct lin_plan *plan_qkv, *plan_o, *plan_gu, *plan_down;
};

/* --- memory: one walk counts (base NULL), the same walk places ---------------------------------------------------- */

static void carve_block(struct carve *carve, struct model *m, size_t l, size_t act)
{
    const struct block_acts *first = &m->blocks[0];
    struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->d.uses);
    size_t c = m->d.n * m->d.config.n_embd * act, k = m->d.n * m->kv * act, f = m->d.n * m->d.config.ffn * act;
    size_t rows = m->d.n * sizeof(float);
    bool train = m->d.uses & MODEL_TRAIN, whole = train && level < MODEL_AGAIN_BLOCK;
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
    b->lse = carve_layer(carve, l, whole, first->lse, m->d.config.n_head * rows);
    b->rstd1 = carve_layer(carve, l, whole, first->rstd1, rows);
    b->rstd2 = carve_layer(carve, l, whole, first->rstd2, rows);
}

/* blocks[n_layer] may be a scratch array when only the size is wanted. */
static void carve_model(struct model *m, struct carve *carve, size_t act)
{
    size_t n = m->d.n, c = m->d.config.n_embd;
    bool train = m->d.uses & MODEL_TRAIN;
    m->angles = carve_take(carve, m->d.seq * (c / m->d.config.n_head) * sizeof(float));
    for (size_t l = 0; l < m->d.config.n_layer; l++) carve_block(carve, m, l, act);
    m->x_last = train ? carve_take(carve, n * c * act) : m->blocks[0].x;
    m->d.yf = carve_take(carve, n * c * act);
    m->rstdf = carve_take(carve, n * sizeof(float));
    if (train) {
        m->dx = carve_take(carve, n * c * act);
        m->dy = carve_take(carve, n * c * act);
        m->d_o = carve_take(carve, n * c * act);
        m->dqkv = carve_take(carve, n * (c + 2 * m->kv) * act);
        m->dh = carve_take(carve, n * m->d.config.ffn * act);
    }
}

static size_t llama_memory(const struct model_config *config, size_t act_bytes, size_t batch, size_t seq, unsigned uses)
{
    struct block_acts blocks[2] = {0};
    struct model m = {.d = decoder_of(config, batch, seq, uses), .blocks = blocks, .kv = llama_kv_width(config)};
    return decoder_count(&m.d, &m, carve_model, act_bytes);
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

static enum status plan_linear(struct model *m, size_t k, size_t out, struct lin_plan **plan)
{
    struct lin_shape shape = {.n = m->d.n, .k = k, .m = out, .out_in = true, .inference = !(m->d.uses & MODEL_TRAIN)};
    return m->d.dev->ops->lin_plan(m->d.dev, &shape, plan);
}

static enum status make_plans(struct model *m)
{
    size_t c = m->d.config.n_embd, f = m->d.config.ffn, heads = m->d.config.n_head;
    TRY(plan_linear(m, c, c + 2 * m->kv, &m->plan_qkv));
    TRY(plan_linear(m, c, c, &m->plan_o));
    TRY(plan_linear(m, c, 2 * f, &m->plan_gu));
    TRY(plan_linear(m, f, c, &m->plan_down));
    m->rope = (struct rope_shape){.n = m->d.n, .seq = m->d.seq, .heads = heads + m->d.config.n_kv_head,
                                  .head_dim = c / heads, .ld = c + 2 * m->kv};
    return STATUS_OK;
}

/* Pair i of a head turns by position * rope_theta^(-2i/hd); taken in double, as late positions are many turns on. */
static enum status fill_angles(struct model *m, struct err *err)
{
    size_t hd = m->rope.head_dim, half = hd / 2;
    float *table = mem_alloc(m->d.seq * hd, sizeof *table);
    if (!table) return err_set(err, STATUS_NOMEM, "no memory for the rotary positions");
    for (size_t i = 0; i < half; i++) {
        double step = pow(m->d.config.rope_theta, -2.0 * (double)i / (double)hd);
        step = rope_scaling_step(&m->d.config.rope_scaling, step);
        for (size_t t = 0; t < m->d.seq; t++) {
            table[t * hd + i] = (float)cos((double)t * step);
            table[t * hd + half + i] = (float)sin((double)t * step);
        }
    }
    m->d.dev->ops->upload(m->d.dev, m->angles, table, m->d.seq * hd * sizeof *table);
    enum status status = m->d.dev->ops->sync(m->d.dev, err);
    mem_free(table);
    return status;
}

static void llama_destroy(struct model *m)
{
    if (!m) return;
    void *plans[] = {m->plan_qkv, m->plan_o, m->plan_gu, m->plan_down};
    decoder_finish(&m->d, plans, sizeof plans / sizeof *plans);
    mem_free(m->blocks);
    mem_free(m);
}

static enum status fill_model(struct model *m, struct err *err)
{
    m->blocks = mem_alloc(m->d.config.n_layer, sizeof *m->blocks);
    if (!m->blocks) return err_set(err, STATUS_NOMEM, "no memory for the model");
    TRY(decoder_fill(&m->d, m, m->at.n_params, carve_model, make_plans, err));
    return fill_angles(m, err);
}

static enum status llama_create(const struct model_config *config, struct device *dev, size_t batch, size_t seq,
                                unsigned uses, struct model **out, struct err *err)
{
    struct model *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "no memory for the model");
    m->d = decoder_of(config, batch, seq, uses);
    m->d.dev = dev;
    m->at = llama_offsets_of(config);
    m->kv = llama_kv_width(config);
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
    m->d.dev->ops->rms_fwd(m->d.dev, m->d.n, m->d.config.n_embd, (float)m->d.config.norm_eps, x, w, y, rstd);
}

/* x_next NULL: up to what backward needs. */
static void block_forward(struct model *m, size_t l, const float *theta, void *x_next)
{
    const struct device_ops *ops = m->d.dev->ops;
    struct device *dev = m->d.dev;
    const struct block_acts *b = &m->blocks[l];
#define P(j) (theta + place(m, l, j))
    norm_forward(m, b->x, P(LLAMA_NORM1), b->y1, b->rstd1);
    ops->lin_fwd(dev, m->plan_qkv, b->y1, P(LLAMA_Q), NULL, NULL, b->qkv, NULL);
    ops->rope(dev, &m->rope, m->angles, b->qkv, false);
    ops->attn_fwd(dev, m->d.plan_attn, b->qkv, b->o, b->lse);
    ops->lin_fwd(dev, m->plan_o, b->o, P(LLAMA_O), NULL, b->x, b->xm, NULL);
    norm_forward(m, b->xm, P(LLAMA_NORM2), b->y2, b->rstd2);
    ops->lin_fwd(dev, m->plan_gu, b->y2, P(LLAMA_GATE), NULL, NULL, b->gu, NULL);
    ops->glu_fwd(dev, m->d.n, m->d.config.ffn, b->gu, b->h);
    if (x_next) ops->lin_fwd(dev, m->plan_down, b->h, P(LLAMA_DOWN), NULL, b->xm, x_next, NULL);
#undef P
}

/* Leaves the final norm in yf. */
static void forward(struct model *m, const float *theta, const int32_t *tokens, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->d.dev->ops;
    size_t layers = m->d.config.n_layer;
    uint64_t all = m->at.n_params;
    model_needs(m->d.dev, theta, all, hooks, m->at.embed, m->at.block0);
    ops->embed_fwd(m->d.dev, m->d.n, m->d.seq, m->d.config.n_embd, tokens, theta + m->at.embed, NULL, m->blocks[0].x);
    for (size_t l = 0; l < layers; l++) {
        model_needs(m->d.dev, theta, all, hooks, place(m, l, 0), m->at.block_stride);
        block_forward(m, l, theta, l + 1 < layers ? m->blocks[l + 1].x : m->x_last);
    }
    model_needs(m->d.dev, theta, all, hooks, m->at.norm, m->at.n_params - m->at.norm);
    norm_forward(m, m->x_last, theta + m->at.norm, m->d.yf, m->rstdf);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* What block l did not keep. */
static void block_again(struct model *m, size_t l, const float *theta)
{
    const struct block_acts *b = &m->blocks[l];
    enum model_recompute level = model_recompute_of(m->d.uses);
    if (l + 1 == m->d.config.n_layer) return; /* forward came here last: all is in the shared buffers still */
    if (level == MODEL_AGAIN_BLOCK) {
        block_forward(m, l, theta, NULL);
        return;
    }
    if (level >= MODEL_AGAIN_ACT) m->d.dev->ops->glu_fwd(m->d.dev, m->d.n, m->d.config.ffn, b->gu, b->h);
    if (level < MODEL_AGAIN_NORM) return;
    norm_forward(m, b->x, theta + place(m, l, LLAMA_NORM1), b->y1, b->rstd1);
    norm_forward(m, b->xm, theta + place(m, l, LLAMA_NORM2), b->y2, b->rstd2);
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
    ops->lin_bwd_w(dev, m->plan_down, b->h, m->dx, G(LLAMA_DOWN), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_down, m->dx, P(LLAMA_DOWN), NULL, m->dh, false);
    ops->glu_bwd(dev, n, m->d.config.ffn, b->gu, m->dh, b->gu);
    ops->lin_bwd_w(dev, m->plan_gu, b->y2, b->gu, G(LLAMA_GATE), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_gu, b->gu, P(LLAMA_GATE), NULL, m->dy, false);
    ops->rms_bwd(dev, n, c, m->dy, b->xm, P(LLAMA_NORM2), b->rstd2, m->dx, m->dx, G(LLAMA_NORM2), accumulate);
    ops->lin_bwd_w(dev, m->plan_o, b->o, m->dx, G(LLAMA_O), NULL, accumulate);
    ops->lin_bwd_x(dev, m->plan_o, m->dx, P(LLAMA_O), NULL, m->d_o, false);
    ops->attn_bwd(dev, m->d.plan_attn, b->qkv, b->o, b->lse, m->d_o, m->dqkv);
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
    const struct device_ops *ops = m->d.dev->ops;
    struct device *dev = m->d.dev;
    size_t c = m->d.config.n_embd;
    const float *head = theta + m->at.head;
    forward(m, theta, tokens, hooks);
    if (!grad) {
        ops->head(dev, m->d.plan_head_loss, m->d.yf, head, targets, 1, loss, NULL, NULL, false);
        return;
    }
    /* A tied head writes d(embedding) before the embedding adds to it; otherwise that begins at zero. */
    ops->head(dev, m->d.plan_head_train, m->d.yf, head, targets, dscale, loss, m->dy, grad + m->at.head, accumulate);
    ops->rms_bwd(dev, m->d.n, c, m->dy, m->x_last, theta + m->at.norm, m->rstdf, NULL, m->dx, grad + m->at.norm,
                 accumulate);
    model_ready(hooks, m->at.norm, m->at.n_params - m->at.norm);
    for (size_t l = m->d.config.n_layer; l-- > 0;) {
        block_again(m, l, theta);
        block_backward(m, l, theta, grad, accumulate);
        model_ready(hooks, place(m, l, 0), m->at.block_stride);
    }
    if (!m->d.config.tied && !accumulate) ops->fill(dev, grad + m->at.embed, m->d.config.vocab_size * c, 0);
    ops->embed_bwd(dev, m->d.n, m->d.seq, c, tokens, m->dx, grad + m->at.embed, NULL, accumulate);
    model_ready(hooks, m->at.embed, m->at.block0);
}

static enum status llama_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                                float *out, struct err *err)
{
    TRY(decoder_check_rows(&m->d, first, n, err));
    forward(m, theta, tokens, NULL);
    return decoder_logits(&m->d, theta + m->at.head, first, n, out, err);
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
    .shapes = decoder_shapes,
    .memory = llama_memory,
};
