/* Times of this process, from which time limits are computed. Not part of the journaled state. */
#include <assert.h>
#include <math.h>

#include "common/config/sync_points.h"
#include "coordinator/round/beat.h"
#include "coordinator/round/policy.h"
#include "coordinator/round/round.h"

enum { RECORDS_KEPT = 8192, RECORD_REPEATS = 4 };

static const double hidden_share = 1; /* of a step: training began as soon as it could */

/* An assignment allows the records of its steps, sent up to RECORD_REPEATS times: a worker sends them again after it
 * lost its connection or its state. Unused ones stay for late records, up to RECORDS_KEPT. */
static void allow_records(struct member *m)
{
    if (m->records > RECORDS_KEPT) m->records = RECORDS_KEPT;
    m->records += RECORD_REPEATS * m->work.steps;
}

uint32_t round_quorum(const struct round *r)
{
    uint32_t n = r->p.quorum ? r->p.quorum : (uint32_t)(((uint64_t)r->n_assigned * r->p.quorum_percent + 99) / 100);
    if (n > r->n_assigned) n = r->n_assigned;
    return n ? n : 1;
}

static void start_clocks(struct round *r, uint64_t now_us, bool resumed)
{
    assert(now_us >= r->opened_us);
    r->opened_us = now_us;
    r->resumed = resumed;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) r->quorum_us[f] = r->counts[f].held >= round_quorum(r) ? now_us : 0;
}

void round_note_resume(struct round *r, uint64_t now_us)
{
    start_clocks(r, now_us, true);
    for_each_member(&r->members, m) {
        m->records = RECORDS_KEPT; /* of the rounds that its worker trained before this process started */
        allow_records(m);
        if (!m->work.open) continue;
        m->assigned_us = MEMBER_ASSIGNED_EARLIER;
        m->offered_us = 0;
    }
}

void round_note_open(struct round *r, uint64_t now_us)
{
    start_clocks(r, now_us, false);
    if (r->p.start_step && r->round == r->p.start_step) { /* rounds of one step say nothing about its times */
        r->arrivals = (struct deadline){0};
        r->durations = (struct deadline){0};
    }
    for_each_member(&r->members, m) {
        if (!m->work.open || m->assigned_us) continue;
        m->assigned_us = now_us;
        m->before_us = m->offered_us;
        m->before_tail = m->offered_tail;
        m->offered_us = 0;
        allow_records(m);
    }
}

/* Inner steps of an assignment after its sync point: its worker trains them while its delta is under way. */
static uint32_t tail_steps(const struct round *r, uint32_t steps)
{
    return sync_overlap_of(r->p.overlap, r->p.sync_every, steps, r->policy->barrier);
}

void round_note_offer(struct round *r, const struct member *m, uint64_t now_us)
{
    struct member *own = member_by_id(&r->members, m->id);
    assert(m->work.open && own == m);
    if (own->offered_us) return;
    own->offered_us = now_us;
    own->offered_tail = tail_steps(r, m->work.steps);
    for (uint32_t f = 0; f < r->p.n_fragments; f++) round_note_have(r, m->id, f, m->work.versions[f]);
}

/* When the member's worker has trained the steps after the sync point of its work before; 0: at once. */
static double free_us(const struct round *r, const struct member *m)
{
    if (!r->p.overlap || !m->before_us) return 0;
    return (double)m->before_us + 1e6 * m->speed.usual.step_s * m->before_tail;
}

double round_expected_us(const struct round *r, const struct member *m)
{
    const struct member_times *t = &m->speed.usual;
    double start = fmax((double)m->assigned_us + 1e6 * t->down_s, free_us(r, m));
    assert(m->work.open);
    if (!m->assigned_us || m->assigned_us == MEMBER_ASSIGNED_EARLIER || !(t->step_s > 0)) return NAN;
    if (m->offered_us) return (double)m->offered_us + 1e6 * t->up_s;
    return start + 1e6 * (t->step_s * (m->work.steps - tail_steps(r, m->work.steps)) + t->up_s);
}

/* Without a barrier: the times of an assignment whose last part arrives now.
 * - The steps by the worker's own figure, but no more than the time that they can have taken.
 * - A download that was over before the worker could begin is known to be no longer than that.
 * - The first assignments download nothing: they say as much of downloads as of uploads. */
