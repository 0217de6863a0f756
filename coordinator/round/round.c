#include "coordinator/round/round.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/round/policy.h"
#include "coordinator/round/round_form.h"

/* model.family external: the largest sample; each sample may have another length. */
enum { EXTERNAL_SAMPLE_TOKENS = 1 << 20 };

static void params_from_config(struct round_params *p, const struct config *c, uint32_t n_fragments)
{
    bool ddp = c->train.method == METHOD_DDP;
    *p = (struct round_params){
        .n_fragments = n_fragments,
        .sync_every = ddp ? 1 : c->train.sync_every,
        .max_steps = c->train.max_steps,
        .start_step = c->train.start_step,
        .min_workers = c->coordinator.min_workers,
        .step_samples = (uint64_t)c->train.batch_size * c->train.grad_accum,
        .sample_tokens = config_is_external(c) ? EXTERNAL_SAMPLE_TOKENS : c->model.block_size,
        .any_length = config_is_external(c),
        .max_staleness = c->outer.max_staleness,
        .evict_us = (uint64_t)(c->coordinator.evict_after_s * 1e6),
        .dynamic = config_steps_differ(c),
        .overlap = c->train.overlap,
        .grace_us = strcmp(c->outer.grace, "auto") != 0 ? (uint64_t)(1e6 * strtod(c->outer.grace, NULL)) : UINT64_MAX,
        .together = ddp,
        .form = round_delta_form(c, false),
        .form_of_means = round_delta_form(c, true),
        .gate = gate_rule_of(c),
        .clips = c->merge.clip != MERGE_CLIP_OFF,
    };
    const char *quorum = c->coordinator.quorum;
    p->quorum_percent = 100;
    if (strcmp(quorum, "all") != 0) {
        uint32_t value = (uint32_t)strtoul(quorum, NULL, 10);
        if (strchr(quorum, '%'))
            p->quorum_percent = value;
        else
            p->quorum = value;
    }
}

void round_init(struct round *r, const struct config *config, uint32_t n_fragments)
{
    memset(r, 0, sizeof *r);
    params_from_config(&r->p, config, n_fragments);
    r->first_mean = n_fragments;
    r->policy = config->train.method == METHOD_ASYNC ? &policy_async : &policy_barrier;
    member_table_init(&r->members, n_fragments);
    lease_book_init(&r->leases);
}

/* The position from which the next round begins follows from the old length: its last round may have been shorter. */
static void note_length(struct round *r, uint32_t max_steps)
{
    uint64_t next = r->open ? r->round + 1 : r->round;
    if (!r->policy->barrier || max_steps <= r->p.max_steps || next <= r->p.start_step) return;
    uint32_t steps = (uint32_t)round_span(r, next).first, before = round_span(r, next - 1).steps;
    r->again = next;
    r->again_steps = steps;
    r->again_before = before;
    assert(before <= steps);
}

void round_fold_settings(struct round *r, const struct config *config)
{
    note_length(r, config->train.max_steps);
    params_from_config(&r->p, config, r->p.n_fragments);
    if (r->region.on) round_follow(r);
    for_each_member(&r->members, m) {
        struct assignment *work = &m->work;
        if (work->open && work->peak < r->p.gate.learning_rate) work->peak = r->p.gate.learning_rate;
    }
}

void round_finish(struct round *r)
{
    member_table_finish(&r->members);
    lease_book_finish(&r->leases);
    memset(r, 0, sizeof *r);
}

/* --- folds -------------------------------------------------------------------------------------------------------- */

/* A part of its last assignment was dropped for this reason. */
static bool dropped_for(const struct member *m, uint16_t code)
{
    for (uint32_t f = 0; f < m->n_fragments; f++)
        if (m->work.parts[f].state == PART_DROPPED && m->work.parts[f].code == code) return true;
    return false;
}

/* Notes a row of assignments that were refused for their values. Counts per assignment, not per fragment: a worker with
 * one bad fragment of many gets no credit for the others. */
static void count_strike(const struct round *r, struct member *m)
{
    if (dropped_for(m, REJECT_NONFINITE)) {
        m->strikes += m->strikes < UINT32_MAX;
        m->struck_us = r->clock_us;
    } else if (m->work.merged) {
        m->strikes = 0;
    }
}

