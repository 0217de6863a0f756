#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/config/codec_choice.h"
#include "common/config/sync_points.h"
#include "tests/lib/sim/sim_check_impl.h"

/* ---- error feedback ---------------------------------------------------------------------------------------------- */

enum status check_worker_init(struct sim_check *c, struct check_worker *w)
{
    w->id = UINT32_MAX;
    for (uint32_t f = 0; f < CHECK_FRAGMENTS; f++) w->remembers[f] = -1;
    bool keep = !codec_spec_lossless(c->config.codec.up);
    for (uint32_t f = 0; f < c->layout.n_fragments; f++)
        TRY(feedback_init(&w->feedback[f], check_count(c, f), codec_feedback_decay(c->logs[f].up), keep));
    return STATUS_OK;
}

void check_worker_finish(struct check_worker *w)
{
    for (uint32_t f = 0; f < CHECK_FRAGMENTS; f++) feedback_finish(&w->feedback[f]);
}

void check_worker_reset(struct sim_check *c, int client)
{
    struct check_worker *w = &c->workers[client];
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        feedback_reset(&w->feedback[f]);
        w->pending[f] = NULL;
        w->refused[f] = w->remembers[f] = -1;
    }
}

/* The run merged a delta that this worker does not remember: it restarted from an older state. */
static bool forgot(const struct sim_check *c, const struct check_worker *w, uint32_t f, uint64_t base)
{
    const struct check_log *log = &c->logs[f];
    for (size_t v = base < log->n ? base + 1 : log->n; v-- > 1;)
        for (uint32_t i = 0; i < log->versions[v].n_named; i++)
            if (log->versions[v].named[i].id == w->id && (int64_t)log->versions[v].named[i].round > w->remembers[f])
                return true;
    return false;
}

/* The worker now knows the outcome of its last delta. Merged: its residual is the codec's error. Refused: the whole
 * delta returns to the residual. */
static void settle(struct sim_check *c, int client, uint32_t f)
{
    struct check_worker *w = &c->workers[client];
    const struct check_delta *d = w->pending[f];
    w->pending[f] = NULL;
    if (!d) return;
    /* An earlier session trained this round, and other bytes of it were merged. The worker takes those for its own,
     * unless it received a refusal first. */
    bool before = check_merged_in(c, f, w->id, d->round) && w->refused[f] != (int64_t)d->round;
    if (check_is_merged(c, d) || before) {
        feedback_commit(&w->feedback[f]);
    } else if (feedback_rollback(&w->feedback[f], c->logs[f].up, d->payload, d->size) != STATUS_OK) {
        sim_check_fail(c, "worker-%d: its residual cannot be rolled back", client);
    }
}

void check_worker_returns(struct sim_check *c, int client)
{
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) settle(c, client, f);
    c->counts.returned++;
}

struct sim_check_mark *sim_check_worker_saved(struct sim_check *c, int client)
{
    const struct check_worker *w = &c->workers[client];
    struct sim_check_mark *mark = mem_alloc(1, sizeof(*mark));
    assert(mark);
    memcpy(mark->remembers, w->remembers, sizeof mark->remembers);
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        mark->feedback_pending[f] = w->feedback[f].pending;
        mark->pending[f] = w->pending[f];
        mark->refused[f] = w->refused[f];
        if (!w->feedback[f].residual) continue;
        size_t bytes = check_count(c, f) * sizeof(float);
        mark->residual[f] = mem_alloc(bytes, 1);
        assert(mark->residual[f]);
        memcpy(mark->residual[f], w->feedback[f].residual, bytes);
    }
    return mark;
}

void sim_check_mark_free(struct sim_check *c, struct sim_check_mark *mark)
{
    (void)c;
    for (uint32_t f = 0; mark && f < CHECK_FRAGMENTS; f++) mem_free(mark->residual[f]);
    mem_free(mark);
}

void sim_check_worker_loaded(struct sim_check *c, int client, const struct sim_check_mark *mark)
{
    struct check_worker *w = &c->workers[client];
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        w->feedback[f].pending = mark->feedback_pending[f];
        w->pending[f] = mark->pending[f];
        w->refused[f] = mark->refused[f];
        if (mark->residual[f]) memcpy(w->feedback[f].residual, mark->residual[f], check_count(c, f) * sizeof(float));
    }
    memcpy(w->remembers, mark->remembers, sizeof w->remembers);
    c->counts.resumed++;
}

