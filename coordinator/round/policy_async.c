/* The async policy (Liu et al., 2401.09135): no worker waits for a slow or lost one.
 *
 * - Each member works on its own rounds, and takes fewer steps than a faster one.
 * - Deltas that arrive within a grace window (outer.grace) are one outer step; without a window each delta is one.
 * - outer.grace auto: the members deliver together, in a beat (coordinator/round/beat.h). Outer steps come no faster
 *   than links take them, so none drowns in updates.
 * - The first deltas wait until three workers have delivered, if so many train, but at most a minute: one alone cannot
 *   be compared.
 * - The run's budget is max_steps x min_workers inner steps. Refused or lost work returns to the budget, so all of it
 *   is merged in the end.
 * - The learning rate follows the work of all members. An assignment starts at step (steps handed out) / min_workers
 *   and advances by what all members do meanwhile. */
#include <assert.h>
#include <math.h>

#include "common/base/minmax.h"
#include "coordinator/round/beat.h"
#include "coordinator/round/policy.h"

static const uint64_t others_us = 60000000; /* the time that the first delta waits for those of other workers */
/* outer.grace auto, shares of the usual time from an assignment to its delivery (closes_us). */
static const double early_share = 0.9, late_share = 1.5, first_share = 2; /* after the last update */
static const double scatter_share = 0.1, soon_share = 0.5;
static const double equal = 0.1; /* speeds that differ by less count as equal */

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

/* outer.grace: auto */
static bool is_auto(const struct round *r)
{
    return r->p.grace_us == UINT64_MAX;
}

/* The deltas of a fragment that wait for others. */
struct group {
    uint32_t held, coming;   /* delivered parts; members that have an assignment and deliver theirs later */
    uint64_t from_us;        /* delivery of the first part */
    const struct member *by; /* its worker */
};

static uint64_t budget(const struct round *r)
{
    return (uint64_t)r->p.max_steps * r->p.min_workers;
}

/* Inner steps that no assignment has. */
static uint64_t unassigned(const struct round *r)
{
    uint64_t handed_out = r->steps_committed + r->steps_outstanding;
    return handed_out < budget(r) ? budget(r) - handed_out : 0;
}

/* The member will deliver a part of this fragment; outer.grace auto: also of its next assignment. */
static bool comes(const struct round *r, const struct member *m, uint32_t fragment)
{
    if (!m->active) return false;
    bool next = is_auto(r) && unassigned(r) > 0;
    if (!m->work.open) return next && (m->ready || m->in_step);
    return member_has(m, fragment, PART_WAITED) || (next && member_has(m, fragment, PART_MERGED));
}

static struct group group_of(const struct round *r, uint32_t fragment)
{
    struct group g = {.from_us = UINT64_MAX};
    for_each_member(&r->members, m) {
        g.coming += comes(r, m, fragment);
        if (!member_has(m, fragment, PART_HELD)) continue;
        const struct part *part = &m->work.parts[fragment];
        g.held++;
        if (part->held_us >= g.from_us) continue;
        g.from_us = part->held_us;
        g.by = m;
    }
    return g;
}

/* When the last of the members that are expected within half of the usual time after from_us should have arrived.
 * Arrivals scatter, so a tenth is added. */
static double last_expected_us(const struct round *r, uint32_t fragment, double from_us, double usual_us)
{
    double at = from_us, end = from_us + soon_share * usual_us;
    for_each_member(&r->members, m) {
        if (!m->active || !member_has(m, fragment, PART_WAITED)) continue;
        double expected = round_expected_us(r, m);
        if (isnan(expected)) expected = end;
        if (expected < from_us && expected + usual_us > from_us) expected = from_us; /* overdue */
        if (expected < from_us || expected > end) continue;
        at = fmax(at, fmin(expected + scatter_share * usual_us, end));
    }
    return at;
}

/* How long after the last update the fragment waits for members in any case, as a share of the usual time:
 * - for one that downloads the last update. One that lacks more is not waited for: it would slow all others down;
 * - for the first delta of a member: nothing is known of it. */
static double waits_share(const struct round *r, uint32_t fragment, double updated_us)
{
    double share = 0;
    for_each_member(&r->members, m) {
        if (!m->active) continue;
        bool is_new = member_has(m, fragment, PART_WAITED) && !(m->speed.usual.step_s > 0) &&
                      m->assigned_us != MEMBER_ASSIGNED_EARLIER && (double)m->assigned_us >= updated_us;
        if (m->have[fragment] && m->have[fragment] == r->versions[fragment]) share = fmax(share, late_share);
        if (is_new) share = fmax(share, first_share);
    }
    return share;
}

/* When the group closes. With outer.grace auto deltas that arrive soon after the last update wait for the others: an
 * update for them alone would cost each worker another download. */
