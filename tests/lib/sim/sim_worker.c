#include "tests/lib/sim/sim_worker.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/config/sync_points.h"
#include "gpu/device.h"
#include "worker/outer/outer_loop_impl.h"

/* Large enough for any message of the toy model. */
static uint8_t encode_buffer[WIRE_HEADER + WIRE_BODY_MAX];

enum status sim_send(struct transport *t, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    size_t size;
    enum status status = msg_encode(m, encode_buffer, sizeof(encode_buffer), &size);
    if (status != STATUS_OK) fprintf(stderr, "sim: %s does not encode: %s\n", msg_name(m->type), status_text(status));
    assert(status == STATUS_OK && size == msg_encoded_size(m) && lane == msg_lane(m->type));
    return t->ops->send(t, peer, lane, encode_buffer, size);
}

void sim_note_windows(struct sim_check *check, int client, const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    sim_check_windows(check, client, sync_window(&s->down, s->rtt_us), sync_window(&s->up, s->rtt_us), s->unsaved);
}

/* ---- callbacks of the outer loop --------------------------------------------------------------------------------- */

static enum status worker_send(void *ctx, enum wire_lane lane, const struct msg *m)
{
    struct sim_worker *w = ctx;
    uint64_t worst;
    if (m->type == MSG_CHUNK && m->chunk.offset + m->chunk.size == m->chunk.total && sim_disk_saving(&w->disk) &&
        outer_loop_save_every(w->loop, &worst) <= 1) /* otherwise a kill may cost rounds */
        sim_check_fail(w->check, "worker-%d: the whole delta is sent before its state is saved", w->client);
    sim_note_windows(w->check, w->client, w->loop);
    return sim_send(w->transport, 0, lane, m);
}

static size_t worker_inner_parts(void *ctx, struct outer_part *parts, size_t cap)
{
    const struct sim_worker *w = ctx;
    assert(cap >= 1);
    parts[0] = (struct outer_part){w->velocity, w->layout.n_params * sizeof(float)};
    return 1;
}

static enum status worker_inner_load(void *ctx, const uint8_t *data, size_t size)
{
    struct sim_worker *w = ctx;
    size_t want = w->layout.n_params * sizeof(float);
    if (size != 0 && size != want) return STATUS_MISMATCH;
    memset(w->velocity, 0, want);
    if (size) memcpy(w->velocity, data, size);
    return STATUS_OK;
}

static enum status worker_on_settings(void *ctx, const struct msg_config *m, struct err *err)
{
    struct sim_worker *w = ctx;
    char changed[256];
    return config_take_changes(&w->config, m->text, changed, sizeof changed, err);
}

static enum status worker_on_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct sim_worker *w = ctx;
    struct config_sources sources;
    assert(!w->built);
    config_defaults(&w->config, &sources);
    TRY(config_parse(&w->config, &sources, m->text, strlen(m->text), "CONFIG", CONFIG_COORDINATOR, err));
    TRY(config_resolve(&w->config, &sources, err));
    TRY(toy_layout(w->toy, &w->config, &w->layout));
    w->built = true;
    size_t n = w->layout.n_params;
    w->theta = mem_alloc(n, sizeof(float));
    w->anchor = mem_alloc(n, sizeof(float));
    w->velocity = mem_alloc(n, sizeof(float));
    w->gradient = mem_alloc(n, sizeof(double));
    w->sent = mem_alloc(n, sizeof(float));
    w->evaluated = mem_alloc(n, sizeof(float));
    if (!w->theta || !w->anchor || !w->velocity || !w->gradient || !w->sent || !w->evaluated) return STATUS_NOMEM;
    bool lossless = w->config.train.method == METHOD_DDP || codec_spec_lossless(w->config.codec.up);
    if (w->kind == SIM_WORKER_ON_DEVICE && !lossless) TRY(device_open("cpu", 1, &w->device, err));
    if (w->kind == SIM_WORKER_LENDS) {
        w->lent_theta = mem_alloc(n, sizeof(float));
        w->change = mem_alloc(n, sizeof(float));
        if (!w->lent_theta || !w->change) return STATUS_NOMEM;
    }
    *model = (struct outer_model){
        .config = &w->config,
        .layout = &w->layout,
        .train_hash = 11,
        .val_hash = 12,
        .train_samples = w->toy->train_samples,
        .val_samples = w->toy->val_samples,
        .sample_tokens = w->toy->sample_tokens,
        .ranks = 1,
        .devices = "virtual",
        .model_config = "{\"model_type\": \"toy\"}",
        .inner = {w, worker_inner_parts, worker_inner_load},
        .device = w->device,
        .device_theta = w->theta,
        .theta = w->lent_theta,
        .change = w->change,
    };
    return STATUS_OK;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static void worker_poll(struct sim_worker *w);

