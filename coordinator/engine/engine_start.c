#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/delta_measure.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

static enum status init_ledger(struct engine *e, struct err *err)
{
    bool region = e->ledger.region;
    TRY(ledger_init(&e->ledger, &e->config, e->init_dir, err));
    e->ledger.region = region;
    e->ledger.folder = store_folder(e->store);
    return STATUS_OK;
}

static enum status begin_run(struct engine *e, struct err *err)
{
    uint64_t id[2] = {engine_draw(e), engine_draw(e)};
    TRY(engine_check_sources(e, err));
    if (!e->ledger.begun) memcpy(e->ledger.run_id, id, sizeof e->ledger.run_id);
    if (!e->ledger.journal.open) TRY(journal_begin(&e->ledger.journal, e->store, 0, err));
    return engine_settings_write(e, err);
}

static enum status report_recovering(const struct engine *e, struct err *err)
{
    if (!e->io.recovering) return STATUS_OK;
    return e->io.recovering(e->io.ctx, e->ledger.modelled ? round_done(&e->ledger.round) : 0, e->recovered, err);
}

static enum status visit(void *ctx, const struct journal_record *record, struct err *err)
{
    struct engine *e = ctx;
    const struct checkpoint_info *newest = engine_newest(e);
    TRY(report_recovering(e, err));
    e->recovered++;
    if (newest && record->at.segment < newest->segment) return ledger_index(&e->ledger, record, err);
    if (record->type == RECORD_MODEL) TRY(engine_settings_check(e, err)); /* before replay recomputes steps */
    TRY(ledger_replay(&e->ledger, record, err));
    e->clock_base = e->ledger.clock; /* running totals continue from the last record */
    struct record_delta delta = {0};
    if (record->type == RECORD_DELTA) TRY(record_decode(RECORD_DELTA, &delta, record->body, record->size));
    engine_round_follow(e, record->type, delta.id);
    return STATUS_OK;
}

/* Notes a damaged checkpoint or segment. Recovery does without it: an older checkpoint and the journal behind that give
 * the same state. LIMIT, with the damage as error: too many of them. */
static enum status note_damage(struct engine *e, bool is_segment, uint64_t number, struct err *why, struct err *err)
{
    if (e->n_damaged == ENGINE_DAMAGED_MAX) return err_set(err, STATUS_LIMIT, "%s", why->msg);
    struct damaged_file *d = &e->damaged[e->n_damaged++];
    d->is_segment = is_segment;
    d->number = number;
    snprintf(d->why, sizeof d->why, "%.*s", (int)sizeof d->why - 1, why->msg);
    return STATUS_OK;
}

/* Loads the newest undamaged checkpoint of rounds[*n_p] into the ledger and sets *n_p to the number of older ones. */
static enum status load_newest(struct engine *e, const uint64_t *rounds, size_t *n_p, struct err *err)
{
    while (*n_p) {
        struct err why = {0};
        uint64_t round = rounds[--*n_p];
        TRY(report_recovering(e, err));
        enum status status = checkpoint_load(&e->ledger, e->store, round, &e->kept[0], &why);
        if (status == STATUS_OK) {
            e->n_kept = 1;
            return engine_settings_check(e, err);
        }
        if (status != STATUS_CORRUPT) return err_set(err, status, "%s", why.msg);
        TRY(note_damage(e, false, round, &why, err));
        bool region = e->ledger.region;
        ledger_finish(&e->ledger);
        e->ledger.region = region;
        TRY(init_ledger(e, err));
    }
    return STATUS_OK;
}

/* Puts an older checkpoint before those in e->kept, after a look at its head. */
static enum status load_older(struct engine *e, uint64_t round, struct err *err)
{
    struct err why = {0};
    TRY(report_recovering(e, err));
    TRY(engine_kept_room(e, err));
    memmove(e->kept + 1, e->kept, e->n_kept * sizeof *e->kept);
    enum status status = checkpoint_look(e->store, round, &e->kept[0], &why);
    bool kept = status == STATUS_OK;
    if (kept)
        e->n_kept++;
    else
        memmove(e->kept, e->kept + 1, e->n_kept * sizeof *e->kept);
    if (status == STATUS_CORRUPT) return note_damage(e, false, round, &why, err);
    if (!kept) return err_set(err, status, "%s", why.msg);
    if (e->kept[0].n_fragments == e->kept[1].n_fragments) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "the checkpoints of this folder belong to different runs");
}

