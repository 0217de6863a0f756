#include "tests/lib/rigs/engine_view.h"

#include "coordinator/engine/engine_impl.h"

const float *engine_theta(const struct engine *e)
{
    return engine_serves(e) ? e->ledger.outer.theta : NULL;
}

const float *engine_residual(const struct engine *e, uint32_t fragment)
{
    return e->ledger.outer.fragments[fragment].residual.residual;
}

const struct layout *engine_layout(const struct engine *e)
{
    return e->ledger.modelled ? &e->ledger.layout : NULL;
}

uint64_t engine_version(const struct engine *e, uint32_t fragment)
{
    return e->ledger.round.versions[fragment];
}

uint64_t engine_version_hash(const struct engine *e, uint32_t fragment, uint64_t version)
{
    const struct update_entry *entry = update_log_find(&e->ledger.log, fragment, version);
    return entry ? entry->hash : 0;
}

enum status engine_check(const struct engine *e, struct err *err)
{
    uint64_t credit = 0;
    for_each_session(e, s) {
        for (uint32_t f = 0; s->uploads && f < e->sessions.n_fragments; f++)
            credit += s->uploads[f].upto - s->uploads[f].have;
    }
    if (credit != e->sessions.uploads.granted) return err_set(err, STATUS_INVALID, "the credit of uploads is off");
    if (!e->ledger.modelled) return STATUS_OK;
    if (!round_counts_hold(&e->ledger.round))
        return err_set(err, STATUS_CORRUPT, "the counts of the round differ from its members");
    enum status status = lease_check(&e->ledger.round.leases);
    return status == STATUS_OK ? status
                               : err_set(err, status, "leases: committed %llu, outstanding %llu, cursor %llu",
                                         (unsigned long long)e->ledger.round.leases.committed,
                                         (unsigned long long)lease_outstanding(&e->ledger.round.leases),
                                         (unsigned long long)e->ledger.round.leases.cursor);
}

uint32_t engine_members(const struct engine *e)
{
    return e->ledger.modelled ? e->ledger.round.members.n : 0;
}

const char *engine_member_name(const struct engine *e, uint32_t id)
{
    return id < engine_members(e) ? e->ledger.round.members.members[id]->name : NULL;
}

uint64_t engine_member_have(const struct engine *engine, uint32_t id, uint32_t fragment)
{
    return member_by_id(&engine->ledger.round.members, id)->have[fragment];
}

uint64_t engine_samples_committed(const struct engine *e)
{
    return e->ledger.round.leases.committed;
}
