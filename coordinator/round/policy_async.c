/* The async policy (Liu et al., 2401.09135): no worker waits for a slow or lost one.
 *
 * - Deltas that arrive within a grace window (outer.grace) are one outer step; without a window each delta is one.
 * - The first deltas wait until three workers have delivered, if so many train, but at most a minute: one alone cannot
 *   be compared.
 * - Each member works on its own rounds.
 * - The run's budget is max_steps x min_workers inner steps. Refused or lost work returns to the budget, so all of it
 *   is merged in the end.
 * - The learning rate follows the work of all members. An assignment starts at step (steps handed out) / min_workers
 *   and advances by (active members) / min_workers per inner step. */
#include <assert.h>

#include "common/base/minmax.h"
#include "coordinator/round/policy.h"

enum { STEPS_MIN = 5 }; /* the least that DyLU assigns, unless H is smaller or fewer steps are left */

static const uint64_t others_us = 60000000; /* the time that the first delta waits for those of other workers */
static const double equal = 0.1;            /* speeds that differ by less count as equal */
static const double meet_least = 0.5;       /* meet_others: least share of the steps */
static const double scatter_share = 0.1, soon_share = 0.25, slack_share = 0.5; /* closes_us */

static uint16_t async_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                            const char **reason_p)
{
    uint64_t now = r->versions[offer->fragment];
    if (offer->base_version > now || offer->base_version < m->work.versions[offer->fragment]) {
        *reason_p = "trained from a version outside its assignment";
        return REJECT_BASE;
    }
    if (round_staleness(r, offer->fragment, offer->base_version) <= r->p.max_staleness) return 0;
    *reason_p = "its base version is older than outer.max_staleness allows";
    return REJECT_STALE;
}

/* The deltas of a fragment that wait for others. */
struct group {
    uint32_t held, waited;   /* delivered parts; members that have an assignment and did not deliver theirs */
    uint64_t from_us;        /* delivery of the first part */
    const struct member *by; /* its worker */
};

static struct group group_of(const struct round *r, uint32_t fragment)
{
    struct group g = {.from_us = UINT64_MAX};
    for_each_member(&r->members, m) {
        if (!m->work.open) continue;
        const struct part *part = &m->work.parts[fragment];
        g.waited += m->active && part->state == PART_WAITED;
        if (part->state != PART_HELD) continue;
        g.held++;
        if (part->held_us >= g.from_us) continue;
        g.from_us = part->held_us;
        g.by = m;
    }
    return g;
}

/* Of the active members; 0: unknown. */
static double fastest_step_s(const struct round *r)
{
    double least = 0;
    for_each_member(&r->members, m) {
        double step_s = m->speed.step_s;
        if (m->active && step_s > 0 && (least == 0 || step_s < least)) least = step_s;
    }
    return least;
}

/* outer.grace: auto. When the member's part is expected; its transfer takes as long as the first one of the group. */
static double expected_us(const struct round *r, const struct group *g, const struct member *m, double unknown)
{
    if (!g->by->offered_us || g->by->offered_us > g->from_us) return unknown;
    double transfer = (double)(g->from_us - g->by->offered_us);
    if (m->assigned_us == MEMBER_ASSIGNED_EARLIER || !m->assigned_us) return unknown;
    if (m->offered_us) return (double)m->offered_us + transfer;
    if (!(m->speed.step_s > 0)) return unknown;
    return round_offers_us(r, m, round_begins_us(r, m, 0), m->work.steps) + transfer;
}

/* When the group closes. Members that are expected soon are waited for, so that all make one outer step:
 * - soon: within a quarter of the usual time from assignment to delivery, or, with overlap, within half of the time
 *   before the fastest worker needs the update; the other half is left for transfers (Decoupled DiLoCo, 2604.21428,
 *   waits within the same slack);
 * - and a tenth of the usual time longer, because arrivals scatter, but in all no longer than that quarter or half. */
static uint64_t closes_us(const struct round *r, const struct group *g, uint32_t fragment)
{
    double from = (double)g->from_us, at = from;
    if (!g->waited) return g->from_us;
    if (r->p.grace_us != UINT64_MAX) return g->from_us + r->p.grace_us;
    bool known = g->by->assigned_us && g->by->assigned_us < g->from_us;
    struct deadline_limit usual =
        deadline_of(&r->durations, 0, 0, UINT64_MAX / 2, known ? g->from_us - g->by->assigned_us : 0);
    double scatter = scatter_share * (double)usual.limit_us, soon = soon_share * (double)usual.limit_us;
    double slack = slack_share * r->p.overlap * 1e6 * fastest_step_s(r);
    if (slack > soon) soon = slack;
    for_each_member(&r->members, m) {
        if (!m->active || !member_has(m, fragment, PART_WAITED)) continue;
        double expected = expected_us(r, g, m, from + soon);
        if (expected < from && expected + (double)usual.limit_us > from) expected = from; /* overdue */
        if (expected < from || expected > from + soon) continue;
        double until = expected + scatter < from + soon ? expected + scatter : from + soon;
        if (until > at) at = until;
    }
    return (uint64_t)at;
}

/* Fewer than three workers have delivered, and the first delta of another one is on its way. */
static bool awaits_others(const struct round *r, const struct group *g, uint32_t fragment)
{
    uint32_t known = g->held, coming = 0;
    for_each_member(&r->members, m) {
        if (!m->active || member_has(m, fragment, PART_HELD)) continue;
        bool delivered = m->last[fragment].norm > 0;
        known += delivered;
        coming += !delivered && member_has(m, fragment, PART_WAITED);
    }
    return r->p.clips && coming && known < GATE_MEMBERS_MIN && known + coming >= GATE_MEMBERS_MIN;
}

