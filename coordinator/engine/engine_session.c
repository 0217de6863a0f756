/* The state of one session (heard, silent, ready for work), and the time limit of eviction. */
#include <assert.h>
#include <stdio.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "coordinator/engine/engine_impl.h"

bool engine_eval_holds(const struct engine *e, const struct session *s)
{
    for (uint32_t i = 0; e->eval.open && i < e->eval.n; i++)
        if (!e->eval.shares[i].done && e->eval.shares[i].holder == s->id) return true;
    return false;
}

void engine_hear(struct engine *e, struct session *s)
{
    struct member *m = member_by_id(&e->ledger.round.members, s->member);
    assert(s->id && s->heard_us <= e->now_us);
    s->heard_us = e->now_us;
    if (m) m->heard_us = e->now_us;
    if (!s->silent && !s->closed) return;
    s->silent = s->closed = false;
    log_info("%s is back: its messages arrive again", s->name);
}

bool engine_is_silent(const struct engine *e, const struct session *s)
{
    assert(s->heard_us <= e->now_us);
    return e->now_us - s->heard_us >= ENGINE_SILENT_US;
}

bool engine_anyone_here(const struct engine *e)
{
    if (e->knocked_us && e->now_us - e->knocked_us < ENGINE_KNOCK_US) return true;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        const struct session *s = &e->sessions.sessions[i];
        if (s->id && !s->closed && !engine_is_silent(e, s)) return true;
    }
    return false;
}

bool engine_lacks_update(const struct engine *e, const struct session *s)
{
    const struct round *r = &e->ledger.round;
    for (uint32_t f = 0; f < s->last.n_fragments && f < r->p.n_fragments; f++)
        if (s->last.versions[f] < r->versions[f]) return true;
    return false;
}

void engine_refresh_ready(struct engine *e, struct session *s)
{
    bool can = s->beating && s->last.state == WORKER_READY && !engine_eval_holds(e, s);
    struct member *m = member_by_id(&e->ledger.round.members, s->member);
    if (m && (engine_is_aside(e, m) || (can && engine_is_late(e, s)))) can = false;
    assert(s->id && s->ready_us <= e->now_us);
    s->ready_us = !can ? 0 : s->ready_us ? s->ready_us : e->now_us;
    if (!m) return;
    m->ready = can;
}

/* A worker that was put aside gets work again after this time. */
static const uint64_t ASIDE_US = 3600ull * 1000000;

static uint64_t aside_left_us(const struct engine *e, const struct member *m)
{
    uint64_t now = e->clock_base.elapsed_us + (e->now_us - e->start_us);
    uint64_t until = m->struck_us + ASIDE_US;
    return until > now ? until - now : 0;
}

bool engine_is_aside(const struct engine *e, const struct member *m)
{
    if (m->strikes < GATE_STRIKES) return false;
    return aside_left_us(e, m) > 0;
}

const char *engine_aside_text(const struct engine *e, const struct member *m, char *out, size_t cap)
{
    snprintf(out, cap, "put aside for %s after %u refused deltas in a row%s%s",
             units_whole_seconds((double)aside_left_us(e, m) * 1e-6).text, m->strikes, m->refused[0] ? ": " : "",
             m->refused);
    return out;
}

static struct deadline_limit quarter_limit(const struct engine *e)
{
    return deadline_of(&e->ledger.round.durations, 0, ENGINE_EVICT_MIN_US / 4, UINT64_MAX / 8,
                       ENGINE_EVICT_UNMEASURED_US / 4);
}

uint64_t engine_evict_after_us(const struct engine *e, const struct session *s)
{
    if (e->config.coordinator.evict_after_s > 0) return (uint64_t)(e->config.coordinator.evict_after_s * 1e6);
    return quarter_limit(e).limit_us * (s && s->closed ? 2 : 4);
}

const char *engine_evict_rule(const struct engine *e, const struct session *s)
{
    bool closed = s && s->closed, measured = quarter_limit(e).n > 0;
    if (e->config.coordinator.evict_after_s > 0) return "coordinator.evict_after_s";
    if (!measured)
        return closed ? "30 s until 3 rounds are measured; coordinator.evict_after_s sets it"
                      : "a minute until 3 rounds are measured; coordinator.evict_after_s sets it";
    return closed ? "2 median rounds, at least 5 s; coordinator.evict_after_s sets it"
                  : "4 median rounds, at least 10 s; coordinator.evict_after_s sets it";
}