/* A part was refused for its content: its worker goes on with the next round, so the time at which it hears of the
 * refusal decides nothing. */
static bool was_refused(const struct member *m)
{
    return dropped_for(m, REJECT_NONFINITE) || dropped_for(m, REJECT_CORRUPT);
}

void round_settle(struct round *r, struct member *m)
{
    struct assignment *work = &m->work;
    if (!work->open || work->waited || work->held) return;
    work->open = false;
    r->n_open--;
    r->n_free += m->active;
    m->assigned_us = 0;
    count_strike(r, m);
    m->in_step = m->active && (work->merged || was_refused(m)) && m->strikes < GATE_STRIKES;
    assert(r->steps_outstanding >= work->steps);
    assert(work->merged == !lease_find(&r->leases, m->id, work->round));
    r->steps_outstanding -= work->steps;
    if (work->merged)
        r->steps_committed += work->steps;
    else
        lease_return(&r->leases, m->id, work->round); /* cannot fail: lease_take reserved the room */
    assert(!lease_find(&r->leases, m->id, work->round));
}

enum status round_fold_join(struct round *r, uint32_t id, const uint8_t uuid[WIRE_UUID], const char *name)
{
    struct member *m = member_by_uuid(&r->members, uuid);
    if (m) {
        if (m->id != id) return STATUS_STATE;
        r->members.n_active += !m->active;
        r->n_free += !m->active && !m->work.open;
        m->active = true;
        memset(m->name, 0, sizeof m->name);
        memcpy(m->name, name, strnlen(name, sizeof m->name - 1));
        return STATUS_OK;
    }
    m = member_by_id(&r->members, id);
    if (m) {
        if (!member_is_vacant(m)) return STATUS_STATE;
        member_replace(m, uuid, name);
        r->members.n_active++;
        r->n_free++;
        return STATUS_OK;
    }
    if (id != r->members.n) return STATUS_STATE;
    TRY(member_add(&r->members, uuid, name, &m));
    assert(m->id == id && m->active && !m->work.open);
    r->members.n_active++;
    r->n_free++;
    return STATUS_OK;
}

/* Drops one missing part, or all missing parts (UINT32_MAX). If fragments close together, half a delta
 * would keep the round open forever, so delivered parts are dropped, too. */
static void drop_parts(struct round *r, struct member *m, uint32_t fragment, uint16_t code)
{
    const struct part gone = {.state = PART_DROPPED, .code = code};
    bool dropped = false;
    assert(m->work.open && m->next_round == m->work.round + 1);
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        if ((fragment != UINT32_MAX && fragment != f) || m->work.parts[f].state != PART_WAITED) continue;
        round_set_part(r, m, f, &gone);
        dropped = true;
    }
    for (uint32_t f = 0; f < r->p.n_fragments && dropped && r->p.together; f++)
        if (m->work.parts[f].state == PART_HELD) round_set_part(r, m, f, &gone);
    round_settle(r, m);
}

enum status round_fold_leave(struct round *r, uint32_t id)
{
    struct member *m = member_by_id(&r->members, id);
    if (!m || !m->active) return STATUS_STATE;
    r->members.n_active--;
    r->n_free -= !m->work.open;
    m->active = false;
    m->in_step = false;
    m->ready = false;
    if (m->work.open) drop_parts(r, m, UINT32_MAX, REJECT_LATE);
    assert(!m->active && !m->in_step && !m->ready);
    return STATUS_OK;
}

static void assign(struct round *r, struct member *m, const struct round_grant *grant, const uint64_t *versions)
{
    struct assignment *work = &m->work;
    assert(m->active && !work->open && !work->waited && !work->held);
    work->open = true;
    r->n_open++;
    r->n_free--;
    work->merged = false;
    work->round = grant->round;
    work->steps = grant->steps;
    work->step0 = grant->step0;
    work->step_rate = grant->step_rate;
    work->peak = r->p.gate.learning_rate;
    work->n_ranges = grant->n_ranges;
    memcpy(work->ranges, grant->ranges, sizeof work->ranges);
    memcpy(work->versions, versions, r->p.n_fragments * sizeof *versions);
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        work->parts[f] = (struct part){.state = PART_WAITED};
        if (r->open && r->closed[f]) work->parts[f] = (struct part){.state = PART_DROPPED, .code = REJECT_LATE};
        round_count_part(r, m, f, work->parts[f].state, 1);
    }
    m->next_round = grant->round + 1;
    r->steps_outstanding += grant->steps;
    assert(r->steps_outstanding >= grant->steps);
}

