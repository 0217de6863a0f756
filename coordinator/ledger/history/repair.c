#include "coordinator/ledger/history/repair.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "coordinator/ledger/checkpoint.h"
#include "coordinator/ledger/journal.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/record.h"
#include "wire/object.h"

struct segment {
    uint64_t number;
    bool whole; /* no damage; an incomplete last record of the last segment is none */
};

/* The state of one repair. */
struct work {
    struct repair *r;
    struct store *store;
    repair_moved_fn moved;
    void *ctx;
    struct segment *segments; /* [n_segments] ascending */
    size_t n_segments;
    struct checkpoint_info *checkpoints; /* [n_checkpoints] ascending; n_fragments 0: damaged */
    size_t n_checkpoints;
    const struct checkpoint_info *base; /* NULL: the beginning of the journal */
    uint64_t first;                     /* the first segment that is kept */

    struct config *config;     /* of the run, for `ledger` */
    struct ledger ledger;      /* the state at the cut */
    bool replaying;            /* `ledger` is initialised */
    struct journal_ref bad;    /* the record that contradicts those before it */
    struct journal_ref opened; /* barrier: the record that opened the last round */
    struct journal_ref cut;    /* the first byte that goes */

    struct ledger_lost lost;                 /* the part that is cut away */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX]; /* check of the log between two checkpoints: versions so far */
    struct update_named *named;              /* [WIRE_NAMED_MAX] */
};

/* --- look --------------------------------------------------------------------------------------------------------- */

static enum status ignore(void *ctx, const struct journal_record *record, struct err *err)
{
    (void)ctx, (void)record, (void)err;
    return STATUS_OK;
}

static enum status scan(const struct work *w, uint64_t segment, struct journal_end *end, journal_visit_fn visit,
                        void *ctx, struct err *err)
{
    struct journal_source source;
    bool last = segment == w->segments[w->n_segments - 1].number;
    TRY(journal_source_of(&source, w->store, segment, last, err));
    return journal_scan(&source, end, visit, ctx, err);
}

static enum status look_at_segments(struct work *w, struct err *err)
{
    uint64_t *list;
    TRY(store_list(w->store, w->store->ops->segment_list, &list, &w->n_segments, err));
    w->segments = mem_alloc(w->n_segments + 1, sizeof *w->segments);
    enum status status = w->segments ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the list of segments");
    for (size_t i = 0; i < w->n_segments && status == STATUS_OK; i++) w->segments[i].number = list[i];
    for (size_t i = 0; i < w->n_segments && status == STATUS_OK; i++) {
        struct err why = {0};
        struct journal_end end;
        struct segment *s = &w->segments[i];
        status = scan(w, s->number, &end, ignore, NULL, &why);
        s->whole = status == STATUS_OK && !end.damaged;
        if (status == STATUS_CORRUPT) status = STATUS_OK;
        if (status != STATUS_OK) (void)err_set(err, status, "%s", why.msg);
    }
    mem_free(list);
    return status;
}

static enum status look_at_checkpoints(struct work *w, struct err *err)
{
    uint64_t *list;
    TRY(store_list(w->store, w->store->ops->checkpoint_list, &list, &w->n_checkpoints, err));
    w->checkpoints = mem_alloc(w->n_checkpoints + 1, sizeof *w->checkpoints);
    enum status status =
        w->checkpoints ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the list of checkpoints");
    for (size_t i = 0; i < w->n_checkpoints && status == STATUS_OK; i++) {
        struct err why = {0};
        status = checkpoint_check(w->store, list[i], &w->checkpoints[i], &why);
        if (status == STATUS_OK) w->base = &w->checkpoints[i];
        if (status == STATUS_CORRUPT || status == STATUS_NOTFOUND) {
            w->checkpoints[i] = (struct checkpoint_info){.round = list[i]};
            status = STATUS_OK;
        }
        if (status != STATUS_OK) (void)err_set(err, status, "%s", why.msg);
    }
    mem_free(list);
    w->r->has_base = w->base != NULL;
    w->r->base = w->base ? w->base->round : 0;
    return status;
}

