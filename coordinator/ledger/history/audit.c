#include "coordinator/ledger/history/audit.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "coordinator/ledger/history/history_impl.h"

enum { NAMES_MAX = 400 };

struct work {
    struct audit *a;
    struct past past;
    struct update_named *named; /* [WIRE_NAMED_MAX] */
    uint64_t before, total;     /* bytes of the segments before this one; of all */
};

/* END: stops the audit at the first difference. */
static enum status differs(struct audit *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static enum status differs(struct audit *a, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(a->what, sizeof a->what, format, args);
    va_end(args);
    a->wrong = true;
    return STATUS_END;
}

static const char *names_of(const struct work *w, uint32_t n, char out[NAMES_MAX])
{
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = member_by_id(&w->past.ledger.round.members, w->named[i].worker_id);
        if (at + sizeof m->name + sizeof ", and 4294967295 more" > NAMES_MAX) {
            snprintf(out + at, NAMES_MAX - at, ", and %u more", n - i);
            break;
        }
        at += (size_t)snprintf(out + at, NAMES_MAX - at, "%s%s", i ? ", " : "", m ? m->name : "?");
    }
    return out;
}

/* The deltas give another update than the journal holds. */
static enum status other_update(struct work *w, const struct journal_record *record)
{
    struct update u;
    char names[NAMES_MAX];
    const struct outer_state *o = &w->past.ledger.outer;
    unsigned long long segment = record->at.segment, at = record->at.offset - JOURNAL_RECORD_HEADER;
    if (ledger_read_update(record, w->named, &u) != STATUS_OK)
        return differs(w->a, "journal/%08llu.log, byte %llu: the update is malformed", segment, at);
    uint64_t hash = o->fragments[u.fragment].hash;
    names_of(w, u.n_named, names);
    if (hash == u.theta_hash)
        return differs(w->a,
                       "round %llu, fragment %u, version %llu (journal/%08llu.log, byte %llu): the deltas of %s give "
                       "the parameters that the update names (hash %016llx), but other bytes than it sends",
                       (unsigned long long)u.round + 1, u.fragment, (unsigned long long)u.version, segment, at, names,
                       (unsigned long long)hash);
    return differs(w->a,
                   "round %llu, fragment %u, version %llu (journal/%08llu.log, byte %llu): the deltas of %s give "
                   "parameters with hash %016llx, the update says %016llx",
                   (unsigned long long)u.round + 1, u.fragment, (unsigned long long)u.version, segment, at, names,
                   (unsigned long long)hash, (unsigned long long)u.theta_hash);
}

static enum status visit(void *ctx, const struct journal_record *record, struct err *err)
{
    struct work *w = ctx;
    struct err why = {0};
    enum status status = ledger_replay(&w->past.ledger, record, &why);
    const struct history_watch *watch = w->past.watch;
    if (watch) watch->read(watch->ctx, w->before + record->at.offset, w->total);
    w->a->records++;
    w->a->deltas += record->type == RECORD_DELTA;
    w->a->updates += record->type == RECORD_UPDATE;
    if (status == STATUS_OK) return status;
    if (status == STATUS_MISMATCH && record->type == RECORD_UPDATE) return other_update(w, record);
    if (status == STATUS_CORRUPT || status == STATUS_STATE || status == STATUS_NONFINITE) {
        bool placed = !strncmp(why.msg, "journal/", strlen("journal/"));
        if (placed) return differs(w->a, "%s", why.msg);
        return differs(w->a, "journal/%08llu.log, byte %llu: %s", (unsigned long long)record->at.segment,
                       (unsigned long long)(record->at.offset - JOURNAL_RECORD_HEADER), why.msg);
    }
    return err_set(err, status, "%s", why.msg);
}

/* The checkpoint that this segment follows, without the one that the audit began with. */
static const struct checkpoint_info *checkpoint_at(const struct past *p, uint64_t segment)
{
    for (size_t i = 1; i < p->n_checkpoints; i++)
        if (p->checkpoints[i].segment == segment) return &p->checkpoints[i];
    return NULL;
}

/* STATUS_CORRUPT of a checkpoint is a difference. */
static enum status judge(struct audit *a, enum status status, const struct err *why, struct err *err)
{
    if (status == STATUS_CORRUPT || status == STATUS_NOTFOUND) return differs(a, "%s", why->msg);
    return status == STATUS_OK ? status : err_set(err, status, "%s", why->msg);
}

