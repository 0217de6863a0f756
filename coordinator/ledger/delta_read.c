#include "coordinator/ledger/delta_read.h"

#include <assert.h>
#include <math.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"

/* Deltas [first, first + count) of a close, in memory and opened. */
struct group {
    uint32_t first, count;
    uint64_t newest; /* base version of the merge */
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

/* A merge of fewer deltas than are clipped against each other scales a delta down to the norm that the members'
 * last deltas predict. */
static double excess_of(const struct ledger *l, const struct round_close *close, uint32_t i)
{
    const struct merge_bounds *bounds = &l->outer.merger.bounds;
    if (bounds->least == UINT32_MAX || close->n >= bounds->least) return 0;
    struct round_peers peers;
    round_peers_of(&l->round, close, &peers);
    double excess = round_excess(&l->round, &peers, i);
    return excess > bounds->whole ? excess : 0;
}

static uint64_t newest_base(const struct ledger *l, const struct round_close *close)
{
    uint64_t newest = 0;
    for (uint32_t i = 0; i < close->n; i++)
        newest = max_u64(newest, round_close_part(&l->round, close, i)->base_version);
    return newest;
}

/* async: divides the delta's values; 0: nothing does. Its base may be k updates older than the newest of the merge. */
static double divisor_of(const struct ledger *l, const struct round_close *close, uint32_t i, uint64_t newest)
{
    if (l->config->train.method != METHOD_ASYNC) return 0;
    double excess = excess_of(l, close, i);
    uint64_t k = newest - round_close_part(&l->round, close, i)->base_version;
    return k || excess > 0 ? fmax(excess, 1) * sqrt(1 + (double)k) : 0;
}

static enum status read_one(struct ledger *l, const struct round_close *close, uint32_t i, uint64_t newest,
                            uint8_t *dst, struct merge_delta *delta, struct err *err)
{
    const struct part *part = round_close_part(&l->round, close, i);
    assert(part->state == PART_HELD || part->state == PART_MERGED);
    struct store *store = l->journal.store;
    TRY(store->ops->segment_read(store, part->at.segment, part->at.offset, dst, part->bytes, err));
    enum status status = crc32c(0, dst, part->bytes) == part->crc ? STATUS_OK : STATUS_CORRUPT;
    delta->payload = dst;
    delta->size = part->bytes;
    delta->tokens = part->tokens;
    delta->divisor = divisor_of(l, close, i, newest);
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
        TRY(read_one(l, close, g->first + i, g->newest, o->payload + at, &o->deltas[i], err));
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
    struct group g = {.newest = newest_base(l, close)};
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
        if (g.first)
            g = (struct group){.newest = g.newest}; /* the deltas needed several groups: start again at the first */
    }
    if (g.count) merge_add(&merge, o->deltas, g.count);
    while (g.first + g.count < close->n) {
        TRY(read_group(l, close, at, all, &g, err));
        merge_add(&merge, o->deltas, g.count);
    }
    assert(g.first + g.count == close->n);
    return STATUS_OK;
}
