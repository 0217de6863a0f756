/* Writes checkpoints and removes old ones.
 *
 * A checkpoint and its journal segments are removed when every member holds a newer version, in memory and in its saved
 * state. A worker that restarts therefore finds the log it has to replay. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/median.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

enum { COLLECT_US = 100000 }; /* between two looks at what all members hold */

enum status engine_kept_room(struct engine *e, struct err *err)
{
    if (e->n_kept < e->cap_kept) return STATUS_OK;
    size_t cap = e->cap_kept ? 2 * e->cap_kept : 8;
    struct checkpoint_info *grown = mem_resize(e->kept, e->cap_kept * sizeof *grown, cap * sizeof *grown);
    if (!grown) return err_set(err, STATUS_NOMEM, "no memory for the list of checkpoints");
    e->kept = grown;
    e->cap_kept = cap;
    assert(e->n_kept < e->cap_kept);
    return STATUS_OK;
}

/* The rounds since the newest saved state of a worker whose last delta is of `round`. A worker that does not save each
 * round says which one it saved. Without its word: by the configuration, and with auto it may be any. */
static uint64_t rounds_unsaved(const struct engine *e, const struct session *s, uint64_t round)
{
    uint32_t every = config_worker_every(&e->config);
    if (s->saves.every == 1) return 0;
    if (s->saves.every && s->saves.round == UINT64_MAX) return UINT64_MAX; /* it has no saved state */
    if (s->saves.every) return s->saves.round < round ? round - s->saves.round : 0;
    if (config_saves_auto(&e->config)) return UINT64_MAX;
    return every <= 1 ? 0 : round % every;
}

/* The version in the saved state of a worker. With a barrier each round is a version. ddp workers have no inner
 * optimizer state, so they can start from a checkpoint at any time. */
static uint64_t version_of_save(const struct engine *e, const struct session *s, uint64_t base_version, uint64_t round)
{
    bool each = e->config.train.method == METHOD_ASYNC || e->config.train.method == METHOD_DDP;
    uint64_t since = each ? 0 : rounds_unsaved(e, s, round);
    return base_version > since ? base_version - since : 0;
}

/* The version of a fragment in this member's saved state. Returns UINT64_MAX if the member never delivered or its last
 * delta was refused: a permanently late worker must not pin old checkpoints. */
static uint64_t saved_version(const struct engine *e, const struct session *s, const struct member *m,
                              uint32_t fragment)
{
    const struct part *part = &m->work.parts[fragment];
    if (part->state == PART_HELD || part->state == PART_MERGED)
        return version_of_save(e, s, part->base_version, m->work.round);
    if (part->state == PART_DROPPED || !m->in_step || !m->merged_in[fragment]) return UINT64_MAX;
    return version_of_save(e, s, m->merged_in[fragment] - 1, m->merged[fragment] - 1);
}

/* Every member holds at least the versions of this checkpoint, in memory and in its saved state. False while a session
 * is catching up or has sent no heartbeat: it needs the next update. Eviction ends the wait for a lost member. */
static bool all_past(const struct engine *e, const struct checkpoint_info *info)
{
    for_each_session(e, s) {
        if (!s->beating || s->last.state == WORKER_CATCHING_UP) return false;
    }
    for_each_member(&e->ledger.round.members, m) {
        const struct session *s = session_by_member(&e->sessions, m->id);
        if (!m->active) continue;
        if (!s || s->last.n_fragments != info->n_fragments) return false;
        if (admission_is_late(e, s) && engine_snapshot_is_shorter(e, s, s->last.versions))
            continue; /* it gets another */
        for (uint32_t f = 0; f < info->n_fragments; f++) {
            bool saved = e->ledger.done || saved_version(e, s, m, f) >= info->versions[f];
            if (s->last.versions[f] < info->versions[f] || !saved) return false;
        }
    }
    return true;
}

/* A file that cannot be removed only costs disk space: logged once. */
static bool removed(struct engine *e, enum status status, const struct err *why)
{
    if (status == STATUS_OK) return true;
    if (!e->stuck) log_warn("%s; the run continues (logged once)", why->msg);
    e->stuck = true;
    return false;
}

/* --- a jump of the loss ------------------------------------------------------------------------------------------- */

/* A loss above this has jumped: the median of the latest losses + max(a tenth of it, 8 MAD). Infinite before three
 * evaluations. */
