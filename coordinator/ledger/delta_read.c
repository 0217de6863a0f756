#include "coordinator/ledger/delta_read.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"

/* Deltas [first, first + count) of a close, in memory and opened. */
struct group {
    uint32_t first, count;
};

static size_t aligned(size_t bytes)
{
    return (bytes + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
}

/* How a merge reads its deltas. */
struct reading {
    struct ledger *l;
    const struct round_close *close;
    size_t at;       /* s->payload from here on */
    uint64_t newest; /* base version of these deltas */
    bool together;   /* all deltas end to end in s->payload; otherwise those in memory stay where they are */
};

static const uint8_t *in_memory(const struct reading *r, uint32_t i)
{
    const struct part *part = round_close_part(&r->l->round, r->close, i);
    return held_find(&r->l->held, part->place, part->at);
}

/* The bytes of s->payload that a delta needs. */
static size_t buffered(const struct reading *r, uint32_t i)
{
    return r->together || !in_memory(r, i) ? round_close_part(&r->l->round, r->close, i)->bytes : 0;
}

/* Those that `count` deltas from `first` on need. */
static size_t room_for(const struct reading *r, uint32_t first, uint32_t count)
{
    size_t room = codec_open_room(r->l->outer.fragments[r->close->fragment].up), bytes = r->at;
    for (uint32_t i = 0; i < count; i++) bytes += buffered(r, first + i);
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

/* Reads a delta of the journal to dst. */
static enum status read_back(struct ledger *l, const struct part *part, uint8_t *dst, struct err *err)
{
    struct store *store = l->journal.store;
    TRY(store->ops->segment_read(store, part->at.segment, part->at.offset, dst, part->bytes, err));
    return crc32c(0, dst, part->bytes) == part->crc ? STATUS_OK : STATUS_CORRUPT;
}

static enum status read_one(const struct reading *r, uint32_t i, uint8_t *dst, struct merge_delta *delta,
                            struct err *err)
{
    struct ledger *l = r->l;
    const struct part *part = round_close_part(&l->round, r->close, i);
    const uint8_t *held = in_memory(r, i);
    assert(part->state == PART_HELD || part->state == PART_MERGED);
    enum status status = held ? STATUS_OK : read_back(l, part, dst, err);
    if (held && r->together) memcpy(dst, held, part->bytes);
    delta->payload = held && !r->together ? held : dst;
    delta->size = part->bytes;
    delta->tokens = part->tokens;
    delta->divisor = divisor_of(l, r->close, i, r->newest);
    delta->checked = held != NULL; /* when it was delivered */
    if (status == STATUS_OK) status = merge_open(l->outer.fragments[r->close->fragment].up, delta);
    if (status == STATUS_OK) return status;
    return err_set(err, status, "cannot read the delta of worker '%s' from the journal",
                   member_by_id(&l->round.members, r->close->ids[i])->name);
}

/* Reads the deltas after g: as many as fit, or all of them if `all`. */
static enum status read_group(const struct reading *r, bool all, struct group *g, struct err *err)
{
    struct outer_state *o = &r->l->outer;
    const uint32_t n = r->close->n;
    size_t room = aligned(codec_open_room(o->fragments[r->close->fragment].up)), at = r->at;
    g->first += g->count;
    g->count = all ? n : 1;
    while (g->first + g->count < n && room_for(r, g->first, g->count + 1) <= o->payload_cap) g->count++;
    size_t need = room_for(r, g->first, g->count);
    if (outer_state_reserve(o, need) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %u deltas of fragment %u", g->count, r->close->fragment);
    size_t rooms = need - g->count * room;
    for (uint32_t i = 0; i < g->count; i++) {
        o->deltas[i].room = room ? o->payload + rooms + i * room : NULL;
        size_t bytes = buffered(r, g->first + i);
        TRY(read_one(r, g->first + i, o->payload + at, &o->deltas[i], err));
        at += bytes;
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
    const struct reading reading = {l, close, at, newest_base(l, close), together};
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
            TRY(read_group(&reading, all, &g, err));
            merge_compute_norms(&merge, o->deltas, g.count);
        }
        if (g.first) g = (struct group){0}; /* the deltas needed several groups: start again at the first */
    }
    if (g.count) merge_add(&merge, o->deltas, g.count);
    while (g.first + g.count < close->n) {
        TRY(read_group(&reading, all, &g, err));
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
