/* Forward and backward passes of a decoder. */
#include <assert.h>
#include <string.h>

#include "compress/half.h"
#include "worker/model/decoder.h"
#include "worker/model/decoder_impl.h"

/* --- what families differ in ------------------------------------------------------------------------------------- */

static void norm_forward(struct model *m, const float *w, const void *x, void *y, const struct norm_stats *stats)
{
    const struct device_ops *ops = m->dev->ops;
    size_t c = m->config.n_embd;
    if (m->kind.rms)
        ops->rms_fwd(m->dev, m->n, c, (float)m->config.norm_eps, x, w, y, stats->rstd);
    else
        ops->norm_fwd(m->dev, m->n, c, x, w, w + c, y, stats->mean, stats->rstd);
}

/* On entry dy holds the gradient of the norm's output; on return dx holds the gradient of the residual stream. `dres`:
 * gradient of the residual path past the norm, which is dx; NULL for the final norm. */
static void norm_backward(struct model *m, const float *w, const void *x, const struct norm_stats *stats,
                          const void *dres, float *dw, bool accumulate)
{
    const struct device_ops *ops = m->dev->ops;
    size_t c = m->config.n_embd;
    if (m->kind.rms)
        ops->rms_bwd(m->dev, m->n, c, m->dy, x, w, stats->rstd, dres, m->dx, dw, accumulate);
    else
        ops->norm_bwd(m->dev, m->n, c, m->dy, x, w, stats->mean, stats->rstd, dres, m->dx, dw, dw + c, accumulate);
}

static void linear_forward(struct model *m, const struct linear *lin, const float *theta, const void *x,
                           const void *res, void *y, void *aux)
{
    const float *w = theta + lin->w;
    m->dev->ops->lin_fwd(m->dev, lin->plan, x, w, lin->bias ? w + lin->bias : NULL, res, y, aux);
}

/* Computes the gradients of weights, bias and input. */
static void linear_backward(struct model *m, const struct linear *lin, const float *theta, float *grad, const void *x,
                            const void *dy, const void *aux, void *dx, bool accumulate)
{
    float *dw = grad + lin->w;
    m->dev->ops->lin_bwd_w(m->dev, lin->plan, x, dy, dw, lin->bias ? dw + lin->bias : NULL, accumulate);
    m->dev->ops->lin_bwd_x(m->dev, lin->plan, dy, theta + lin->w, aux, dx, false);
}

/* Applies rotary positions to queries and keys, or inverts the rotation on their gradients. */
static void rotate(struct model *m, void *qkv, bool back)
{
    if (m->kind.rotary) m->dev->ops->rope(m->dev, &m->rope, m->angles, qkv, back);
}

/* Computes h from y2. GELU is the epilogue of the product `up`. */
static void act_forward(struct model *m, const float *theta, const struct block_acts *b)
{
    linear_forward(m, &m->up, theta, b->y2, NULL, m->kind.gated ? b->z : b->h, m->kind.gated ? NULL : b->z);
    if (m->kind.gated) m->dev->ops->glu_fwd(m->dev, m->n, m->kind.hidden, b->z, b->h);
}

/* Recomputes h from z. */
static void act_recompute(struct model *m, const struct block_acts *b)
{
    if (m->kind.gated)
        m->dev->ops->glu_fwd(m->dev, m->n, m->kind.hidden, b->z, b->h);
    else
        m->dev->ops->act_recompute(m->dev, m->up.plan, b->z, b->h);
}