/* Starts the update log at the oldest checkpoint. */
static enum status start_log(struct engine *e, struct err *err)
{
    for (uint32_t f = 0; e->n_kept && f < e->kept[0].n_fragments; f++)
        if (update_log_start(&e->ledger.log, f, e->kept[0].versions[f], e->kept[0].hashes[f]) != STATUS_OK)
            return err_set(err, STATUS_NOMEM, "no memory for the log of updates");
    return STATUS_OK;
}

/* Loads the newest undamaged checkpoint as the state, and starts the update log at the oldest one. */
static enum status load_checkpoints(struct engine *e, struct err *err)
{
    uint64_t *rounds;
    size_t n;
    TRY(store_list(e->store, e->store->ops->checkpoint_list, &rounds, &n, err));
    enum status status = engine_kept_room(e, err);
    if (status == STATUS_OK) status = load_newest(e, rounds, &n, err);
    while (status == STATUS_OK && n) status = load_older(e, rounds[--n], err);
    mem_free(rounds);
    TRY(status);
    return start_log(e, err);
}

/* --- the journal before the newest checkpoint --------------------------------------------------------------------- */

static enum status index_segment(struct engine *e, uint64_t segment, struct err *err)
{
    struct journal_source source;
    struct journal_end end;
    TRY(journal_source_of(&source, e->store, segment, false, err));
    return journal_scan(&source, &end, visit, e, err);
}

/* Does without a damaged segment and the checkpoints before it, and starts the update log again behind it. */
static enum status skip_segment(struct engine *e, uint64_t segment, struct err *why, struct err *err)
{
    size_t before = 0;
    char *advice = strstr(why->msg, ": restore");
    if (advice) *advice = '\0'; /* none is needed */
    TRY(note_damage(e, true, segment, why, err));
    while (e->kept[before].segment <= segment) before++;
    assert(before < e->n_kept);
    e->n_kept -= before;
    memmove(e->kept, e->kept + before, e->n_kept * sizeof *e->kept);
    return start_log(e, err);
}

/* Indexes the updates between the oldest checkpoint and the newest one. Only workers that are far behind need them, so
 * damage there costs checkpoints, but no round. */
static enum status index_older(struct engine *e, struct err *err)
{
    uint64_t *list;
    size_t n, i = 0;
    TRY(store_list(e->store, e->store->ops->segment_list, &list, &n, err));
    const uint64_t end = engine_newest(e)->segment;
    enum status status = n && list[n - 1] < end ? journal_missing(end, err) : STATUS_OK;
    for (uint64_t at = e->kept[0].segment; n && at < end && status == STATUS_OK; at++) {
        struct err why = {0};
        while (list[i] < at) i++;
        if (list[i] != at)
            status = journal_missing(at, err);
        else if ((status = index_segment(e, at, &why)) == STATUS_CORRUPT)
            status = skip_segment(e, at, &why, err);
        else if (status != STATUS_OK)
            status = err_set(err, status, "%s", why.msg);
        if (at < e->kept[0].segment) at = e->kept[0].segment - 1;
    }
    mem_free(list);
    return status;
}

/* --- what is damaged ---------------------------------------------------------------------------------------------- */

/* Renames the checkpoints before the oldest one in e->kept: the journal behind them is damaged. */
static enum status put_older_aside(struct engine *e, struct err *err)
{
    uint64_t *rounds;
    size_t n;
    char name[128];
    TRY(store_list(e->store, e->store->ops->checkpoint_list, &rounds, &n, err));
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && rounds[i] < e->kept[0].round && status == STATUS_OK; i++) {
        status = e->store->ops->checkpoint_put_aside(e->store, rounds[i], name, sizeof name, err);
        if (status == STATUS_OK)
            log_warn("put checkpoint round_%06llu aside as checkpoints/%s: the journal behind it is damaged",
                     (unsigned long long)rounds[i], name);
    }
    mem_free(rounds);
    return status;
}

