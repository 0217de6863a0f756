#include "coordinator/ledger/delta_read.h"

#include <assert.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

/* Deltas [first, first + count) of a close, in memory and opened. */
struct group {
    uint32_t first, count;
};

static size_t aligned(size_t bytes)
{
    return (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* The bytes of s->payload that the first `count` deltas of a group need. */
static size_t room_for(const struct ledger *l, const struct round_close *close, uint32_t first, uint32_t count,
                       size_t at)
{
    size_t room = codec_open_room(l->outer.fragments[close->fragment].up), bytes = at;
    for (uint32_t i = 0; i < count; i++) bytes += round_close_part(&l->round, close, first + i)->bytes;
    return aligned(bytes + sizeof(uint32_t)) + count * aligned(room);
}

/* async: a merge of fewer deltas than are clipped against each other scales a delta down to the norm that the members'
 * last deltas predict. */
static double excess_of(const struct ledger *l, const struct round_close *close, uint32_t i)
{
    const struct merge_bounds *bounds = &l->outer.merger.bounds;
    if (l->config->train.method != METHOD_ASYNC || bounds->least == UINT32_MAX || close->n >= bounds->least) return 0;
    struct round_peers peers;
    round_peers_of(&l->round, close, &peers);
    double excess = round_excess(&l->round, &peers, i);
    return excess > bounds->whole ? excess : 0;
}

static enum status read_one(struct ledger *l, const struct round_close *close, uint32_t i, uint8_t *dst,
                            struct merge_delta *delta, struct err *err)
{
    const struct part *part = round_close_part(&l->round, close, i);
    assert(part->state == PART_HELD || part->state == PART_MERGED);
    struct store *store = l->journal.store;
    TRY(store->ops->segment_read(store, part->at.segment, part->at.offset, dst, part->bytes, err));
    enum status status = crc32c(0, dst, part->bytes) == part->crc ? STATUS_OK : STATUS_CORRUPT;
    delta->payload = dst;
    delta->size = part->bytes;
    delta->tokens = part->tokens;
    delta->excess = excess_of(l, close, i);
    if (status == STATUS_OK) status = merge_open(l->outer.fragments[close->fragment].up, delta);
    if (status == STATUS_OK) return status;
    return err_set(err, status, "cannot read the delta of worker '%s' from the journal",
                   member_by_id(&l->round.members, close->ids[i])->name);
}

/* Reads the deltas after g: as many as fit, or all of them if `all`. */
static enum status read_group(struct ledger *l, const struct round_close *close, size_t at, bool all, struct group *g,
                              struct err *err)
{
    struct outer_state *o = &l->outer;
    size_t room = aligned(codec_open_room(o->fragments[close->fragment].up));
    g->first += g->count;
    g->count = all ? close->n : 1;
    while (g->first + g->count < close->n && room_for(l, close, g->first, g->count + 1, at) <= o->payload_cap)
        g->count++;
    if (outer_state_reserve(o, room_for(l, close, g->first, g->count, at)) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %u deltas of fragment %u", g->count, close->fragment);
    size_t rooms = room_for(l, close, g->first, g->count, at) - g->count * room;
    for (uint32_t i = 0; i < g->count; i++) {
        o->deltas[i].room = room ? o->payload + rooms + i * room : NULL;
        TRY(read_one(l, close, g->first + i, o->payload + at, &o->deltas[i], err));
        at += o->deltas[i].size;
        assert(at <= o->payload_cap);
    }
    return STATUS_OK;
}

enum status delta_read_merge(struct ledger *l, const struct round_close *close, size_t at, bool together,
                             struct err *err)
{
    struct outer_state *o = &l->outer;
    const struct fragment *frag = &l->layout.fragments[close->fragment];
    struct codec *up = o->fragments[close->fragment].up;
    struct group g = {0};
    struct merge merge;
    assert(close->n > 0 && close->n <= WIRE_NAMED_MAX);
    bool all = together || merge_needs_all(&o->merger, up);
    for (uint32_t i = 0; i < close->n; i++) o->tokens[i] = round_close_part(&l->round, close, i)->tokens;
    if (merge_start(&merge, &o->merger, &l->layout, close->fragment, up, o->theta + frag->offset, o->acc, o->tokens,
                    close->n) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory to merge %u deltas", close->n);
    if (merge_needs_norms(&merge)) {
        while (g.first + g.count < close->n) {
            TRY(read_group(l, close, at, all, &g, err));
            merge_compute_norms(&merge, o->deltas, g.count);
        }
        if (g.first) g = (struct group){0}; /* the deltas needed several groups: start again at the first */
    }
    if (g.count) merge_add(&merge, o->deltas, g.count);
    while (g.first + g.count < close->n) {
        TRY(read_group(l, close, at, all, &g, err));
        merge_add(&merge, o->deltas, g.count);
    }
    assert(g.first + g.count == close->n);
    return STATUS_OK;
}

/* --- a region ----------------------------------------------------------------------------------------------------- */

static void add_member(struct delta_sum *sum, const struct member *m)
{
    const struct part *part = &m->work.parts[0];
    sum->tokens += part->tokens;
    sum->loss_sum += part->loss_sum;
    if (part->compute_us > sum->compute_us) sum->compute_us = part->compute_us;
    sum->workers++;
}

enum status delta_read_values(struct ledger *l, float *values, struct delta_sum *sum, struct err *err)
{
    struct outer_state *o = &l->outer;
    struct round_close close = {0};
    assert(l->region && l->round.region.sealed);
    *sum = (struct delta_sum){0};
    for_each_member(&l->round.members, m) {
        if (!round_is_complete(&l->round, m) || close.n == WIRE_NAMED_MAX) continue;
        close.ids[close.n++] = m->id;
        add_member(sum, m);
    }
    for (; close.fragment < l->layout.n_fragments; close.fragment++) {
        const struct fragment *frag = &l->layout.fragments[close.fragment];
        const float *theta = o->theta + frag->offset;
        float *out = values + frag->offset;
        TRY(delta_read_merge(l, &close, 0, false, err));
        bool parameters = merger_takes_parameters(&o->merger, &l->layout, close.fragment);
        for (uint64_t i = 0; i < frag->count; i++)
            out[i] = parameters ? o->acc[i] : (float)((double)theta[i] - (double)o->acc[i]);
    }
    return STATUS_OK;
}
