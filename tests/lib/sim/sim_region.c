#include "tests/lib/sim/sim_region.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "coordinator/ledger/delta_read.h"
#include "coordinator/ledger/record.h"
#include "tests/lib/sim/sim_worker.h"

enum { IDLE_US = 20000000 }; /* without a worker for this long, the region leaves the run upstream */

static uint64_t now_of(const struct sim_region *r)
{
    return sim_net_now(r->up->net);
}

/* ---- the engine -------------------------------------------------------------------------------------------------- */

static bool port_event(void *ctx, const struct engine_upstream *event)
{
    struct sim_region *r = ctx;
    struct err err = {0};
    if (!r->down->engine || r->down->dying) return false;
    enum status status = engine_on_upstream(r->down->engine, event, now_of(r), &err);
    if (status != STATUS_OK || r->down->dying) {
        if (status != STATUS_OK && !r->down->dying) (void)sim_cluster_over(r->down, status, &err);
        return false;
    }
    sim_check_engine(r->down->check, r->down->engine, now_of(r));
    sim_cluster_poke(r->down);
    return true;
}

static bool port_jump(void *ctx, const struct engine_upstream *event, bool *known_p)
{
    struct sim_region *r = ctx;
    if (!port_event(ctx, event)) return false;
    *known_p = engine_region_knows(r->down->engine, event->versions, event->theta);
    return true;
}

static bool port_values(void *ctx, uint64_t round, float *values, struct delta_sum *sum, bool *sealed_p)
{
    struct sim_region *r = ctx;
    struct err err = {0};
    if (!r->down->engine || r->down->dying) return false;
    *sealed_p = engine_region_sealed(r->down->engine, round);
    if (!*sealed_p) return true;
    if (engine_region_values(r->down->engine, values, sum, &err) != STATUS_OK) {
        sim_check_fail(r->down->check, "the region cannot merge: %s", err.msg);
        return false;
    }
    const float *theta = outer_loop_theta(r->loop);
    r->again_rounds += r->core.again;
    sim_check_region_tokens(r->up->check, r->client, sum->tokens);
    sim_check_worker_trained(r->up->check, r->client, outer_loop_assignment(r->loop),
                             outer_loop_assignment(r->loop)->steps, theta, r->core.again ? theta : values);
    return true;
}

static bool port_evaluated(void *ctx, struct msg_eval_result *result, bool *done_p)
{
    const struct sim_region *r = ctx;
    if (!r->down->engine || r->down->dying) return false;
    *done_p = engine_region_evaluated(r->down->engine, result);
    return true;
}

static uint32_t port_workers(void *ctx)
{
    const struct sim_region *r = ctx;
    return r->down->engine ? engine_region_workers(r->down->engine) : 0;
}

/* ---- the outer loop ---------------------------------------------------------------------------------------------- */

static enum status client_send(void *ctx, enum wire_lane lane, const struct msg *m)
{
    struct sim_region *r = ctx;
    if (r->down->dying || !r->down->engine) return STATUS_CLOSED;
    uint64_t worst;
    if (m->type == MSG_CHUNK && m->chunk.offset + m->chunk.size == m->chunk.total && sim_disk_saving(&r->disk) &&
        outer_loop_save_every(r->loop, &worst) <= 1)
        sim_check_fail(r->up->check, "region %d: the whole delta is sent before its state is saved", r->client);
    sim_note_windows(r->up->check, r->client, r->loop);
    return sim_send(r->transport, 0, lane, m);
}

static bool client_update(void *ctx, const uint8_t *object, size_t size, bool taken, bool named)
{
    struct sim_region *r = ctx;
    return region_loop_update(&r->core, object, size, taken, named);
}

