#include "coordinator/ledger/history/history_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "compress/codec.h"

/* Versions of a fragment that the new history does not have, because only the excluded worker made them. */
struct gone {
    uint64_t *versions; /* [n] ascending; owned */
    size_t n, cap;
};

/* The new history while it is written. */
struct rewrite {
    struct history *h;
    struct ledger *l;
    struct update_named *named;              /* [WIRE_NAMED_MAX] */
    struct gone gone[LAYOUT_FRAGMENTS_MAX];  /* async */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* of the old history */
    uint64_t seen;                           /* rounds noted */

    struct past *old; /* lossless deltas of a barrier, which travel as parameters: follows the old history; or NULL */
    float *values;    /* [the largest fragment] */
    uint8_t *payload; /* [payload_cap] */
    size_t payload_cap;
};

/* --- versions ----------------------------------------------------------------------------------------------------- */

static enum status add_gone(struct gone *g, uint64_t version)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 64;
        uint64_t *grown = mem_resize(g->versions, g->cap * sizeof *grown, cap * sizeof *grown);
        if (!grown) return STATUS_NOMEM;
        g->versions = grown;
        g->cap = cap;
    }
    assert(!g->n || g->versions[g->n - 1] < version);
    g->versions[g->n++] = version;
    return STATUS_OK;
}

/* The version of the new history that takes the place of an old one. */
static uint64_t new_version(const struct gone *g, uint64_t version)
{
    size_t low = 0, high = g->n; /* versions[0 .. low) <= version < versions[high ..) */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (g->versions[middle] <= version)
            low = middle + 1;
        else
            high = middle;
    }
    return version - low;
}

/* --- records ------------------------------------------------------------------------------------------------------ */

static bool is_excluded(const struct rewrite *w, uint32_t id)
{
    const struct member *m = member_by_id(&w->l->round.members, id);
    return m && !strcmp(m->name, w->h->request.exclude);
}

static bool waits_in(const struct rewrite *w, uint32_t id, uint64_t round)
{
    const struct member *m = member_by_id(&w->l->round.members, id);
    return m && m->work.open && m->work.round == round && member_waits(m);
}

static bool holds(const struct rewrite *w, uint32_t id, uint32_t fragment)
{
    const struct member *m = member_by_id(&w->l->round.members, id);
    return m && member_has(m, fragment, PART_HELD);
}

/* The first delta of an assignment that is left out ends it, as if its time had passed: the round goes on without the
 * worker, and its samples are free again. */
static enum status leave_out(struct rewrite *w, const struct record_delta *delta, struct err *err)
{
    struct record_drop drop = {.id = delta->id, .fragment = UINT32_MAX, .round = delta->round, .code = REJECT_LATE};
    return waits_in(w, delta->id, delta->round) ? ledger_write(w->l, RECORD_DROP, &drop, NULL, err) : STATUS_OK;
}

/* A payload that is parameters holds what the worker started from, with the excluded deltas in it. Its delta is what
 * the worker trained, theta - parameters, both of the old history. *payload becomes new theta - that delta. Where theta
 * is the same in both histories the parameters stay bit for bit; elsewhere the difference is rounded once. */
static enum status move_parameters(struct rewrite *w, struct record_delta *delta, struct store_part *payload,
                                   struct err *err)
{
    const struct fragment *frag = &w->l->layout.fragments[delta->fragment];
    const float *before = w->old->ledger.outer.theta + frag->offset, *now = w->l->outer.theta + frag->offset;
    struct codec *codec;
    size_t size;
    if (!memcmp(before, now, frag->count * sizeof *now)) return STATUS_OK;
    TRY(codec_create_for_fragment(&codec, w->l->config->codec.up, &w->l->layout, delta->fragment, err));
    enum status status = codec_decode(codec, payload->data, payload->size, w->values);
    for (uint64_t i = 0; status == STATUS_OK && i < frag->count; i++)
        if (before[i] != now[i]) w->values[i] = (float)((double)now[i] - ((double)before[i] - (double)w->values[i]));
    if (status == STATUS_OK) status = codec_encode(codec, w->values, w->payload, w->payload_cap, &size, NULL);
    codec_destroy(codec);
    TRY(status);
    *payload = (struct store_part){w->payload, size};
    delta->part.bytes = size;
    delta->part.crc = crc32c(0, w->payload, size);
    return STATUS_OK;
}