/* Returns the gradient of z, computed from dx, the gradient of the block's output. */
static const void *act_backward(struct model *m, const float *theta, float *grad, const struct block_acts *b,
                                bool accumulate)
{
    bool gated = m->kind.gated;
    linear_backward(m, &m->down, theta, grad, b->h, m->dx, gated ? NULL : b->z, m->dh, accumulate);
    if (!gated) return m->dh; /* the epilogue of the product applied the derivative of GELU */
    m->dev->ops->glu_bwd(m->dev, m->n, m->kind.hidden, b->z, m->dh, b->z);
    return b->z;
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static uint64_t block_at(const struct model *m, size_t l)
{
    assert(l < m->config.n_layer);
    return m->kind.block0 + model_block_place(&m->config, (uint32_t)l) * m->kind.block_stride;
}

/* theta: the block's parameters. x_next NULL: stop after the activations that backward needs. */
static void block_forward(struct model *m, const struct block_acts *b, const float *theta, void *x_next)
{
    norm_forward(m, theta + m->kind.norm1, b->x, b->y1, &b->stats1);
    linear_forward(m, &m->qkv, theta, b->y1, NULL, b->qkv, NULL);
    rotate(m, b->qkv, false);
    m->dev->ops->attn_fwd(m->dev, m->plan_attn, b->qkv, b->o, b->lse);
    linear_forward(m, &m->proj, theta, b->o, b->x, b->xm, NULL);
    norm_forward(m, theta + m->kind.norm2, b->xm, b->y2, &b->stats2);
    act_forward(m, theta, b);
    if (x_next) linear_forward(m, &m->down, theta, b->h, b->xm, x_next, NULL);
}

/* Writes the output of the final norm to yf. */
static void forward(struct model *m, const float *theta, const int32_t *tokens, const struct model_hooks *hooks)
{
    const struct decoder_kind *kind = &m->kind;
    size_t layers = m->config.n_layer;
    uint64_t all = kind->n_params;
    const float *positions = kind->rotary ? NULL : theta + kind->positions;
    model_needs(m->dev, theta, all, hooks, 0, kind->block0);
    m->dev->ops->embed_fwd(m->dev, m->n, m->seq, m->config.n_embd, tokens, theta + kind->embed, positions,
                           m->blocks[0].x);
    for (size_t l = 0; l < layers; l++) {
        model_needs(m->dev, theta, all, hooks, block_at(m, l), kind->block_stride);
        block_forward(m, &m->blocks[l], theta + block_at(m, l), l + 1 < layers ? m->blocks[l + 1].x : m->x_last);
    }
    model_needs(m->dev, theta, all, hooks, kind->norm, all - kind->norm);
    norm_forward(m, theta + kind->norm, m->x_last, m->yf, &m->statsf);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* Recomputes the activations that the block did not keep. */
static void block_recompute(struct model *m, const struct block_acts *b, const float *theta)
{
    assert(m->uses & MODEL_TRAIN);
    enum model_recompute level = model_recompute_of(m->uses);
    if (level == MODEL_RECOMPUTE_BLOCK) {
        block_forward(m, b, theta, NULL);
        return;
    }
    if (level >= MODEL_RECOMPUTE_ACT) act_recompute(m, b);
    if (level < MODEL_RECOMPUTE_NORM) return;
    norm_forward(m, theta + m->kind.norm1, b->x, b->y1, &b->stats1);
    norm_forward(m, theta + m->kind.norm2, b->xm, b->y2, &b->stats2);
}

/* dx holds the gradient of the block's output on entry and of its input on return. theta, grad: the block's parts. */
static void block_backward(struct model *m, const struct block_acts *b, const float *theta, float *grad,
                           bool accumulate)
{
    const struct decoder_kind *kind = &m->kind;
    const void *dz = act_backward(m, theta, grad, b, accumulate);
    linear_backward(m, &m->up, theta, grad, b->y2, dz, NULL, m->dy, accumulate);
    norm_backward(m, theta + kind->norm2, b->xm, &b->stats2, m->dx, grad + kind->norm2, accumulate);
    linear_backward(m, &m->proj, theta, grad, b->o, m->dx, NULL, m->d_o, accumulate);
    m->dev->ops->attn_bwd(m->dev, m->plan_attn, b->qkv, b->o, b->lse, m->d_o, m->dqkv);
    rotate(m, m->dqkv, true);
    linear_backward(m, &m->qkv, theta, grad, b->y1, m->dqkv, NULL, m->dy, accumulate);
    norm_backward(m, theta + kind->norm1, b->x, &b->stats1, m->dx, grad + kind->norm1, accumulate);
}

static void embed_backward(struct model *m, const int32_t *tokens, float *grad, bool accumulate)
{
    const struct decoder_kind *kind = &m->kind;
    size_t c = m->config.n_embd;
    float *words = grad + kind->embed, *positions = kind->rotary ? NULL : grad + kind->positions;
    /* A tied head has already written its gradient here; without it the gradient starts at zero. */
    if (kind->head != kind->embed && !accumulate) m->dev->ops->fill(m->dev, words, m->config.vocab_size * c, 0);
    m->dev->ops->embed_bwd(m->dev, m->n, m->seq, c, tokens, m->dx, words, positions, accumulate);
}

void decoder_run(struct model *m, const float *theta, const int32_t *tokens, const int32_t *targets, float dscale,
                 float *loss, float *grad, bool accumulate, const struct model_hooks *hooks)
{
    const struct device_ops *ops = m->dev->ops;
    const struct decoder_kind *kind = &m->kind;
    const float *head = theta + kind->head;
    assert(m->uses & (grad ? MODEL_TRAIN : MODEL_LOSS));
    forward(m, theta, tokens, hooks);
    if (!grad) {
        ops->head(m->dev, m->plan_head_loss, m->yf, head, targets, 1, loss, NULL, NULL, false);
        return;
    }
    ops->head(m->dev, m->plan_head_train, m->yf, head, targets, dscale, loss, m->dy, grad + kind->head, accumulate);
    norm_backward(m, theta + kind->norm, m->x_last, &m->statsf, NULL, grad + kind->norm, accumulate);
    model_ready(hooks, kind->norm, kind->n_params - kind->norm);
    for (size_t l = m->config.n_layer; l-- > 0;) {
        const float *at = theta + block_at(m, l);
        /* The shared buffers still hold the activations of the last block. */
        if (l + 1 < m->config.n_layer) block_recompute(m, &m->blocks[l], at);
        block_backward(m, &m->blocks[l], at, grad + block_at(m, l), accumulate);
        model_ready(hooks, block_at(m, l), kind->block_stride);
    }
    embed_backward(m, tokens, grad, accumulate);
    model_ready(hooks, 0, kind->block0);
}

/* --- logits ------------------------------------------------------------------------------------------------------- */

/* Converts n activations in host memory, `act_bytes` each (4: fp32, 2: bf16), to out[n] in fp32. */
static void activations_widen(const void *in, size_t act_bytes, size_t n, float *out)
{
    assert(act_bytes == sizeof(float) || act_bytes == sizeof(uint16_t));
    if (act_bytes == sizeof(float))
        memcpy(out, in, n * sizeof *out);
    else
        bf16_widen(in, n, out);
}

enum status decoder_logits(struct model *m, const float *theta, const int32_t *tokens, size_t first, size_t n,
                           float *out, struct err *err)
{
    const struct device_ops *ops = m->dev->ops;
    size_t c = m->config.n_embd, v = m->config.vocab_size, act = m->dev->act_bytes;
    if (!(m->uses & MODEL_LOGITS) || n > m->n || first > m->n - n)
        return err_set(err, STATUS_INVALID,
                       "logits of rows %zu to %zu of %zu: out of range, or the model was created without MODEL_LOGITS",
                       first, first + n, m->n);
    forward(m, theta, tokens, NULL);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row = (const unsigned char *)m->yf + (first + i) * c * act;
        ops->lin_fwd(m->dev, m->plan_logits, row, theta + m->kind.head, NULL, NULL, m->logits, NULL);
        ops->download(m->dev, m->host_logits, m->logits, v * act);
        TRY(ops->sync(m->dev, err));
        activations_widen(m->host_logits, act, v, out + i * v);
    }
    return STATUS_OK;
}