static enum status client_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct sim_region *r = ctx;
    struct config_sources sources;
    struct engine_region_model region;
    assert(!r->built);
    config_defaults(&r->config, &sources);
    TRY(config_parse(&r->config, &sources, m->text, strlen(m->text), "CONFIG", CONFIG_COORDINATOR, err));
    TRY(config_resolve(&r->config, &sources, err));
    if (!engine_region_model(r->down->engine, &region)) return err_set(err, STATUS_STATE, "there is no model yet");
    TRY(toy_layout(&r->up->toy, &r->config, &r->layout));
    r->built = true;
    r->values = mem_alloc(r->layout.n_params, sizeof *r->values);
    if (!r->values) return STATUS_NOMEM;
    r->core.values = r->values;
    r->core.config = &r->config;
    r->core.n_fragments = r->layout.n_fragments;
    r->core.sample_tokens = region.record->sample_tokens;
    *model = (struct outer_model){.config = &r->config,
                                  .layout = &r->layout,
                                  .train_hash = region.record->train_hash,
                                  .train_samples = region.record->train_samples,
                                  .val_hash = region.record->val_hash,
                                  .val_samples = region.record->val_samples,
                                  .sample_tokens = region.record->sample_tokens,
                                  .ranks = 1,
                                  .devices = "region",
                                  .model_config = region.config};
    return STATUS_OK;
}

static void unload(struct sim_region *r)
{
    outer_loop_destroy(r->loop);
    if (r->built) layout_finish(&r->layout);
    mem_free(r->values);
    r->values = NULL;
    r->loop = NULL;
    r->built = false;
}

static void start(struct sim_region *r)
{
    struct outer_setup setup = {
        .io_ctx = r,
        .send = client_send,
        .host_ctx = r,
        .on_config = client_config,
        .on_update = client_update,
        .storage_ctx = &r->disk,
        .save_begin = sim_disk_save_begin,
        .save_poll = sim_disk_save_poll,
        .load = sim_disk_load,
        .release = sim_disk_release,
    };
    r->life++;
    r->wake_us = UINT64_MAX;
    sim_net_kill(r->up->net, r->client);
    r->transport = sim_net_up(r->up->net, r->client);
    r->core = (struct region_loop){.port = {r, port_event, port_jump, port_values, port_evaluated, port_workers}};
    snprintf(setup.name, sizeof setup.name, "worker-%d", r->client);
    for (int i = 0; i < WIRE_UUID; i++) setup.uuid[i] = (uint8_t)(17 * r->client + i + 1);
    sim_check_worker_started(r->up->check, r->client);
    sim_check_region_tokens(r->up->check, r->client, 0);
    sim_check_note(r->up->check, now_of(r), "region %d starts", r->client);
    enum status status = outer_loop_create(&r->loop, &setup, now_of(r));
    assert(status == STATUS_OK);
    r->core.loop = r->loop;
    r->idle_us = 0;
}

static void leave(struct sim_region *r)
{
    sim_check_note(r->up->check, now_of(r), "region %d leaves: it has no worker", r->client);
    outer_loop_leave(r->loop, "no worker", now_of(r));
    r->life++;
    unload(r);
}

/* ---- the event loop ---------------------------------------------------------------------------------------------- */

static void woken(void *ctx, uint64_t at_us)
{
    struct sim_region *r = ctx;
    if (r->wake_us != at_us) return;
    r->wake_us = UINT64_MAX;
    sim_region_ready(r);
}

static void sleep_until_due(struct sim_region *r)
{
    uint64_t now = now_of(r), at = outer_loop_deadline_us(r->loop),
             beat = heartbeat_deadline_us(outer_loop_heartbeat(r->loop));
    if (beat < at) at = beat;
    if (at <= now) at = now + 100;
    if (at == UINT64_MAX || (r->wake_us > now && r->wake_us <= at)) return;
    r->wake_us = at;
    sim_net_at(r->up->net, at, woken, r, at);
}