static uint64_t closes_us(const struct round *r, const struct group *g, uint32_t fragment)
{
    if (!g->coming) return g->from_us;
    if (!is_auto(r)) return g->from_us + r->p.grace_us;
    bool known = g->by->assigned_us && g->by->assigned_us < g->from_us;
    double first = known ? (double)(g->from_us - g->by->assigned_us) : 0;
    double usual = (double)deadline_of(&r->durations, 0, 0, UINT64_MAX / 2, (uint64_t)first).limit_us;
    double updated = r->updated_us[fragment] ? (double)r->updated_us[fragment] : (double)g->from_us - first;
    double from = fmax((double)g->from_us, updated + early_share * usual);
    double waits = updated + waits_share(r, fragment, updated) * usual;
    return (uint64_t)fmax(waits, last_expected_us(r, fragment, from, usual));
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

static bool async_over(const struct round *r)
{
    return r->steps_committed >= budget(r);
}

/* With outer.grace of its own, H_i = H v_i / v_max with the speed v = 1 / step_s (DyLU). */
static uint32_t by_speed(const struct round *r, const struct member *m, uint32_t least)
{
    double fastest = m->speed.usual.step_s, h = r->p.sync_every;
    for_each_member(&r->members, other) {
        double step_s = other->speed.usual.step_s;
        if (other->active && step_s > 0) fastest = fmin(fastest, step_s);
    }
    double steps = fastest > 0 ? h * (fastest / m->speed.usual.step_s) : h;
    return steps >= (1 - equal) * h ? r->p.sync_every : (uint32_t)fmax(steps, least);
}

/* Another member can deliver before the run ends. */
static bool others_finish(const struct round *r, const struct member *m, double beats)
{
    for_each_member(&r->members, other) {
        double every;
        if (other == m || !other->active || !(other->speed.usual.step_s > 0)) continue;
        (void)beat_steps(r, other, r->beat_s, &every);
        if (every <= beats && (other->work.open || other->ready || other->in_step)) return true;
    }
    return false;
}

struct share {
    uint32_t steps;
    double rate; /* steps of the learning rate's schedule per step: all members work meanwhile */
};

/* train.dynamic_steps: what the member can do in a beat, or H if all are alike. The last beats share what is left, so
 * that none works alone in the end. Steps 0: the run ends before the member could deliver. */
static struct share share_of(const struct round *r, const struct member *m)
{
    uint32_t h = r->p.sync_every, least = h < BEAT_STEPS_LEAST ? h : BEAT_STEPS_LEAST;
    double active = member_count_active(&r->members), rate = active / r->p.min_workers, every;
    if (r->p.dynamic && !is_auto(r)) return (struct share){by_speed(r, m, least), rate};
    if (!r->p.dynamic || !(r->beat_s > 0) || !(m->speed.usual.step_s > 0)) return (struct share){h, rate};
    double left = (double)(budget(r) - r->steps_committed) / (active * h), beats = fmax(1, floor(left + 0.5));
    double steps = fmax(least, beat_steps(r, m, r->beat_s, &every));
    if (every > beats && others_finish(r, m, beats)) return (struct share){0, rate};
    return (struct share){(uint32_t)ceil(fmax(least, steps * left / beats) - 0.01), rate * every * h / steps};
}

/* outer.grace: auto. The member lacks two updates or more: it catches up first. */
static bool lags(const struct round *r, const struct member *m)
{
    bool any = false;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) any = any || (m->have[f] && m->have[f] < r->versions[f]);
    return any && is_auto(r);
}

/* Plans one assignment at a time, because the caller journals each before it plans the next. */
static enum status async_plan(const struct round *r, uint64_t now_us, struct round_open *open)
{
    uint64_t handed_out = r->steps_committed + r->steps_outstanding, left = unassigned(r);
    uint32_t ready = 0;
    (void)now_us;
    if (!r->n_free) return STATUS_OK; /* all train */
    for_each_member(&r->members, m) ready += m->ready;
    if (!left || (!handed_out && ready < r->p.min_workers)) return STATUS_OK;
    for_each_member(&r->members, m) {
        /* The next work of a worker whose delta was merged is there in time: it may still be training (train.overlap).
         */
        bool ahead = m->in_step && (r->p.overlap || is_auto(r));
        if (!m->active || m->work.open || (!m->ready && !ahead) || lags(r, m)) continue;
        struct share share = share_of(r, m);
        if (!share.steps) continue;
        if (share.steps > left) share.steps = (uint32_t)left;
        struct round_grant *grant = &open->grants[0];
        *grant = (struct round_grant){.id = m->id,
                                      .round = m->next_round,
                                      .steps = share.steps,
                                      .step0 = (double)handed_out / r->p.min_workers,
                                      .step_rate = share.rate};
        struct lease_plan plan = lease_plan_start(&r->leases);
        TRY(lease_plan_take(&plan, share.steps * r->p.step_samples, grant->ranges, &grant->n_ranges));
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
