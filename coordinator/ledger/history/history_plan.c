#include "coordinator/ledger/history/history_impl.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

enum { NAMES_MAX = 300 };

/* One pass over the journal behind a checkpoint, without outer steps. */
struct skim {
    struct history *h;
    struct past *past;
    uint64_t want;            /* rounds that stay; UINT64_MAX: up to the first delta of the excluded worker */
    bool found;               /* h->cut is set */
    bool copies;              /* the first record is a delta: it may be a copy of one before the checkpoint */
    struct journal_ref begin; /* the first record */
    struct journal_ref opened, opened_end; /* barrier: the record that opened the newest round, and its end */
    bool half;                             /* that round is not complete */
    uint64_t alone;                        /* exclude: the first round that only that worker delivered, + 1; 0: none */
    struct update_named *named;
};

static bool is_excluded(const struct skim *s, uint32_t id)
{
    const struct member *m = member_by_id(&s->past->ledger.round.members, id);
    return s->h->request.exclude && m && !strcmp(m->name, s->h->request.exclude);
}

/* The old history ends here. */
static void cut_at(struct skim *s, struct journal_ref at)
{
    const struct round *r = &s->past->ledger.round;
    struct history *h = s->h;
    s->found = true;
    h->cut = at;
    h->kept = round_done(r);
    h->kept_tokens = r->tokens;
    h->kept_steps = h->kept < round_total(r) ? round_span(r, h->kept).first : r->p.max_steps;
}

/* The copy of a held delta behind a checkpoint: it belongs to the checkpoint. */
static bool is_copy(const struct skim *s, const struct journal_record *record)
{
    struct record_delta delta = {0};
    if (record->type != RECORD_DELTA || record_decode(RECORD_DELTA, &delta, record->body, record->size) != STATUS_OK)
        return false;
    const struct member *m = member_by_id(&s->past->ledger.round.members, delta.id);
    return m && m->work.open && m->work.round == delta.round && delta.fragment < s->past->ledger.layout.n_fragments &&
           m->work.parts[delta.fragment].state == PART_HELD;
}

static struct history_worker *worker_of(struct history *h, uint32_t id, struct err *err)
{
    if (id >= h->n_workers) {
        size_t size = sizeof *h->workers, n = (size_t)id + 1;
        struct history_worker *grown = mem_resize(h->workers, h->n_workers * size, n * size);
        if (!grown) return (void)err_set(err, STATUS_NOMEM, "no memory for the names of the workers"), NULL;
        memset(grown + h->n_workers, 0, (n - h->n_workers) * size);
        h->workers = grown;
        h->n_workers = n;
    }
    return &h->workers[id];
}

static enum status count_delta(struct skim *s, const struct journal_record *record, struct err *err)
{
    const struct ledger *l = &s->past->ledger;
    struct record_delta delta = {0};
    TRY(record_decode(RECORD_DELTA, &delta, record->body, record->size));
    const struct member *m = member_by_id(&l->round.members, delta.id);
    if (!m) return STATUS_OK; /* the fold refuses it */
    if (!s->found && s->want == UINT64_MAX && is_excluded(s, delta.id))
        cut_at(s, s->h->async ? past_begin(record->at) : s->opened);
    if (!s->found || (s->h->request.exclude && !is_excluded(s, delta.id))) return STATUS_OK;
    struct history_worker *worker = worker_of(s->h, delta.id, err);
    if (!worker) return STATUS_NOMEM;
    memcpy(worker->name, m->name, sizeof worker->name);
    worker->deltas++;
    return STATUS_OK;
}

static enum status count_update(struct skim *s, const struct journal_record *record)
{
    struct update u;
    if (!s->found) return STATUS_OK;
    TRY(ledger_read_update(record, s->named, &u));
    s->h->updates++;
    bool all = s->h->request.exclude && u.n_named && !s->h->async;
    for (uint32_t i = 0; i < u.n_named; i++) all = all && is_excluded(s, s->named[i].worker_id);
    if (all && !s->alone) s->alone = u.round + 1;
    return STATUS_OK;
}

static enum status note_change(struct history *h, const struct journal_record *record)
{
    struct record_run run = {0};
    TRY(record_decode(RECORD_RUN, &run, record->body, record->size));
    if (h->n_changes < HISTORY_CHANGES_MAX) h->changes[h->n_changes++] = run.config_hash;
    return STATUS_OK;
}