static double jump_limit(const struct loss_watch *w)
{
    double v[ENGINE_LOSSES];
    if (w->n < 3) return INFINITY;
    memcpy(v, w->losses, w->n * sizeof *v);
    double middle = median_of(v, w->n);
    for (uint32_t i = 0; i < w->n; i++) v[i] = fabs(v[i] - middle);
    return middle + fmax(0.1 * fabs(middle), 8 * median_of(v, w->n));
}

/* The newest checkpoint that is not younger than the last good evaluation; without one, the oldest. */
static uint64_t round_before(const struct engine *e, uint64_t round)
{
    size_t i = e->n_kept;
    while (i > 1 && e->kept[i - 1].round > round) i--;
    return e->kept[i - 1].round;
}

/* Forgets the checkpoint that was kept for a jump. */
static void let_go(struct engine *e)
{
    struct err why = {0};
    if (e->kept_apart && e->store->ops->checkpoint_keep_end(e->store, e->kept_round, &why) != STATUS_OK)
        log_warn("%s; the run continues", why.msg);
    e->kept_round = UINT64_MAX;
    e->kept_apart = false;
}

void engine_watch_loss(struct engine *e, uint64_t round, double loss)
{
    struct loss_watch *w = &e->losses;
    double limit = jump_limit(w);
    char text[WIRE_TEXT_MAX];
    if (isfinite(loss) && loss <= limit) {
        if (e->kept_round != UINT64_MAX) {
            log_info("the validation loss is back at %.4g after round %llu", loss, (unsigned long long)round);
            let_go(e);
        }
        w->losses[w->next] = loss;
        w->next = (w->next + 1) % ENGINE_LOSSES;
        w->n += w->n < ENGINE_LOSSES;
        w->round = round;
        return;
    }
    if (!w->n || e->kept_round != UINT64_MAX) return;
    e->kept_round = round_before(e, w->round);
    snprintf(text, sizeof text,
             "the validation loss jumped to %.4g after round %llu; its limit is %.4g: keeping the model of round %llu "
             "(checkpoints/round_%06llu, later before_jump_%06llu) until the loss is back",
             loss, (unsigned long long)round, limit, (unsigned long long)e->kept_round,
             (unsigned long long)e->kept_round, (unsigned long long)e->kept_round);
    snprintf(e->watch.loss_text, sizeof e->watch.loss_text, "%.500s", text);
    engine_tell(e, text);
    engine_emit_text(e, ENGINE_EVENT_FAULT, NULL, text);
}

static enum status take_away(struct engine *e, uint64_t round, struct err *err)
{
    const struct store_ops *ops = e->store->ops;
    if (round != e->kept_round || !ops->checkpoint_keep) return ops->checkpoint_remove(e->store, round, err);
    TRY(ops->checkpoint_keep(e->store, round, err));
    e->kept_apart = true;
    return STATUS_OK;
}

/* The bytes of a checkpoint and of its journal segments. */
static enum status bytes_of(const struct engine *e, size_t i, uint64_t *bytes_p)
{
    const struct store_ops *ops = e->store->ops;
    uint64_t size, bytes = e->ledger.layout.n_params * sizeof(float);
    TRY(ops->checkpoint_state_size(e->store, e->kept[i].round, &size, NULL));
    bytes += size;
    for (uint64_t segment = e->kept[i].segment; segment < e->kept[i + 1].segment; segment++) {
        TRY(ops->segment_size(e->store, segment, &size, NULL));
        bytes += size;
    }
    *bytes_p = bytes;
    return STATUS_OK;
}

/* The number of checkpoints beyond checkpoint.keep that late members can keep: at most ENGINE_BEHIND_MAX, and so many
 * that they take no more bytes than the disk has left; but one. */
static size_t behind_most(const struct engine *e)
{
    uint64_t left = e->store->ops->free_bytes(e->store), pinned = 0, bytes;
    size_t keep = e->config.checkpoint.keep, n = e->n_kept > keep ? e->n_kept - keep : 0;
    for (size_t i = 0; keep && i < n; i++) {
        if (bytes_of(e, n - 1 - i, &bytes) != STATUS_OK) continue;
        pinned += bytes;
        if (pinned > left && i) return i;
    }
    return ENGINE_BEHIND_MAX;
}

