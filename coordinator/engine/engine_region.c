/* A region: a run that takes part in another one, upstream, as one worker.
 *
 * - Its workers hold upstream's versions, and upstream's settings. One theta is everywhere.
 * - Upstream's assignment opens the round, with upstream's steps and samples (GRANT).
 * - When the deltas of the round are fixed (SEAL), they are merged to what one worker would have trained, and offered
 *   upstream. The caller does that, with a codec and a residual of its own (cli/region/).
 * - Upstream's updates are journaled and published byte for byte, but for the deltas that they name.
 * - Parameters that no updates lead to are loaded (JUMP): all workers join again, and load a snapshot. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/ledger/delta_read.h"
#include "wire/object.h"

bool engine_region_model(const struct engine *e, struct engine_region_model *out)
{
    const struct ledger *l = &e->ledger;
    if (!l->modelled) return false;
    *out = (struct engine_region_model){&l->layout, &l->frozen, &l->model, l->model_config};
    return true;
}

uint32_t engine_region_workers(const struct engine *e)
{
    uint32_t n = 0;
    if (!engine_serves(e)) return 0;
    if (e->ledger.round.members.n) return round_count_workers(&e->ledger.round);
    for_each_session(e, s) {
        if (s->ready_us) n += s->last.workers;
    }
    return n;
}

bool engine_region_loaded(const struct engine *e)
{
    return engine_serves(e);
}

/* Not after the first update of the round: it has dropped or merged a part of each delta. */
bool engine_region_round(const struct engine *e, uint64_t *round_p)
{
    const struct round *r = &e->ledger.round;
    if (!engine_serves(e) || !r->region.sealed) return false;
    for (uint32_t f = 0; f < r->p.n_fragments; f++)
        if (r->closed[f]) return false;
    *round_p = r->round;
    return true;
}

bool engine_region_sealed(const struct engine *e, uint64_t round)
{
    uint64_t sealed;
    return engine_region_round(e, &sealed) && sealed == round;
}

struct reading {
    struct ledger *ledger;
    float *values;
    struct delta_sum *sum;
};

static enum status read_values(void *arg, struct err *err)
{
    const struct reading *r = arg;
    return delta_read_values(r->ledger, r->values, r->sum, err);
}

enum status engine_region_values(struct engine *e, float *values, struct delta_sum *sum, struct err *err)
{
    struct reading r = {&e->ledger, values, sum};
    return engine_long(e, 3 * e->ledger.layout.n_params * sizeof(float), read_values, &r, err);
}

bool engine_region_evaluated(const struct engine *e, struct msg_eval_result *result)
{
    if (e->region.evaluated) *result = e->region.result;
    return e->region.evaluated;
}

void engine_region_waits(struct engine *e, const char *text)
{
    snprintf(e->region.waits, sizeof e->region.waits, "%s", text);
}

/* --- grants ------------------------------------------------------------------------------------------------------- */

