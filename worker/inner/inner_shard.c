#include "worker/inner/inner_shard.h"

#include <assert.h>

#include "common/base/mem.h"
#include "worker/inner/shard_deal.h"

/* Adds the intersection of tensor t and the part as a span. Adjacent tensors with the same decay share a span. */
static void add_span(struct inner_shard *s, const struct shard_part *part, const struct tensor *t)
{
    assert(part->state <= part->offset);
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

/* --- ownership ---------------------------------------------------------------------------------------------------- */

static size_t slots_of(const struct shard_map *map)
{
    return map->deal ? map->deal->most : map->n_buckets;
}

static uint64_t plain_floats(const struct shard_map *map, int rank)
{
    return map->deal ? shard_deal_floats(map->deal, rank, false) : shard_floats(map);
}

static uint64_t matrix_floats(const struct shard_map *map, int rank)
{
    return map->deal ? shard_deal_floats(map->deal, rank, true) : 0;
}

static void add_pieces(struct inner_shard *s, bool matrices)
{
    const struct shard_deal *deal = s->map->deal;
    for (size_t i = 0; i < deal->n_pieces; i++) {
        const struct shard_piece *p = &deal->pieces[i];
        if (p->rank == s->coll->rank && p->matrices == matrices)
            s->parts[s->n_parts++] = (struct shard_part){.offset = p->offset, .count = p->count, .state = p->state};
    }
}

static void add_parts(struct inner_shard *s)
{
    for (uint32_t b = 0; !s->map->deal && b < s->map->n_buckets; b++)
        s->parts[s->n_parts++] = shard_part_of(s->map, (uint32_t)s->coll->rank, b);
    if (s->map->deal) add_pieces(s, false);
    s->n_plain = s->n_parts;
    if (s->map->deal) add_pieces(s, true);
    assert(s->n_parts <= s->slots);
}

static struct muon_matrix *matrices_of(const struct shard_map *map, int rank, size_t *n)
{
    const struct inner_matrices *all = &map->deal->matrices;
    struct muon_matrix *mine = all->n ? mem_alloc(all->n, sizeof *mine) : NULL;
    *n = mine ? inner_matrices_of(all, rank, mine) : 0;
    return mine;
}

static enum status plan_matrices(struct inner_shard *s)
{
    size_t n;
    if (!matrix_floats(s->map, s->coll->rank)) return STATUS_OK;
    struct muon_matrix *mine = matrices_of(s->map, s->coll->rank, &n);
    enum status status = mine ? s->dev->ops->muon_plan(s->dev, mine, n, &s->muon) : STATUS_NOMEM;
    mem_free(mine);
    return status;
}

uint64_t inner_shard_vector_bytes(uint64_t n, size_t moment)
{
    return (n * moment + sizeof(float) - 1) / sizeof(float) * sizeof(float);
}

uint64_t inner_shard_moment_bytes(const struct shard_map *map, int rank, size_t moment)
{
    return 2 * inner_shard_vector_bytes(plain_floats(map, rank), moment) +
           inner_shard_vector_bytes(matrix_floats(map, rank), moment);
}

uint64_t inner_shard_work_bytes(const struct shard_map *map, int rank, struct device *dev)
{
    uint64_t bytes = (uint64_t)map->ranks * slots_of(map) * sizeof(float);
    if (!matrix_floats(map, rank)) return bytes;
    size_t n;
    struct muon_matrix *mine = matrices_of(map, rank, &n);
    if (n) bytes += dev->ops->muon_bytes(dev, mine, n);
    mem_free(mine);
    return bytes;
}

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Allocates a vector of n moments of `each` bytes; *p stays NULL if n is 0. */
static enum status allocate(struct inner_shard *s, void **p, uint64_t n, size_t each)
{
    if (n) *p = s->dev->ops->alloc(s->dev, inner_shard_vector_bytes(n, each));
    return *p || !n ? STATUS_OK : STATUS_NOMEM;
}

static enum status fill(struct inner_shard *s, const struct layout *layout)
{
    uint64_t plain = plain_floats(s->map, s->coll->rank);
    s->slots = slots_of(s->map);
    s->parts = mem_alloc(s->slots, sizeof *s->parts);
    s->spans = mem_alloc(layout->n_tensors + s->slots, sizeof *s->spans);
    if (!s->parts || !s->spans) return STATUS_NOMEM;
    add_parts(s);
    for (size_t p = 0; p < s->n_plain; p++) {
        assert(s->parts[p].state + s->parts[p].count <= plain);
        for (uint32_t i = 0; i < layout->n_tensors; i++) add_span(s, &s->parts[p], &layout->tensors[i]);
    }
    assert(s->n_spans <= layout->n_tensors + s->slots);
    s->sums = s->dev->ops->alloc(s->dev, s->map->ranks * s->slots * sizeof *s->sums);
    if (!s->sums) return STATUS_NOMEM;
    if (!s->moment) return STATUS_OK;
    TRY(allocate(s, &s->m, plain, s->moment));
    TRY(allocate(s, &s->v, plain, s->moment));
    TRY(allocate(s, &s->momentum, matrix_floats(s->map, s->coll->rank), s->moment));
    return plan_matrices(s);
}

enum status inner_shard_create(struct inner_shard **out, const struct shard_map *map, struct collective *coll,
                               const struct layout *layout, size_t moment)
{
    assert(coll->rank >= 0 && (uint32_t)coll->rank < map->ranks);
    struct inner_shard *s = mem_alloc(1, sizeof *s);
    if (!s) return STATUS_NOMEM;
    s->map = map;
    s->coll = coll;
    s->dev = coll->dev;
    s->moment = moment;
    enum status status = fill(s, layout);
    if (status == STATUS_OK)
        *out = s;
    else
        inner_shard_destroy(s);
    return status;
}

void inner_shard_destroy(struct inner_shard *s)
{
    if (!s) return;
    mem_free(s->parts);
    mem_free(s->spans);
    s->dev->ops->plan_free(s->dev, s->muon);
    s->dev->ops->release(s->dev, s->sums);
    s->dev->ops->release(s->dev, s->m);
    s->dev->ops->release(s->dev, s->v);
    s->dev->ops->release(s->dev, s->momentum);
    mem_free(s);
}

/* --- steps -------------------------------------------------------------------------------------------------------- */

/* Computes the sum of squares of the whole gradient; grad holds this rank's reduced shares. All ranks get the same bits
 * because they add the parts in the same order. */
enum status inner_shard_measure(struct inner_shard *s, float *scalars, const float *grad)
{
    const struct device_ops *ops = s->dev->ops;
    float *own = s->sums + (size_t)s->coll->rank * s->slots;
    for (size_t i = 0; i < s->n_parts; i++) ops->sumsq(s->dev, s->parts[i].count, grad + s->parts[i].offset, own + i);
    TRY(s->coll->ops->start(s->coll, COLLECTIVE_ALL_GATHER, s->sums, s->slots, COLLECTIVE_TICKETS - 1));
    collective_wait(s->coll, COLLECTIVE_TICKETS - 1);
    ops->sum(s->dev, (size_t)s->map->ranks * s->slots, s->sums, scalars + SCALAR_SUMSQ);
    return STATUS_OK;
}

void inner_shard_apply(struct inner_shard *s, const struct inner_opt_config *config, float *scalars, float *theta,
                       const float *grad, double lr)
{
    struct inner_step step = {.dev = s->dev,
                              .spans = s->spans,
                              .n_spans = s->n_spans,
                              .muon = s->muon,
                              .m = s->m,
                              .v = s->v,
                              .momentum = s->momentum,
                              .scalars = scalars};
    inner_step_apply(&step, config, theta, grad, lr);
}

/* --- saved states ------------------------------------------------------------------------------------------------- */

enum status inner_shard_read(struct inner_shard *s, void *m, void *v, struct err *err)
{
    for (size_t i = 0; i < s->n_parts; i++) {
        const struct shard_part *p = &s->parts[i];
        const uint8_t *from = i < s->n_plain ? s->m : s->momentum, *from_v = s->v;
        size_t bytes = p->count * s->moment, at = p->offset * s->moment, state = p->state * s->moment;
        if (!bytes) continue;
        assert(from && m && v);
        TRY(device_fetch(s->dev, (uint8_t *)m + at, from + state, bytes, err));
        if (i < s->n_plain) TRY(device_fetch(s->dev, (uint8_t *)v + at, from_v + state, bytes, err));
    }
    return STATUS_OK;
}

/* from: [n_params], host memory. */
static void write_part(struct inner_shard *s, const struct shard_part *p, void *to, const void *from)
{
    if (!p->count) return;
    assert(to && s->moment);
    device_send(s->dev, (uint8_t *)to + p->state * s->moment, (const uint8_t *)from + p->offset * s->moment,
                p->count * s->moment);
}

static void zero(struct inner_shard *s, void *p, uint64_t n)
{
    if (p) s->dev->ops->fill(s->dev, p, inner_shard_vector_bytes(n, s->moment) / sizeof(float), 0.0f);
}

void inner_shard_write(struct inner_shard *s, const void *m, const void *v)
{
    if (!m) zero(s, s->momentum, matrix_floats(s->map, s->coll->rank));
    if (!m) zero(s, s->m, plain_floats(s->map, s->coll->rank));
    if (!v) zero(s, s->v, plain_floats(s->map, s->coll->rank));
    for (size_t i = 0; i < s->n_parts; i++) {
        if (m) write_part(s, &s->parts[i], i < s->n_plain ? s->m : s->momentum, m);
        if (v && i < s->n_plain) write_part(s, &s->parts[i], s->v, v);
    }
}