static enum status skim_visit(void *ctx, const struct journal_record *record, struct err *err)
{
    struct skim *s = ctx;
    const struct round *r = &s->past->ledger.round;
    bool opens = record->type == RECORD_OPEN && !r->open && !s->h->async;
    if (opens) {
        s->opened = past_begin(record->at);
        s->opened_end = (struct journal_ref){record->at.segment, record->at.offset + record->size};
    }
    if (!s->found && (opens || s->h->async) && round_done(r) >= s->want && !is_copy(s, record))
        cut_at(s, opens && !s->h->request.exclude ? s->opened_end : past_begin(record->at));
    if (!past_less(s->begin, past_begin(record->at))) s->copies = record->type == RECORD_DELTA;
    enum status status = STATUS_OK;
    if (record->type == RECORD_DELTA) status = count_delta(s, record, err);
    if (record->type == RECORD_UPDATE) status = count_update(s, record);
    if (record->type == RECORD_RUN && s->found && !s->h->request.exclude) status = note_change(s->h, record);
    if (status == STATUS_OK) return ledger_replay(&s->past->ledger, record, err);
    if (status == STATUS_NOMEM) return status;
    return err_set(err, STATUS_CORRUPT, "journal/%08llu.log: the record at byte %llu is malformed",
                   (unsigned long long)record->at.segment, (unsigned long long)record->at.offset);
}

