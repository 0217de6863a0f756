#include "worker/inner_shard.h"

#include "common/mem.h"

/* What of tensor t lies in the part, as a span of it; tensors of one decay rule are merged where they touch. */
static void add_span(struct inner_shard_bucket *bucket, const struct tensor *t)
{
    uint64_t begin = bucket->part.offset, end = begin + bucket->part.count;
    uint64_t from = t->offset > begin ? t->offset : begin;
    uint64_t to = t->offset + t->count < end ? t->offset + t->count : end;
    struct adamw_span *last = bucket->n_spans ? &bucket->spans[bucket->n_spans - 1] : NULL;
    if (from >= to) return;
    if (last && last->decay == t->decay && last->offset + last->count == from - begin)
        last->count += to - from;
    else
        bucket->spans[bucket->n_spans++] =
            (struct adamw_span){.offset = from - begin, .count = to - from, .decay = t->decay};
}

static enum status fill(struct inner_shard *s, const struct layout *layout, bool moments)
{
    const struct device_ops *ops = s->dev->ops;
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        struct inner_shard_bucket *bucket = &s->buckets[b];
        bucket->part = shard_part_of(s->map, (uint32_t)s->coll->rank, b);
        bucket->spans = mem_alloc(layout->n_tensors, sizeof *bucket->spans);
        if (!bucket->spans) return STATUS_NOMEM;
        for (uint32_t i = 0; i < layout->n_tensors; i++) add_span(bucket, &layout->tensors[i]);
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
    for (uint32_t b = 0; b < s->map->n_buckets; b++) mem_free(s->buckets[b].spans);
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
        ops->sumsq(s->dev, s->buckets[b].part.count, grad + s->buckets[b].part.offset, own + b);
    TRY(s->coll->ops->start_all_gather(s->coll, s->sums, n, COLLECTIVE_TICKETS - 1));
    s->coll->ops->wait(s->coll, COLLECTIVE_TICKETS - 1);
    ops->sum(s->dev, (size_t)s->map->ranks * n, s->sums, sumsq);
    return STATUS_OK;
}

void inner_shard_read(struct inner_shard *s, float *m, float *v)
{
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        const struct shard_part *p = &s->buckets[b].part;
        s->dev->ops->download(s->dev, m + p->offset, s->m + p->state, p->count * sizeof *m);
        s->dev->ops->download(s->dev, v + p->offset, s->v + p->state, p->count * sizeof *v);
    }
}

static void write_one(struct inner_shard *s, float *to, const float *from)
{
    for (uint32_t b = 0; b < s->map->n_buckets; b++) {
        const struct shard_part *p = &s->buckets[b].part;
        if (from) s->dev->ops->upload(s->dev, to + p->state, from + p->offset, p->count * sizeof *to);
    }
    if (!from) s->dev->ops->fill(s->dev, to, shard_floats(s->map), 0.0f);
}

void inner_shard_write(struct inner_shard *s, const float *m, const float *v)
{
    write_one(s, s->m, m);
    write_one(s, s->v, v);
}
