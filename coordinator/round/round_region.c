/* The folds of a region: a run whose outer step is taken by another run, upstream, of which it is one worker.
 *
 * - Upstream's rounds are the region's. A round opens after its grant, with the granted samples alone.
 * - The round is sealed when its deltas are fixed. Upstream's updates close its fragments.
 * - All parts of a member are merged, or none: upstream counts the tokens of a delta once. */
#include <assert.h>
#include <string.h>

#include "common/base/minmax.h"
#include "coordinator/round/policy.h"

void round_follow(struct round *r)
{
    assert(r->policy->barrier);
    r->region.on = r->p.together = true;
    r->p.dynamic = false;
}

bool round_is_complete(const struct round *r, const struct member *m)
{
    return m->work.open && m->work.held == r->p.n_fragments;
}

static void drop_work(struct round *r, struct member *m)
{
    const struct part late = {.state = PART_DROPPED, .code = REJECT_LATE};
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (member_has(m, f, PART_WAITED) || member_has(m, f, PART_HELD)) round_set_part(r, m, f, &late);
    round_settle(r, m);
    assert(!m->work.open);
}

enum status round_fold_grant(struct round *r, const struct round_upstream *grant)
{
    bool again = r->open;
    if (!r->region.on || r->region.sealed || grant->round != r->round || !grant->steps || r->policy->over(r))
        return STATUS_STATE;
    for_each_member(&r->members, m) {
        if (m->work.open) drop_work(r, m);
    }
    TRY(lease_grant(&r->leases, grant->ranges, grant->n_ranges, grant->kept && !again));
    r->region.granted = grant->round + 1;
    r->region.steps = grant->steps;
    r->region.step0 = grant->step0;
    r->region.step_rate = grant->step_rate;
    return STATUS_OK;
}

enum status round_fold_seal(struct round *r, uint64_t round)
{
    bool any = false;
    for_each_member(&r->members, m) any = any || round_is_complete(r, m);
    if (!r->region.on || !r->open || r->region.sealed || round != r->round || !any) return STATUS_STATE;
    for_each_member(&r->members, m) {
        if (m->work.open && !round_is_complete(r, m)) drop_work(r, m);
    }
    r->region.sealed = true;
    return STATUS_OK;
}

void round_fold_jump(struct round *r, const uint64_t *versions)
{
    uint64_t round = UINT64_MAX;
    for_each_member(&r->members, m) {
        if (m->work.open) drop_work(r, m);
        m->in_step = false; /* it loads a snapshot first */
    }
    lease_give_up(&r->leases);
    for (uint32_t f = 0; f < r->p.n_fragments; f++) round = min_u64(round, versions[f]);
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        r->versions[f] = versions[f];
        r->closed[f] = versions[f] > round;
    }
    r->round = round;
    r->open = r->region.sealed = false;
    r->region.granted = 0;
}

uint32_t round_count_workers(const struct round *r)
{
    uint32_t n = 0;
    for_each_member(&r->members, m) {
        if (m->active && (m->work.open || m->in_step || m->ready)) n += round_workers(r, m);
    }
    return n;
}
