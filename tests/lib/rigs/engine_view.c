#include "tests/lib/rigs/engine_view.h"

#include <string.h>

#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/outer_half.h"

enum { LITTLE_BYTES = 1 << 20 }; /* a disk that bounds the checkpoints of toy models */

const float *engine_theta(const struct engine *e)
{
    return engine_serves(e) ? e->ledger.outer.theta : NULL;
}

bool engine_residual(const struct engine *e, uint32_t fragment, float *out)
{
    const struct outer_fragment *f = &e->ledger.outer.fragments[fragment];
    size_t count = e->ledger.layout.fragments[fragment].count;
    if (f->owed) half_widen(f->owed, count, out);
    if (f->residual.residual) memcpy(out, f->residual.residual, count * sizeof *out);
    return f->owed || f->residual.residual;
}

const struct layout *engine_layout(const struct engine *e)
{
    return e->ledger.modelled ? &e->ledger.layout : NULL;
}

uint64_t engine_version(const struct engine *e, uint32_t fragment)
{
    return e->ledger.round.versions[fragment];
}

uint64_t engine_version_hash(const struct engine *e, uint32_t fragment, uint64_t version)
{
    const struct update_entry *entry = update_log_find(&e->ledger.log, fragment, version);
    return entry ? entry->hash : 0;
}

static bool has_bit(const uint64_t *words, uint32_t i)
{
    return words[i / 64] >> i % 64 & 1;
}

/* A session is found by its member and its peer, and is served while it has something to send. */
static bool found(const struct session_table *t, const struct session *s)
{
    struct download_item item;
    uint64_t size;
    uint32_t i = (uint32_t)(s - t->sessions);
    bool sends = s->bulk != SESSION_NO_PEER && download_next(&s->download, &item, &size);
    if (s->member != SESSION_NO_MEMBER && session_by_member(t, s->member) != s) return false;
    if (s->bulk != SESSION_NO_PEER && session_by_bulk(t, s->bulk) != s) return false;
    return session_by_id(t, s->id) == s && (!sends || has_bit(t->to_serve, i));
}

/* The slot of a session that ended is in no index. */
static bool forgotten(const struct session_table *t, uint32_t i)
{
    return t->by_member.keys[i + 1] == UINT64_MAX && t->by_bulk.keys[i + 1] == UINT64_MAX && !has_bit(t->to_serve, i);
}

/* Each upload has a slot of the spool, and no other slot is in use. */
static bool spool_holds(const struct session_table *t, uint32_t fragment)
{
    const uint64_t *used = t->spooled + (size_t)fragment * t->words;
    uint64_t seen[SESSIONS_MAX / 64 + 1];
    memset(seen, 0, t->words * sizeof *seen);
    for (struct session *s = NULL; (s = session_next(t, s));) {
        const struct upload *u = &s->uploads[fragment];
        if (!u->active) continue;
        if (has_bit(seen, u->slot)) return false;
        seen[u->slot / 64] |= UINT64_C(1) << u->slot % 64;
    }
    return !memcmp(seen, used, t->words * sizeof *used);
}

static enum status check_sessions(const struct session_table *t, struct err *err)
{
    uint64_t credit = 0, open = 0;
    for (uint32_t i = 0; i < t->cap; i++) {
        const struct session *s = &t->sessions[i];
        if (s->id ? !found(t, s) : !forgotten(t, i))
            return err_set(err, STATUS_CORRUPT, "the indexes of sessions are wrong for slot %u", i);
        for (uint32_t f = 0; s->id && f < t->n_fragments; f++) {
            credit += s->uploads[f].upto - s->uploads[f].have;
            open += s->uploads[f].upto > s->uploads[f].have;
        }
    }
    for (uint32_t f = 0; f < t->n_fragments; f++)
        if (!spool_holds(t, f)) return err_set(err, STATUS_CORRUPT, "the spool's slots of fragment %u are wrong", f);
    if (credit != t->uploads.granted) return err_set(err, STATUS_INVALID, "the credit of uploads is off");
    return credit <= UPLOAD_CREDIT + open * UPLOAD_LEAST
               ? STATUS_OK
               : err_set(err, STATUS_LIMIT, "%llu bytes of credit are open", (unsigned long long)credit);
}

/* Checkpoints beyond checkpoint.keep take no more bytes than the disk has left, but one. */
static bool pins_little(const struct engine *e)
{
    const struct store_ops *ops = e->store->ops;
    size_t keep = e->config.checkpoint.keep, n = keep && e->n_kept > keep ? e->n_kept - keep : 0;
    uint64_t pinned = n * e->ledger.layout.n_params * sizeof(float), size;
    for (size_t i = 0; i < n; i++) {
        pinned += ops->checkpoint_state_size(e->store, e->kept[i].round, &size, NULL) == STATUS_OK ? size : 0;
        for (uint64_t segment = e->kept[i].segment; segment < e->kept[i + 1].segment; segment++)
            pinned += ops->segment_size(e->store, segment, &size, NULL) == STATUS_OK ? size : 0;
    }
    return n <= 1 || (n <= ENGINE_BEHIND_MAX && pinned <= ops->free_bytes(e->store));
}

/* A worker that is connected and in time finds the update after each version that it holds, unless disk or number bound
 * the checkpoints. */
static bool log_reaches(const struct engine *e, const struct session *s)
{
    const struct round *r = &e->ledger.round;
    const struct member *m = engine_member(e, s);
    size_t keep = e->config.checkpoint.keep;
    bool little = e->store->ops->free_bytes(e->store) < LITTLE_BYTES;
    bool bounded = keep && (e->n_kept >= keep + e->behind_most || little);
    if (!m || !m->active || !s->beating || s->last.state == WORKER_CATCHING_UP || bounded) return true;
    if (admission_is_late(e, s) || e->ledger.done) return true;
    for (uint32_t f = 0; f < s->last.n_fragments && f < r->p.n_fragments; f++) {
        uint64_t next = s->last.versions[f] + 1;
        if (next <= r->versions[f] && !update_log_find(&e->ledger.log, f, next)) return false;
    }
    return true;
}

enum status engine_check(const struct engine *e, struct err *err)
{
    if (!e->ledger.modelled) return STATUS_OK;
    TRY(check_sessions(&e->sessions, err));
    if (!round_counts_hold(&e->ledger.round))
        return err_set(err, STATUS_CORRUPT, "the counts of the round differ from its members");
    if (!pins_little(e)) return err_set(err, STATUS_LIMIT, "old checkpoints take more than the disk has left");
    for_each_session(e, s)
        if (!log_reaches(e, s)) return err_set(err, STATUS_CORRUPT, "an update that %s needs was removed", s->name);
    enum status status = lease_check(&e->ledger.round.leases);
    return status == STATUS_OK ? status
                               : err_set(err, status, "leases: committed %llu, outstanding %llu, cursor %llu",
                                         (unsigned long long)e->ledger.round.leases.committed,
                                         (unsigned long long)lease_outstanding(&e->ledger.round.leases),
                                         (unsigned long long)e->ledger.round.leases.cursor);
}

uint32_t engine_members(const struct engine *e)
{
    return e->ledger.modelled ? e->ledger.round.members.n : 0;
}

const char *engine_member_name(const struct engine *e, uint32_t id)
{
    return id < engine_members(e) ? e->ledger.round.members.members[id]->name : NULL;
}

uint64_t engine_member_have(const struct engine *engine, uint32_t id, uint32_t fragment)
{
    return member_by_id(&engine->ledger.round.members, id)->have[fragment];
}

uint64_t engine_samples_committed(const struct engine *e)
{
    return e->ledger.round.leases.committed;
}
