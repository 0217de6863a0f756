/* Snapshots: theta at one version, for workers without a saved state. A checkpoint is a snapshot. A late joiner would
 * also need every update since the newest checkpoint, which may be many times the model.
 *
 * - When these updates have more bytes than theta, a JOIN writes theta to the spool as a fresh snapshot. A checkpoint
 *   would have to wait for the end of the round, and for its fsync.
 * - Joins cannot force many writes: between two of them the run publishes more update bytes than a write has.
 * - A worker that has loaded a snapshot and is late again gets a newer one when that is shorter than the updates: its
 *   GET is refused, and it joins again. After the first time it waits four times as long as the load took, because its
 *   link cannot keep up; it does not wait while the run stands still.
 * - The spool holds one fresh snapshot. It is not replaced while a worker loads it, and it ends with the process; GET
 *   is then refused, and the worker joins again. */
#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

enum { FOLLOWED_US = 10000000 }; /* after this time without a message a follower reads nothing any more */

enum { STILL_US = 2000000, PAUSE_LOADS = 4 };

static uint64_t theta_bytes(const struct engine *e)
{
    return e->ledger.layout.n_params * sizeof(float);
}

/* Behind the slots of all uploads. */
static uint64_t spool_offset(const struct engine *e)
{
    return outer_state_spool_at(&e->ledger.outer, e->sessions.cap, 0, SPOOL_ALIGN);
}

/* Barrier: a worker with an open assignment trains it again, so it must not start after the assignment's versions. */
static bool is_usable(const struct engine *e, const struct session *s, const uint64_t *versions)
{
    const struct member *m = engine_member(e, s);
    if (!m || !m->work.open || e->config.train.method == METHOD_ASYNC) return true;
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++)
        if (versions[f] > m->work.versions[f]) return false;
    return true;
}

const struct checkpoint_info *engine_snapshot_newest(const struct engine *e, const struct session *joiner)
{
    const struct checkpoint_info *newest = engine_newest(e);
    if (!e->fresh_us || !is_usable(e, joiner, e->fresh.versions)) return newest;
    for (uint32_t f = 0; f < newest->n_fragments; f++)
        if (e->fresh.versions[f] > newest->versions[f]) return &e->fresh; /* snapshots are ordered in time */
    return newest;
}

const struct checkpoint_info *engine_snapshot_find(const struct engine *e, uint32_t fragment, uint64_t version)
{
    if (e->fresh_us && e->fresh.versions[fragment] == version) return &e->fresh;
    for (size_t i = e->n_kept; i-- > 0;)
        if (e->kept[i].versions[fragment] == version) return &e->kept[i];
    return NULL;
}

enum status engine_snapshot_theta(struct engine *e, const struct checkpoint_info *info, uint64_t first, float *dst,
                                  uint64_t count, struct err *err)
{
    const struct store_ops *ops = e->store->ops;
    if (info != &e->fresh)
        return ops->checkpoint_theta_read(e->store, info->round, &e->ledger.layout, first, dst, count, err);
    return ops->spool_read(e->store, spool_offset(e) + first * sizeof *dst, dst, count * sizeof *dst, err);
}

static uint64_t bytes_since(const struct engine *e, const struct checkpoint_info *info)
{
    return admission_lack_of(e, info->versions, info->n_fragments).bytes;
}

/* A worker that joined since the fresh snapshot was written may still load it. */
static bool is_loaded_by_another(const struct engine *e, const struct session *joiner)
{
    if (!e->fresh_us) return false;
    for_each_session(e, s) {
        if (s == joiner || s->joined_us < e->fresh_us || admission_is_silent(e, s)) continue;
        if (!s->beating || s->last.state == WORKER_CATCHING_UP) return true;
    }
    return false;
}

static bool can_refresh(const struct engine *e, const struct session *joiner)
{
    return is_usable(e, joiner, e->ledger.round.versions) && !is_loaded_by_another(e, joiner);
}

/* A delta that was merged in a version after those held, or may be: the updates tell its worker, a snapshot does not.
 */
static bool has_unknown_merge(const struct engine *e, const struct session *s, const uint64_t *versions)
{
    const struct member *m = engine_member(e, s);
    if (m && m->work.open) return true;
    for (uint32_t f = 0; m && f < e->ledger.layout.n_fragments; f++)
        if (m->merged_in[f] > versions[f]) return true;
    return false;
}