static bool grant_fits(const struct round *r, const struct round_grant *grant)
{
    const struct member *m = member_by_id(&r->members, grant->id);
    if (!m || !m->active || m->work.open || !grant->steps || !grant->n_ranges || grant->n_ranges > WIRE_RANGES_MAX)
        return false;
    return !r->policy->barrier || grant->round == r->round;
}

enum status round_fold_open(struct round *r, const struct round_open *open)
{
    /* async: the budget follows coordinator.min_workers, which may be lower now than when this was journaled. */
    if (!open->n || (r->policy->barrier && r->policy->over(r))) return STATUS_STATE;
    for (uint32_t i = 0; i < open->n; i++)
        if (!grant_fits(r, &open->grants[i]) || (i && open->grants[i].id <= open->grants[i - 1].id))
            return STATUS_STATE;
    for (uint32_t i = 0; i < open->n; i++) {
        const struct round_grant *grant = &open->grants[i];
        TRY(lease_take(&r->leases, grant->id, grant->round, grant->ranges, grant->n_ranges));
        assign(r, member_by_id(&r->members, grant->id), grant, open->versions);
        assert(lease_find(&r->leases, grant->id, grant->round));
    }
    if (!r->policy->barrier) return STATUS_OK;
    if (!r->open) memset(r->closed, 0, sizeof r->closed);
    r->open = true;
    r->n_assigned = open->n;
    assert(r->n_assigned > 0 && r->n_assigned <= r->members.n);
    return STATUS_OK;
}

static struct part *open_part(struct round *r, uint32_t id, uint64_t round, uint32_t fragment)
{
    struct member *m = member_by_id(&r->members, id);
    if (!m || !m->work.open || m->work.round != round || fragment >= r->p.n_fragments) return NULL;
    return &m->work.parts[fragment];
}

static struct part *waited_part(struct round *r, uint32_t id, uint64_t round, uint32_t fragment)
{
    struct part *part = open_part(r, id, round, fragment);
    return part && part->state == PART_WAITED ? part : NULL;
}

/* The held part of which this is the copy in a later segment (engine_checkpoint.c: carry_held). Any other second delta
 * is refused. */
static struct part *held_part(struct round *r, uint32_t id, uint64_t round, uint32_t fragment, const struct part *copy)
{
    struct part *part = open_part(r, id, round, fragment);
    bool same = part && part->state == PART_HELD && part->bytes == copy->bytes && part->crc == copy->crc;
    return same && copy->at.segment > part->at.segment ? part : NULL;
}

enum status round_fold_delta(struct round *r, uint32_t id, uint64_t round, uint32_t fragment, const struct part *part)
{
    const struct part *slot = waited_part(r, id, round, fragment);
    if (!slot) slot = held_part(r, id, round, fragment, part);
    if (!slot || !part->tokens) return STATUS_STATE;
    struct part held = *part;
    held.state = PART_HELD;
    round_set_part(r, member_by_id(&r->members, id), fragment, &held);
    assert(!r->policy->barrier || (r->open && !r->closed[fragment]));
    return STATUS_OK;
}

enum status round_fold_drop(struct round *r, uint32_t id, uint64_t round, uint32_t fragment, uint16_t code)
{
    struct member *m = member_by_id(&r->members, id);
    if (!m || !m->work.open || m->work.round != round) return STATUS_STATE;
    if (fragment != UINT32_MAX && !waited_part(r, id, round, fragment)) return STATUS_STATE;
    drop_parts(r, m, fragment, code);
    return STATUS_OK;
}