static enum status take_grant(struct engine *e, const struct msg_assign *m, struct err *err)
{
    const struct round *r = &e->ledger.round;
    assert(engine_serves(e));
    if (m->round < r->round) /* upstream assigns only its newest round, to a worker that has all of its updates */
        return err_set(
            err, STATUS_STATE,
            "the run upstream is at round %llu, and this region has %llu rounds of it: it was taken back, or "
            "it is an older copy; start this region with another --dir",
            (unsigned long long)m->round, (unsigned long long)r->round);
    if (m->round != r->round || r->region.sealed) return STATUS_OK;
    if (r->region.granted == m->round + 1 && lease_holds(&r->leases, m->ranges, m->n_ranges)) return STATUS_OK;
    struct round_upstream grant = {.round = m->round,
                                   .steps = m->steps,
                                   .step0 = m->step0,
                                   .step_rate = m->step_rate,
                                   .kept = e->region.named && e->region.named == r->region.granted,
                                   .n_ranges = m->n_ranges};
    memcpy(grant.ranges, m->ranges, sizeof grant.ranges);
    TRY(engine_write(e, RECORD_GRANT, &grant, NULL, err));
    for_each_session(e, s) admission_refresh_ready(e, s);
    return STATUS_OK;
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

struct publication {
    struct engine *e;
    const struct update *update;
    bool taken;
    struct record_clock clock;
};

/* Long work: it applies the update and waits for the disk. */
static enum status publish(void *arg, struct err *err)
{
    const struct publication *p = arg;
    TRY(ledger_publish(&p->e->ledger, p->update, p->taken, &p->clock, err));
    return journal_sync(&p->e->ledger.journal, err);
}

static enum status take_update(struct engine *e, const struct engine_upstream *event, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct update u;
    assert(engine_serves(e));
    if (update_decode(&u, l->named, WIRE_NAMED_MAX, event->object, event->size) != STATUS_OK ||
        u.fragment >= l->layout.n_fragments || u.version > l->round.versions[u.fragment] + 1)
        return err_set(err, STATUS_STATE, "internal: an update of upstream does not follow this region's");
    if (event->named) e->region.named = u.round + 1;
    if (u.version <= l->round.versions[u.fragment]) return STATUS_OK; /* the caller restarted from an older state */
    uint64_t done = round_done(&l->round);
    struct publication p = {e, &u, event->taken, engine_clock(e)};
    TRY(engine_long(e, ENGINE_SYNCS, publish, &p, err));
    TRY(engine_updated(e, &(struct round_close){.fragment = u.fragment}, err));
    if (round_done(&l->round) != done) round_note_close(&l->round, e->now_us);
    for_each_session(e, s) admission_refresh_ready(e, s);
    engine_progress(e);
    return STATUS_OK;
}

/* --- jumps -------------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const struct engine *e, uint32_t fragment, const float *theta)
{
    const struct fragment *f = &e->ledger.layout.fragments[fragment];
    return hash_floats(e->ledger.outer.pool, theta + f->offset, f->count);
}

bool engine_region_knows(const struct engine *e, const uint64_t *versions, const float *theta)
{
    const struct ledger *l = &e->ledger;
    for (uint32_t f = 0; engine_serves(e) && f < l->layout.n_fragments; f++) {
        const struct update_entry *entry = update_log_find(&l->log, f, versions[f]);
        if (!entry || entry->hash != hash_of(e, f, theta)) return false;
    }
    return engine_serves(e);
}

/* In the middle of a round the caller applies more updates first: a checkpoint has the number of a round. */
static bool is_boundary(const struct engine *e, const uint64_t *versions)
{
    for (uint32_t f = 1; f < e->ledger.layout.n_fragments; f++)
        if (versions[f] != versions[0]) return false;
    return true;
}

static enum status take_jump(struct engine *e, const struct engine_upstream *event, struct err *err)
{
    struct ledger *l = &e->ledger;
    struct record_jump jump = {.n_fragments = l->layout.n_fragments};
    assert(l->region && l->modelled);
    if (engine_region_knows(e, event->versions, event->theta) || !is_boundary(e, event->versions)) return STATUS_OK;
    uint32_t behind = 0, equal = 0;
    for (uint32_t f = 0; f < l->layout.n_fragments && !l->absent; f++) {
        behind += event->versions[f] < l->round.versions[f];
        equal += event->versions[f] == l->round.versions[f];
    }
    if (behind) return STATUS_OK; /* updates lead to this region's versions */
    if (equal == l->layout.n_fragments)
        return err_set(err, STATUS_STATE,
                       "the run upstream has other parameters at round %llu than this region: it went back to an older "
                       "copy; start this region with another --dir",
                       (unsigned long long)event->versions[0]);
    for (uint32_t f = 0; f < l->layout.n_fragments; f++)
        jump.versions[f] = (struct wire_version){event->versions[f], hash_of(e, f, event->theta)};
    log_info("loading the parameters of round %llu of the run upstream", (unsigned long long)event->versions[0]);
    engine_flush_round(e, NAN, NAN);
    TRY(engine_write(e, RECORD_JUMP, &jump, NULL, err));
    memcpy(l->outer.theta, event->theta, l->layout.n_params * sizeof(float));
    l->absent = false;
    e->fresh_us = 0;
    e->seen_rounds = round_done(&l->round);
    TRY(engine_checkpoint(e, err));
    for_each_session(e, s) {
        engine_refuse(e, s->control, s->name, REFUSE_GONE, "this region has loaded other parameters: join again");
        session_remove(&e->sessions, s);
    }
    engine_progress(e);
    return STATUS_OK;
}

enum status engine_region_take(struct engine *e, const struct engine_upstream *event, struct err *err)
{
    assert(e->ledger.region);
    if (e->ledger.done) return STATUS_OK;
    switch (event->kind) {
    case UPSTREAM_GRANT: return take_grant(e, event->grant, err);
    case UPSTREAM_UPDATE: return take_update(e, event, err);
    case UPSTREAM_JUMP: return take_jump(e, event, err);
    case UPSTREAM_EVAL: engine_eval_upstream(e, event->eval); return STATUS_OK;
    case UPSTREAM_DONE:
        if (!engine_serves(e)) return err_set(err, STATUS_END, "the run upstream is complete");
        e->region.done = true;
        if (!round_over(&e->ledger.round))
            log_warn("the run upstream is complete, but this region lacks its last updates: it ends at round %llu of "
                     "%llu",
                     (unsigned long long)round_done(&e->ledger.round),
                     (unsigned long long)round_total(&e->ledger.round));
        return STATUS_OK;
    }
    return STATUS_OK;
}