static const struct segment *segment_of(const struct work *w, uint64_t number)
{
    for (size_t i = 0; i < w->n_segments; i++)
        if (w->segments[i].number == number) return &w->segments[i];
    return NULL;
}

/* --- the log before the base -------------------------------------------------------------------------------------- */

/* CORRUPT: an update does not follow the one before it. The journal lacks records, though each record is whole. */
static enum status follow_versions(void *ctx, const struct journal_record *record, struct err *err)
{
    struct work *w = ctx;
    struct update u;
    (void)err;
    if (record->type != RECORD_UPDATE) return STATUS_OK;
    TRY(ledger_read_update(record, w->named, &u));
    return u.fragment < LAYOUT_FRAGMENTS_MAX && u.version == ++w->versions[u.fragment] ? STATUS_OK : STATUS_CORRUPT;
}

/* True if the journal leads from one checkpoint to the next one. */
static bool joined(struct work *w, const struct checkpoint_info *from, const struct checkpoint_info *to)
{
    struct journal_end end;
    const struct segment *s;
    memcpy(w->versions, from->versions, sizeof w->versions);
    for (uint64_t at = from->segment; at < to->segment; at++) {
        if (!(s = segment_of(w, at)) || !s->whole) return false;
        if (scan(w, at, &end, follow_versions, w, NULL) != STATUS_OK) return false;
    }
    return !memcmp(w->versions, to->versions, from->n_fragments * sizeof *w->versions);
}

/* The first segment that is kept: that of the oldest good checkpoint from which the journal reaches the base. */
static void find_first(struct work *w)
{
    const struct checkpoint_info *oldest = w->base;
    w->first = oldest ? oldest->segment : 0;
    for (size_t i = w->n_checkpoints; oldest && i-- > 0;) {
        const struct checkpoint_info *c = &w->checkpoints[i];
        if (!c->n_fragments || c->round >= oldest->round) continue;
        if (!joined(w, c, oldest)) return;
        oldest = c;
        w->first = c->segment;
    }
}

/* --- the log behind the base -------------------------------------------------------------------------------------- */

static const char *init_dir(const struct work *w)
{
    return strcmp(w->config->model.init_from, "scratch") ? w->config->model.init_from : NULL;
}

static enum status load_base(struct work *w, struct err *err)
{
    struct checkpoint_info info;
    TRY(ledger_init(&w->ledger, w->config, NULL, err));
    w->replaying = true;
    w->ledger.journal.store = w->store; /* replay reads deltas back */
    w->ledger.folder = store_folder(w->store);
    if (!w->base) return STATUS_OK;
    TRY(checkpoint_load(&w->ledger, w->store, w->base->round, &info, err));
    for (uint32_t f = 0; f < info.n_fragments; f++)
        TRY(update_log_start(&w->ledger.log, f, info.versions[f], info.hashes[f]));
    return STATUS_OK;
}

/* END: the record contradicts those before it, as after a cut between two records. */
static enum status replay(void *ctx, const struct journal_record *record, struct err *err)
{
    struct work *w = ctx;
    struct err why = {0};
    if (record->type == RECORD_OPEN && !w->ledger.round.open) w->opened = record->at;
    enum status status = ledger_replay(&w->ledger, record, &why);
    if (record->type == RECORD_RUN) w->ledger.init_dir = init_dir(w);
    if (status == STATUS_CORRUPT || status == STATUS_STATE) {
        w->bad = record->at;
        return STATUS_END;
    }
    return status == STATUS_OK ? status : err_set(err, status, "%s", why.msg);
}

/* Some fragments of the open round are merged, others are not. */
static bool is_half_merged(const struct round *r)
{
    bool any = false;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) any = any || (r->open && r->closed[f]);
    return any;
}

/* Without a checkpoint the next start writes one at the cut. A worker without state, or ahead of the cut, starts from
 * it. If it held half of a round, that worker could not train the other half. */
static void cut_at_round(struct work *w)
{
    if (w->base || !w->ledger.modelled || !is_half_merged(&w->ledger.round)) return;
    w->cut = (struct journal_ref){w->opened.segment, w->opened.offset - JOURNAL_RECORD_HEADER};
}

