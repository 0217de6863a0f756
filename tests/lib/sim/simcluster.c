#include "tests/lib/sim/simcluster.h"

#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/lib/sim/simstore.h"

/* Small defaults: a round takes a virtual second, a run some dozen rounds. */
static const char *const small_config[] = {
    "run.name=sim",
    "run.seed=5",
    "train.method=diloco",
    "train.max_steps=24",
    "train.sync_every=4",
    "train.batch_size=2",
    "train.eval_every=2",
    "train.eval_tokens=64",
    "train.fragments=1",
    "codec.up=fp32",
    "codec.down=fp32",
    "checkpoint.every=3",
    "checkpoint.keep=2",
    "inner.warmup_steps=0",
    "coordinator.min_workers=1",
    "model.block_size=4",
    NULL,
};

/* ---- the coordinator process ------------------------------------------------------------------------------------- */

static void coordinator_poll(struct simcluster *c);

/* One operation that others can see. False: the process is dead. */
static bool coordinator_alive(void *ctx)
{
    struct simcluster *c = ctx;
    if (c->dying) return false;
    c->operations++;
    if (c->die_in > 0 && --c->die_in == 0) {
        simcheck_note(c->check, simnet_now(c->net), "the coordinator dies in operation %ld", c->operations);
        c->dying = true;
    }
    return !c->dying;
}

static enum status coordinator_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    struct simcluster *c = ctx;
    if (!coordinator_alive(c)) return STATUS_CLOSED;
    return sim_send(c->transport, peer, lane, m);
}

static void coordinator_event(void *ctx, const struct engine_event *event)
{
    struct simcluster *c = ctx;
    if (!c->dying) simcheck_event(c->check, simnet_now(c->net), event);
}

static void coordinator_bytes(void *ctx, uint64_t *up, uint64_t *down)
{
    struct simcluster *c = ctx;
    c->transport->ops->bytes(c->transport, down, up);
}

static void coordinator_started_by(void *ctx, uint64_t starts)
{
    struct simcluster *c = ctx;
    if (!c->engine && !c->finished && c->starts == starts) simcluster_coordinator_start(c);
}

/* The engine's call is over. True: so is the process. */
static bool coordinator_over(struct simcluster *c, enum status status, const struct err *err)
{
    bool gives_up = status != STATUS_OK && !c->dying;
    if (status == STATUS_OK && !c->dying) return false;
    if (gives_up) {
        c->gave_up++;
        simcheck_note(c->check, simnet_now(c->net), "the coordinator gives up: %s", err->msg);
        if (!c->may_give_up)
            simcheck_fail(c->check, "the coordinator gives up: %s (%s)", err->msg, status_text(status));
    }
    simcluster_coordinator_kill(c, c->die_by_power && !gives_up);
    if (c->revive_us != UINT64_MAX)
        simnet_at(c->net, simnet_now(c->net) + c->revive_us, coordinator_started_by, c, c->starts);
    return true;
}

static void coordinator_woken(void *ctx, uint64_t at_us)
{
    struct simcluster *c = ctx;
    if (!c->engine || c->wake_us != at_us) return;
    c->wake_us = UINT64_MAX;
    coordinator_poll(c);
}

static void coordinator_finish(struct simcluster *c)
{
    struct engine_summary summary;
    uint64_t now = simnet_now(c->net);
    engine_summary(c->engine, &summary);
    c->finished = true;
    c->result = (struct simcluster_result){
        .done = summary.done,
        .theta_hash = summary.theta_hash,
        .rounds = summary.rounds,
        .samples_committed = engine_samples_committed(c->engine),
        .restarts = summary.restarts,
        .end_us = now,
        .final_val_loss = summary.final_val_loss,
    };
    simcheck_note(c->check, now, "the coordinator has finished");
    simcheck_finished(c->check, c->engine);
    simcluster_coordinator_kill(c, false);
}

