#include "cli/region/region_loop.h"

#include <math.h>
#include <string.h>

#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "coordinator/ledger/delta_read.h"

static bool synced(const struct region_loop *r)
{
    uint64_t session = outer_loop_session(r->loop);
    return session && session == r->session;
}

bool region_loop_update(struct region_loop *r, const uint8_t *object, size_t size, bool taken, bool named)
{
    const struct engine_upstream event = {
        .kind = UPSTREAM_UPDATE, .object = object, .size = size, .taken = taken, .named = named};
    if (r->ended) return false;
    if (!synced(r)) return true; /* the jump comes later, with parameters that include it */
    r->ended = !r->port.event(r->port.ctx, &event);
    return !r->ended;
}

/* A new session may have loaded other parameters. */
static void sync_region(struct region_loop *r)
{
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    struct engine_upstream event = {.kind = UPSTREAM_JUMP, .versions = versions, .theta = outer_loop_theta(r->loop)};
    bool known = false;
    for (uint32_t f = 0; f < r->n_fragments; f++) versions[f] = outer_loop_version(r->loop, f);
    r->ended = !r->port.jump(r->port.ctx, &event, &known);
    if (known) r->session = outer_loop_session(r->loop);
}

static void begin(struct region_loop *r, uint64_t now_us)
{
    const struct msg_assign *task = outer_loop_assignment(r->loop);
    /* The last round of the loop is the assigned one: upstream has refused its delta, which a lossy codec's residual
     * has kept. */
    bool again = outer_loop_heartbeat(r->loop)->beat.round == task->round;
    r->again = again && !(codec_spec_lossless(r->config->codec.up) && !config_up_mixed(r->config));
    outer_loop_train_begin(r->loop, now_us);
    r->training = outer_loop_want(r->loop) == OUTER_TRAIN;
    const struct engine_upstream event = {.kind = UPSTREAM_GRANT, .grant = outer_loop_assignment(r->loop)};
    if (r->training) r->ended = !r->port.event(r->port.ctx, &event);
}

/* Upstream has no more updates, and they do not lead to the region's parameters: the engine says why. */
static void refuse(struct region_loop *r)
{
    const struct engine_upstream event = {.kind = UPSTREAM_GRANT, .grant = outer_loop_assignment(r->loop)};
    r->ended = !r->port.event(r->port.ctx, &event);
}

/* A round that was assigned again may have fewer samples than the region's deltas: upstream takes no more tokens. */
static uint64_t tokens_of(const struct region_loop *r, const struct msg_assign *task, const struct delta_sum *sum)
{
    uint64_t samples = 0;
    for (uint32_t i = 0; i < task->n_ranges; i++) samples += task->ranges[i].count;
    uint64_t most = config_is_external(r->config) ? UINT64_MAX : samples * r->sample_tokens;
    return sum->tokens < most ? sum->tokens : most;
}

static void deliver(struct region_loop *r, uint64_t now_us)
{
    const struct msg_assign *task = outer_loop_assignment(r->loop);
    struct delta_sum sum = {0};
    bool sealed = false;
    r->ended = !r->port.values(r->port.ctx, task->round, r->values, &sum, &sealed);
    if (r->ended || !sealed) return;
    struct outer_result result = {.values = r->again ? outer_loop_theta(r->loop) : r->values,
                                  .tokens = tokens_of(r, task, &sum),
                                  .steps = task->steps,
                                  .loss_sum = isnan(sum.loss_sum) ? 0 : sum.loss_sum,
                                  .loss_unknown = isnan(sum.loss_sum),
                                  .compute_us = sum.compute_us};
    r->training = false;
    enum status status = outer_loop_train_done(r->loop, &result, now_us);
    (void)status; /* an error fails the loop */
}

/* The region's workers hold the same versions: one of them gets upstream's share as it is. */
static void evaluate(struct region_loop *r, uint64_t now_us)
{
    struct msg_eval_result result;
    bool done = false;
    if (!r->evaluating) {
        outer_loop_eval_begin(r->loop, now_us);
        const struct engine_upstream event = {.kind = UPSTREAM_EVAL, .eval = outer_loop_evaluation(r->loop)};
        r->ended = !r->port.event(r->port.ctx, &event);
        r->evaluating = !r->ended;
    }
    if (!r->ended) r->ended = !r->port.evaluated(r->port.ctx, &result, &done);
    if (r->ended || !done) return;
    r->evaluating = false;
    outer_loop_eval_done(r->loop, result.loss_sum, result.tokens ? result.parts : NULL, now_us);
}

void region_loop_turn(struct region_loop *r, uint64_t now_us)
{
    uint32_t workers = r->ended ? 0 : r->port.workers(r->port.ctx);
    if (r->ended) return;
    heartbeat_set_workers(outer_loop_heartbeat(r->loop), workers ? workers : 1);
    if (!synced(r) && outer_loop_session(r->loop) && outer_loop_holds(r->loop)) sync_region(r);
    enum outer_want want = outer_loop_want(r->loop);
    if (want != OUTER_TRAIN) r->training = false; /* revoked */
    if (!r->ended && want == OUTER_TRAIN && !r->training && synced(r)) begin(r, now_us);
    if (!r->ended && want == OUTER_TRAIN && !synced(r)) refuse(r);
    if (!r->ended && r->training) deliver(r, now_us);
    if (want != OUTER_EVAL) r->evaluating = false;
    if (!r->ended && want == OUTER_EVAL && synced(r)) evaluate(r, now_us);
    if (!r->ended && want == OUTER_DONE) {
        const struct engine_upstream event = {.kind = UPSTREAM_DONE};
        r->ended = !r->port.event(r->port.ctx, &event);
    }
}
