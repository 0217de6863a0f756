#include "coordinator/ledger/history/history_impl.h"

#include <string.h>

#include "common/base/mem.h"

static enum status look_at_checkpoints(struct past *p, struct err *err)
{
    uint64_t *list;
    size_t n;
    TRY(store_list(p->store, p->store->ops->checkpoint_list, &list, &n, err));
    p->checkpoints = mem_alloc(n + 1, sizeof *p->checkpoints);
    enum status status =
        p->checkpoints ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for the list of checkpoints");
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        struct err why = {0};
        status = checkpoint_look(p->store, list[i], &p->checkpoints[p->n_checkpoints], &why);
        p->n_checkpoints += status == STATUS_OK;
        if (status == STATUS_CORRUPT || status == STATUS_NOTFOUND) status = STATUS_OK;
        if (status != STATUS_OK) (void)err_set(err, status, "%s", why.msg);
    }
    mem_free(list);
    if (status == STATUS_OK && !p->n_checkpoints)
        return err_set(
            err, STATUS_NOTFOUND,
            "the run has no undamaged checkpoint: no worker has joined it yet, or atoll repair must come first");
    return status;
}

enum status past_open(struct past *p, struct store *store, uint32_t min_workers, const struct history_watch *watch,
                      struct err *err)
{
    struct config_sources sources;
    *p = (struct past){.store = store, .watch = watch};
    p->config = mem_alloc(1, sizeof *p->config);
    if (!p->config) return err_set(err, STATUS_NOMEM, "no memory to read the journal");
    config_defaults(p->config, &sources);
    if (min_workers) p->config->coordinator.min_workers = min_workers; /* checkpoints hold no key of a coordinator */
    TRY(store_list(store, store->ops->segment_list, &p->segments, &p->n_segments, err));
    return look_at_checkpoints(p, err);
}

static void unload(struct past *p)
{
    if (p->loaded) ledger_finish(&p->ledger);
    p->loaded = false;
}

void past_close(struct past *p)
{
    unload(p);
    mem_free(p->checkpoints);
    mem_free(p->segments);
    mem_free(p->config);
    *p = (struct past){0};
}

enum status past_load(struct past *p, const struct checkpoint_info *from, struct store *deltas, struct err *err)
{
    struct checkpoint_info info;
    unload(p);
    TRY(ledger_init(&p->ledger, p->config, NULL, err));
    p->loaded = true;
    p->ledger.journal.store = deltas;
    p->ledger.folder = store_folder(deltas);
    TRY(checkpoint_load(&p->ledger, p->store, from->round, &info, err));
    for (uint32_t f = 0; f < info.n_fragments; f++)
        TRY(update_log_start(&p->ledger.log, f, info.versions[f], info.hashes[f]));
    return STATUS_OK;
}

const struct checkpoint_info *past_before(const struct past *p, uint64_t round)
{
    const struct checkpoint_info *found = NULL;
    for (size_t i = 0; i < p->n_checkpoints; i++)
        if (p->checkpoints[i].round <= round) found = &p->checkpoints[i];
    return found;
}

struct journal_ref past_begin(struct journal_ref at)
{
    return (struct journal_ref){at.segment, at.offset - JOURNAL_RECORD_HEADER};
}

bool past_less(struct journal_ref a, struct journal_ref b)
{
    return a.segment < b.segment || (a.segment == b.segment && a.offset < b.offset);
}

/* A part of the journal. */
struct reading {
    struct journal_ref from, to;
    journal_visit_fn visit;
    void *ctx;
    bool ended; /* at `to` */
    const struct history_watch *watch;
    uint64_t before, total; /* bytes of the segments before this one; of all */
};

static enum status pass_on(void *ctx, const struct journal_record *record, struct err *err)
{
    struct reading *r = ctx;
    struct journal_ref at = past_begin(record->at);
    if (past_less(at, r->from)) return STATUS_OK;
    if (!past_less(at, r->to)) {
        r->ended = true;
        return STATUS_END;
    }
    if (r->watch) r->watch->read(r->watch->ctx, r->before + at.offset, r->total);
    return r->visit(r->ctx, record, err);
}

enum status past_read(const struct past *p, struct journal_ref from, struct journal_ref to, journal_visit_fn visit,
                      void *ctx, struct err *err)
{
    struct reading r = {.from = from, .to = to, .visit = visit, .ctx = ctx, .watch = p->watch};
    uint64_t expect = from.segment, size;
    for (size_t i = 0; i < p->n_segments; i++) {
        if (p->segments[i] < from.segment || p->segments[i] > to.segment) continue;
        TRY(p->store->ops->segment_size(p->store, p->segments[i], &size, err));
        r.total += p->segments[i] == to.segment ? to.offset : size;
    }
    for (size_t i = 0; i < p->n_segments; i++) {
        struct journal_source source;
        struct journal_end end;
        if (p->segments[i] < from.segment) continue;
        if (p->segments[i] > to.segment) return STATUS_OK;
        if (p->segments[i] != expect++) return journal_missing(expect - 1, err);
        TRY(journal_source_of(&source, p->store, p->segments[i], i + 1 == p->n_segments, err));
        enum status status = journal_scan(&source, &end, pass_on, &r, err);
        if (r.ended) return STATUS_OK;
        TRY(status);
        r.before += source.size;
    }
    return expect > from.segment ? STATUS_OK : journal_missing(expect, err);
}
