#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/delta_measure.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

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

/* Running totals continue from the last record. */
static void continue_clock(struct engine *e)
{
    e->clock_base = e->ledger.clock;
}

static enum status visit(void *ctx, uint16_t type, struct journal_ref at, const uint8_t *body, size_t size,
                         struct err *err)
{
    struct engine *e = ctx;
    const struct checkpoint_info *newest = engine_newest(e);
    TRY(report_recovering(e, err));
    e->recovered++;
    if (newest && at.segment < newest->segment) return ledger_index(&e->ledger, type, at, body, size, err);
    if (type == RECORD_MODEL) TRY(engine_settings_check(e, err)); /* before replay recomputes steps */
    TRY(ledger_replay(&e->ledger, type, at, body, size, err));
    continue_clock(e);
    engine_round_follow(e, type, body, size);
    return STATUS_OK;
}

/* Notes a damaged checkpoint. Recovery does without it: an older one and the journal behind that give the same state.
 * LIMIT, with the damage as error: too many of them. */
static enum status note_damage(struct engine *e, uint64_t round, struct err *why, struct err *err)
{
    if (e->n_damaged == ENGINE_DAMAGED_MAX) return err_set(err, STATUS_LIMIT, "%s", why->msg);
    struct damaged_checkpoint *d = &e->damaged[e->n_damaged++];
    d->round = round;
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
        TRY(note_damage(e, round, &why, err));
        ledger_finish(&e->ledger);
        TRY(ledger_init(&e->ledger, &e->config, e->init_dir, err));
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
    if (status == STATUS_CORRUPT) return note_damage(e, round, &why, err);
    if (!kept) return err_set(err, status, "%s", why.msg);
    if (e->kept[0].n_fragments == e->kept[1].n_fragments) return STATUS_OK;
    return err_set(err, STATUS_CORRUPT, "the checkpoints of this folder belong to different runs");
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
    for (uint32_t f = 0; e->n_kept && f < e->kept[0].n_fragments; f++)
        if (update_log_start(&e->ledger.log, f, e->kept[0].versions[f], e->kept[0].hashes[f]) != STATUS_OK)
            return err_set(err, STATUS_NOMEM, "no memory for the log of updates");
    return STATUS_OK;
}

/* Renames the damaged checkpoints that recovery did without, and says so. */
static enum status put_damaged_aside(struct engine *e, struct err *err)
{
    char name[128];
    for (size_t i = 0; i < e->n_damaged; i++) {
        TRY(e->store->ops->checkpoint_put_aside(e->store, e->damaged[i].round, name, sizeof name, err));
        log_warn("%s: recovered without it from the journal, nothing is lost; its files are kept in checkpoints/%s: "
                 "remove them when you have looked at that disk",
                 e->damaged[i].why, name);
    }
    return STATUS_OK;
}

/* Adds the damaged checkpoint to the error of a recovery that needed it. */
static enum status explain(const struct engine *e, enum status status, struct err *err)
{
    char why[300];
    if (status != STATUS_CORRUPT || !err) return status;
    if (!e->n_damaged) {
        if (!e->n_kept) err_prefix(err, "checkpoints/ is empty, so recovery needs the whole journal");
        return status;
    }
    snprintf(why, sizeof why, "%.290s", err->msg);
    return err_set(err, status, "%s: restore that folder from a copy; without it, %s", e->damaged[0].why, why);
}

static enum status recover(struct engine *e, struct err *err)
{
    TRY(load_checkpoints(e, err));
    continue_clock(e);
    e->round_begun_us = e->ledger.clock.elapsed_us;
    e->seen_rounds = e->ledger.modelled ? round_done(&e->ledger.round) : 0;
    enum status status =
        journal_recover(&e->ledger.journal, e->store, e->n_kept ? e->kept[0].segment : 0, visit, e, err);
    if (status != STATUS_OK) return explain(e, status, err);
    const struct checkpoint_info *newest = engine_newest(e);
    if (newest && e->ledger.journal.open && e->ledger.journal.segment < newest->segment)
        return journal_missing(newest->segment, err);
    for (uint32_t f = 0; e->ledger.modelled && f < e->ledger.layout.n_fragments; f++) {
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
    TRY(ledger_write(&e->ledger, RECORD_START, NULL, 0, NULL, err));
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
    for (uint32_t i = 0; i < l->round.members.n; i++) l->round.members.members[i]->heard_us = e->now_us;
    round_note_resume(&l->round, e->now_us);
    engine_limits_size(e);
    TRY(engine_keep_files(e, false, err));
    if (!e->n_kept) TRY(engine_checkpoint(e, err));
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
    e->init_dir = options->init_dir ? options->init_dir : engine_initial_found(e);
    e->entropy = options->entropy;
    e->rounds_reported = options->rounds_reported;
    e->now_us = e->start_us = e->evict_us = now_us;
    e->retry_us = e->kept_round = UINT64_MAX;
    engine_limits_size(e);
    e->chunk = mem_alloc(1, DOWNLOAD_CHUNK);
    e->eval.cap = e->config.coordinator.max_workers;
    e->eval.shares = mem_alloc(e->eval.cap, sizeof *e->eval.shares);
    enum status status = e->chunk && e->eval.shares ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory");
    if (status == STATUS_OK) status = engine_settings_text(e, err);
    if (status == STATUS_OK) status = ledger_init(&e->ledger, &e->config, e->init_dir, err);
    if (status == STATUS_OK) status = recover(e, err);
    if (status == STATUS_OK) status = init_volatile(e, err);
    if (status != STATUS_OK) {
        engine_destroy(e);
        return status;
    }
    engine_progress(e);
    if (e->restarted) engine_emit_restart(e);
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
    mem_free(e->status_json);
    mem_free(e->chunk);
    mem_free(e);
}