/* Renames what recovery did without, and says so. */
static enum status put_damaged_aside(struct engine *e, struct err *err)
{
    char name[128];
    bool older = false;
    for (size_t i = 0; i < e->n_damaged; i++) older = older || e->damaged[i].is_segment;
    if (older) TRY(put_older_aside(e, err)); /* first: a crash must leave no checkpoint that leads through a gap */
    for (size_t i = 0; i < e->n_damaged; i++) {
        const struct damaged_file *d = &e->damaged[i];
        if (d->is_segment)
            TRY(e->store->ops->segment_put_aside(e->store, d->number, STORE_KEEP_NONE, name, sizeof name, err));
        else
            TRY(e->store->ops->checkpoint_put_aside(e->store, d->number, name, sizeof name, err));
        log_warn("%s: recovered without it from the %s, nothing is lost; %s%s: remove %s when you have looked at that "
                 "disk",
                 d->why, d->is_segment ? "newest checkpoint" : "journal",
                 d->is_segment ? "it is kept as " : "its files are kept in checkpoints/", name,
                 d->is_segment ? "it" : "them");
    }
    return STATUS_OK;
}

static enum status count_lost(void *ctx, const struct journal_record *record, struct err *err)
{
    (void)err;
    ledger_lost_count(&((struct engine *)ctx)->lost, record);
    return STATUS_OK;
}

/* Says what a damaged tail of the journal held. */
static void report_tail(const struct engine *e, const struct journal_tail *tail)
{
    char rounds[80] = "no whole round";
    uint64_t done = e->ledger.modelled ? round_done(&e->ledger.round) : 0,
             lost = ledger_lost_rounds(&e->lost, &e->ledger);
    if (!tail->aside[0]) return;
    if (lost)
        snprintf(rounds, sizeof rounds, "rounds %llu to %llu", (unsigned long long)done + 1,
                 (unsigned long long)done + lost);
    log_warn(
        "journal/%08llu.log is damaged at byte %llu of %llu%s: behind it are %llu whole records (%llu updates, %s); "
        "the file is kept as %s, and the run continues after round %llu",
        (unsigned long long)tail->segment, (unsigned long long)tail->end.good, (unsigned long long)tail->size,
        tail->end.unreadable ? ", which the disk cannot read" : "", (unsigned long long)tail->end.records,
        (unsigned long long)e->lost.updates, rounds, tail->aside, (unsigned long long)done);
}

/* Says what operators took back. */
static void report_taken(const struct ledger *l)
{
    for (uint32_t i = 0; i < l->n_taken; i++) {
        const struct record_taken *t = &l->taken[i];
        unsigned long long before = t->before, round = t->round;
        if (t->what == RECORD_TAKEN_ROLLBACK)
            log_info("this run was rolled back from round %llu to round %llu", before, round);
        else
            log_info("this run excluded worker %s since round %llu, when it had %llu rounds", t->name, round + 1,
                     before);
    }
}

/* Adds the damaged checkpoint to the error of a recovery that needed it. */
static enum status explain(const struct engine *e, enum status status, struct err *err)
{
    char why[300];
    if (status != STATUS_CORRUPT || !err) return status;
    size_t i = 0;
    while (i < e->n_damaged && e->damaged[i].is_segment) i++;
    if (i == e->n_damaged) {
        if (!e->n_kept) err_prefix(err, "checkpoints/ is empty, so recovery needs the whole journal");
        return status;
    }
    snprintf(why, sizeof why, "%.290s", err->msg);
    return err_set(err, status, "%s: restore that folder from a copy; without it, %s", e->damaged[i].why, why);
}

static enum status recover(struct engine *e, struct err *err)
{
    TRY(load_checkpoints(e, err));
    e->clock_base = e->ledger.clock;
    e->round_begun_us = e->ledger.clock.elapsed_us;
    e->seen_rounds = e->ledger.modelled ? round_done(&e->ledger.round) : 0;
    struct journal_tail tail = {.lost = count_lost};
    e->lost.named = e->ledger.named;
    enum status status = e->n_kept ? index_older(e, err) : STATUS_OK;
    const struct checkpoint_info *newest = engine_newest(e);
    if (status == STATUS_OK)
        status = journal_recover(&e->ledger.journal, e->store, newest ? newest->segment : 0, visit, &tail, e, err);
    if (status != STATUS_OK) return explain(e, status, err);
    report_tail(e, &tail);
    report_taken(&e->ledger);
    for (uint32_t f = 0; engine_serves(e) && f < e->ledger.layout.n_fragments; f++) {
        const struct update_entry *now = update_log_find(&e->ledger.log, f, e->ledger.round.versions[f]);
        if (!now || now->hash != e->ledger.outer.fragments[f].hash)
            return err_set(err, STATUS_CORRUPT,
                           "updates of the run are missing in journal/: restore it from a copy, or start a new run "
                           "from a checkpoint, the newest is round_%06llu (model.init_from)",
                           (unsigned long long)(newest ? newest->round : 0));
    }
    TRY(put_damaged_aside(e, err));
    if (!e->ledger.journal.open && newest) TRY(journal_begin(&e->ledger.journal, e->store, newest->segment, err));
    if (!e->ledger.begun) return begin_run(e, err);
    TRY(engine_settings_settle(e, err));
    TRY(ledger_write(&e->ledger, RECORD_START, NULL, NULL, err));
    assert(e->ledger.journal.open && e->ledger.config_hash == e->config_hash);
    e->restarted = true;
    return journal_sync(&e->ledger.journal, err);
}

