/* Compares the data of the workers: heartbeats carry a hash of all tokens, which a worker computes after it joined.
 *
 * - Each member counts once, for the first hash that it reports. The hash of most members is the run's; of equally many
 *   the one that came first.
 * - A member with another hash is refused, loses its place, and its undelivered work goes to others. */
#include <assert.h>
#include <stdio.h>

#include "coordinator/engine/engine_impl.h"

static const char *const set_names[] = {"training", "validation"};

/* own: the member of the session; NULL before the first round. */
static void count(struct engine *e, const struct session *s, struct member *own, uint32_t set, uint64_t hash)
{
    struct data_vote *votes = e->data_votes[set];
    bool counted = s->data_hashes[set] || (own && own->data_known[set]);
    if (own) own->data_known[set] = true;
    for (uint32_t i = 0; i < ENGINE_DATA_VOTES && !counted; i++) {
        if (votes[i].members && votes[i].hash != hash) continue;
        votes[i].hash = hash;
        votes[i].members++;
        return;
    }
}

static uint64_t hash_of_most(const struct engine *e, uint32_t set)
{
    const struct data_vote *best = &e->data_votes[set][0];
    for (uint32_t i = 1; i < ENGINE_DATA_VOTES; i++)
        if (e->data_votes[set][i].members > best->members) best = &e->data_votes[set][i];
    return best->hash;
}

static enum status refuse(struct engine *e, struct session *s, uint32_t set, struct err *err)
{
    char text[WIRE_TEXT_MAX];
    const struct member *m = engine_member(e, s);
    snprintf(text, sizeof text,
             "the %s data of '%s' differs from the other workers' somewhere in its shards: copy the shards again",
             set_names[set], s->name);
    engine_refuse(e, s->control, s->name, REFUSE_DATASET, "%s", text);
    TRY(admission_lose_place(e, RECORD_MEMBER_EVICT, m, err));
    engine_progress(e);
    engine_emit_text(e, ENGINE_EVENT_EVICT, s->name, text);
    session_remove(&e->sessions, s);
    return STATUS_OK;
}

enum status engine_check_data(struct engine *e, struct session *s, const struct msg_heartbeat *m, bool *refused_p,
                              struct err *err)
{
    struct member *own = engine_member(e, s);
    const uint64_t hashes[] = {m->train_hash, m->val_hash};
    bool changed = false;
    *refused_p = false;
    for (uint32_t set = 0; set < 2; set++) {
        if (!hashes[set]) continue; /* not known yet, or it has no such data */
        changed = changed || s->data_hashes[set] != hashes[set];
        count(e, s, own, set, hashes[set]);
        s->data_hashes[set] = hashes[set];
    }
    if (!changed) return STATUS_OK; /* no vote either: all sessions were compared with it */
    for_each_session(e, other) {
        for (uint32_t set = 0; set < 2 && other->id; set++) {
            if (!other->data_hashes[set] || other->data_hashes[set] == hash_of_most(e, set)) continue;
            *refused_p = *refused_p || other == s;
            TRY(refuse(e, other, set, err));
        }
    }
    return STATUS_OK;
}