static uint64_t due_us(const struct round *r, const struct group *g, uint32_t fragment)
{
    uint64_t closes = closes_us(r, g, fragment);
    return awaits_others(r, g, fragment) ? max_u64(closes, g->from_us + others_us) : closes;
}

static bool async_close(const struct round *r, uint64_t now_us, struct round_close *close)
{
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        if (!r->counts[f].held) continue;
        struct group g = group_of(r, f);
        if (now_us < due_us(r, &g, f)) continue;
        *close = (struct round_close){.fragment = f};
        for_each_member(&r->members, m) {
            if (!member_has(m, f, PART_HELD) || close->n == WIRE_NAMED_MAX) continue;
            close->ids[close->n++] = m->id;
            if (!r->p.grace_us) return true; /* each delta is an outer step */
        }
        return true;
    }
    return false;
}

static uint64_t async_deadline(const struct round *r)
{
    uint64_t at = UINT64_MAX;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        if (!r->counts[f].held) continue;
        struct group g = group_of(r, f);
        at = min_u64(at, due_us(r, &g, f));
    }
    return at;
}

static uint64_t budget(const struct round *r)
{
    return (uint64_t)r->p.max_steps * r->p.min_workers;
}

static bool async_over(const struct round *r)
{
    return r->steps_committed >= budget(r);
}

/* Members that deliver at different times would stay apart for ever, and each delta would be an outer step of its own.
 * So a member takes fewer steps, at least half, to deliver together with the last of the others that deliver meanwhile.
 * A tenth of its time is no reason: the grace window bridges it. */
static uint32_t meet_others(const struct round *r, const struct member *m, uint64_t now_us, uint32_t steps,
                            uint32_t least)
{
    double start = round_begins_us(r, m, now_us), alone = round_offers_us(r, m, start, steps) - start, meet = 0;
    if (!r->p.grace_us) return steps; /* each delta is an outer step anyway */
    for_each_member(&r->members, other) {
        bool known = other != m && other->active && other->work.open && other->assigned_us &&
                     other->assigned_us != MEMBER_ASSIGNED_EARLIER && other->speed.step_s > 0;
        if (!known) continue;
        double end = round_offers_us(r, other, round_begins_us(r, other, now_us), other->work.steps);
        double share = (end - start) / alone;
        if (share >= meet_least && share < 1 - equal && share > meet) meet = share;
    }
    assert(meet >= 0); /* also if alone is 0: comparisons with infinity and NaN fail above */
    uint32_t met = meet > 0 ? (uint32_t)(meet * steps + 0.5) : steps;
    return met < least ? least : met;
}

/* H_i = max(min(5, H), floor(H v_i / v_max)) with speed v = 1 / step_s, so that all members finish at about the same
 * time.
 *
 * - The speed is measured (struct member_speed); a worker's own figure is not used.
 * - It includes the download of the update. With a time c per assignment, t per step and H_i = x H, the next x is
 *   (t + c/H) / (t + c/(x H)). Its only fixed point for equal members is x = 1, and each step goes towards it.
 * - Members within 10 % of the fastest count as equal, because measured times scatter. */
static uint32_t steps_for(const struct round *r, const struct member *m, uint64_t now_us)
{
    double own = m->speed.step_s;
    if (!r->p.dynamic || !(own > 0)) return r->p.sync_every;
    double steps = (double)r->p.sync_every * (fastest_step_s(r) / own);
    if (steps >= (1 - equal) * r->p.sync_every) steps = r->p.sync_every;
    uint32_t least = r->p.sync_every < STEPS_MIN ? r->p.sync_every : STEPS_MIN;
    return meet_others(r, m, now_us, steps < least ? least : (uint32_t)steps, least);
}

/* Plans one assignment at a time, because the caller journals each before it plans the next. */
static enum status async_plan(const struct round *r, uint64_t now_us, struct round_open *open)
{
    uint64_t handed_out = r->steps_committed + r->steps_outstanding, left = budget(r) - handed_out;
    uint32_t ready = 0;
    if (!r->n_free) return STATUS_OK; /* all train */
    for_each_member(&r->members, m) ready += m->ready;
    if (handed_out >= budget(r) || (!handed_out && ready < r->p.min_workers)) return STATUS_OK;
    for_each_member(&r->members, m) {
        /* With overlap a worker is still training when its delta is merged: its next work must be there in time. */
        bool ahead = r->p.overlap && m->in_step;
        if (!m->active || m->work.open || (!m->ready && !ahead)) continue;
        uint32_t steps = steps_for(r, m, now_us);
        if (steps > left) steps = (uint32_t)left;
        assert(steps > 0 && steps <= r->p.sync_every);
        struct round_grant *grant = &open->grants[0];
        *grant = (struct round_grant){.id = m->id,
                                      .round = m->next_round,
                                      .steps = steps,
                                      .step0 = (double)handed_out / r->p.min_workers,
                                      .step_rate = (double)member_count_active(&r->members) / r->p.min_workers};
        struct lease_plan plan = lease_plan_start(&r->leases);
        TRY(lease_plan_take(&plan, steps * r->p.step_samples, grant->ranges, &grant->n_ranges));
        open->n = 1;
        return STATUS_OK;
    }
    return STATUS_OK;
}

static void async_updated(struct round *r, uint32_t fragment)
{
    (void)fragment;
    assert(!r->open);
}

static uint64_t async_done(const struct round *r)
{
    if (async_over(r)) return round_total(r);
    return r->steps_committed / ((uint64_t)r->p.sync_every * r->p.min_workers);
}

const struct policy policy_async = {
    .barrier = false,
    .judge = async_judge,
    .close = async_close,
    .deadline_us = async_deadline,
    .plan = async_plan,
    .updated = async_updated,
    .done = async_done,
    .over = async_over,
};
