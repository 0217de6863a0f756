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

#include "common/base/minmax.h"
#include "common/base/text.h"
#include "common/base/units.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"

enum { PATIENCE_US = 600000000 }; /* before rounds are measured, the first one may take this long */

/* A session that delivers nothing for this long may be replaced. */
static uint64_t idle_limit_us(const struct engine *e)
{
    uint64_t limit = admission_evict_after_us(e, NULL);
    bool measured = deadline_of(&e->ledger.round.durations, 0, 0, UINT64_MAX, 0).n > 0;
    return measured ? limit : max_u64(limit, PATIENCE_US);
}

/* The time since which the worker could have delivered something; UINT64_MAX: it waits for others. */
static uint64_t idle_since_us(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    if (s->ready_us || engine_eval_holds(e, s)) return UINT64_MAX;
    if (!m || !m->work.open) return s->idle_us;
    if (m->work.held) return UINT64_MAX;
    bool known = m->assigned_us && m->assigned_us != MEMBER_ASSIGNED_EARLIER;
    return known && m->assigned_us > s->idle_us ? m->assigned_us : s->idle_us;
}

/* The session that has delivered nothing for longest, and longer than the limit; NULL: none. */
static struct session *find_idle(struct engine *e)
{
    struct session *found = NULL;
    uint64_t since = 0, limit = idle_limit_us(e);
    for_each_session(e, s) {
        uint64_t at = idle_since_us(e, s);
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
    const struct member *m = engine_member(e, s);
    memcpy(name, s->name, sizeof name);
    snprintf(text, sizeof text, "delivered nothing for %s (limit %s), and all places are taken: %s gets the place",
             units_us(idle).text, units_us(idle_limit_us(e)).text, by);
    TRY(admission_lose_place(e, RECORD_MEMBER_EVICT, m, err));
    session_remove(&e->sessions, s);
    engine_progress(e);
    engine_emit_text(e, ENGINE_EVENT_EVICT, name, text);
    return STATUS_OK;
}

/* Names the workers that hold the places. */
static void refuse_full(struct engine *e, uint64_t peer, const char *name)
{
    char names[200] = "";
    uint32_t n = 0, hidden = 0;
    for_each_session(e, s) {
        if (strlen(names) + strlen(s->name) + 3 > sizeof names)
            hidden++;
        else
            text_add(names, sizeof names, "%s%s", n++ ? ", " : "", s->name);
    }
    if (hidden) text_add(names, sizeof names, " ...");
    engine_refuse(
        e, peer, name, REFUSE_FULL,
        "the run is full: %s hold all %u places (coordinator.max_workers). '%s' gets a place when one of them "
        "leaves or delivers nothing for %s; for more places restart the coordinator with a larger "
        "coordinator.max_workers",
        names, e->config.coordinator.max_workers, name, units_us(idle_limit_us(e)).text);
}

enum status admission_make_room(struct engine *e, uint64_t peer, const struct msg_join *m, bool *room_p,
                                struct err *err)
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