static void receive(struct sim_region *r)
{
    uint64_t now = now_of(r), peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    while (r->transport->ops->recv(r->transport, 0, &peer, &lane, &data, &size) == STATUS_OK) {
        struct msg m;
        struct err err;
        enum status status = msg_decode(&m, data, size, &err);
        assert(status == STATUS_OK);
        heartbeat_on_message(outer_loop_heartbeat(r->loop), &m, now);
        outer_loop_on_message(r->loop, lane, &m, now);
    }
}

static void send_beats(struct sim_region *r)
{
    struct msg beat;
    while (heartbeat_take(outer_loop_heartbeat(r->loop), now_of(r), &beat))
        (void)sim_send(r->transport, 0, WIRE_CONTROL, &beat);
}

/* The region is upstream as long as it has a worker, or a delta to deliver. */
static bool is_needed(struct sim_region *r)
{
    struct engine_region_model model;
    if (!engine_region_model(r->down->engine, &model)) return false;
    if (!engine_theta(r->down->engine) || port_workers(r) || engine_done(r->down->engine))
        r->idle_us = 0;
    else if (!r->idle_us)
        r->idle_us = now_of(r);
    return !r->idle_us || now_of(r) < r->idle_us + IDLE_US;
}

static void poll_once(struct sim_region *r)
{
    uint64_t now = now_of(r);
    char text[WIRE_TEXT_MAX];
    bool needed = is_needed(r);
    if (!r->loop && needed && !engine_done(r->down->engine)) start(r);
    if (r->loop && !needed) leave(r);
    if (!r->loop) return;
    receive(r);
    outer_loop_tick(r->loop, now);
    region_loop_turn(&r->core, now);
    if (!r->down->engine || r->down->dying || r->core.ended) return;
    send_beats(r);
    enum outer_want want = outer_loop_want(r->loop);
    snprintf(text, sizeof text, "%s", outer_loop_text(r->loop, now));
    engine_region_waits(r->down->engine, text);
    if (!r->core.training) sim_check_worker(r->up->check, r->client, r->loop, want, now);
    if (want == OUTER_FAILED) sim_check_fail(r->up->check, "region %d fails: %s", r->client, text);
    if (want == OUTER_DONE || want == OUTER_FAILED) {
        sim_check_note(r->up->check, now, "region %d ends: %s", r->client, text);
        unload(r); /* the transport stays: queued messages are flushed */
        return;
    }
    sleep_until_due(r);
}

/* The process has died within a call: its effects reach no other process. */
static void bury(struct sim_region *r)
{
    struct err err = {0};
    if (r->down->engine && r->down->dying) (void)sim_cluster_over(r->down, STATUS_OK, &err);
}

void sim_region_ready(struct sim_region *r)
{
    if (r->polling || !r->down->engine) return;
    r->polling = true;
    poll_once(r);
    r->polling = false;
    bury(r);
    if (!r->down->engine) sim_region_engine_stopped(r);
}

void sim_region_engine_started(struct sim_region *r)
{
    sim_region_ready(r);
}

void sim_region_engine_stopped(struct sim_region *r)
{
    if (r->polling || !r->loop) return;
    r->life++;
    r->wake_us = UINT64_MAX;
    if (!r->down->finished) sim_net_kill(r->up->net, r->client);
    sim_disk_killed(&r->disk);
    unload(r);
}

void sim_region_init(struct sim_region *r, struct sim_cluster *up, int client, struct sim_cluster *down)
{
    *r = (struct sim_region){.up = up, .down = down, .client = client, .wake_us = UINT64_MAX};
    r->disk = (struct sim_disk){.net = up->net, .check = up->check, .client = client, .save_us = 100000};
    sim_check_follow(down->check, up->check, client);
    up->regions[client] = r;
    down->region = r;
}

void sim_region_forget(struct sim_region *r)
{
    sim_disk_wipe(&r->disk);
}

void sim_region_finish(struct sim_region *r)
{
    r->down->region = NULL;
    unload(r);
    sim_disk_killed(&r->disk);
    sim_disk_wipe(&r->disk);
}
