/* Rounds with a barrier: ddp, local-sgd, diloco.
 *
 * Round r opens with every member that is in step or ready. Fragment f closes when nobody is waited for any more, or
 * when a quorum has delivered and the time limit has passed. When all fragments have closed the round is over; who was
 * late finds its work refused and is taken into the next round as soon as it is ready. */
#include <assert.h>

#include "coordinator/round/policy.h"

/* A round closes without the late ones after median + 4 MAD of measured arrivals, at least a second, at most an
 * hour. */
static const double limit_k = 4;
static const uint64_t limit_floor_us = 1000000, limit_ceiling_us = 3600000000u;
static const uint64_t patience_us = 60000000; /* for workers that all left to come back */

static uint16_t barrier_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                              const char **reason_p)
{
    (void)r;
    if (offer->base_version == m->work.versions[offer->fragment]) return 0;
    *reason_p = "trained from another version than assigned";
    return REJECT_BASE;
}

struct tally {
    uint32_t held, waited;
};

static struct tally count(const struct round *r, uint32_t fragment)
{
    struct tally t = {0};
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct assignment *work = &r->members.members[i]->work;
        if (!work->open) continue;
        t.held += work->parts[fragment].state == PART_HELD;
        t.waited += work->parts[fragment].state == PART_WAITED;
    }
    return t;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A round found at a start opened longer ago than this process knows. Its workers have as long as they have to come
 * back, and to compute it all once more as those did who delivered. */
static uint64_t resumed_us(const struct round *r, uint32_t fragment)
{
    uint64_t us = max_u64(patience_us, r->p.evict_us);
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct assignment *work = &r->members.members[i]->work;
        if (work->open && work->parts[fragment].state == PART_HELD)
            us = max_u64(us, 2 * work->parts[fragment].compute_us);
    }
    return us;
}

/* From opening to delivery; before anything is known, as long again as the quorum took. */
static struct deadline_limit limit_of(const struct round *r, uint32_t fragment)
{
    uint64_t unknown = 2 * (r->quorum_us[fragment] - r->opened_us);
    if (r->resumed) unknown = max_u64(unknown, resumed_us(r, fragment));
    return deadline_of(&r->arrivals, limit_k, limit_floor_us, limit_ceiling_us, unknown);
}

static uint64_t late_us(const struct round *r, uint32_t fragment)
{
    if (!r->quorum_us[fragment]) return UINT64_MAX;
    return max_u64(r->opened_us + limit_of(r, fragment).limit_us, r->quorum_us[fragment]);
}

static bool closable(const struct round *r, uint32_t fragment, uint64_t now_us, bool *late_p)
{
    struct tally t = count(r, fragment);
    *late_p = t.waited > 0;
    return t.held && (!t.waited || now_us >= late_us(r, fragment));
}

static bool barrier_close(const struct round *r, uint64_t now_us, struct round_close *close)
{
    uint32_t pick = UINT32_MAX;
    bool late = false, late_pick = false;
    if (!r->open) return false;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        if (r->closed[f]) continue;
        bool can = closable(r, f, now_us, &late);
        if (can && pick == UINT32_MAX) {
            pick = f;
            late_pick = late;
        }
        if (!can && r->p.together) return false;
    }
    if (pick == UINT32_MAX) return false;
    *close = (struct round_close){.fragment = pick, .late = late_pick, .limit = limit_of(r, pick)};
    for (uint32_t i = 0; i < r->members.n && close->n < WIRE_NAMED_MAX; i++) {
        const struct assignment *work = &r->members.members[i]->work;
        if (work->open && work->parts[pick].state == PART_HELD) close->ids[close->n++] = i;
    }
    assert(close->n > 0 && !r->closed[pick]);
    return true;
}

static bool barrier_over(const struct round *r)
{
    return r->round >= round_total(r);
}

static uint64_t barrier_deadline(const struct round *r)
{
    uint64_t at = r->idle_us && r->members.n && !barrier_over(r) ? r->idle_us + patience_us : UINT64_MAX;
    for (uint32_t f = 0; r->open && f < r->p.n_fragments; f++) {
        if (r->closed[f] || !count(r, f).waited) continue;
        uint64_t t = late_us(r, f);
        if (t < at) at = t;
    }
    return at;
}

/* Whose last delta was merged, so that it has a place in the next round. In one that begins again, after others left,
 * it may still hold a delta of its first try, made of other samples: as anybody else it has to be ready first. */
static bool in_step(const struct round *r, const struct member *m)
{
    return m->in_step && m->work.round != r->round;
}

/* Who takes part: members in step at once, heard of or not (a worker killed between two rounds keeps its place until it
 * is evicted, so that the run does not depend on when it died); others when they are ready. Where nobody is in step, at
 * the start and after everybody left, min_workers must be ready; or whoever is, a minute after the first one was in
 * which the others did not come back. */
static uint32_t takers(const struct round *r, uint64_t now_us)
{
    uint32_t at_once = 0, ready = 0;
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct member *m = r->members.members[i];
        if (!m->active || m->work.open) continue;
        at_once += in_step(r, m);
        ready += !in_step(r, m) && m->ready;
    }
    bool enough = at_once || ready >= r->p.min_workers || (r->idle_us && now_us >= r->idle_us + patience_us);
    return enough ? at_once + ready : 0;
}

static enum status barrier_plan(const struct round *r, uint64_t now_us, struct round_open *open)
{
    if (round_busy(r) || !takers(r, now_us)) return STATUS_OK;
    uint64_t step0 = r->round * r->p.sync_every, left = r->p.max_steps - step0;
    uint32_t steps = left < r->p.sync_every ? (uint32_t)left : r->p.sync_every;
    struct lease_plan plan = lease_plan_start(&r->leases);
    assert(step0 < r->p.max_steps && steps > 0);
    for (uint32_t i = 0; i < r->members.n; i++) {
        const struct member *m = r->members.members[i];
        if (!m->active || m->work.open || (!in_step(r, m) && !m->ready)) continue;
        struct round_grant *grant = &open->grants[open->n++];
        *grant =
            (struct round_grant){.id = i, .round = r->round, .steps = steps, .step0 = (double)step0, .step_rate = 1};
        TRY(lease_plan_take(&plan, steps * r->p.step_samples, grant->ranges, &grant->n_ranges));
    }
    return STATUS_OK;
}

static void barrier_updated(struct round *r, uint32_t fragment)
{
    assert(r->open && !r->closed[fragment]);
    r->closed[fragment] = true;
    for (uint32_t i = 0; i < r->members.n; i++) {
        struct member *m = r->members.members[i];
        if (!m->work.open || m->work.parts[fragment].state != PART_WAITED) continue;
        m->work.parts[fragment] = (struct part){.state = PART_DROPPED, .code = REJECT_LATE};
        round_settle(r, m);
    }
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (!r->closed[f]) return;
    r->open = false;
    r->round++;
}

static uint64_t barrier_done(const struct round *r)
{
    return r->round;
}

const struct policy policy_barrier = {
    .barrier = true,
    .judge = barrier_judge,
    .close = barrier_close,
    .deadline_us = barrier_deadline,
    .plan = barrier_plan,
    .updated = barrier_updated,
    .done = barrier_done,
    .over = barrier_over,
};
