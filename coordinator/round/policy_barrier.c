/* The barrier policy, for ddp, local-sgd and diloco.
 *
 * - Round r opens with every member that is in step or ready.
 * - A fragment closes when all its parts have arrived, or when a quorum has delivered and the time limit has passed.
 * - The round is over when all fragments have closed.
 * - The delta of a late member is refused; the member joins the next round when it is ready. */
#include <assert.h>
#include <string.h>

#include "common/base/minmax.h"
#include "coordinator/round/policy.h"

enum { STEPS_MOST = 4 }; /* times H: the most that train.dynamic_steps gives to one member */

/* A round closes without late members after median + 4 MAD of measured arrivals, at least 1 s and at most 1 h. */
static const double limit_k = 4;
static const uint64_t limit_floor_us = 1000000, limit_ceiling_us = 3600000000u;
static const double equal = 0.1;              /* speeds that differ by less count as equal */
static const uint64_t patience_us = 60000000; /* the time that absent workers have to return */

static uint16_t barrier_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                              const char **reason_p)
{
    (void)r;
    if (offer->base_version == m->work.versions[offer->fragment]) return 0;
    *reason_p = "trained from a version outside its assignment";
    return REJECT_BASE;
}

/* The opening time of a round from the journal is unknown. Its workers get the time to reconnect and to recompute the
 * round, measured by the compute time of delivered parts. */
static uint64_t resumed_us(const struct round *r, uint32_t fragment)
{
    uint64_t us = max_u64(patience_us, r->p.evict_us);
    for_each_member(&r->members, m) {
        if (member_has(m, fragment, PART_HELD)) us = max_u64(us, 2 * m->work.parts[fragment].compute_us);
    }
    return us;
}

/* The limit from opening to delivery. Before any arrival is measured: twice the time of the quorum. */
static struct deadline_limit close_limit(const struct round *r, uint32_t fragment)
{
    uint64_t unknown = 2 * (r->quorum_us[fragment] - r->opened_us);
    if (r->resumed) unknown = max_u64(unknown, resumed_us(r, fragment));
    return deadline_of(&r->arrivals, limit_k, limit_floor_us, limit_ceiling_us, unknown);
}

static uint64_t close_late_us(const struct round *r, uint32_t fragment)
{
    if (!r->quorum_us[fragment]) return UINT64_MAX;
    return max_u64(r->opened_us + close_limit(r, fragment).limit_us, r->quorum_us[fragment]);
}

static bool closable(const struct round *r, uint32_t fragment, uint64_t now_us, bool *late_p)
{
    const struct round_count *t = &r->counts[fragment];
    *late_p = t->waited > 0;
    return t->held && (!t->waited || now_us >= close_late_us(r, fragment));
}

/* A region seals its round as a whole, and only once. */
static bool region_closable(const struct round *r)
{
    bool any = false;
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->closed[f]) return false;
    for_each_member(&r->members, m) any = any || round_is_complete(r, m);
    return any && !r->region.sealed;
}

static bool barrier_close(const struct round *r, uint64_t now_us, struct round_close *close)
{
    uint32_t pick = UINT32_MAX;
    bool late = false, late_pick = false;
    if (!r->open || (r->region.on && !region_closable(r))) return false;
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
    *close = (struct round_close){.fragment = pick, .late = late_pick, .limit = close_limit(r, pick)};
    for_each_member(&r->members, m) {
        if (r->region.on && !round_is_complete(r, m)) continue;
        if (member_has(m, pick, PART_HELD) && close->n < WIRE_NAMED_MAX) close->ids[close->n++] = m->id;
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
        if (r->closed[f] || !r->counts[f].waited) continue;
        at = min_u64(at, close_late_us(r, f));
    }
    return at;
}

/* The member's last delta was merged, so the next round opens with it at once. If the same round opens again because
 * other members left, the member may hold a delta of the first try, from other samples. It must be ready first. */
static bool in_step(const struct round *r, const struct member *m)
{
    return m->in_step && m->work.round != r->round;
}

/* The number of members that the next round opens with; 0: it does not open yet.
 * - A member in step takes part at once, connected or not. A worker killed between two rounds keeps its place until
 *   eviction, so the run does not depend on the moment of its death.
 * - Other members take part when they are ready.
 * - If no member is in step (at the start, or after all left), min_workers members must be ready.
 *   After 60 s of waiting, fewer are enough. */
static uint32_t count_participants(const struct round *r, uint64_t now_us)
{
    uint32_t at_once = 0, ready = 0;
    for_each_member(&r->members, m) {
        if (!m->active || m->work.open) continue;
        at_once += in_step(r, m);
        ready += !in_step(r, m) && m->ready;
    }
    bool enough = at_once || ready >= r->p.min_workers || (r->idle_us && now_us >= r->idle_us + patience_us);
    return enough ? at_once + ready : 0;
}