/* Returns the position of the n-th sample of an assignment. */
static uint64_t task_position(const struct msg_assign *task, uint64_t n)
{
    for (uint32_t i = 0; i < task->n_ranges; i++) {
        if (n < task->ranges[i].count) return task->ranges[i].start + n;
        n -= task->ranges[i].count;
    }
    assert(!"an assignment has fewer samples than steps");
    return 0;
}

static void worker_step(struct sim_worker *w)
{
    size_t n = w->layout.n_params;
    uint64_t count = (uint64_t)w->config.train.batch_size * w->config.train.grad_accum;
    memset(w->gradient, 0, n * sizeof(double));
    for (uint64_t i = 0; i < count; i++)
        w->loss += toy_gradient_add(w->toy, w->theta, n, task_position(&w->task, w->used++), 1, w->gradient);
    double position = w->task.step0 + w->step * w->task.step_rate;
    double lr = 0.05 / (1.0 + position / 50.0);
    for (size_t i = 0; i < n; i++) {
        float g = (float)(w->gradient[i] / (double)count);
        w->velocity[i] = 0.5f * w->velocity[i] + g;
        if (w->config.train.method != METHOD_DDP) w->theta[i] -= (float)lr * w->velocity[i];
    }
    if (w->task.round == w->nan_round && w->step == 0 && !w->first_step) {
        w->theta[n / 2] = NAN;
        w->gradient[n / 2] = NAN;
        w->nan_round = UINT64_MAX;
    }
    w->step++;
}

/* The parameters that a segment starts from follow from those that the last one ended with (w->theta), from what was
 * sent, and from the run's: train.apply (common/config/sync_points.h). */
static void check_start(struct sim_worker *w, bool new_round)
{
    const struct config *c = &w->config;
    const float *theta = outer_loop_theta(w->loop), *live = outer_loop_params(w->loop);
    enum apply_rule rule;
    double alpha;
    bool whole = sync_points_whole(c, w->whole.step0, w->whole.step_rate, w->whole.steps);
    if (c->train.method == METHOD_ASYNC) return; /* adopts updates of others, too */
    if (new_round && !w->follows) memset(w->is_sent, 0, sizeof w->is_sent);
    bool known = w->follows;
    w->follows = w->follows || new_round;
    if (!known || theta == live || !apply_rule_parse(c->train.apply, &rule, &alpha)) return;
    if (new_round && w->whole.round && w->whole.round - 1 < c->train.start_step) rule = APPLY_REPLACE;
    for (uint32_t f = 0; f < w->layout.n_fragments; f++) {
        const struct fragment *frag = &w->layout.fragments[f];
        struct sync_points p = sync_points_of(c, f, w->layout.n_fragments, w->whole.steps, whole);
        /* A worker whose delta was refused reaches the newer version later: the run's parameters move once more. */
        const float *base = w->is_sent[f] ? w->sent : w->anchor;
        bool behind = memcmp(theta + frag->offset, w->anchor + frag->offset, frag->count * sizeof(float)) != 0;
        bool applied = (new_round || p.applied <= w->first_step) && (w->is_sent[f] || behind);
        for (uint64_t i = frag->offset; i < frag->offset + frag->count; i++) {
            double now = (double)w->theta[i], want = now;
            if (applied && rule == APPLY_REPLACE) want = (double)theta[i];
            if (applied && rule == APPLY_CORRECT) want = (double)theta[i] + (now - (double)base[i]);
            if (applied && rule == APPLY_MIX) want = alpha * now + (1 - alpha) * (double)theta[i];
            if ((float)want == live[i]) continue;
            sim_check_fail(w->check,
                           "worker-%d: step %u of round %llu does not start from the parameters that follow "
                           "from train.apply (fragment %u)",
                           w->client, w->first_step, (unsigned long long)w->whole.round, f);
            return;
        }
        if (applied) w->is_sent[f] = false;
    }
}

/* Notes what is sent after `step` steps of the round. */
static void note_sent(struct sim_worker *w, uint32_t step, const float *values)
{
    const struct config *c = &w->config;
    bool whole = sync_points_whole(c, w->whole.step0, w->whole.step_rate, w->whole.steps);
    for (uint32_t f = 0; f < w->layout.n_fragments; f++) {
        const struct fragment *frag = &w->layout.fragments[f];
        if (sync_points_of(c, f, w->layout.n_fragments, w->whole.steps, whole).sent != step) continue;
        memcpy(w->sent + frag->offset, values + frag->offset, frag->count * sizeof(float));
        w->is_sent[f] = true;
    }
    sim_check_worker_trained(w->check, w->client, &w->whole, step, w->anchor, values);
}

