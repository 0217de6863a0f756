/* Times of this process, from which time limits are computed. Not part of the journaled state. */
#include <assert.h>

#include "common/config/sync_points.h"
#include "coordinator/round/policy.h"
#include "coordinator/round/round.h"

enum { RECORDS_KEPT = 8192, RECORD_REPEATS = 4 };

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
}

double round_begins_us(const struct round *r, const struct member *m, uint64_t now_us)
{
    double step_us = 1e6 * m->speed.step_s, at = m->work.open ? (double)m->assigned_us : (double)now_us;
    uint64_t offered = m->work.open ? m->before_us : m->offered_us;
    uint32_t tail = m->work.open ? m->before_tail : m->offered_tail;
    double free = (double)offered + tail * step_us;
    assert(m->assigned_us != MEMBER_ASSIGNED_EARLIER);
    return r->p.overlap && offered && free > at ? free : at;
}

double round_offers_us(const struct round *r, const struct member *m, double begins_us, uint32_t steps)
{
    return begins_us + 1e6 * m->speed.step_s * (steps - tail_steps(r, steps));
}

/* Measures the member's speed.
 * - With a barrier its own figure counts, because a worker that waits for others is not slow. A false figure only gives
 *   it the wrong number of steps.
 * - Without one: from the beginning of its work to its first OFFER. */
static void measure_speed(const struct round *r, struct member *m, const struct part *part, uint64_t offered_us)
{
    uint32_t tail = r->policy->barrier ? 0 : tail_steps(r, m->work.steps);
    double us = r->policy->barrier ? (double)part->compute_us : (double)offered_us - round_begins_us(r, m, offered_us);
    if (us > 0 && m->work.steps > tail) member_speed_add(&m->speed, us * 1e-6, m->work.steps - tail);
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
        uint64_t offered = m->offered_us ? m->offered_us : now_us;
        assert(offered >= m->assigned_us);
        if (complete) measure_speed(r, member_by_id(&r->members, m->id), &m->work.parts[fragment], offered);
    }
    if (!r->quorum_us[fragment] && r->counts[fragment].held >= round_quorum(r)) r->quorum_us[fragment] = now_us;
}

void round_note_close(struct round *r, uint64_t now_us)
{
    assert(now_us >= r->opened_us);
    if (r->policy->barrier && !r->resumed) deadline_add(&r->durations, now_us - r->opened_us);
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