static struct member_times times_of(const struct round *r, const struct member *m, uint64_t own_us, uint64_t now_us)
{
    uint32_t steps = m->work.steps, before = steps - tail_steps(r, steps);
    double offered = m->offered_us ? (double)m->offered_us : (double)now_us, free = free_us(r, m);
    double begun = fmax((double)m->assigned_us, free), step_us = before ? (offered - begun) / before : 0;
    if (!(step_us > 0)) return (struct member_times){0};
    if (own_us && (double)own_us / steps < step_us) step_us = (double)own_us / steps;
    struct member_times t = {.step_s = 1e-6 * step_us, .up_s = 1e-6 * ((double)now_us - offered)};
    double trained = offered - step_us * before;
    t.down_s = 1e-6 * (trained - (double)m->assigned_us);
    double guess = m->speed.usual.step_s > 0 ? m->speed.usual.down_s : t.up_s;
    bool fresh = true;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) fresh = fresh && !m->work.versions[f];
    bool hidden = free > 0 && trained < free + hidden_share * step_us;
    if (fresh)
        t.down_s = t.up_s;
    else if (hidden && guess < t.down_s)
        t.down_s = guess;
    return t;
}

/* Measures the member's speed. With a barrier its own figure counts, because a worker that waits for others is not
 * slow. A false figure only gives it the wrong number of steps. */
static void measure_speed(const struct round *r, struct member *m, const struct part *part, uint64_t now_us)
{
    struct member_times t = {.step_s = 1e-6 * (double)part->compute_us / m->work.steps};
    if (!r->policy->barrier) t = times_of(r, m, part->compute_us, now_us);
    if (t.step_s > 0) member_speed_add(&m->speed, &t, m->work.steps);
}

void round_note_delivery(struct round *r, const struct member *m, uint32_t fragment, uint64_t now_us)
{
    bool complete = !member_waits(m);
    member_by_id(&r->members, m->id)->work.parts[fragment].held_us = now_us;
    assert(m->work.open && m->work.parts[fragment].state == PART_HELD);
    if (m->assigned_us != MEMBER_ASSIGNED_EARLIER) {
        assert(now_us >= m->assigned_us && m->offered_us <= now_us);
        deadline_add(&r->arrivals, now_us - m->assigned_us);
        if (!r->policy->barrier && complete) deadline_add(&r->durations, now_us - m->assigned_us);
        if (complete) measure_speed(r, member_by_id(&r->members, m->id), &m->work.parts[fragment], now_us);
    }
    if (!r->quorum_us[fragment] && r->counts[fragment].held >= round_quorum(r)) r->quorum_us[fragment] = now_us;
}

void round_note_close(struct round *r, uint64_t now_us)
{
    assert(now_us >= r->opened_us);
    if (r->policy->barrier && !r->resumed) deadline_add(&r->durations, now_us - r->opened_us);
}

void round_note_update(struct round *r, uint32_t fragment, uint64_t now_us)
{
    r->updated_us[fragment] = now_us;
    if (!r->policy->barrier && r->p.grace_us == UINT64_MAX) r->beat_s = beat_s(r);
}

void round_note_have(struct round *r, uint32_t id, uint32_t fragment, uint64_t version)
{
    uint64_t *have = &member_by_id(&r->members, id)->have[fragment];
    if (*have <= version) *have = version + 1;
}

void round_note_pause(struct round *r, uint64_t gap_us)
{
    for_each_member(&r->members, m) {
        m->heard_us += gap_us;
        if (m->assigned_us && m->assigned_us != MEMBER_ASSIGNED_EARLIER) m->assigned_us += gap_us;
        if (m->offered_us) m->offered_us += gap_us;
        if (m->before_us) m->before_us += gap_us;
        for (uint32_t f = 0; f < r->p.n_fragments; f++)
            if (m->work.parts[f].held_us) m->work.parts[f].held_us += gap_us;
    }
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->quorum_us[f]) r->quorum_us[f] += gap_us;
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->updated_us[f]) r->updated_us[f] += gap_us;
    if (r->idle_us) r->idle_us += gap_us;
    r->opened_us += gap_us;
}

static bool any_ready(const struct round *r)
{
    for_each_member(&r->members, m) {
        if (m->active && m->ready) return true;
    }
    return false;
}

void round_note_idle(struct round *r, uint64_t now_us)
{
    if (round_busy(r) || !any_ready(r))
        r->idle_us = 0;
    else if (!r->idle_us)
        r->idle_us = now_us;
    assert(r->idle_us <= now_us);
}