/* The base of each fragment's next delta is theta at its last apply point, or at the start of the round. */
static void take_anchor(struct sim_worker *w, bool new_round)
{
    const struct config *c = &w->config;
    const float *theta = outer_loop_theta(w->loop);
    bool whole = sync_points_whole(c, w->whole.step0, w->whole.step_rate, w->whole.steps);
    for (uint32_t f = 0; f < w->layout.n_fragments; f++) {
        const struct fragment *frag = &w->layout.fragments[f];
        struct sync_points p = sync_points_of(c, f, w->layout.n_fragments, w->whole.steps, whole);
        if (!new_round && p.applied > w->first_step) continue;
        memcpy(w->anchor + frag->offset, theta + frag->offset, frag->count * sizeof(float));
    }
}

/* The program adds its changes to the residuals, and writes means. */
static void add_changes(struct sim_worker *w)
{
    for (uint32_t f = 0; f < w->layout.n_fragments; f++) {
        const struct fragment *frag = &w->layout.fragments[f];
        for (uint64_t i = frag->offset; i < frag->offset + frag->count; i++) {
            float change = w->lent_theta[i] - w->theta[i];
            w->change[i] = layout_is_mean(&w->layout, f) ? w->theta[i] : w->change[i] + change;
        }
    }
}

static void worker_delta(struct sim_worker *w)
{
    size_t n = w->layout.n_params;
    uint64_t count = (uint64_t)w->config.train.batch_size * w->config.train.grad_accum;
    if (w->config.train.method == METHOD_DDP)
        for (size_t i = 0; i < n; i++) w->theta[i] = (float)(w->gradient[i] / (double)count);
    struct outer_result result = {
        .values = w->theta,
        .tokens = w->used * w->toy->sample_tokens,
        .steps = w->step,
        .loss_sum = w->loss,
        .compute_us = w->step * w->step_us,
    };
    note_sent(w, w->first_step + w->step, w->theta);
    bool adds = w->change && outer_loop_adds(&w->config);
    if (adds) {
        add_changes(w);
        result.values = NULL;
    }
    enum status status = outer_loop_train_done(w->loop, &result, sim_net_now(w->net));
    if (status == STATUS_NONFINITE && adds) sim_check_worker_dropped(w->check, w->client);
    if (status != STATUS_OK && status != STATUS_NONFINITE && outer_loop_want(w->loop) != OUTER_FAILED)
        sim_check_fail(w->check, "worker-%d: train_done returns %s but the loop continues", w->client,
                       status_text(status));
}

/* arg: the process's life and the kind of computation. A killed or revoked computation then has no effect. */
static void worker_computed(void *ctx, uint64_t life)
{
    struct sim_worker *w = ctx;
    if (life != w->life || !w->up || w->busy == SIM_WORKER_IDLE) return;
    if (w->frozen) { /* a frozen worker computes on after it is thawed */
        sim_net_at(w->net, sim_net_now(w->net) + w->step_us, worker_computed, w, life);
        return;
    }
    if (w->busy == SIM_WORKER_EVALUATES) {
        w->busy = SIM_WORKER_IDLE;
        double loss = toy_val_loss(w->toy, w->evaluated, w->layout.n_params, w->eval.start, w->eval.count);
        struct wire_part parts[WIRE_PARTS_MAX];
        for (uint64_t at = 0, i = 0; at < w->eval.count; at += w->eval.part) {
            uint64_t n = w->eval.count - at < w->eval.part ? w->eval.count - at : w->eval.part;
            parts[i].sum = toy_val_loss(w->toy, w->evaluated, w->layout.n_params, w->eval.start + at, n);
            parts[i++].tokens = n * w->toy->sample_tokens;
        }
        outer_loop_eval_done(w->loop, loss, parts, sim_net_now(w->net));
    } else {
        worker_step(w);
        outer_loop_train_step(w->loop, w->step, w->step_us);
        if (w->lazy) worker_poll(w);
        if (!w->up || life != w->life) return;
        if (w->busy != SIM_WORKER_TRAINS) return;
        if (w->step == w->task.steps) {
            w->busy = SIM_WORKER_IDLE;
            worker_delta(w);
        } else {
            sim_net_at(w->net, sim_net_now(w->net) + w->step_us, worker_computed, w, life);
        }
    }
    worker_poll(w);
}

