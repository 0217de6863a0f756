/* The state of one session (heard, silent, ready for work), and the time limit of eviction. */
#include <assert.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/minmax.h"
#include "common/base/units.h"
#include "coordinator/admission/admission.h"
#include "coordinator/engine/state/engine_effects.h"

void admission_hear(struct engine *e, struct session *s)
{
    struct member *m = engine_member(e, s);
    assert(s->id && s->heard_us <= e->now_us);
    s->heard_us = e->now_us;
    if (m) m->heard_us = e->now_us;
    if (!s->silent && !s->closed) return;
    s->silent = s->closed = false;
    log_info("%s is back: its messages arrive again", s->name);
}

bool admission_is_silent(const struct engine *e, const struct session *s)
{
    assert(s->heard_us <= e->now_us);
    return e->now_us - s->heard_us >= ENGINE_SILENT_US;
}

bool admission_anyone_here(const struct engine *e)
{
    if (e->knocked_us && e->now_us - e->knocked_us < ENGINE_KNOCK_US) return true;
    for_each_session(e, s) {
        if (!s->closed && !admission_is_silent(e, s)) return true;
    }
    return false;
}

/* It is ready, and neither aside nor late. A session that waits for the first round is no member yet. */
static bool may_work(const struct engine *e, const struct session *s)
{
    const struct member *m = engine_member(e, s);
    if (!s->beating || s->last.state != WORKER_READY || engine_eval_holds(e, s)) return false;
    return !m || !(admission_is_aside(e, m) || admission_is_late(e, s));
}

/* It is connected, has validation data and the parameters, and is idle. */
static bool may_evaluate(const struct engine *e, const struct session *s)
{
    if (!s->evaluates || !s->beating || admission_is_silent(e, s) || engine_eval_holds(e, s)) return false;
    const struct member *m = engine_member(e, s);
    if (!m || m->work.open || m->false_evals || admission_is_aside(e, m) || admission_is_late(e, s)) return false;
    if (s->last.state == WORKER_CATCHING_UP || s->last.state == WORKER_FINISHED) return false;
    /* A member in step delivered all its work, so an older heartbeat may still say "training". A member whose work was
     * dropped may really be training. */
    return m->in_step || s->last.state != WORKER_TRAINING;
}

bool admission_may(const struct engine *e, const struct session *s, enum admission_what what)
{
    assert(s->id);
    switch (what) {
    case ADMISSION_WORK: return may_work(e, s);
    case ADMISSION_EVALUATE: return may_evaluate(e, s);
    case ADMISSION_STAY: return !s->flooded && e->now_us - s->heard_us < admission_evict_after_us(e, s);
    }
    return false;
}

void admission_refresh_ready(struct engine *e, struct session *s)
{
    bool can = admission_may(e, s, ADMISSION_WORK);
    struct member *m = engine_member(e, s);
    assert(s->id && s->ready_us <= e->now_us);
    s->ready_us = !can ? 0 : s->ready_us ? s->ready_us : e->now_us;
    if (!m) return;
    m->ready = can;
    /* Its share of the mean grows with it: no worker counts for more than a run may have. */
    m->workers = (uint32_t)min_u64(s->last.workers, e->config.coordinator.max_workers);
}

enum status admission_readmit(struct engine *e, struct member *m, struct err *err)
{
    assert(admission_is_aside(e, m));
    TRY(admission_write_member(e, RECORD_MEMBER_READMIT, m->id, m->uuid, m->name, err));
    m->refused[0] = 0;
    struct session *s = session_by_member(&e->sessions, m->id);
    if (s) admission_refresh_ready(e, s);
    log_info("readmitted %s", m->name);
    return STATUS_OK;
}

static struct deadline_limit quarter_limit(const struct engine *e)
{
    return deadline_of(&e->ledger.round.durations, 0, ENGINE_EVICT_MIN_US / 4, UINT64_MAX / 8,
                       ENGINE_EVICT_UNMEASURED_US / 4);
}

uint64_t admission_evict_after_us(const struct engine *e, const struct session *s)
{
    if (e->config.coordinator.evict_after_s > 0) return (uint64_t)(e->config.coordinator.evict_after_s * 1e6);
    return quarter_limit(e).limit_us * (s && s->closed ? 2 : 4);
}

const char *admission_evict_rule(const struct engine *e, const struct session *s)
{
    bool closed = s && s->closed, measured = quarter_limit(e).n > 0;
    if (e->config.coordinator.evict_after_s > 0) return "coordinator.evict_after_s";
    if (!measured)
        return closed ? "30 s until 3 rounds are measured; coordinator.evict_after_s sets it"
                      : "a minute until 3 rounds are measured; coordinator.evict_after_s sets it";
    return closed ? "2 median rounds, at least 5 s; coordinator.evict_after_s sets it"
                  : "4 median rounds, at least 10 s; coordinator.evict_after_s sets it";
}
