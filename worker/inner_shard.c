#include "worker/inner_shard.h"

#include "common/mem.h"

/* What of tensor t lies in the part, as a span; tensors of one decay rule are merged where they touch. */
static void add_span(struct inner_shard *s, const struct shard_part *part, const struct tensor *t)
{
    uint64_t begin = part->offset, end = begin + part->count, skipped = part->offset - part->state;
    uint64_t from = t->offset > begin ? t->offset : begin;
    uint64_t to = t->offset + t->count < end ? t->offset + t->count : end;
    struct adamw_span *last = s->n_spans ? &s->spans[s->n_spans - 1] : NULL;
    if (from >= to) return;
    if (last && last->decay == t->decay && last->offset + last->count == from && last->skipped == skipped)
        last->count += to - from;
    else
        s->spans[s->n_spans++] =
            (struct adamw_span){.offset = from, .count = to - from, .decay = t->decay, .skipped = skipped};
}

static enum status fill(struct inner_shard *s, const struct layout *layout, bool moments)
{
    const struct device_ops *ops = s->dev->ops;
    s->spans = mem_alloc(layout->n_tensors + (size_t)s->map->n_buckets, sizeof *s->spans);
    if (!s->spans) return STATUS_NOMEM;
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        s->parts[b] = shard_part_of(s->map, (uint32_t)s->coll->rank, b);
        for (uint32_t i = 0; i < layout->n_tensors; i++) add_span(s, &s->parts[b], &layout->tensors[i]);
    }
    s->sums = ops->alloc(s->dev, (size_t)s->map->ranks * s->map->n_buckets * sizeof *s->sums);
    if (moments) s->m = ops->alloc(s->dev, shard_floats(s->map) * sizeof *s->m);
    if (moments) s->v = ops->alloc(s->dev, shard_floats(s->map) * sizeof *s->v);
    return s->sums && (!moments || (s->m && s->v)) ? STATUS_OK : STATUS_NOMEM;
}

enum status inner_shard_create(struct inner_shard **out, const struct shard_map *map, struct collective *coll,
                               const struct layout *layout, bool moments)
{
    struct inner_shard *s = mem_alloc(1, sizeof *s);
    if (!s) return STATUS_NOMEM;
    s->map = map;
    s->coll = coll;
    s->dev = coll->dev;
    enum status status = fill(s, layout, moments);
    if (status == STATUS_OK)
        *out = s;
    else
        inner_shard_destroy(s);
    return status;
}

void inner_shard_destroy(struct inner_shard *s)
{
    if (!s) return;
    mem_free(s->spans);
    s->dev->ops->release(s->dev, s->sums);
    s->dev->ops->release(s->dev, s->m);
    s->dev->ops->release(s->dev, s->v);
    mem_free(s);
}

enum status inner_shard_sumsq(struct inner_shard *s, const float *grad, float *sumsq)
{
    const struct device_ops *ops = s->dev->ops;
    uint32_t n = s->map->n_buckets;
    float *own = s->sums + (size_t)s->coll->rank * n;
    for (uint32_t b = 0; b < n; b++)
        ops->sumsq(s->dev, s->parts[b].count, grad + s->parts[b].offset, own + b);
    TRY(s->coll->ops->start_all_gather(s->coll, s->sums, n, COLLECTIVE_TICKETS - 1));
    s->coll->ops->wait(s->coll, COLLECTIVE_TICKETS - 1);
    ops->sum(s->dev, (size_t)s->map->ranks * n, s->sums, sumsq);
    return STATUS_OK;
}

enum status inner_shard_apply(struct inner_shard *s, const struct inner_opt_config *c, float *scalars, float *theta,
                              const float *grad, double lr)
{
    const struct device_ops *ops = s->dev->ops;
    float *scale = scalars + SCALAR_SCALE, *correct = scalars + SCALAR_CORRECT;
    struct adamw_hyper hyper = {.lr = (float)lr, .beta1 = (float)c->beta1, .beta2 = (float)c->beta2,
                                .eps = (float)c->eps, .weight_decay = (float)c->weight_decay, .correct = correct};
    TRY(inner_shard_sumsq(s, grad, scalars + SCALAR_SUMSQ));
    ops->clip_scale(s->dev, scalars + SCALAR_SUMSQ, (float)c->grad_clip, scale, scalars + SCALAR_NORM);
    if (s->m) {
        ops->count_step(s->dev, scale, hyper.beta1, hyper.beta2, (uint64_t *)(void *)(scalars + SCALAR_STEPS), correct);
        ops->adamw(s->dev, s->spans, s->n_spans, theta, grad, s->m, s->v, &hyper, scale);
        return STATUS_OK;
    }
    for (size_t i = 0; i < s->n_spans; i++) {
        const struct adamw_span *span = &s->spans[i];
        float keep = span->decay ? (float)(1 - lr * c->weight_decay) : 1;
        ops->sgd(s->dev, span->count, theta + span->offset, grad + span->offset, hyper.lr, keep, scale);
    }
    return STATUS_OK;
}

void inner_shard_read(struct inner_shard *s, float *m, float *v)
{
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        const struct shard_part *p = &s->parts[b];
        s->dev->ops->download(s->dev, m + p->offset, s->m + p->state, p->count * sizeof *m);
        s->dev->ops->download(s->dev, v + p->offset, s->v + p->state, p->count * sizeof *v);
    }
}

static void write_one(struct inner_shard *s, float *to, const float *from)
{
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        const struct shard_part *p = &s->parts[b];
        if (from) s->dev->ops->upload(s->dev, to + p->state, from + p->offset, p->count * sizeof *to);
    }
    if (!from) s->dev->ops->fill(s->dev, to, shard_floats(s->map), 0.0f);
}

void inner_shard_write(struct inner_shard *s, const float *m, const float *v)
{
    write_one(s, s->m, m);
    write_one(s, s->v, v);
}
