#include "coordinator/engine/state/engine_state.h"

struct member *engine_member(const struct engine *e, const struct session *s)
{
    return member_by_id(&e->ledger.round.members, s->member);
}

bool engine_eval_holds(const struct engine *e, const struct session *s)
{
    for (uint32_t i = 0; e->eval.open && i < e->eval.n; i++)
        if (!e->eval.shares[i].done && e->eval.shares[i].holder == s->id) return true;
    return false;
}

const struct checkpoint_info *engine_newest(const struct engine *e)
{
    return e->n_kept ? &e->kept[e->n_kept - 1] : NULL;
}

bool engine_serves(const struct engine *e)
{
    return e->ledger.modelled && !e->ledger.absent;
}