static void worker_begin(struct sim_worker *w, enum outer_want want)
{
    uint64_t now = sim_net_now(w->net);
    size_t bytes = w->layout.n_params * sizeof(float);
    w->life++; /* events of a revoked computation are void */
    if (want == OUTER_EVAL) {
        w->eval = *outer_loop_evaluation(w->loop);
        memcpy(w->evaluated, outer_loop_params(w->loop), bytes);
        sim_check_worker_evaluates(w->check, w->client, &w->eval, w->evaluated);
        outer_loop_eval_begin(w->loop, now);
        w->busy = SIM_WORKER_EVALUATES;
        sim_net_at(w->net, now + w->eval_us, worker_computed, w, w->life);
        return;
    }
    bool new_round = outer_loop_heartbeat(w->loop)->beat.state == WORKER_READY;
    w->whole = *outer_loop_assignment(w->loop);
    uint64_t saves = w->disk.save.count;
    outer_loop_train_begin(w->loop, now);
    w->task = *outer_loop_assignment(w->loop);
    w->first_step = outer_loop_first_step(w->loop);
    check_start(w, new_round);
    take_anchor(w, new_round || !w->in_round);
    w->in_round = true;
    memcpy(w->theta, outer_loop_params(w->loop), bytes);
    if (new_round && outer_loop_want(w->loop) == OUTER_TRAIN) note_sent(w, 0, w->theta);
    if (w->disk.save.count != saves) sim_disk_mark_again(&w->disk);
    w->busy = SIM_WORKER_TRAINS;
    w->step = 0;
    w->used = 0;
    w->loss = 0.0;
    sim_net_at(w->net, now + w->step_us, worker_computed, w, w->life);
}

/* ---- the event loop ---------------------------------------------------------------------------------------------- */

static void worker_woken(void *ctx, uint64_t at_us)
{
    struct sim_worker *w = ctx;
    if (!w->up || w->wake_us != at_us) return;
    w->wake_us = UINT64_MAX;
    worker_poll(w);
}

static void worker_sleep(struct sim_worker *w)
{
    uint64_t now = sim_net_now(w->net);
    uint64_t loop = outer_loop_deadline_us(w->loop), heartbeat = heartbeat_deadline_us(outer_loop_heartbeat(w->loop));
    uint64_t at = loop < heartbeat ? loop : heartbeat;
    if (at <= now) at = now + 100; /* the deadline has passed, but nothing was ready */
    if (at == UINT64_MAX || (w->wake_us > now && w->wake_us <= at)) return;
    w->wake_us = at;
    sim_net_at(w->net, at, worker_woken, w, at);
}

static void worker_exit(struct sim_worker *w, enum outer_want want)
{
    w->last_want = want;
    snprintf(w->last_text, sizeof(w->last_text), "%s", outer_loop_text(w->loop, sim_net_now(w->net)));
    sim_check_note(w->check, sim_net_now(w->net), "worker-%d ends: %s", w->client, w->last_text);
    w->up = false; /* the transport stays: queued messages are flushed */
}

static void worker_receive(struct sim_worker *w)
{
    uint64_t now = sim_net_now(w->net), peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    while (w->transport->ops->recv(w->transport, 0, &peer, &lane, &data, &size) == STATUS_OK) {
        struct msg m;
        struct err err;
        enum status status = msg_decode(&m, data, size, &err);
        assert(status == STATUS_OK);
        heartbeat_on_message(outer_loop_heartbeat(w->loop), &m, now);
        outer_loop_on_message(w->loop, lane, &m, now);
    }
}

static void worker_poll(struct sim_worker *w)
{
    if (!w->up || w->frozen) return;
    uint64_t now = sim_net_now(w->net);
    worker_receive(w);
    outer_loop_tick(w->loop, now);
    struct msg beat;
    while (heartbeat_take(outer_loop_heartbeat(w->loop), now, &beat))
        (void)sim_send(w->transport, 0, WIRE_CONTROL, &beat);
    enum outer_want want = outer_loop_want(w->loop);
    if (w->busy == SIM_WORKER_TRAINS && want != OUTER_TRAIN) w->busy = SIM_WORKER_IDLE; /* revoked */
    if (w->busy == SIM_WORKER_EVALUATES && want != OUTER_EVAL) w->busy = SIM_WORKER_IDLE;
    if (outer_loop_heartbeat(w->loop)->beat.state == WORKER_CATCHING_UP) w->follows = false; /* it may have lost all */
    sim_check_worker(w->check, w->client, w->loop, want, now);
    if (want == OUTER_DONE || want == OUTER_FAILED) {
        worker_exit(w, want);
        return;
    }
    if (w->busy == SIM_WORKER_IDLE && (want == OUTER_TRAIN || want == OUTER_EVAL)) {
        worker_begin(w, want);
        while (heartbeat_take(outer_loop_heartbeat(w->loop), now, &beat))
            (void)sim_send(w->transport, 0, WIRE_CONTROL, &beat);
    }
    worker_sleep(w);
}