void engine_limit_behind(struct engine *e)
{
    size_t most = behind_most(e);
    if (most < ENGINE_BEHIND_MAX && e->behind_most == ENGINE_BEHIND_MAX)
        log_info("the disk has %s left: workers that are late keep at most %zu old checkpoints; a later one loads a "
                 "snapshot",
                 units_bytes((double)e->store->ops->free_bytes(e->store)).text, most);
    e->behind_most = most;
}

/* The oldest checkpoint has no more readers, or late members and followers keep too many. */
static bool can_go(const struct engine *e)
{
    if (e->n_kept > e->config.checkpoint.keep + e->behind_most) return true;
    return !engine_snapshot_is_followed(e, &e->kept[0]) && all_past(e, &e->kept[1]);
}

/* Long work: a file of many gigabytes takes time to remove. */
static enum status collect(void *arg, struct err *err)
{
    struct engine *e = arg;
    uint64_t *list;
    size_t n, keep = e->config.checkpoint.keep;
    const struct store_ops *ops = e->store->ops;
    struct err why = {0};
    bool sweep = e->sweep_due;
    e->sweep_due = false;
    e->collect_us = e->now_us + COLLECT_US;
    e->collect_due = keep && e->n_kept > keep;
    while (keep && e->n_kept > keep && can_go(e)) {
        if (!removed(e, take_away(e, e->kept[0].round, &why), &why)) {
            e->collect_due = false; /* retry after the next checkpoint */
            break;
        }
        e->n_kept--;
        assert(e->n_kept >= keep);
        memmove(e->kept, e->kept + 1, e->n_kept * sizeof *e->kept);
        e->collect_due = e->n_kept > keep;
        sweep = true;
    }
    if (!sweep) return STATUS_OK;
    assert(e->n_kept > 0);
    TRY(store_list(e->store, ops->segment_list, &list, &n, err));
    for (size_t i = 0; i < n && list[i] < e->kept[0].segment; i++)
        if (!removed(e, ops->segment_remove(e->store, list[i], &why), &why)) break;
    mem_free(list);
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++)
        update_log_trim(&e->ledger.log, f, e->kept[0].versions[f]);
    return STATUS_OK;
}

/* Starts the new segment first, then writes the checkpoint that names it. After a crash between the two, recovery finds
 * the older checkpoint and both segments. */
static enum status write_files(void *arg, struct err *err)
{
    struct engine *e = arg;
    struct ledger *l = &e->ledger;
    uint64_t round = round_done(&l->round), segment = l->journal.segment + 1;
    TRY(journal_begin(&l->journal, e->store, segment, err));
    TRY(checkpoint_carry_held(l, err));
    TRY(checkpoint_save(l, e->store, round, segment, err));
    return checkpoint_look(e->store, round, &e->kept[e->n_kept], err);
}

enum status engine_checkpoint(struct engine *e, struct err *err)
{
    struct ledger *l = &e->ledger;
    uint64_t round = round_done(&l->round);
    assert(l->modelled && (!e->n_kept || engine_newest(e)->round < round));
    TRY(engine_kept_room(e, err));
    l->clock = engine_clock(e);
    TRY(engine_long(e, ENGINE_SYNCS, write_files, e, err));
    assert(e->kept[e->n_kept].segment == l->journal.segment);
    e->n_kept++;
    engine_limit_behind(e);
    e->collect_due = true;
    e->collect_us = 0;
    struct engine_event event = {.kind = ENGINE_EVENT_CHECKPOINT,
                                 .checkpoint = {.round = round, .version = l->round.versions[0]}};
    engine_emit(e, &event);
    log_debug("wrote checkpoint round_%06llu", (unsigned long long)round);
    return STATUS_OK;
}

enum status engine_collect(struct engine *e, struct err *err)
{
    return engine_long(e, ENGINE_SYNCS, collect, e, err);
}

static bool any_part_held(const struct round *r)
{
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->counts[f].held) return true;
    return false;
}

enum status engine_checkpoint_due(struct engine *e, struct err *err)
{
    uint64_t every = e->config.checkpoint.every, done = round_done(&e->ledger.round);
    assert(e->n_kept > 0); /* engine_define_model writes the first one */
    bool due = every && done / every > engine_newest(e)->round / every;
    return due && !e->info.pending && !any_part_held(&e->ledger.round) ? engine_checkpoint(e, err) : STATUS_OK;
}