/* Replays the journal behind the base up to the first damage. */
static enum status find_cut(struct work *w, struct err *err)
{
    struct repair *r = w->r;
    uint64_t at = w->base ? w->base->segment : 0;
    const uint64_t last = w->n_segments ? w->segments[w->n_segments - 1].number : 0;
    TRY(load_base(w, err));
    for (;; at++) {
        struct journal_end end = {0};
        struct err why = {0};
        const struct segment *s = segment_of(w, at);
        enum status status = s ? scan(w, at, &end, replay, w, &why) : STATUS_CORRUPT;
        if (status == STATUS_OK && at < last) continue;
        if (status == STATUS_OK && !end.damaged) return STATUS_OK;
        if (status != STATUS_OK && status != STATUS_CORRUPT && status != STATUS_END)
            return err_set(err, status, "%s", why.msg);
        r->cut = true;
        r->missing = !s;
        r->segment = at;
        r->at = status == STATUS_END ? w->bad.offset - JOURNAL_RECORD_HEADER : end.good;
        break;
    }
    w->cut = (struct journal_ref){r->segment, r->at};
    cut_at_round(w);
    if (w->ledger.modelled) return STATUS_OK;
    return err_set(
        err, STATUS_NOTFOUND,
        "no checkpoint is undamaged, and the journal is %s from its beginning: no round can be kept: restore "
        "the folder from a copy, or start a new run (model.init_from)",
        r->missing ? "missing" : "damaged");
}

/* --- count -------------------------------------------------------------------------------------------------------- */

static struct repair_worker *worker_of(struct repair *r, uint32_t id, struct err *err)
{
    if (id >= r->n_workers) {
        size_t size = sizeof *r->workers, n = (size_t)id + 1;
        struct repair_worker *grown =
            id < WIRE_NAMED_MAX ? mem_resize(r->workers, r->n_workers * size, n * size) : NULL;
        if (!grown) return (void)err_set(err, STATUS_NOMEM, "no memory for the names of the workers"), NULL;
        memset(grown + r->n_workers, 0, (n - r->n_workers) * size);
        r->workers = grown;
        r->n_workers = n;
    }
    return &r->workers[id];
}

static enum status name_worker(struct repair *r, uint32_t id, const char *name, struct err *err)
{
    struct repair_worker *worker = worker_of(r, id, err);
    if (!worker) return STATUS_NOMEM;
    snprintf(worker->name, sizeof worker->name, "%s", name);
    return STATUS_OK;
}

/* Counts what is lost. Records that cannot be decoded are left out. */
static enum status count_lost(void *ctx, const struct journal_record *record, struct err *err)
{
    struct work *w = ctx;
    struct record_member member = {0};
    struct record_delta delta = {0};
    if (record->type == RECORD_MEMBER &&
        record_decode(RECORD_MEMBER, &member, record->body, record->size) == STATUS_OK &&
        member.what == RECORD_MEMBER_JOIN)
        return name_worker(w->r, member.id, member.name, err);
    if (record->type == RECORD_DELTA && record_decode(RECORD_DELTA, &delta, record->body, record->size) == STATUS_OK) {
        struct repair_worker *worker = worker_of(w->r, delta.id, err);
        if (!worker) return STATUS_NOMEM;
        worker->deltas++;
    }
    ledger_lost_count(&w->lost, record);
    return STATUS_OK;
}

static enum status count(struct work *w, struct err *err)
{
    struct repair *r = w->r;
    const struct ledger *l = &w->ledger;
    r->rounds_kept = l->modelled ? round_done(&l->round) : 0;
    for (uint32_t i = 0; l->modelled && i < l->round.members.n; i++)
        TRY(name_worker(r, i, l->round.members.members[i]->name, err));
    for (size_t i = 0; r->cut && i < w->n_segments; i++) {
        struct journal_source source;
        const struct segment *s = &w->segments[i];
        if (s->number < w->cut.segment) continue;
        TRY(journal_source_of(&source, w->store, s->number, false, err));
        TRY(journal_salvage(&source, s->number == w->cut.segment ? w->cut.offset : 0, count_lost, w, err));
    }
    r->updates_lost = w->lost.updates;
    r->rounds_lost = ledger_lost_rounds(&w->lost, l);
    return STATUS_OK;
}