static void coordinator_poll(struct simcluster *c)
{
    uint64_t now = simnet_now(c->net), peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    struct err err = {0};
    while (c->transport->ops->recv(c->transport, 0, &peer, &lane, &data, &size) == STATUS_OK) {
        struct msg m;
        enum status status = msg_decode(&m, data, size, &err);
        assert(status == STATUS_OK);
        status = engine_on_message(c->engine, peer, lane, &m, now, &err);
        if (coordinator_over(c, status, &err)) return;
        simcheck_engine(c->check, c->engine, now);
    }
    enum status status = engine_tick(c->engine, now, &err);
    if (coordinator_over(c, status, &err)) return;
    simcheck_engine(c->check, c->engine, now);
    if (engine_finished(c->engine)) {
        coordinator_finish(c);
        return;
    }
    uint64_t at = engine_next_deadline_us(c->engine);
    if (at <= now) at = now + 100;
    if (at == UINT64_MAX || (c->wake_us > now && c->wake_us <= at)) return;
    c->wake_us = at;
    simnet_at(c->net, at, coordinator_woken, c, at);
}

void simcluster_coordinator_start(struct simcluster *c)
{
    assert(!c->engine);
    uint64_t now = simnet_now(c->net);
    c->starts++;
    c->dying = false;
    c->wake_us = UINT64_MAX;
    c->transport = simnet_up(c->net, SIMNET_LISTENER);
    struct engine_options options = {
        .config = &c->config, .entropy = c->entropy + c->starts, .rounds_told = simcheck_rounds_told(c->check)};
    struct engine_io io = {.ctx = c, .send = coordinator_send, .event = coordinator_event, .bytes = coordinator_bytes};
    struct err err = {0};
    simcheck_note(c->check, now, "the coordinator starts");
    enum status status = engine_create(&c->engine, &options, simstore_store(c->store), &io, now, &err);
    if (status != STATUS_OK) c->engine = NULL;
    if (coordinator_over(c, status, &err)) return;
    simcheck_engine_started(c->check, c->engine, now);
    coordinator_poll(c);
}

void simcluster_coordinator_kill(struct simcluster *c, bool power)
{
    if (!c->finished)
        simcheck_note(c->check, simnet_now(c->net), "the coordinator is killed%s", power ? ", power cut" : "");
    engine_destroy(c->engine);
    c->engine = NULL;
    c->dying = false;
    c->die_in = 0;
    if (!c->finished) simnet_kill(c->net, SIMNET_LISTENER);
    simstore_crash(c->store, power, simnet_draw(c->net, UINT64_MAX));
    simcheck_engine_stopped(c->check, power);
}

/* ---- hooks of the network and the checker ------------------------------------------------------------------------ */

static void cluster_ready(void *ctx, int client)
{
    struct simcluster *c = ctx;
    if (client == SIMNET_LISTENER) {
        if (c->engine) coordinator_poll(c);
    } else {
        simworker_ready(&c->workers[client]);
    }
}

static int cluster_tap(void *ctx, enum simnet_moment moment, int client, bool to_client, const struct msg *m)
{
    struct simcluster *c = ctx;
    return simcheck_message(c->check, simnet_now(c->net), moment, client, to_client, m);
}

/* ---- faults by the clock ----------------------------------------------------------------------------------------- */

static void fault_kill(void *ctx, uint64_t arg)
{
    struct simcluster *c = ctx;
    int client = (int)(arg >> 1) - 1;
    if (client == SIMNET_LISTENER) {
        if (c->engine) simcluster_coordinator_kill(c, arg & 1);
    } else if (c->workers[client].up) {
        simworker_kill(&c->workers[client]);
    }
}

static void fault_start(void *ctx, uint64_t arg)
{
    struct simcluster *c = ctx;
    int client = (int)arg - 1;
    if (client == SIMNET_LISTENER) {
        if (!c->engine && !c->finished) simcluster_coordinator_start(c);
    } else if (!c->workers[client].up && !simworker_ended(&c->workers[client])) {
        simworker_start(&c->workers[client]);
    }
}

void simcluster_kill_at(struct simcluster *c, uint64_t at_us, int client, bool power)
{
    simnet_at(c->net, at_us, fault_kill, c, (uint64_t)(client + 1) << 1 | power);
}

static void fault_leave(void *ctx, uint64_t client)
{
    struct simworker *w = &((struct simcluster *)ctx)->workers[client];
    if (w->up && !w->frozen) simworker_leave(w);
}

void simcluster_leave_at(struct simcluster *c, uint64_t at_us, int client)
{
    simnet_at(c->net, at_us, fault_leave, c, (uint64_t)client);
}