static enum status check_checkpoint(struct work *w, const struct checkpoint_info *c, struct err *err)
{
    struct err why = {0};
    struct checkpoint_info info;
    const char *what;
    TRY(judge(w->a, checkpoint_check(w->past.store, c->round, &info, &why), &why, err));
    TRY(judge(w->a, checkpoint_compare(&w->past.ledger, w->past.store, c->round, &what, &why), &why, err));
    w->a->checkpoints++;
    if (!what) return STATUS_OK;
    return differs(w->a, "checkpoint round_%06llu: the journal gives other bits for %s", (unsigned long long)c->round,
                   what);
}

static enum status check_segment(struct work *w, uint64_t segment, bool last, struct err *err)
{
    struct journal_source source;
    struct journal_end end;
    struct err why = {0};
    TRY(journal_source_of(&source, w->past.store, segment, last, err));
    enum status status = journal_scan(&source, &end, visit, w, &why);
    if (w->a->wrong) return STATUS_END;
    if (status == STATUS_CORRUPT) return differs(w->a, "%s", why.msg);
    if (status != STATUS_OK) return err_set(err, status, "%s", why.msg);
    w->before += source.size;
    if (end.good == source.size) return STATUS_OK;
    return differs(w->a,
                   "journal/%08llu.log: its last %llu bytes, from byte %llu on, are no whole record: they are damaged, "
                   "or a crash cut the last write (then the next start removes them)",
                   (unsigned long long)segment, (unsigned long long)(source.size - end.good),
                   (unsigned long long)end.good);
}

/* A checkpoint whose head cannot be read is not among those of past_open. */
static enum status check_all_read(struct work *w, struct err *err)
{
    uint64_t *list;
    size_t n;
    struct past *p = &w->past;
    TRY(store_list(p->store, p->store->ops->checkpoint_list, &list, &n, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        struct err why = {0};
        struct checkpoint_info info;
        status = judge(w->a, checkpoint_look(p->store, list[i], &info, &why), &why, err);
    }
    mem_free(list);
    return status;
}

static enum status check_all(struct work *w, struct err *err)
{
    struct err why = {0};
    struct past *p = &w->past;
    uint64_t at = p->checkpoints[0].segment;
    const uint64_t last = p->n_segments ? p->segments[p->n_segments - 1] : 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        uint64_t size;
        if (p->segments[i] < at) continue;
        TRY(p->store->ops->segment_size(p->store, p->segments[i], &size, err));
        w->total += size;
    }
    TRY(check_all_read(w, err));
    TRY(judge(w->a, past_load(p, &p->checkpoints[0], p->store, &why), &why, err));
    w->a->checkpoints++;
    for (size_t i = 0; i < p->n_segments; i++) {
        if (p->segments[i] < at) continue;
        if (p->segments[i] != at) break;
        const struct checkpoint_info *c = checkpoint_at(p, at);
        if (c) TRY(check_checkpoint(w, c, err));
        TRY(check_segment(w, at++, p->segments[i] == last, err));
    }
    for (size_t i = 0; i < p->n_checkpoints; i++)
        if (p->checkpoints[i].segment >= at || at <= last)
            return differs(w->a, "journal/%08llu.log is missing", (unsigned long long)at);
    return STATUS_OK;
}

enum status audit_run(struct audit *a, struct store *store, uint32_t min_workers, const struct history_watch *watch,
                      struct err *err)
{
    struct work w = {.a = a};
    *a = (struct audit){0};
    w.named = mem_alloc(WIRE_NAMED_MAX, sizeof *w.named);
    if (!w.named) return err_set(err, STATUS_NOMEM, "no memory to read the journal");
    enum status status = past_open(&w.past, store, min_workers, watch, err);
    if (status == STATUS_OK) {
        a->from = w.past.checkpoints[0].round;
        status = check_all(&w, err);
    }
    if (status == STATUS_END && a->wrong) status = STATUS_OK;
    if (w.past.loaded) {
        const struct ledger *l = &w.past.ledger;
        a->to = l->modelled ? round_done(&l->round) : a->from;
        memcpy(a->taken, l->taken, sizeof a->taken);
        a->n_taken = l->n_taken;
    }
    past_close(&w.past);
    mem_free(w.named);
    return status;
}