/* --- change ------------------------------------------------------------------------------------------------------- */

static enum status move_segment(struct work *w, uint64_t number, uint64_t keep, struct err *err)
{
    char from[64], to[256];
    TRY(w->store->ops->segment_put_aside(w->store, number, keep, to, sizeof to, err));
    snprintf(from, sizeof from, "journal/%08llu.log", (unsigned long long)number);
    w->r->n_moved++;
    w->moved(w->ctx, from, to);
    return STATUS_OK;
}

static bool is_useless(const struct work *w, const struct checkpoint_info *c)
{
    return !c->n_fragments || c->segment < w->first;
}

static enum status move_checkpoints(struct work *w, struct err *err)
{
    for (size_t i = 0; i < w->n_checkpoints; i++) {
        const struct checkpoint_info *c = &w->checkpoints[i];
        char from[64], name[128], to[256];
        if (!is_useless(w, c)) continue;
        TRY(w->store->ops->checkpoint_put_aside(w->store, c->round, name, sizeof name, err));
        snprintf(from, sizeof from, "checkpoints/round_%06llu", (unsigned long long)c->round);
        snprintf(to, sizeof to, "checkpoints/%s", name);
        w->r->n_moved++;
        w->moved(w->ctx, from, to);
    }
    return STATUS_OK;
}

/* The last segment goes first: after a crash in between, the rest still ends at the damage. */
static enum status move_segments(struct work *w, struct err *err)
{
    const struct repair *r = w->r;
    for (size_t i = w->n_segments; i-- > 0;) {
        const struct segment *s = &w->segments[i];
        if ((s->number < w->first && !s->whole) || (r->cut && s->number > w->cut.segment))
            TRY(move_segment(w, s->number, STORE_KEEP_NONE, err));
        else if (r->cut && s->number == w->cut.segment)
            TRY(move_segment(w, s->number, w->cut.offset, err));
    }
    /* Recovery appends to the last segment: records after the base must not follow those before it. */
    if (!r->cut || !r->missing || !w->base || r->segment != w->base->segment) return STATUS_OK;
    return w->store->ops->segment_begin(w->store, r->segment, err);
}

static enum status plan(struct work *w, struct err *err)
{
    struct repair *r = w->r;
    struct config_sources sources;
    w->named = mem_alloc(WIRE_NAMED_MAX, sizeof *w->named);
    w->config = mem_alloc(1, sizeof *w->config);
    if (!w->named || !w->config) return err_set(err, STATUS_NOMEM, "no memory to repair the journal");
    w->lost.named = w->named;
    config_defaults(w->config, &sources);
    TRY(look_at_segments(w, err));
    TRY(look_at_checkpoints(w, err));
    TRY(find_cut(w, err));
    TRY(count(w, err));
    find_first(w);
    r->needed = r->cut;
    for (size_t i = 0; i < w->n_segments; i++)
        r->needed = r->needed || (w->segments[i].number < w->first && !w->segments[i].whole);
    for (size_t i = 0; i < w->n_checkpoints; i++) r->needed = r->needed || is_useless(w, &w->checkpoints[i]);
    return STATUS_OK;
}

enum status repair_run(struct repair *r, struct store *store, repair_moved_fn moved, void *ctx, struct err *err)
{
    struct work *w = mem_alloc(1, sizeof *w);
    *r = (struct repair){0};
    if (!w) return err_set(err, STATUS_NOMEM, "no memory to repair the journal");
    *w = (struct work){.r = r, .store = store, .moved = moved, .ctx = ctx};
    enum status status = plan(w, err);
    if (status == STATUS_OK && r->needed) status = move_checkpoints(w, err);
    if (status == STATUS_OK && r->needed) status = move_segments(w, err);
    if (w->replaying) ledger_finish(&w->ledger);
    mem_free(w->segments);
    mem_free(w->checkpoints);
    mem_free(w->config);
    mem_free(w->named);
    mem_free(w);
    return status;
}

void repair_finish(struct repair *r)
{
    mem_free(r->workers);
    *r = (struct repair){0};
}