enum status round_fold_readmit(struct round *r, uint32_t id)
{
    struct member *m = member_by_id(&r->members, id);
    if (!m) return STATUS_STATE;
    m->strikes = 0;
    return STATUS_OK;
}

/* The first merged part of an assignment commits its samples and counts its work. */
static void count_merged(struct round *r, struct member *m, const struct part *part, uint64_t staleness)
{
    if (m->work.merged) return;
    r->recent.stale[staleness < ROUND_STALENESS ? staleness : ROUND_STALENESS - 1]++;
    assert(lease_find(&r->leases, m->id, m->work.round));
    m->work.merged = true;
    lease_commit(&r->leases, m->id, m->work.round);
    assert(!lease_find(&r->leases, m->id, m->work.round));
    m->tokens += part->tokens;
    m->steps += part->steps;
    m->compute_us += part->compute_us;
    r->tokens += part->tokens;
    r->worker_steps += part->steps;
    r->compute_us += part->compute_us;
    r->recent.tokens += part->tokens;
    r->recent.compute_us += part->compute_us;
    if (isnan(part->loss_sum)) return;
    r->loss_sum += part->loss_sum;
    r->recent.loss_sum += part->loss_sum;
    r->recent.loss_tokens += part->tokens;
}

static struct gate_sample sample_of(const struct round *r, const struct member *m, const struct part *part)
{
    const struct assignment *work = &m->work;
    double reach = gate_reach(&r->p.gate, work->peak, work->step0, work->step_rate, work->steps);
    return (struct gate_sample){part->norm, (float)reach};
}

enum status round_fold_update(struct round *r, uint32_t fragment, uint64_t version, const struct round_named *named,
                              uint32_t n)
{
    const bool region = r->region.on;
    if (fragment >= r->p.n_fragments || version != r->versions[fragment] + 1 || (!n && !region)) return STATUS_STATE;
    if (r->policy->barrier && ((!r->open && !region) || r->closed[fragment])) return STATUS_STATE;
    if (region && ((n && !r->region.sealed) || r->policy->over(r))) return STATUS_STATE;
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = member_by_id(&r->members, named[i].id);
        if (!m || !m->work.open || m->work.round != named[i].round || m->work.parts[fragment].state != PART_HELD ||
            (i && named[i].id <= named[i - 1].id))
            return STATUS_STATE;
    }
    assert(version > r->versions[fragment]);
    for (uint32_t i = 0; i < n; i++) {
        struct member *m = member_by_id(&r->members, named[i].id);
        const struct part *part = &m->work.parts[fragment];
        count_merged(r, m, part, round_staleness(r, fragment, part->base_version));
    }
    r->versions[fragment] = version;
    for (uint32_t i = 0; i < n; i++) {
        struct member *m = member_by_id(&r->members, named[i].id);
        struct part merged = m->work.parts[fragment];
        if (!r->policy->barrier) m->last[fragment] = sample_of(r, m, &merged);
        merged.state = PART_MERGED;
        round_set_part(r, m, fragment, &merged);
        assert(m->merged_in[fragment] < version && m->next_round == named[i].round + 1);
        m->merged[fragment] = named[i].round + 1;
        m->merged_in[fragment] = version;
        round_settle(r, m);
        r->recent.merged += !m->work.open;
    }
    r->policy->updated(r, fragment);
    return STATUS_OK;
}

/* The member's decoded state agrees with the versions, closed fragments and leases of the round. */
static bool member_fits(const struct round *r, const struct member *m)
{
    const struct assignment *work = &m->work;
    for (uint32_t f = 0; f < r->p.n_fragments; f++) {
        bool merged = work->open && work->parts[f].state == PART_MERGED;
        if (m->merged_in[f] > r->versions[f] || (merged && m->merged[f] != work->round + 1)) return false;
        if (work->open && work->parts[f].state == PART_WAITED && r->closed[f]) return false;
    }
    if (!work->open) return true;
    if (r->policy->barrier && (!r->open || work->round != r->round)) return false;
    return m->next_round == work->round + 1 && work->merged == !lease_find(&r->leases, m->id, work->round);
}