bool engine_snapshot_is_shorter(const struct engine *e, const struct session *s, const uint64_t *versions)
{
    uint64_t lack = admission_lack_of(e, versions, e->ledger.layout.n_fragments).bytes, since;
    if (lack <= theta_bytes(e) || has_unknown_merge(e, s, versions) || !can_refresh(e, s)) return false;
    since = bytes_since(e, engine_snapshot_newest(e, s));
    return theta_bytes(e) + (since > theta_bytes(e) ? 0 : since) < lack;
}

static bool stands_still(const struct engine *e)
{
    uint64_t still = 2 * admission_usual_round_us(e);
    return e->now_us - e->updated_us > (still > STILL_US ? still : STILL_US);
}

bool engine_snapshot_renews(struct engine *e, struct session *s)
{
    if (!admission_is_late(e, s)) {
        s->aged = 0;
        s->renew_us = 0;
        return false;
    }
    if (!engine_snapshot_is_shorter(e, s, s->last.versions)) return false;
    if (!s->renew_us) s->renew_us = e->now_us + (s->aged ? PAUSE_LOADS * (e->now_us - s->joined_us) : 0);
    if (e->now_us < s->renew_us && !stands_still(e)) return true;
    s->aged++;
    engine_refuse(e, s->control, s->name, REFUSE_GONE, "a newer snapshot is shorter than the updates since this one");
    return true;
}

static enum status write_theta(void *arg, struct err *err)
{
    struct engine *e = arg;
    return e->store->ops->spool_write(e->store, spool_offset(e), e->ledger.outer.theta, theta_bytes(e), err);
}

void engine_snapshot_refresh(struct engine *e, const struct session *joiner)
{
    const struct ledger *l = &e->ledger;
    const struct checkpoint_info *newest = engine_snapshot_newest(e, joiner);
    uint64_t bytes = bytes_since(e, newest);
    struct err why = {0};
    if (bytes <= theta_bytes(e) || !can_refresh(e, joiner)) return;
    e->fresh_us = 0;
    if (engine_long(e, theta_bytes(e), write_theta, e, &why) != STATUS_OK) {
        log_warn("%s: %s starts from a checkpoint and %s of updates", why.msg, joiner->name,
                 units_bytes((double)bytes).text);
        e->store->ops->spool_forget(e->store, spool_offset(e), theta_bytes(e));
        return;
    }
    e->fresh = (struct checkpoint_info){.n_fragments = l->layout.n_fragments};
    for (uint32_t f = 0; f < l->layout.n_fragments; f++) {
        e->fresh.versions[f] = l->round.versions[f];
        e->fresh.hashes[f] = l->outer.fragments[f].hash;
    }
    e->fresh_us = e->now_us;
    log_info("wrote a snapshot for %s: %s instead of %s of updates since the last one", joiner->name,
             units_bytes((double)theta_bytes(e)).text, units_bytes((double)bytes).text);
}

/* --- followers ---------------------------------------------------------------------------------------------------- */

void engine_snapshot_note_round(struct engine *e)
{
    const struct ledger *l = &e->ledger;
    uint64_t done = round_done(&l->round);
    if (e->follow.round == done) return;
    e->follow.round = done;
    for (uint32_t f = 0; f < l->layout.n_fragments; f++)
        e->follow.versions[f] = (struct wire_version){l->round.versions[f], l->outer.fragments[f].hash};
}

uint64_t engine_snapshot_round(const struct engine *e, struct wire_version *versions)
{
    const struct checkpoint_info *newest = engine_newest(e);
    if (e->follow.round > newest->round) {
        memcpy(versions, e->follow.versions, newest->n_fragments * sizeof *versions);
        return e->follow.round;
    }
    for (uint32_t f = 0; f < newest->n_fragments; f++)
        versions[f] = (struct wire_version){newest->versions[f], newest->hashes[f]};
    return newest->round;
}

bool engine_snapshot_is_followed(const struct engine *e, const struct checkpoint_info *info)
{
    return e->follow.needed_us && e->follow.needed <= info->round && e->now_us - e->follow.needed_us < FOLLOWED_US;
}