void simcluster_start_at(struct simcluster *c, uint64_t at_us, int client)
{
    simnet_at(c->net, at_us, fault_start, c, (uint64_t)(client + 1));
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static enum status cluster_config(struct simcluster *c, const char *const *settings, struct err *err)
{
    struct config_sources sources;
    config_defaults(&c->config, &sources);
    log_set_level(LOG_ERROR); /* what it says about a configuration is not of interest */
    for (const char *const *s = small_config; *s; s++) TRY(config_set(&c->config, &sources, *s, CONFIG_FILE, err));
    for (const char *const *s = settings; s && *s; s++) TRY(config_set(&c->config, &sources, *s, CONFIG_FLAG, err));
    enum status status = config_resolve(&c->config, &sources, err);
    log_set_level(LOG_INFO);
    return status;
}

enum status simcluster_create(struct simcluster **c_p, const struct simcluster_setup *setup, struct err *err)
{
    struct simcluster *c = mem_alloc(1, sizeof(*c));
    if (!c) return STATUS_NOMEM;
    enum status status;
    c->entropy = setup->seed << 16;
    c->wake_us = c->revive_us = UINT64_MAX;
    c->n_workers = setup->n_workers;
    c->toy = (struct toy){
        .seed = 77,
        .train_samples = setup->train_samples ? setup->train_samples : 64,
        .val_samples = 24,
        .sample_tokens = 4, /* = model.block_size */
        .n_tensors = setup->n_tensors ? setup->n_tensors : 6,
        .scale = setup->scale ? setup->scale : 1,
    };
    TRY_GOTO(cluster_config(c, setup->config, err), err_cluster);
    c->toy.seed = c->config.run.seed;
    TRY_GOTO(simnet_create(&c->net, setup->seed, setup->n_workers), err_cluster);
    TRY_GOTO(simcheck_create(&c->check, setup->n_workers, &c->config, &c->toy, err), err_cluster);
    TRY_GOTO(simstore_create(&c->store, c->check, coordinator_alive, c), err_cluster);
    simnet_hooks(c->net, cluster_ready, cluster_tap, c);
    for (int i = 0; i < c->n_workers; i++) {
        simworker_init(&c->workers[i], c->net, c->check, &c->toy, i);
        *simnet_link(c->net, i) = (struct simnet_link){.latency_us = 20000, .jitter_us = 2000};
    }
    *c_p = c;
    return STATUS_OK;
err_cluster:
    simcluster_destroy(c);
    return status;
}

void simcluster_destroy(struct simcluster *c)
{
    if (!c) return;
    engine_destroy(c->engine);
    for (int i = 0; i < c->n_workers && c->workers[i].net; i++) simworker_finish(&c->workers[i]);
    simstore_destroy(c->store);
    simcheck_destroy(c->check);
    simnet_destroy(c->net);
    mem_free(c);
}

/* Who could not reach the coordinator before it was gone will ask for ever. */
static bool cluster_ended(const struct simcluster *c)
{
    bool all = true;
    for (int i = 0; i < c->n_workers; i++) all = all && !c->workers[i].up;
    return c->finished && (all || simnet_now(c->net) > c->result.end_us + 30000000);
}

bool simcluster_run(struct simcluster *c, uint64_t until_us)
{
    while (!simcheck_failure(c->check) && !cluster_ended(c) && simnet_step(c->net, until_us)) continue;
    return !simcheck_failure(c->check) && cluster_ended(c) && c->result.done;
}

void simcluster_explain(struct simcluster *c, FILE *out)
{
    char text[WIRE_TEXT_MAX];
    uint64_t now = simnet_now(c->net);
    simcheck_print(c->check, out);
    if (c->engine)
        fprintf(out, "  coordinator waits for: %s\n", engine_waiting(c->engine, text, sizeof(text)));
    else
        fprintf(out, "  coordinator is %s\n", c->finished ? "finished" : "down");
    for (int i = 0; i < c->n_workers; i++) {
        const struct simworker *w = &c->workers[i];
        if (w->up)
            fprintf(out, "  worker-%d: want %d, %s\n", i, outer_loop_want(w->loop), outer_loop_text(w->loop, now));
        else
            fprintf(out, "  worker-%d is down, said last: %s\n", i, w->last_text);
    }
    fprintf(out, "  virtual time %.3f s\n", (double)now / 1e6);
}