/* train.dynamic_steps: steps of each of the n planned members, by speed, so that all finish at about the same time.
 * H_i = H v_i / mean(v): the members together take n H steps, so the tokens of a round, its place in the schedule of
 * the learning rate, and the number of rounds stay as they are. A member of unknown speed counts as average. Speeds
 * within 10 % of each other count as equal, because measured times scatter. */
static void share_steps(const struct round *r, struct round_grant *grants, uint32_t n)
{
    double slowest = 0, fastest = 0, sum = 0;
    uint32_t known = 0, steps = grants[0].steps;
    uint64_t left = (uint64_t)n * steps;
    for (uint32_t i = 0; i < n; i++) {
        double step_s = member_by_id(&r->members, grants[i].id)->speed.usual.step_s;
        if (!(step_s > 0)) continue;
        if (!known || 1 / step_s < slowest) slowest = 1 / step_s;
        if (1 / step_s > fastest) fastest = 1 / step_s;
        sum += 1 / step_s;
        known++;
    }
    if (!known || slowest >= (1 - equal) * fastest) return;
    for (uint32_t i = 0; i < n; i++) {
        double step_s = member_by_id(&r->members, grants[i].id)->speed.usual.step_s;
        double share = step_s > 0 ? steps / step_s / (sum / known) : steps;
        uint64_t most = left - (n - 1 - i); /* one step for each member behind it */
        if (most > (uint64_t)STEPS_MOST * steps) most = (uint64_t)STEPS_MOST * steps;
        uint64_t mine = share < 1 ? 1 : (uint64_t)(share + 0.5);
        if (mine > most || i + 1 == n) mine = i + 1 == n && left < most ? left : most;
        grants[i].steps = (uint32_t)mine;
        grants[i].step_rate = (double)steps / (double)mine;
        left -= mine;
    }
}

/* A region opens a round when upstream has granted it, and not in the middle of one. */
static bool may_open(const struct round *r)
{
    for (uint32_t f = 0; f < r->p.n_fragments && r->region.on; f++)
        if (r->closed[f]) return false;
    return !r->region.on || r->region.granted == r->round + 1;
}

/* Takes the samples of a grant. False: a region has not enough of them, and the member waits for the next round. */
static enum status take_samples(const struct round *r, struct lease_plan *plan, struct round_grant *grant,
                                bool *enough_p)
{
    const struct lease_plan before = *plan;
    uint64_t samples = grant->steps * r->p.step_samples * round_workers(r, member_by_id(&r->members, grant->id));
    TRY(lease_plan_take(plan, samples, grant->ranges, &grant->n_ranges));
    *enough_p = !r->region.on || plan->cursor == before.cursor;
    if (!*enough_p) *plan = before;
    return STATUS_OK;
}

static enum status barrier_plan(const struct round *r, uint64_t now_us, struct round_open *open)
{
    if (round_busy(r) || !may_open(r) || !count_participants(r, now_us)) return STATUS_OK;
    struct sync_round span = round_span(r, r->round);
    struct lease_plan plan = lease_plan_start(&r->leases);
    struct round_grant usual = {.round = r->round, .steps = span.steps, .step0 = (double)span.first, .step_rate = 1};
    assert(span.first < r->p.max_steps && span.steps > 0);
    if (r->region.on) {
        usual.steps = r->region.steps;
        usual.step0 = r->region.step0;
        usual.step_rate = r->region.step_rate;
    }
    for_each_member(&r->members, m) {
        if (!m->active || m->work.open || (!in_step(r, m) && !m->ready)) continue;
        usual.id = m->id;
        open->grants[open->n++] = usual;
    }
    if (r->p.dynamic && !span.is_averaged) share_steps(r, open->grants, open->n);
    uint32_t n = open->n;
    open->n = 0;
    for (bool enough = true; open->n < n; open->n++) {
        TRY(take_samples(r, &plan, &open->grants[open->n], &enough));
        if (!enough) break;
    }
    return STATUS_OK;
}

static void barrier_updated(struct round *r, uint32_t fragment)
{
    const struct part late = {.state = PART_DROPPED, .code = REJECT_LATE};
    assert((r->open || r->region.on) && !r->closed[fragment]);
    r->closed[fragment] = true;
    for_each_member(&r->members, m) {
        bool unnamed = r->region.on && member_has(m, fragment, PART_HELD);
        if (!member_has(m, fragment, PART_WAITED) && !unnamed) continue;
        round_set_part(r, m, fragment, &late);
        round_settle(r, m);
    }
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (!r->closed[f]) return;
    r->open = r->region.sealed = false;
    r->round++;
    if (r->region.on) memset(r->closed, 0, sizeof r->closed); /* updates may come before the next round opens */
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
