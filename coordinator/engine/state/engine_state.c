#include "coordinator/engine/state/engine_state.h"

struct member *engine_member(const struct engine *e, const struct session *s)
{
    return member_by_id(&e->ledger.round.members, s->member);
}

struct eval_share *engine_eval_share(const struct engine *e, const struct session *s)
{
    if (!e->eval.open || s->share >= e->eval.n) return NULL;
    struct eval_share *share = &e->eval.shares[s->share];
    return !share->done && share->holder == s->id ? share : NULL;
}

bool engine_eval_holds(const struct engine *e, const struct session *s)
{
    return engine_eval_share(e, s) != NULL;
}

const struct checkpoint_info *engine_newest(const struct engine *e)
{
    return e->n_kept ? &e->kept[e->n_kept - 1] : NULL;
}

bool engine_serves(const struct engine *e)
{
    return e->ledger.modelled && !e->ledger.absent;
}