static enum status write_delta(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    struct record_delta delta = {0};
    TRY(record_decode(RECORD_DELTA, &delta, record->body, record->size));
    if (delta.fragment >= w->l->layout.n_fragments || record->size != RECORD_DELTA_HEAD + delta.part.bytes)
        return STATUS_CORRUPT;
    if (is_excluded(w, delta.id)) return leave_out(w, &delta, err);
    if (holds(w, delta.id, delta.fragment)) return STATUS_OK; /* its copy behind a checkpoint */
    delta.part.base_version = new_version(&w->gone[delta.fragment], delta.part.base_version);
    struct store_part payload = {record->body + RECORD_DELTA_HEAD, delta.part.bytes};
    if (w->old && delta.fragment < w->l->round.first_mean) TRY(move_parameters(w, &delta, &payload, err));
    return ledger_write(w->l, RECORD_DELTA, &delta, &payload, err);
}

static enum status write_drop(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    struct record_drop drop = {0};
    TRY(record_decode(RECORD_DROP, &drop, record->body, record->size));
    if (is_excluded(w, drop.id) && !waits_in(w, drop.id, drop.round)) return STATUS_OK; /* left out before */
    return ledger_write(w->l, RECORD_DROP, &drop, NULL, err);
}

static enum status write_open(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    struct ledger *l = w->l;
    if (ledger_room(l) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory for the assignments of a round");
    struct record_open m = {.n_fragments = l->layout.n_fragments, .cap = l->cap_grants, .open = {.grants = l->grants}};
    TRY(record_decode(RECORD_OPEN, &m, record->body, record->size));
    for (uint32_t f = 0; f < m.n_fragments; f++) m.open.versions[f] = new_version(&w->gone[f], m.open.versions[f]);
    return ledger_write(l, RECORD_OPEN, &m, NULL, err);
}

/* Notes the rounds that this record completed. */
static enum status note_rounds(struct rewrite *w, struct err *err)
{
    struct history *h = w->h;
    struct round *r = &w->l->round;
    while (w->seen < round_done(r)) {
        const struct round_tally *sum = &r->recent;
        if (h->n_again == h->cap_again) {
            size_t cap = h->cap_again ? 2 * h->cap_again : 64, size = sizeof *h->again;
            struct history_round *grown = mem_resize(h->again, h->cap_again * size, cap * size);
            if (!grown) return err_set(err, STATUS_NOMEM, "no memory for the list of rounds");
            h->again = grown;
            h->cap_again = cap;
        }
        h->again[h->n_again++] =
            (struct history_round){.round = ++w->seen,
                                   .tokens = r->tokens,
                                   .version = r->versions[0],
                                   .loss = sum->loss_tokens ? sum->loss_sum / (double)sum->loss_tokens : NAN,
                                   .delivered = sum->merged};
        r->recent = (struct round_tally){0};
    }
    return STATUS_OK;
}

/* Merges the deltas that are left. An async update without any has no place in the new history. */
static enum status write_update(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    struct update u;
    struct record_clock clock;
    struct round_close close = {0};
    TRY(record_decode(RECORD_UPDATE, &clock, record->body, record->size));
    TRY(ledger_read_update(record, w->named, &u));
    if (u.fragment >= w->l->layout.n_fragments || u.version != w->versions[u.fragment] + 1) return STATUS_STATE;
    w->versions[u.fragment] = u.version;
    close.fragment = u.fragment;
    for (uint32_t i = 0; i < u.n_named; i++) {
        uint32_t id = w->named[i].worker_id;
        if (holds(w, id, u.fragment))
            close.ids[close.n++] = id;
        else if (!is_excluded(w, id))
            return STATUS_STATE;
    }
    if (close.n) {
        TRY(ledger_close(w->l, &close, &clock, err));
        return note_rounds(w, err);
    }
    if (!w->h->async) return STATUS_STATE; /* history_plan refuses such a round */
    w->l->clock = clock;
    return add_gone(&w->gone[u.fragment], u.version);
}

/* Records of which the body stays: RUN, MEMBER, VAL, START, TAKEN. */
static enum status write_same(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    union {
        struct record_run run;
        struct record_member member;
        struct record_val val;
        struct record_taken taken;
    } m = {0};
    TRY(record_decode((enum record_type)record->type, &m, record->body, record->size));
    TRY(ledger_write(w->l, (enum record_type)record->type, &m, NULL, err));
    return note_rounds(w, err);
}

static enum status write_one(struct rewrite *w, const struct journal_record *record, struct err *err)
{
    switch (record->type) {
    case RECORD_DELTA: return write_delta(w, record, err);
    case RECORD_DROP: return write_drop(w, record, err);
    case RECORD_OPEN: return write_open(w, record, err);
    case RECORD_UPDATE: return write_update(w, record, err);
    case RECORD_RUN:
    case RECORD_MEMBER:
    case RECORD_VAL:
    case RECORD_TAKEN:
    case RECORD_START: return write_same(w, record, err);
    case RECORD_EVAL:
    case RECORD_DONE: return STATUS_OK; /* of parameters that are no more */
    default: return STATUS_STATE;
    }
}

static enum status rewrite_visit(void *ctx, const struct journal_record *record, struct err *err)
{
    struct rewrite *w = ctx;
    enum status status = write_one(w, record, err);
    if (status == STATUS_OK && w->old) status = ledger_replay(&w->old->ledger, record, err);
    if (status == STATUS_OK || (err && err->code == status)) return status;
    return err_set(err, STATUS_CORRUPT, "journal/%08llu.log: the record at byte %llu contradicts those before it",
                   (unsigned long long)record->at.segment, (unsigned long long)record->at.offset);
}

static enum status replay_visit(void *ctx, const struct journal_record *record, struct err *err)
{
    return ledger_replay(ctx, record, err);
}

/* --- the new history ---------------------------------------------------------------------------------------------- */

/* Brings the ledger to the cut, and opens the journal of the new history there. */
static enum status go_to_cut(struct history *h, struct past *p, struct store *to, struct err *err)
{
    const struct checkpoint_info *base = past_before(p, h->base);
    struct ledger *l = &p->ledger;
    TRY(past_load(p, base, to, err));
    TRY(past_read(p, (struct journal_ref){base->segment, JOURNAL_SEGMENT_HEADER}, h->cut, replay_visit, l, err));
    assert(round_done(&l->round) == h->kept);
    TRY(to->ops->segment_continue(to, h->cut.segment, h->cut.offset, err));
    l->journal = (struct journal){
        .store = to, .segment = h->cut.segment, .size = h->cut.offset, .durable = h->cut.offset, .open = true};
    return STATUS_OK;
}

static enum status write_taken(const struct history *h, struct ledger *l, uint64_t time_s, struct err *err)
{
    struct record_taken taken = {.what = h->request.exclude ? RECORD_TAKEN_EXCLUDE : RECORD_TAKEN_ROLLBACK,
                                 .time_s = time_s,
                                 .round = h->kept,
                                 .before = h->before};
    if (h->request.exclude) snprintf(taken.name, sizeof taken.name, "%s", h->request.exclude);
    return ledger_write(l, RECORD_TAKEN, &taken, NULL, err);
}

/* Prepares move_parameters, if the run needs it. */
static enum status follow_old(struct rewrite *w, struct past *old, struct store *from, struct err *err)
{
    const struct ledger *l = w->l;
    const struct checkpoint_info *base;
    uint64_t largest = 0;
    if (!config_delta_replaces(l->config, false)) return STATUS_OK;
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        if (l->layout.fragments[f].count > largest) largest = l->layout.fragments[f].count;
        size_t bound = codec_bound(l->outer.fragments[f].up);
        if (bound > w->payload_cap) w->payload_cap = bound;
    }
    w->values = mem_alloc(largest, sizeof *w->values);
    w->payload = mem_alloc(1, w->payload_cap);
    if (!w->values || !w->payload) return err_set(err, STATUS_NOMEM, "no memory for the deltas of the old history");
    w->old = old;
    TRY(past_open(old, from, w->h->request.min_workers, NULL, err));
    base = past_before(old, w->h->base);
    TRY(past_load(old, base, from, err));
    return past_read(old, (struct journal_ref){base->segment, JOURNAL_SEGMENT_HEADER}, w->h->cut, replay_visit,
                     &old->ledger, err);
}

