/* The counts that the folds keep. */
#include <assert.h>
#include <string.h>

#include "coordinator/round/policy.h"

void round_count_part(struct round *r, struct member *m, uint32_t fragment, uint8_t state, uint32_t by)
{
    struct round_count *all = &r->counts[fragment];
    if (state == PART_WAITED) all->waited += by, m->work.waited += by;
    if (state == PART_HELD) all->held += by, m->work.held += by;
}

void round_set_part(struct round *r, struct member *m, uint32_t fragment, const struct part *part)
{
    assert(m->work.open);
    round_count_part(r, m, fragment, m->work.parts[fragment].state, UINT32_MAX); /* minus one */
    m->work.parts[fragment] = *part;
    round_count_part(r, m, fragment, part->state, 1);
}

void round_recount(struct round *r)
{
    memset(r->counts, 0, sizeof r->counts);
    r->n_open = r->n_free = r->members.n_active = 0;
    for_each_member(&r->members, m) {
        struct assignment *work = &m->work;
        work->waited = work->held = 0;
        r->members.n_active += m->active;
        r->n_open += work->open;
        r->n_free += m->active && !work->open;
        for (uint32_t f = 0; work->open && f < r->p.n_fragments; f++)
            round_count_part(r, m, f, work->parts[f].state, 1);
    }
}

bool round_counts_hold(const struct round *r)
{
    uint32_t active = 0, open = 0, free = 0;
    for_each_member(&r->members, m) {
        uint32_t waited = 0, held = 0;
        for (uint32_t f = 0; f < r->p.n_fragments; f++) {
            waited += member_has(m, f, PART_WAITED);
            held += member_has(m, f, PART_HELD);
        }
        if (waited != m->work.waited || held != m->work.held) return false;
        active += m->active;
        open += m->work.open;
        free += m->active && !m->work.open;
    }
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        struct round_count count = {0};
        for_each_member(&r->members, m) {
            count.waited += member_has(m, f, PART_WAITED);
            count.held += member_has(m, f, PART_HELD);
        }
        if (count.waited != r->counts[f].waited || count.held != r->counts[f].held) return false;
    }
    return active == r->members.n_active && open == r->n_open && free == r->n_free;
}
