#include "worker/decoder.h"

#include "common/mem.h"

struct decoder decoder_of(const struct model_config *config, size_t batch, size_t seq, unsigned uses)
{
    return (struct decoder){.config = *config, .batch = batch, .seq = seq, .n = batch * seq, .uses = uses};
}

static void carve_all(struct decoder *d, struct model *m, decoder_walk_fn walk, struct carve *carve, size_t act)
{
    walk(m, carve, act);
    if (d->uses & MODEL_LOGITS) d->logits = carve_take(carve, d->config.vocab_size * act);
}

size_t decoder_count(struct decoder *d, struct model *m, decoder_walk_fn walk, size_t act)
{
    size_t layers = d->config.n_layer;
    struct carve one = {0}, two = {0};
    d->config.n_layer = 1;
    carve_all(d, m, walk, &one, act);
    d->config.n_layer = 2;
    carve_all(d, m, walk, &two, act);
    d->config.n_layer = (uint32_t)layers;
    return one.used + (layers - 1) * (two.used - one.used);
}

void decoder_shapes(const struct model_config *config, size_t batch, size_t seq, unsigned uses,
                    struct attn_shape *attn, struct head_shape *head)
{
    bool inference = !(uses & MODEL_TRAIN);
    *attn = (struct attn_shape){.batch = batch, .seq = seq, .heads = config->n_head,
                                .head_dim = config->n_embd / config->n_head, .kv_heads = config->n_kv_head,
                                .inference = inference};
    *head = (struct head_shape){.n = batch * seq, .c = config->n_embd, .v = config->vocab_size,
                                .inference = inference};
}

static enum status make_plans(struct decoder *d)
{
    struct device *dev = d->dev;
    struct attn_shape attn;
    struct head_shape head;
    decoder_shapes(&d->config, d->batch, d->seq, d->uses, &attn, &head);
    TRY(dev->ops->attn_plan(dev, &attn, &d->plan_attn));
    if (d->uses & MODEL_TRAIN) TRY(dev->ops->head_plan(dev, &head, &d->plan_head_train));
    head.inference = true;
    if (d->uses & MODEL_LOSS) TRY(dev->ops->head_plan(dev, &head, &d->plan_head_loss));
    struct lin_shape logits = {.n = 1, .k = head.c, .m = head.v, .out_in = true, .inference = true};
    return d->uses & MODEL_LOGITS ? dev->ops->lin_plan(dev, &logits, &d->plan_logits) : STATUS_OK;
}

static enum status take_memory(struct decoder *d, struct model *m, decoder_walk_fn walk, struct err *err)
{
    size_t act = d->dev->act_bytes;
    struct carve carve = {0};
    carve_all(d, m, walk, &carve, act);
    d->memory = d->dev->ops->alloc(d->dev, carve.used);
    if (!d->memory)
        return err_set(err, STATUS_NOMEM, "no memory for activations: %zu MiB on %s; lower train.batch_size",
                       carve.used >> 20, d->dev->name);
    carve = (struct carve){.base = d->memory};
    carve_all(d, m, walk, &carve, act);
    return STATUS_OK;
}

enum status decoder_fill(struct decoder *d, struct model *m, uint64_t n_params, decoder_walk_fn walk,
                         decoder_plan_fn plan, struct err *err)
{
    if (!d->batch || !d->seq || d->seq > d->config.block_size || !d->uses)
        return err_set(err, STATUS_INVALID, "no model of %zu sequences of %zu tokens (block_size %u)", d->batch,
                       d->seq, d->config.block_size);
    d->host_logits = mem_alloc(d->config.vocab_size, d->dev->act_bytes);
    if (!d->host_logits) return err_set(err, STATUS_NOMEM, "no memory for the model");
    enum status status = d->dev->ops->params_plan(d->dev, n_params);
    if (status != STATUS_OK)
        return err_set(err, status, "no memory for %llu parameters in bf16 on %s", (unsigned long long)n_params,
                       d->dev->name);
    TRY(take_memory(d, m, walk, err));
    status = plan(m);
    if (status == STATUS_OK) status = make_plans(d);
    if (status == STATUS_OK) return status;
    return err_set(err, status, "cannot plan the model on %s: %s", d->dev->name,
                   status == STATUS_UNSUPPORTED && d->dev->note[0] ? d->dev->note : status_text(status));
}

void decoder_finish(struct decoder *d, void *const *plans, size_t n_plans)
{
    const struct device_ops *ops = d->dev->ops;
    void *own[] = {d->plan_attn, d->plan_head_train, d->plan_head_loss, d->plan_logits};
    for (size_t i = 0; i < n_plans; i++) ops->plan_free(d->dev, plans[i]);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) ops->plan_free(d->dev, own[i]);
    ops->release(d->dev, d->memory);
    mem_free(d->host_logits);
}

enum status decoder_check_rows(const struct decoder *d, size_t first, size_t n, struct err *err)
{
    if (d->uses & MODEL_LOGITS && n <= d->n && first <= d->n - n) return STATUS_OK;
    return err_set(err, STATUS_INVALID, "no logits of rows %zu to %zu of %zu", first, first + n, d->n);
}

enum status decoder_logits(struct decoder *d, const float *head, size_t first, size_t n, float *out, struct err *err)
{
    const struct device_ops *ops = d->dev->ops;
    size_t c = d->config.n_embd, v = d->config.vocab_size, act = d->dev->act_bytes;
    for (size_t i = 0; i < n; i++) {
        const unsigned char *row = (const unsigned char *)d->yf + (first + i) * c * act;
        ops->lin_fwd(d->dev, d->plan_logits, row, head, NULL, NULL, d->logits, NULL);
        ops->download(d->dev, d->host_logits, d->logits, v * act);
        TRY(ops->sync(d->dev, err));
        activations_widen(d->host_logits, act, v, out + i * v);
    }
    return STATUS_OK;
}