static enum status rewrite(struct history *h, struct past *p, struct store *from, struct err *err)
{
    struct past *old = mem_alloc(1, sizeof *old);
    struct rewrite *w = mem_alloc(1, sizeof *w);
    struct ledger *l = &p->ledger;
    enum status status = STATUS_NOMEM;
    if (w) {
        *w = (struct rewrite){.h = h, .l = l, .seen = h->kept};
        w->named = mem_alloc(WIRE_NAMED_MAX, sizeof *w->named);
        memcpy(w->versions, l->round.versions, sizeof w->versions);
    }
    if (old && w && w->named)
        status = follow_old(w, old, from, err);
    else
        status = err_set(err, STATUS_NOMEM, "no memory to write the journal");
    l->round.recent = (struct round_tally){0};
    if (status == STATUS_OK) status = past_read(p, h->cut, h->end, rewrite_visit, w, err);
    for (uint32_t f = 0; w && f < LAYOUT_FRAGMENTS_MAX; f++) mem_free(w->gone[f].versions);
    if (w && w->old) past_close(w->old);
    if (w) {
        mem_free(w->values);
        mem_free(w->payload);
        mem_free(w->named);
    }
    mem_free(w);
    mem_free(old);
    return status;
}

/* The run does not wait for it. */
static enum status evict(const struct history *h, struct ledger *l, struct err *err)
{
    for_each_member(&l->round.members, m) {
        if (!m->active || strcmp(m->name, h->request.exclude) != 0) continue;
        struct record_member gone = {.what = RECORD_MEMBER_EVICT, .id = m->id};
        memcpy(gone.uuid, m->uuid, sizeof gone.uuid);
        memcpy(gone.name, m->name, sizeof gone.name);
        TRY(ledger_write(l, RECORD_MEMBER, &gone, NULL, err));
    }
    return STATUS_OK;
}