/* Follows the journal from this checkpoint to its end. */
static enum status skim(struct skim *s, const struct checkpoint_info *from, struct err *err)
{
    struct past *p = s->past;
    struct journal_ref begin = {from->segment, JOURNAL_SEGMENT_HEADER}, end = {UINT64_MAX, 0};
    TRY(past_load(p, from, p->store, err));
    p->ledger.skims = true;
    s->h->async = p->config->train.method == METHOD_ASYNC;
    s->h->base = from->round;
    s->copies = false;
    s->begin = s->opened = s->opened_end = begin; /* its round may be open already */
    if (p->ledger.round.open && from->round == s->want) cut_at(s, begin);
    TRY(past_read(p, begin, end, skim_visit, s, err));
    s->half = p->ledger.round.open;
    s->h->before = round_done(&p->ledger.round);
    s->h->tokens = p->ledger.round.tokens;
    s->h->clock = p->ledger.clock;
    s->h->end = s->half ? s->opened_end : end;
    return STATUS_OK;
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* "a, b and c" would need a rule for one name; this is "a, b, c". */
static const char *names_of(const struct past *p, char out[NAMES_MAX])
{
    size_t n = 0;
    out[0] = '\0';
    for_each_member(&p->ledger.round.members, m) {
        if (n + sizeof m->name + sizeof ", ..." > NAMES_MAX) {
            snprintf(out + n, NAMES_MAX - n, ", ...");
            break;
        }
        n += (size_t)snprintf(out + n, NAMES_MAX - n, "%s%s", n ? ", " : "", m->name);
    }
    return out;
}

static bool is_known(const struct past *p, const char *name)
{
    for_each_member(&p->ledger.round.members, m) {
        if (!strcmp(m->name, name)) return true;
    }
    return false;
}

/* This round is not in the run. */
static enum status no_round(const struct history *h, const struct past *p, uint64_t round, struct err *err)
{
    unsigned long long oldest = p->checkpoints[0].round, done = h->before;
    bool exclude = h->request.exclude != NULL;
    const char *flag = exclude ? "--since" : "--to";
    unsigned long long first = exclude ? oldest + 1 : oldest, last = exclude || !done ? done : done - 1;
    if (!done || first > last)
        return err_set(
            err, STATUS_INVALID,
            "the oldest checkpoint is that of round %llu, and the run has %llu rounds: there is nothing that "
            "can be taken back",
            oldest, done);
    if (round > last)
        return err_set(err, STATUS_INVALID, "%s %llu: the run has %llu rounds; possible are %llu to %llu", flag,
                       (unsigned long long)round, done, first, last);
    if (round >= first) /* async */
        return err_set(err, STATUS_INVALID,
                       "%s %llu: the outer step that ended that round ended the last one, too; give a smaller round",
                       flag, (unsigned long long)round);
    return err_set(err, STATUS_INVALID,
                   "%s %llu: the journal begins with the oldest checkpoint, round %llu; possible are %llu to %llu",
                   flag, (unsigned long long)round, oldest, first, last);
}

static enum status check_found(struct skim *s, const struct past *p, struct err *err)
{
    const struct history *h = s->h;
    const char *name = h->request.exclude;
    char names[NAMES_MAX];
    uint64_t deltas = 0;
    if (name && !is_known(p, name))
        return err_set(err, STATUS_NOTFOUND, "no worker of the run is named %s; its workers: %s", name,
                       names_of(p, names));
    for (size_t i = 0; i < h->n_workers; i++) deltas += h->workers[i].deltas;
    if (name && s->alone && s->alone <= h->before)
        return err_set(err, STATUS_UNSUPPORTED,
                       "%s was the only one that delivered in round %llu, so nothing is left of that round: take the "
                       "run back before it, with atoll rollback RUN --to %llu",
                       name, (unsigned long long)s->alone, (unsigned long long)s->alone - 1);
    if (name && h->request.round > h->before) return no_round(h, p, h->request.round, err);
    if (name && !deltas && h->request.round)
        return err_set(err, STATUS_INVALID, "%s has delivered nothing since round %llu", name,
                       (unsigned long long)h->request.round);
    if (name && !deltas)
        return err_set(err, STATUS_INVALID, "%s has delivered nothing: there is nothing to exclude", name);
    bool any = s->found && (h->kept < h->before || (name && s->half));
    return any ? STATUS_OK : no_round(h, p, h->request.round, err);
}

/* Without --since all of its deltas go: none may lie before the journal. */
static enum status check_all(const struct past *p, const char *name, struct err *err)
{
    const unsigned long long oldest = p->checkpoints[0].round;
    for_each_member(&p->ledger.round.members, m) {
        if (strcmp(m->name, name) != 0 || !m->steps) continue;
        return err_set(err, STATUS_INVALID,
                       "%s contributed before the oldest checkpoint, round %llu: the journal no longer has those "
                       "deltas; give --since, at the earliest %llu",
                       name, oldest, oldest + 1);
    }
    return STATUS_OK;
}

/* --- plan --------------------------------------------------------------------------------------------------------- */

/* Skims from this checkpoint, or from older ones. A checkpoint lists held deltas as those that are waited for: their
 * copies follow it. A cut before the copies would leave a journal that contradicts itself when it is read from an older
 * checkpoint, where the deltas are held. */
static enum status skim_from(struct skim *s, const struct checkpoint_info *from, struct err *err)
{
    struct history *h = s->h;
    for (;; from--) {
        TRY(skim(s, from, err));
        bool here = s->found && !past_less(s->begin, h->cut);
        if (!here || !s->copies || from == s->past->checkpoints) return STATUS_OK;
        mem_free(h->workers);
        *h = (struct history){.request = h->request};
        s->alone = 0;
        s->found = false;
    }
}

static enum status find(struct skim *s, struct past *p, struct err *err)
{
    struct history *h = s->h;
    const struct checkpoint_info *from = s->want == UINT64_MAX ? &p->checkpoints[0] : past_before(p, s->want);
    if (!from) { /* only the number of rounds is needed, for the refusal */
        s->want = UINT64_MAX - 1;
        TRY(skim(s, &p->checkpoints[p->n_checkpoints - 1], err));
        return no_round(h, p, h->request.round, err);
    }
    if (s->want == UINT64_MAX) {
        TRY(past_load(p, from, p->store, err));
        TRY(check_all(p, h->request.exclude, err));
    }
    TRY(skim_from(s, from, err));
    TRY(check_found(s, p, err));
    for (size_t i = 0; i < p->n_checkpoints; i++) /* one of the same round may lie behind the cut */
        if (p->checkpoints[i].round <= h->kept && p->checkpoints[i].segment <= h->cut.segment)
            h->base = p->checkpoints[i].round;
    h->first = p->checkpoints[0].segment;
    return STATUS_OK;
}

enum status history_plan(struct history *h, const struct history_request *request, struct store *store, struct err *err)
{
    struct past p;
    struct skim s = {.h = h, .past = &p, .want = request->round};
    *h = (struct history){.request = *request};
    if (request->exclude) s.want = request->round ? request->round - 1 : UINT64_MAX;
    s.named = mem_alloc(WIRE_NAMED_MAX, sizeof *s.named);
    if (!s.named) return err_set(err, STATUS_NOMEM, "no memory to read the journal");
    enum status status = past_open(&p, store, request->min_workers, request->watch, err);
    if (status == STATUS_OK) status = find(&s, &p, err);
    past_close(&p);
    mem_free(s.named);
    return status;
}

bool history_keeps(const struct history *h, uint64_t round, uint64_t segment)
{
    return segment <= h->cut.segment && (h->request.exclude ? round <= h->kept : round < h->kept);
}

void history_finish(struct history *h)
{
    mem_free(h->workers);
    mem_free(h->again);
    *h = (struct history){0};
}
