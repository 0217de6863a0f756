/* Refuses deltas that are far from the others, before they are merged.
 *
 * - Norm: round_outlier. Direction: the cosine of a delta with the sum of the others of its round, each scaled to
 *   norm 1. The deltas of a member that opposes the others (gate_opposes) are refused. async only reports the cosine.
 * - A refusal is a DROP record. Replay applies it and never judges again.
 * - The norms are those that the coordinator measured; the DELTA records store them. Directions are not journaled:
 *   after a restart the last rounds are unknown.
 * - GATE_STRIKES refused assignments in a row put the member aside: it gets no work (engine_is_aside). */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/outer/delta_measure.h"

enum { DIRECTIONS_MIN = 3 };

/* --- directions --------------------------------------------------------------------------------------------------- */

/* The session's sketch is complete, and belongs to the round that the others are compared in. */
static bool has_direction(const struct engine *e, const struct session *s)
{
    const struct round *r = &e->ledger.round;
    if (!s->id || s->member == SESSION_NO_MEMBER || s->sketch_parts < r->p.n_fragments) return false;
    return e->config.train.method == METHOD_ASYNC || s->sketch_round == r->round + 1;
}

/* e->direction = the sum of all directions as unit vectors; returns their number. */
static uint32_t sum_directions(struct engine *e)
{
    uint32_t n = 0;
    memset(e->direction, 0, SKETCH_FLOATS * sizeof *e->direction);
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        const struct session *s = &e->sessions.sessions[i];
        double norm = has_direction(e, s) ? sketch_norm(s->sketch) : 0;
        if (!(norm > 0)) continue;
        for (size_t k = 0; k < SKETCH_FLOATS; k++) e->direction[k] += (float)((double)s->sketch[k] / norm);
        n++;
    }
    return n;
}

/* Compares the directions of a round once, when its last part has arrived. async: that of each delta when it arrives,
 * with the last ones of the other workers; reported only, because these deltas start from different versions, and
 * workers that overshoot in turn oppose each other. */
static void compare_directions(struct engine *e, const struct round_close *close)
{
    const struct round *r = &e->ledger.round;
    bool async = e->config.train.method == METHOD_ASYNC;
    for (uint32_t f = 0; f < r->p.n_fragments && !async && !r->p.together; f++)
        if (f != close->fragment && !r->closed[f]) return;
    if (sum_directions(e) < DIRECTIONS_MIN) return;
    for (uint32_t i = 0; i < e->sessions.cap; i++) {
        struct session *s = &e->sessions.sessions[i];
        if (!has_direction(e, s) || s->sketch_compared || (async && s->member != close->ids[0])) continue;
        struct member *m = member_by_id(&r->members, s->member);
        double cosine = sketch_cosine(s->sketch, e->direction);
        s->sketch_compared = true;
        if (isnan(cosine)) continue;
        m->cosine = (float)cosine;
        if (!async) gate_add_cosine(&m->cosines, cosine);
        if (e->cosine <= cosine) continue;
        e->cosine = cosine;
        memcpy(e->cosine_worker, m->name, sizeof e->cosine_worker);
    }
}

/* --- judging ------------------------------------------------------------------------------------------------------ */

static double mean_cosine(const struct member *m)
{
    double mean;
    return gate_opposes(&m->cosines, &mean) ? mean : 0;
}

/* Of several members that oppose the others, one may lie and pull the others apart: only the lowest is refused. */
static bool opposes_most(const struct engine *e, const struct round_close *close, uint32_t i)
{
    double mean = mean_cosine(member_by_id(&e->ledger.round.members, close->ids[i]));
    for (uint32_t k = 0; k < close->n && mean < 0; k++)
        if (mean_cosine(member_by_id(&e->ledger.round.members, close->ids[k])) < mean) return false;
    return mean < 0;
}

static bool judge(const struct engine *e, const struct round_close *close, uint32_t i, char reason[WIRE_TEXT_MAX])
{
    const struct member *m = member_by_id(&e->ledger.round.members, close->ids[i]);
    struct gate_limit limit;
    if (opposes_most(e, close, i)) {
        snprintf(reason, WIRE_TEXT_MAX,
                 "its direction opposed the other deltas in the last %u rounds: cosine %.2f, now %.2f", GATE_COSINES,
                 mean_cosine(m), (double)m->cosine);
        return true;
    }
    if (layout_is_mean(&e->ledger.layout, close->fragment)) return false; /* statistics may jump */
    if (!round_outlier(&e->ledger.round, close, i, &limit)) return false;
    double norm = (double)round_close_part(&e->ledger.round, close, i)->norm;
    snprintf(reason, WIRE_TEXT_MAX, "its norm %.3g is %.3g times the median %.3g of %u deltas; the limit is %.3g", norm,
             norm / limit.median, limit.median, limit.n, limit.limit);
    return true;
}

/* For `./run bench gate`: how far honest deltas are from the limits. */
static void log_margins(const struct engine *e, const struct round_close *close, uint32_t i)
{
    const struct round *r = &e->ledger.round;
    const struct member *m = member_by_id(&r->members, close->ids[i]);
    double norm = (double)round_close_part(r, close, i)->norm, reach = round_reach(r, m);
    struct gate_limit limit = gate_history(&r->p.gate, &r->gates[close->fragment], reach);
    double bound = gate_bound(&r->p.gate, reach, e->ledger.layout.fragments[close->fragment].count, 0);
    log_debug("delta of %s, round %llu, fragment %u: norm %.4g, median %.4g, limit %.4g, bound %.4g, cosine %.4f",
              m->name, (unsigned long long)m->work.round + 1, close->fragment, norm, limit.median, limit.limit, bound,
              (double)m->cosine);
}

/* Refuses the first outlier among the held parts of a fragment. */
static enum status refuse_one(struct engine *e, uint32_t fragment, bool *refused_p, struct err *err)
{
    const struct round *r = &e->ledger.round;
    struct round_close held = {.fragment = fragment};
    char reason[WIRE_TEXT_MAX];
    for (uint32_t i = 0; i < r->members.n && held.n < WIRE_NAMED_MAX; i++) {
        const struct assignment *work = &r->members.members[i]->work;
        if (work->open && work->parts[fragment].state == PART_HELD) held.ids[held.n++] = i;
    }
    for (uint32_t i = 0; i < held.n; i++) {
        if (log_enabled(LOG_DEBUG)) log_margins(e, &held, i);
        if (!judge(e, &held, i, reason)) continue;
        *refused_p = true;
        return engine_refuse_part(e, held.ids[i], fragment, REJECT_OUTLIER, reason, err);
    }
    return STATUS_OK;
}

enum status engine_gate(struct engine *e, const struct round_close *close, bool *refused_p, struct err *err)
{
    const struct round *r = &e->ledger.round;
    compare_directions(e, close);
    if (!r->p.together) return refuse_one(e, close->fragment, refused_p, err);
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->closed[f]) return STATUS_OK; /* judged before the first fragment closed */
    for (uint32_t f = 0; f < r->p.n_fragments && !*refused_p; f++) TRY(refuse_one(e, f, refused_p, err));
    return STATUS_OK;
}

enum status engine_readmit(struct engine *e, struct member *m, struct err *err)
{
    assert(engine_is_aside(e, m));
    TRY(engine_write_member(e, RECORD_MEMBER_READMIT, m->id, m->uuid, m->name, err));
    m->refused[0] = 0;
    struct session *s = session_by_member(&e->sessions, m->id);
    if (s) engine_refresh_ready(e, s);
    log_info("readmitted %s", m->name);
    return STATUS_OK;
}