enum status round_check(const struct round *r)
{
    uint64_t steps = 0;
    uint32_t unmerged = 0;
    if (!r->policy->barrier && r->open) return STATUS_CORRUPT;
    for_each_member(&r->members, m) {
        if (!member_fits(r, m)) return STATUS_CORRUPT;
        steps += m->work.open ? m->work.steps : 0;
        unmerged += m->work.open && !m->work.merged;
    }
    return steps == r->steps_outstanding && unmerged == r->leases.n_leases ? STATUS_OK : STATUS_CORRUPT;
}

/* --- questions ---------------------------------------------------------------------------------------------------- */

static const char *drop_reason(uint16_t code)
{
    switch (code) {
    case REJECT_LATE: return "too late: its round closed without it";
    case REJECT_STALE: return "its base version is too old";
    case REJECT_BASE: return "computed from a version that cannot be merged";
    case REJECT_NONFINITE: return "contains NaN, infinity or values out of range";
    case REJECT_CORRUPT: return "damaged or malformed";
    default: return "this worker has no such assignment";
    }
}

static uint64_t samples_of(const struct assignment *work)
{
    uint64_t samples = 0;
    for (uint32_t i = 0; i < work->n_ranges; i++) samples += work->ranges[i].count;
    return samples;
}

uint32_t round_workers(const struct round *r, const struct member *m)
{
    uint64_t one = m->work.steps * r->p.step_samples, workers = one ? samples_of(&m->work) / one : 0;
    if (m->workers) return m->workers;
    return workers ? (uint32_t)workers : 1;
}

static uint16_t check_offer(const struct round *r, const struct member *m, const struct round_offer *offer,
                            const char **reason_p)
{
    *reason_p = "form, steps or tokens do not match the assignment";
    uint8_t form = offer->fragment < r->first_mean ? r->p.form : r->p.form_of_means;
    if (offer->form != form || offer->steps != m->work.steps) return REJECT_CORRUPT;
    uint64_t samples = samples_of(&m->work), most = samples * r->p.sample_tokens;
    bool fewer = r->p.any_length || samples > m->work.steps * r->p.step_samples; /* a region may have lost workers */
    if (!offer->tokens || offer->tokens > most || (offer->tokens < most && !fewer)) return REJECT_CORRUPT;
    return r->policy->judge(r, m, offer, reason_p);
}

/* Judges a part of an assignment that has ended; a worker that restarted from an older state offers it again.
 * - Barrier, and later work of this worker was merged: HAVE. The worker finds its name in the updates after its base.
 * - Otherwise: REJECT. No update names this part, so only the refusal tells the worker. The worker may still be part
 *   of the next round, because another fragment of the same assignment was merged. */
static enum round_verdict judge_old(const struct round *r, const struct member *m, const struct round_offer *offer,
                                    uint16_t *code_p, const char **reason_p)
{
    bool later = m->merged[offer->fragment] > offer->round + 1;
    if (r->policy->barrier && later && offer->base_version < r->versions[offer->fragment]) return ROUND_HAVE;
    *code_p = REJECT_LATE;
    *reason_p = drop_reason(REJECT_LATE);
    return ROUND_REJECT;
}

enum round_verdict round_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                               uint16_t *code_p, const char **reason_p)
{
    const struct assignment *work = &m->work;
    if (offer->fragment >= r->p.n_fragments || offer->round >= m->next_round) {
        *code_p = REJECT_UNASSIGNED;
        *reason_p = "this worker has no such assignment";
        return ROUND_REJECT;
    }
    if (m->merged[offer->fragment] == offer->round + 1) {
        if (offer->base_version < m->merged_in[offer->fragment]) return ROUND_HAVE;
        /* The worker recomputed it after a crash, on top of the update that merged it. No later update names it. */
        *code_p = REJECT_LATE;
        *reason_p = "merged before the worker lost its state";
        return ROUND_REJECT;
    }
    if (work->round != offer->round) return judge_old(r, m, offer, code_p, reason_p);
    const struct part *part = &work->parts[offer->fragment];
    if (part->state == PART_HELD) return ROUND_HAVE;
    if (part->state == PART_DROPPED) {
        *code_p = part->code ? part->code : REJECT_LATE;
        *reason_p = drop_reason(*code_p);
        return ROUND_REJECT;
    }
    if (!work->open) return judge_old(r, m, offer, code_p, reason_p);
    assert(part->state == PART_WAITED);
    *code_p = check_offer(r, m, offer, reason_p);
    return *code_p ? ROUND_DROP : ROUND_ACCEPT;
}