/* The settings that only the old history has count as earlier ones: RUN/config.yaml still holds them. */
static void keep_changes(const struct history *h, struct ledger *l)
{
    for (uint32_t i = 0; i < h->n_changes && l->n_earlier < LEDGER_EARLIER_MAX; i++)
        if (h->changes[i] != l->config_hash) l->earlier[l->n_earlier++] = h->changes[i];
}

static enum status save(struct history *h, struct ledger *l, struct store *to, struct err *err)
{
    uint64_t segment = l->journal.segment + 1;
    TRY(journal_sync(&l->journal, err));
    TRY(journal_begin(&l->journal, to, segment, err));
    TRY(checkpoint_carry_held(l, err));
    h->rounds = round_done(&l->round);
    h->new_tokens = l->round.tokens;
    h->theta_hash = layout_theta_hash(&l->layout, l->outer.theta);
    TRY(checkpoint_save(l, to, h->rounds, segment, err));
    return to->ops->sync(to, err); /* without a mark, which nothing would sync */
}

enum status history_write(struct history *h, struct store *from, struct store *to, uint64_t time_s, struct err *err)
{
    struct past p;
    struct ledger *l = &p.ledger;
    enum status status = past_open(&p, from, h->request.min_workers, h->request.watch, err);
    if (status == STATUS_OK) status = go_to_cut(h, &p, to, err);
    if (status == STATUS_OK) status = write_taken(h, l, time_s, err);
    if (status == STATUS_OK && h->request.exclude) status = rewrite(h, &p, from, err);
    if (status == STATUS_OK && h->request.exclude && !h->request.keep_member) status = evict(h, l, err);
    if (status == STATUS_OK) {
        keep_changes(h, l);
        status = save(h, l, to, err);
    }
    past_close(&p);
    return status;
}