void sim_worker_ready(struct sim_worker *w)
{
    if (!w->up || w->frozen || (w->lazy && w->busy == SIM_WORKER_TRAINS)) return;
    worker_poll(w);
}

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

void sim_worker_init(struct sim_worker *w, struct sim_net *net, struct sim_check *check, const struct toy *toy,
                     int client)
{
    *w = (struct sim_worker){
        .net = net,
        .check = check,
        .toy = toy,
        .client = client,
        .kind = client % 3,
        .step_us = 100000,
        .eval_us = 50000,
        .nan_round = UINT64_MAX,
        .wake_us = UINT64_MAX,
        .disk = {.net = net, .check = check, .client = client, .save_us = 100000},
    };
}

static void worker_unload(struct sim_worker *w)
{
    outer_loop_destroy(w->loop);
    device_close(w->device);
    w->loop = NULL;
    w->device = NULL;
    if (w->built) layout_finish(&w->layout);
    w->built = false;
    mem_free(w->theta);
    mem_free(w->anchor);
    mem_free(w->velocity);
    mem_free(w->gradient);
    mem_free(w->sent);
    mem_free(w->evaluated);
    mem_free(w->lent_theta);
    mem_free(w->change);
    w->lent_theta = w->change = NULL;
    w->sent = w->evaluated = NULL;
    w->theta = w->anchor = w->velocity = NULL;
    w->gradient = NULL;
    w->busy = SIM_WORKER_IDLE;
    w->in_round = w->follows = false;
}

void sim_worker_finish(struct sim_worker *w)
{
    sim_worker_kill(w);
    sim_worker_forget(w);
}

void sim_worker_start(struct sim_worker *w)
{
    assert(!w->up);
    worker_unload(w);
    w->life++;
    w->frozen = false;
    w->wake_us = UINT64_MAX;
    sim_net_kill(w->net, w->client); /* the previous process, if it ended by itself */
    w->transport = sim_net_up(w->net, w->client);
    struct outer_setup setup = {
        .io_ctx = w,
        .send = worker_send,
        .host_ctx = w,
        .on_config = worker_on_config,
        .on_settings = worker_on_settings,
        .storage_ctx = &w->disk,
        .save_begin = sim_disk_save_begin,
        .save_poll = sim_disk_save_poll,
        .load = sim_disk_load,
        .release = sim_disk_release,
    };
    snprintf(setup.name, sizeof(setup.name), "worker-%d", w->client);
    for (int i = 0; i < WIRE_UUID; i++) setup.uuid[i] = (uint8_t)(17 * w->client + i + 1 + 97 * w->stranger);
    sim_check_worker_started(w->check, w->client);
    sim_check_note(w->check, sim_net_now(w->net), "worker-%d starts", w->client);
    enum status status = outer_loop_create(&w->loop, &setup, sim_net_now(w->net));
    assert(status == STATUS_OK);
    w->up = true;
    worker_poll(w);
}

void sim_worker_kill(struct sim_worker *w)
{
    if (w->up) sim_check_note(w->check, sim_net_now(w->net), "worker-%d is killed", w->client);
    w->up = false;
    w->life++;
    sim_net_kill(w->net, w->client);
    sim_disk_killed(&w->disk);
    worker_unload(w);
}

void sim_worker_leave(struct sim_worker *w)
{
    sim_check_note(w->check, sim_net_now(w->net), "worker-%d is told to stop", w->client);
    outer_loop_leave(w->loop, "stopped", sim_net_now(w->net));
    w->up = false; /* the transport stays: queued messages are flushed */
    w->life++;
    worker_unload(w);
}

void sim_worker_freeze(struct sim_worker *w, bool frozen)
{
    sim_check_note(w->check, sim_net_now(w->net), "worker-%d is %s", w->client, frozen ? "stopped" : "thawed");
    w->frozen = frozen;
    if (!frozen) sim_worker_ready(w);
    if (!frozen && w->up) worker_sleep(w);
}

void sim_worker_forget(struct sim_worker *w)
{
    sim_disk_wipe(&w->disk);
    w->stranger++;
}

bool sim_worker_ended(const struct sim_worker *w)
{
    return !w->up && w->loop;
}