bool round_next_close(const struct round *r, uint64_t now_us, struct round_close *close)
{
    bool closes = r->policy->close(r, now_us, close);
    assert(!closes || (close->fragment < r->p.n_fragments && close->n > 0));
    return closes;
}

const struct part *round_close_part(const struct round *r, const struct round_close *close, uint32_t i)
{
    assert(i < close->n && close->fragment < r->p.n_fragments && close->ids[i] < r->members.n);
    return &member_by_id(&r->members, close->ids[i])->work.parts[close->fragment];
}

uint64_t round_deadline_us(const struct round *r)
{
    return r->policy->deadline_us(r);
}

/* async: the delta that counts for a member, one that waits for its merge or the last one. */
static struct gate_sample sample_now(const struct round *r, const struct member *m, uint32_t fragment)
{
    const struct part *part = &m->work.parts[fragment];
    return member_has(m, fragment, PART_HELD) ? sample_of(r, m, part) : m->last[fragment];
}

void round_peers_of(const struct round *r, const struct round_close *close, struct round_peers *p)
{
    bool barrier = r->policy->barrier;
    uint32_t most = barrier ? close->n : r->members.n;
    p->close = close;
    p->n = 0;
    p->reach = p->expected = 0;
    if ((barrier ? close->n : member_count_active(&r->members)) < GATE_MEMBERS_MIN) return;
    for (uint32_t k = 0; k < most && p->n < WIRE_NAMED_MAX; k++) {
        const struct member *m = member_by_id(&r->members, barrier ? close->ids[k] : k);
        struct gate_sample sample = {0};
        if (m->active || barrier) sample = sample_now(r, m, close->fragment);
        if (sample.norm > 0 && sample.reach > 0) p->samples[p->n++] = sample;
    }
}

double round_excess(const struct round *r, struct round_peers *p, uint32_t i)
{
    struct gate_sample samples[WIRE_NAMED_MAX];
    const struct part *part = round_close_part(r, p->close, i);
    double reach = (double)sample_of(r, member_by_id(&r->members, p->close->ids[i]), part).reach;
    if (reach != p->reach) {
        memcpy(samples, p->samples, p->n * sizeof *samples);
        p->expected = gate_expected(&r->p.gate, samples, p->n, reach);
        p->reach = reach;
    }
    return p->expected > 0 ? (double)part->norm / p->expected : 0;
}

enum status round_plan(const struct round *r, uint64_t now_us, struct round_open *open)
{
    open->n = 0;
    if (r->policy->over(r)) return STATUS_OK;
    memcpy(open->versions, r->versions, sizeof open->versions);
    TRY(r->policy->plan(r, now_us, open));
    assert(open->n <= r->members.n);
    return STATUS_OK;
}

uint64_t round_done(const struct round *r)
{
    return r->policy->done(r);
}

static struct sync_rounds rounds_of(const struct round *r)
{
    return (struct sync_rounds){.sync_every = r->p.sync_every,
                                .max_steps = r->p.max_steps,
                                .start_step = r->p.start_step,
                                .again = r->again,
                                .steps = r->again_steps,
                                .before = r->again_before};
}

uint64_t round_total(const struct round *r)
{
    struct sync_rounds rounds = rounds_of(r);
    return sync_rounds_count(&rounds);
}

struct sync_round round_span(const struct round *r, uint64_t round)
{
    struct sync_rounds rounds = rounds_of(r);
    return sync_round_at(&rounds, round);
}

bool round_over(const struct round *r)
{
    return r->policy->over(r);
}

uint64_t round_staleness(const struct round *r, uint32_t fragment, uint64_t base_version)
{
    uint32_t active = member_count_active(&r->members);
    return (r->versions[fragment] - base_version) / (active ? active : 1);
}

bool round_busy(const struct round *r)
{
    return r->n_open > 0;
}
