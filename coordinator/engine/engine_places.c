/* Places: which worker may take part. coordinator.max_workers sessions exist at most, and each has one place in the
 * merge order.
 *
 * - A place is for a worker that delivers. When all are taken, a new worker replaces the session that has delivered
 *   nothing for longest, if that is longer than a limit.
 * - The limit is the eviction time, which follows the measured rounds. Before rounds are measured it is ten minutes.
 * - A session that waits for others is never replaced: it is ready for work, it has delivered a part that is not
 * merged, or it evaluates. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

enum { PATIENCE_US = 600000000 }; /* before rounds are measured, the first one may take this long */

enum status engine_write_member(struct engine *e, enum record_member_what what, uint32_t id,
                                const uint8_t uuid[WIRE_UUID], const char *name, struct err *err)
{
    struct record_member m = {.what = (uint8_t)what, .id = id};
    memcpy(m.uuid, uuid, WIRE_UUID);
    snprintf(m.name, sizeof m.name, "%s", name);
    return engine_write(e, RECORD_MEMBER, &m, NULL, err);
}

enum status engine_lose_place(struct engine *e, enum record_member_what what, const struct member *m, struct err *err)
{
    assert(what != RECORD_MEMBER_JOIN);
    if (!m || !m->active || e->ledger.done) return STATUS_OK;
    return engine_write_member(e, what, m->id, m->uuid, m->name, err);
}

/* A session that delivers nothing for this long may be replaced. */
static uint64_t idle_limit_us(const struct engine *e)
{
    uint64_t limit = engine_evict_after_us(e, NULL);
    bool measured = deadline_of(&e->ledger.round.durations, 0, 0, UINT64_MAX, 0).n > 0;
    return measured || limit > PATIENCE_US ? limit : PATIENCE_US;
}

static bool delivered_part(const struct engine *e, const struct member *m)
{
    for (uint32_t f = 0; f < e->ledger.layout.n_fragments; f++)
        if (m->work.parts[f].state == PART_HELD) return true;
    return false;
}

/* The time since which the worker could have delivered something; UINT64_MAX: it waits for others. */
static uint64_t idle_since_us(const struct engine *e, const struct session *s)
{
    const struct member *m = member_by_id(&e->ledger.round.members, s->member);
    if (s->ready_us || engine_eval_holds(e, s)) return UINT64_MAX;
    if (!m || !m->work.open) return s->idle_us;
    if (delivered_part(e, m)) return UINT64_MAX;
    bool known = m->assigned_us && m->assigned_us != MEMBER_ASSIGNED_EARLIER;
    return known && m->assigned_us > s->idle_us ? m->assigned_us : s->idle_us;
}

/* The session that has delivered nothing for longest, and longer than the limit; NULL: none. */
static struct session *find_idle(struct engine *e)
{
    struct session *found = NULL;
    uint64_t since = 0, limit = idle_limit_us(e);
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        uint64_t at = s->id ? idle_since_us(e, s) : UINT64_MAX;
        if (at > e->now_us || e->now_us - at < limit || (found && since <= at)) continue;
        found = s;
        since = at;
    }
    return found;
}

static enum status replace(struct engine *e, struct session *s, const char *by, struct err *err)
{
    char text[240], name[WIRE_NAME_MAX];
    uint64_t idle = e->now_us - idle_since_us(e, s);
    const struct member *m = member_by_id(&e->ledger.round.members, s->member);
    memcpy(name, s->name, sizeof name);
    snprintf(text, sizeof text, "delivered nothing for %s (limit %s), and all places are taken: %s gets the place",
             units_duration((double)idle * 1e-6).text, units_duration((double)idle_limit_us(e) * 1e-6).text, by);
    TRY(engine_lose_place(e, RECORD_MEMBER_EVICT, m, err));
    session_remove(&e->sessions, s);
    engine_progress(e);
    engine_emit_text(e, ENGINE_EVENT_EVICT, name, text);
    return STATUS_OK;
}

/* Names the workers that hold the places. */
static void refuse_full(struct engine *e, uint64_t peer, const char *name)
{
    char names[200] = "";
    size_t used = 0;
    uint32_t n = 0, hidden = 0;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        const struct session *s = &e->sessions.sessions[i];
        if (!s->id) continue;
        if (used + strlen(s->name) + 3 > sizeof names) {
            hidden++;
            continue;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", n++ ? ", " : "", s->name);
    }
    if (hidden) snprintf(names + used, sizeof names - used, " ...");
    engine_refuse(
        e, peer, name, REFUSE_FULL,
        "the run is full: %s hold all %u places (coordinator.max_workers). '%s' gets a place when one of them "
        "leaves or delivers nothing for %s; for more places restart the coordinator with a larger "
        "coordinator.max_workers",
        names, e->config.coordinator.max_workers, name, units_duration((double)idle_limit_us(e) * 1e-6).text);
}

enum status engine_make_room(struct engine *e, uint64_t peer, const struct msg_join *m, bool *room_p, struct err *err)
{
    *room_p = true;
    const struct member_table *members = &e->ledger.round.members;
    if (!member_by_uuid(members, m->uuid) && member_free_place(members) == UINT32_MAX) {
        engine_refuse(e, peer, m->name, REFUSE_FULL,
                      "%d workers have contributed to this run, which is the limit: '%s' cannot take part", MEMBERS_MAX,
                      m->name);
        *room_p = false;
        return STATUS_OK;
    }
    bool has_session = session_by_uuid(&e->sessions, m->uuid) || session_by_name(&e->sessions, m->name);
    if (has_session || !session_table_full(&e->sessions)) return STATUS_OK;
    struct session *idle = find_idle(e);
    if (idle) return replace(e, idle, m->name, err);
    refuse_full(e, peer, m->name);
    *room_p = false;
    return STATUS_OK;
}