/* Sets up the volatile state of a recovered run: session table and clocks. */
static enum status init_volatile(struct engine *e, struct err *err)
{
    struct ledger *l = &e->ledger;
    e->eval_ids = l->starts << 32; /* larger than all ids of earlier processes */
    e->rounds_reported = 0;        /* repeated rounds are reported again */
    if (!l->modelled) return STATUS_OK;
    if (session_table_init(&e->sessions, e->config.coordinator.max_workers, l->layout.n_fragments) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for %u workers", e->config.coordinator.max_workers);
    e->sessions.held = &l->held;
    for_each_member(&l->round.members, m) {
        m->heard_us = e->now_us;
        m->seen_steps = m->steps; /* those of a checkpoint are no part in a round of this process */
    }
    round_note_resume(&l->round, e->now_us);
    admission_limits_size(e);
    TRY(engine_keep_files(e, e->ledger.model.frozen_whole ? &e->ledger.frozen : NULL, false, err));
    if (!e->n_kept && engine_serves(e)) TRY(engine_checkpoint(e, err));
    engine_limit_behind(e);
    e->collect_due = e->sweep_due = true;
    e->found_done = l->done;
    if (l->done) e->done_us = e->now_us;
    return STATUS_OK;
}

enum status engine_create(struct engine **engine_p, const struct engine_options *options, struct store *store,
                          const struct engine_io *io, uint64_t now_us, struct err *err)
{
    struct engine *e = mem_alloc(1, sizeof *e);
    if (!e) return err_set(err, STATUS_NOMEM, "no memory for the coordinator");
    e->config = e->wanted = *options->config;
    e->changes = options->changes;
    e->n_changes = options->n_changes;
    e->train_loss = NAN;
    e->io = *io;
    e->store = store;
    e->ledger.region = options->region;
    e->init_dir = options->region ? NULL : options->init_dir ? options->init_dir : engine_initial_found(e);
    e->entropy = options->entropy;
    e->rounds_reported = options->rounds_reported;
    e->now_us = e->start_us = e->evict_us = now_us;
    e->retry_us = e->kept_round = UINT64_MAX;
    e->behind_most = ENGINE_BEHIND_MAX;
    admission_limits_size(e);
    e->floats = mem_alloc(1, DOWNLOAD_CHUNK + 2 * sizeof *e->floats);
    enum status chunks = chunk_cache_init(&e->chunks, options->chunks_most, DOWNLOAD_CHUNK);
    e->eval.cap = e->config.coordinator.max_workers;
    e->eval.shares = mem_alloc(e->eval.cap, sizeof *e->eval.shares);
    bool all = e->floats && e->eval.shares && chunks == STATUS_OK;
    enum status status = all ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory");
    if (status == STATUS_OK) status = engine_settings_text(e, err);
    if (status == STATUS_OK) status = init_ledger(e, err);
    e->ledger.held.most = options->held_most;
    if (status == STATUS_OK) status = recover(e, err);
    if (status == STATUS_OK) status = init_volatile(e, err);
    if (status != STATUS_OK) {
        engine_destroy(e);
        return status;
    }
    engine_progress(e);
    (void)engine_budget_closes(e);
    if (e->restarted && !engine_spent(e)) engine_emit_restart(e);
    *engine_p = e;
    return STATUS_OK;
}

void engine_destroy(struct engine *e)
{
    if (!e) return;
    engine_initial_drop(e);
    session_table_finish(&e->sessions);
    ledger_finish(&e->ledger);
    mem_free(e->eval.shares);
    mem_free(e->kept);
    engine_follow_finish(e);
    mem_free(e->status_json);
    chunk_cache_finish(&e->chunks);
    mem_free(e->floats);
    mem_free(e);
}