void sim_check_worker_started(struct sim_check *c, int client)
{
    check_worker_reset(c, client);
    check_flow_reset(&c->workers[client]);
    c->workers[client].waits_since = 0;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

struct check_delta *check_delta_find(struct sim_check *c, int client, uint64_t round, uint32_t fragment, uint32_t crc)
{
    for (struct check_delta *d = c->deltas; d; d = d->next)
        if (d->client == client && d->round == round && d->fragment == fragment && d->crc == crc) return d;
    return NULL;
}

void check_deltas_free(struct sim_check *c)
{
    for (struct check_delta *d = c->deltas, *next; d; d = next) {
        next = d->next;
        mem_free(d->payload);
        mem_free(d);
    }
    c->deltas = NULL;
}

/* Returns the version of fragment f with these values: the assigned one if it has them (an update of zeros changes
 * nothing), otherwise the newest; -1: none. */
static int64_t version_of(struct sim_check *c, uint32_t f, const float *theta, uint64_t assigned)
{
    uint64_t hash = hash_floats(NULL, theta, check_count(c, f));
    const struct check_version *expected = check_version_at(c, f, assigned);
    if (expected && expected->hash == hash) return (int64_t)assigned;
    for (size_t v = c->logs[f].n; v-- > 0;)
        if (c->logs[f].versions[v].hash == hash) return (int64_t)v;
    return -1;
}

static void make_delta(struct sim_check *c, int client, const struct msg_assign *task, uint32_t f, const float *anchor,
                       const float *values)
{
    struct check_worker *w = &c->workers[client];
    size_t n = check_count(c, f), bound = codec_bound(c->logs[f].up);
    struct check_delta *d = mem_alloc(1, sizeof(*d));
    float *x = mem_alloc(n, sizeof(float));
    assert(d && x);
    int64_t base = version_of(c, f, anchor, task->versions[f]);
    if (base < 0 && c->behind) base = (int64_t)task->versions[f]; /* the coordinator lost that version */
    if (base < 0 || (uint64_t)base < task->versions[f] || (c->barrier && (uint64_t)base != task->versions[f]))
        sim_check_fail(c, "worker-%d trains round %llu from version %lld of fragment %u instead of %llu", client,
                       (unsigned long long)task->round, (long long)base, f, (unsigned long long)task->versions[f]);
    *d = (struct check_delta){
        .client = client, .round = task->round, .fragment = f, .base_version = (uint64_t)base, .step0 = task->step0};
    d->form = c->ddp                                        ? DELTA_GRADIENT
              : c->barrier && codec_lossless(c->logs[f].up) ? DELTA_PARAMETERS
                                                            : DELTA_PSEUDO_GRADIENT;
    for (size_t i = 0; i < n; i++)
        x[i] = d->form == DELTA_PSEUDO_GRADIENT ? (float)((double)anchor[i] - (double)values[i]) : values[i];
    d->payload = mem_alloc(bound, 1);
    assert(d->payload);
    settle(c, client, f);
    w->refused[f] = -1;
    if (base >= 0 && forgot(c, w, f, (uint64_t)base)) feedback_reset(&w->feedback[f]);
    if (feedback_encode(&w->feedback[f], c->logs[f].up, NULL, x, d->payload, bound, &d->size) != STATUS_OK)
        sim_check_fail(c, "worker-%d: the checker cannot encode its delta", client);
    w->pending[f] = d;
    d->crc = crc32c(0, d->payload, d->size);
    memcpy(d->ranges, task->ranges, sizeof(d->ranges));
    d->n_ranges = task->n_ranges;
    for (uint32_t r = 0; r < task->n_ranges; r++) d->tokens += task->ranges[r].count * c->toy.sample_tokens;
    if (w->region && w->tokens <= d->tokens) d->tokens = w->tokens;
    d->next = c->deltas;
    c->deltas = d;
    mem_free(x);
}

void sim_check_worker_trained(struct sim_check *c, int client, const struct msg_assign *task, uint32_t step,
                              const float *anchor, const float *values)
{
    const struct config *config = &c->config;
    bool whole = sync_points_whole(config, task->step0, task->step_rate, task->steps);
    c->moved_us = c->now_us;
    for (size_t i = 0; i < c->layout.n_params; i++)
        if (!isfinite(values[i])) return; /* must not be sent: an offer of this delta will not be found */
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        uint64_t offset = c->layout.fragments[f].offset;
        if (sync_points_of(config, f, c->layout.n_fragments, task->steps, whole).sent != step) continue;
        make_delta(c, client, task, f, anchor + offset, values + offset);
        c->workers[client].remembers[f] = (int64_t)task->round;
    }
}

void sim_check_worker_dropped(struct sim_check *c, int client)
{
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        settle(c, client, f);
        feedback_reset(&c->workers[client].feedback[f]);
    }
}

void sim_check_worker_evaluates(struct sim_check *c, int client, const struct msg_eval *task, const float *theta)
{
    c->moved_us = c->now_us;
    for (uint32_t f = 0; f < c->layout.n_fragments; f++) {
        const struct check_version *v = check_version_at(c, f, task->versions[f]);
        const float *part = theta + c->layout.fragments[f].offset;
        if ((!v || v->hash != hash_floats(NULL, part, check_count(c, f))) && !c->behind)
            sim_check_fail(c, "worker-%d evaluates values that differ from version %llu of fragment %u", client,
                           (unsigned long long)task->versions[f], f);
    }
}

void sim_check_worker(struct sim_check *c, int client, struct outer_loop *loop, enum outer_want want, uint64_t now_us)
{
    struct check_worker *w = &c->workers[client];
    const float *theta = outer_loop_theta(loop);
    c->now_us = now_us;
    c->counts.checks++;
    uint8_t state = outer_loop_heartbeat(loop)->beat.state; /* DONE may arrive while theta loads */
    bool whole = theta != NULL && state != WORKER_CATCHING_UP && want != OUTER_DONE && want != OUTER_FAILED;
    for (uint32_t f = 0; whole && f < c->layout.n_fragments; f++) {
        const struct check_version *v = check_version_at(c, f, outer_loop_version(loop, f));
        if (c->behind || (check_count(c, f) > CHECK_LARGE && c->counts.checks % 64)) continue;
        if (!v || v->hash != hash_floats(NULL, theta + c->layout.fragments[f].offset, check_count(c, f)))
            sim_check_fail(c, "worker-%d: its copy of fragment %u differs from version %llu of the log", client, f,
                           (unsigned long long)outer_loop_version(loop, f));
    }
    if (want == OUTER_TRAIN || want == OUTER_EVAL) w->active_us = now_us;
    if (want == OUTER_WAIT && outer_loop_text(loop, now_us)[0] == '\0')
        sim_check_fail(c, "worker-%d waits and names nothing that it waits for", client);
}
