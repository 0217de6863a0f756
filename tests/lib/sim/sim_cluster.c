#include "tests/lib/sim/sim_cluster.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/settings.h"
#include "tests/lib/sim/sim_region.h"
#include "tests/lib/store/store_mem.h"

enum { REASSURE_FIRST_US = 100000, REASSURE_US = 500000 }; /* as coordinator/long_call.c */
enum { STEPS_MAX = 2000000 };                              /* a hundred times the steps of a long run */

/* Small defaults: a round takes one virtual second, a run about a dozen rounds. */
static const char *const small_config[] = {
    "run.name=sim",        "run.seed=5",
    "train.method=diloco", "train.max_steps=24",
    "train.sync_every=4",  "train.batch_size=2",
    "train.eval_every=2",  "train.eval_tokens=64",
    "train.fragments=1",   "codec.up=fp32",
    "codec.down=fp32",     "checkpoint.every=3",
    "checkpoint.keep=2",   "inner.warmup_steps=0",
    "inner.optimizer=sgd", /* without clipping: the toy's deltas have no bound */
    "inner.grad_clip=0",   "coordinator.min_workers=1",
    "model.block_size=4",  NULL,
};

/* ---- the coordinator process ------------------------------------------------------------------------------------- */

static void coordinator_poll(struct sim_cluster *c);

/* Counts an operation that other processes can see. False if the process is dead. */
static bool coordinator_alive(void *ctx)
{
    struct sim_cluster *c = ctx;
    if (c->dying) return false;
    c->operations++;
    if (c->die_in > 0 && --c->die_in == 0) {
        sim_check_note(c->check, sim_net_now(c->net), "the coordinator is killed in operation %ld", c->operations);
        c->dying = true;
    }
    return !c->dying;
}

static void store_appended(void *ctx, const struct store_part *parts, size_t n)
{
    struct sim_cluster *c = ctx;
    if (c->busy && !c->working) sim_check_fail(c->check, "the journal grows beside long work");
    sim_check_store_appended(c->check, parts, n);
}

static void store_synced(void *ctx)
{
    sim_check_store_synced(((struct sim_cluster *)ctx)->check);
}

static enum status coordinator_send(void *ctx, uint64_t peer, enum wire_lane lane, const struct msg *m)
{
    struct sim_cluster *c = ctx;
    bool beats = m->type == MSG_HEARTBEAT_ACK && !m->heartbeat_ack.sent_us;
    bool reassures = (beats || m->type == MSG_UPLOAD) && !c->working; /* engine_reassure */
    if (c->busy && !reassures) sim_check_fail(c->check, "%s is sent during long work", msg_name(m->type));
    if (!coordinator_alive(c)) return STATUS_CLOSED;
    return sim_send(c->transport, peer, lane, m);
}

/* ---- the folder of a run whose restarts have other settings ------------------------------------------------------ */

static FILE *folder_open(const struct sim_cluster *c, const char *name, const char *how)
{
    char path[64];
    snprintf(path, sizeof path, "%s/%s", c->folder, name);
    FILE *f = fopen(path, how);
    assert(f);
    return f;
}

static void folder_remove(const struct sim_cluster *c)
{
    static const char *const names[] = {"config.yaml", "metrics.jsonl"};
    char path[64];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", c->folder, names[i]);
        unlink(path);
    }
    rmdir(c->folder);
}

/* As atoll_coordinator_main.c and server.c. */
static void choose_settings(struct sim_cluster *c, struct config *config)
{
    struct config_sources sources = {0};
    *config = c->config;
    if (c->workers_most && c->starts > 1)
        config->coordinator.min_workers = 1 + (uint32_t)sim_net_draw(c->net, c->workers_most);
    sim_check_workers_of_budget(c->check, config->coordinator.min_workers);
    if (!c->workers_most) return;
    if (!c->folder[0]) {
        snprintf(c->folder, sizeof c->folder, "/tmp/atoll-sim-XXXXXX");
        if (!mkdtemp(c->folder)) abort();
    }
    settings_keep_budget(config, c->folder);
    FILE *f = folder_open(c, "config.yaml", "w");
    config_print(config, &sources, f);
    fclose(f);
}

static void note_round(const struct sim_cluster *c, uint64_t round)
{
    if (!c->folder[0]) return;
    FILE *f = folder_open(c, "metrics.jsonl", "a");
    fprintf(f, "{\"event\":\"round\",\"round\":%llu}\n", (unsigned long long)round);
    fclose(f);
}

static void coordinator_event(void *ctx, const struct engine_event *event)
{
    struct sim_cluster *c = ctx;
    if (c->dying) return;
    if (event->kind == ENGINE_EVENT_ROUND) note_round(c, event->round.round);
    sim_check_event(c->check, sim_net_now(c->net), event);
}

static void coordinator_bytes(void *ctx, struct engine_bytes *out)
{
    struct sim_cluster *c = ctx;
    *out = (struct engine_bytes){0};
    c->transport->ops->bytes(c->transport, &out->down, &out->up);
}

/* Most pieces of work are short. */
static uint64_t draw_long(struct sim_cluster *c)
{
    uint64_t r = sim_net_draw(c->net, 32);
    return r > 2 ? 0 : sim_net_draw(c->net, r ? c->long_us / 10 : c->long_us);
}

/* Lets the others go on for so long, or until the coordinator is killed. */
static void pass_time(struct sim_cluster *c, uint64_t us, uint64_t *reassure_us)
{
    uint64_t until = sim_net_now(c->net) + us;
    while (!c->dying && !sim_check_failure(c->check) && sim_net_now(c->net) < until) {
        uint64_t at = *reassure_us < until ? *reassure_us : until;
        while (!c->dying && sim_cluster_step(c, at)) continue;
        if (c->dying || sim_net_now(c->net) < *reassure_us) continue;
        engine_reassure(c->engine);
        *reassure_us += REASSURE_US;
    }
}

static void coordinator_meanwhile(void *ctx, uint64_t bytes, void (*work)(void *arg), void *arg)
{
    struct sim_cluster *c = ctx;
    uint64_t us = c->long_us && c->started && !c->dying ? draw_long(c) : 0;
    uint64_t before = us ? sim_net_draw(c->net, us) : 0, reassure_us = sim_net_now(c->net) + REASSURE_FIRST_US;
    const uint64_t begin_us = sim_net_now(c->net);
    (void)bytes;
    if (c->busy) sim_check_fail(c->check, "long work begins in long work");
    if (us) sim_check_note(c->check, sim_net_now(c->net), "long work for %.3f s", (double)us / 1e6);
    c->long_works += us > 0;
    c->busy = true;
    pass_time(c, before, &reassure_us);
    c->working = true;
    work(arg);
    c->working = false;
    pass_time(c, us - before, &reassure_us);
    c->busy = false;
    sim_check_worked(c->check, begin_us, sim_net_now(c->net));
}

static void coordinator_started_by(void *ctx, uint64_t starts)
{
    struct sim_cluster *c = ctx;
    if (!c->engine && !c->finished && c->starts == starts) sim_cluster_coordinator_start(c);
}

/* Ends a call of the engine. True if the process ended too. */
bool sim_cluster_over(struct sim_cluster *c, enum status status, const struct err *err)
{
    bool gives_up = status != STATUS_OK && !c->dying;
    if (status == STATUS_OK && !c->dying) return false;
    if (gives_up) {
        c->gave_up++;
        sim_check_note(c->check, sim_net_now(c->net), "the coordinator exits: %s", err->msg);
        if (!c->may_give_up) sim_check_fail(c->check, "the coordinator exits: %s (%s)", err->msg, status_text(status));
    }
    sim_cluster_coordinator_kill(c, c->die_by_power && !gives_up);
    if (c->revive_us != UINT64_MAX)
        sim_net_at(c->net, sim_net_now(c->net) + c->revive_us, coordinator_started_by, c, c->starts);
    return true;
}

static void coordinator_woken(void *ctx, uint64_t at_us)
{
    struct sim_cluster *c = ctx;
    if (!c->engine || c->busy || c->wake_us != at_us) return;
    c->wake_us = UINT64_MAX;
    coordinator_poll(c);
}

void sim_cluster_poke(struct sim_cluster *c)
{
    c->wake_us = sim_net_now(c->net);
    sim_net_at(c->net, c->wake_us, coordinator_woken, c, c->wake_us);
}

static void coordinator_finish(struct sim_cluster *c)
{
    struct engine_summary summary;
    uint64_t now = sim_net_now(c->net);
    engine_summary(c->engine, &summary);
    c->finished = true;
    c->result = (struct sim_cluster_result){
        .done = summary.done,
        .theta_hash = summary.theta_hash,
        .rounds = summary.rounds,
        .samples_committed = engine_samples_committed(c->engine),
        .restarts = summary.restarts,
        .end_us = now,
        .final_val_loss = summary.final_val_loss,
    };
    sim_check_note(c->check, now, "the coordinator finished");
    sim_check_finished(c->check, c->engine);
    sim_cluster_coordinator_kill(c, false);
}

static void coordinator_poll(struct sim_cluster *c)
{
    uint64_t now = sim_net_now(c->net), peer;
    enum wire_lane lane;
    const uint8_t *data;
    size_t size;
    struct err err = {0};
    if (c->busy) return;
    while (c->transport->ops->recv(c->transport, 0, &peer, &lane, &data, &size) == STATUS_OK) {
        struct msg m;
        now = sim_net_now(c->net);
        sim_check_clock(c->check, now);
        enum status status = msg_decode(&m, data, size, &err);
        assert(status == STATUS_OK);
        if (admission_message(c->engine, peer + 1, peer, lane, data, size, now) != ADMISSION_ADMIT)
            sim_check_fail(c->check, "%s of an honest worker is above its limit", msg_name(m.type));
        status = engine_on_message(c->engine, peer, lane, &m, now, &err);
        if (sim_cluster_over(c, status, &err)) return;
        now = sim_net_now(c->net);
        sim_check_engine(c->check, c->engine, now);
    }
    sim_check_clock(c->check, now);
    enum status status = engine_tick(c->engine, now, &err);
    if (sim_cluster_over(c, status, &err)) return;
    now = sim_net_now(c->net);
    sim_check_engine(c->check, c->engine, now);
    if (engine_finished(c->engine)) {
        coordinator_finish(c);
        return;
    }
    uint64_t at = engine_next_deadline_us(c->engine);
    if (at <= now) at = now + 100;
    if (c->region) sim_region_ready(c->region);
    if (!c->engine || at == UINT64_MAX || (c->wake_us > now && c->wake_us <= at)) return;
    c->wake_us = at;
    sim_net_at(c->net, at, coordinator_woken, c, at);
}

void sim_cluster_coordinator_start(struct sim_cluster *c)
{
    struct config config;
    assert(!c->engine);
    uint64_t now = sim_net_now(c->net);
    c->starts++;
    c->dying = false;
    c->wake_us = UINT64_MAX;
    c->transport = sim_net_up(c->net, SIM_NET_LISTENER);
    static const uint64_t held_most[] = {0, 1000, 4000, 1 << 20};
    struct engine_options options = {.config = &config,
                                     .entropy = c->entropy + c->starts,
                                     .rounds_reported = sim_check_rounds_reported(c->check),
                                     .region = c->region != NULL,
                                     .held_most = held_most[c->entropy % 4],
                                     .chunks_most = c->entropy / 4 % 2 << 20};
    struct engine_io io = {.ctx = c,
                           .send = coordinator_send,
                           .event = coordinator_event,
                           .bytes = coordinator_bytes,
                           .meanwhile = coordinator_meanwhile};
    struct err err = {0};
    sim_check_note(c->check, now, "the coordinator started");
    choose_settings(c, &config);
    enum status status = engine_create(&c->engine, &options, c->store, &io, now, &err);
    if (status != STATUS_OK) c->engine = NULL;
    if (sim_cluster_over(c, status, &err)) return;
    c->started = true;
    sim_check_engine_started(c->check, c->engine, now);
    if (c->region) sim_region_engine_started(c->region);
    coordinator_poll(c);
}

void sim_cluster_coordinator_kill(struct sim_cluster *c, bool power)
{
    if (!c->finished)
        sim_check_note(c->check, sim_net_now(c->net), "the coordinator is killed%s", power ? ", power cut" : "");
    if (c->region) sim_region_engine_stopped(c->region);
    engine_destroy(c->engine);
    c->engine = NULL;
    c->started = c->dying = false;
    c->die_in = 0;
    if (!c->finished) sim_net_kill(c->net, SIM_NET_LISTENER);
    store_mem_crash(c->store, power, sim_net_draw(c->net, UINT64_MAX));
    sim_check_engine_stopped(c->check, power);
}

/* ---- hooks of the network and the checker ------------------------------------------------------------------------ */

static void cluster_ready(void *ctx, int client)
{
    struct sim_cluster *c = ctx;
    if (client == SIM_NET_LISTENER) {
        if (c->engine) coordinator_poll(c);
    } else if (c->regions[client]) {
        sim_region_ready(c->regions[client]);
    } else {
        sim_worker_ready(&c->workers[client]);
    }
}

static int cluster_tap(void *ctx, enum sim_net_moment moment, int client, bool to_client, const struct msg *m)
{
    struct sim_cluster *c = ctx;
    return sim_check_message(c->check, sim_net_now(c->net), moment, client, to_client, m);
}

/* ---- scheduled faults -------------------------------------------------------------------------------------------- */

/* Every second time that the process ends without a power cut, the operator stops it in order. During long work it is
 * killed. */
static void stop_coordinator(struct sim_cluster *c, bool power)
{
    struct err err = {0};
    if (c->busy) {
        c->die_by_power = power;
        c->dying = true;
        return;
    }
    if (!power && c->starts % 2) {
        sim_check_note(c->check, sim_net_now(c->net), "the coordinator stops in order");
        c->stopping = true;
        if (engine_stop(c->engine, &err) != STATUS_OK && !c->dying)
            sim_check_fail(c->check, "the coordinator cannot stop: %s", err.msg);
        c->stopping = false;
    }
    sim_cluster_coordinator_kill(c, power);
    if (c->start_missed) sim_cluster_coordinator_start(c);
    c->start_missed = false;
}

static void fault_kill(void *ctx, uint64_t arg)
{
    struct sim_cluster *c = ctx;
    int client = (int)(arg >> 1) - 1;
    if (client == SIM_NET_LISTENER) {
        if (c->engine) stop_coordinator(c, arg & 1);
    } else if (c->workers[client].up) {
        sim_worker_kill(&c->workers[client]);
    }
}

static void fault_start(void *ctx, uint64_t arg)
{
    struct sim_cluster *c = ctx;
    int client = (int)arg - 1;
    if (client == SIM_NET_LISTENER) {
        if (!c->engine && !c->finished) sim_cluster_coordinator_start(c);
        c->start_missed = c->stopping; /* the long work of the stop takes longer than the pause */
    } else if (!c->workers[client].up && !sim_worker_ended(&c->workers[client])) {
        sim_worker_start(&c->workers[client]);
    }
}

void sim_cluster_kill_at(struct sim_cluster *c, uint64_t at_us, int client, bool power)
{
    sim_net_at(c->net, at_us, fault_kill, c, (uint64_t)(client + 1) << 1 | power);
}

static void fault_leave(void *ctx, uint64_t client)
{
    struct sim_worker *w = &((struct sim_cluster *)ctx)->workers[client];
    if (w->up && !w->frozen) sim_worker_leave(w);
}

void sim_cluster_leave_at(struct sim_cluster *c, uint64_t at_us, int client)
{
    sim_net_at(c->net, at_us, fault_leave, c, (uint64_t)client);
}

void sim_cluster_start_at(struct sim_cluster *c, uint64_t at_us, int client)
{
    sim_net_at(c->net, at_us, fault_start, c, (uint64_t)(client + 1));
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

static enum status cluster_config(struct sim_cluster *c, const char *const *settings, struct err *err)
{
    struct config_sources sources;
    config_defaults(&c->config, &sources);
    log_set_level(LOG_ERROR); /* warnings about the configuration are irrelevant here */
    for (const char *const *s = small_config; *s; s++) TRY(config_set(&c->config, &sources, *s, CONFIG_FILE, err));
    for (const char *const *s = settings; s && *s; s++) TRY(config_set(&c->config, &sources, *s, CONFIG_FLAG, err));
    enum status status = config_resolve(&c->config, &sources, err);
    log_set_level(LOG_INFO);
    return status;
}

enum status sim_cluster_create(struct sim_cluster **c_p, const struct sim_cluster_setup *setup, struct err *err)
{
    struct sim_cluster *c = mem_alloc(1, sizeof(*c));
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
    TRY_GOTO(sim_net_create(&c->net, setup->seed, setup->n_workers), err_cluster);
    if (setup->upstream) sim_net_share_clock(c->net, setup->upstream->net);
    TRY_GOTO(sim_check_create(&c->check, setup->n_workers, &c->config, &c->toy, err), err_cluster);
    TRY_GOTO(store_mem_create(&c->store), err_cluster);
    store_mem_watch(c->store, &(struct store_mem_watch){coordinator_alive, store_appended, store_synced, c});
    sim_net_hooks(c->net, cluster_ready, cluster_tap, c);
    for (int i = 0; i < c->n_workers; i++) {
        sim_worker_init(&c->workers[i], c->net, c->check, &c->toy, i);
        *sim_net_link(c->net, i) = (struct sim_net_link){.latency_us = 20000, .jitter_us = 2000};
    }
    *c_p = c;
    return STATUS_OK;
err_cluster:
    sim_cluster_destroy(c);
    return status;
}

void sim_cluster_destroy(struct sim_cluster *c)
{
    if (!c) return;
    engine_destroy(c->engine);
    for (int i = 0; i < c->n_workers && c->workers[i].net; i++) sim_worker_finish(&c->workers[i]);
    store_mem_destroy(c->store);
    sim_check_destroy(c->check);
    sim_net_destroy(c->net);
    if (c->folder[0]) folder_remove(c);
    mem_free(c);
}

/* A worker that cannot reach the finished coordinator retries without limit, so the run ends after a timeout. */
static bool cluster_ended(const struct sim_cluster *c)
{
    bool all = true;
    for (int i = 0; i < c->n_workers; i++) all = all && !c->workers[i].up;
    return c->finished && (all || sim_net_now(c->net) > c->result.end_us + 30000000);
}

/* A process whose deadline never moves would be polled every 100 us: such a run would last for many minutes. */
bool sim_cluster_step(struct sim_cluster *c, uint64_t until_us)
{
    if (c->steps++ == STEPS_MAX) sim_check_fail(c->check, "%d steps: a process is polled without progress", STEPS_MAX);
    return !sim_check_failure(c->check) && sim_net_step(c->net, until_us);
}

bool sim_cluster_run(struct sim_cluster *c, uint64_t until_us)
{
    while (!cluster_ended(c) && sim_cluster_step(c, until_us)) continue;
    return !sim_check_failure(c->check) && cluster_ended(c) && c->result.done;
}

void sim_cluster_explain(struct sim_cluster *c, FILE *out)
{
    char text[WIRE_TEXT_MAX];
    uint64_t now = sim_net_now(c->net);
    sim_check_print(c->check, out);
    if (c->engine)
        fprintf(out, "  coordinator waits for: %s\n", engine_waiting(c->engine, text, sizeof(text)));
    else
        fprintf(out, "  coordinator is %s\n", c->finished ? "finished" : "down");
    for (int i = 0; i < c->n_workers; i++) {
        const struct sim_worker *w = &c->workers[i];
        if (w->up)
            fprintf(out, "  worker-%d: want %d, %s\n", i, outer_loop_want(w->loop), outer_loop_text(w->loop, now));
        else
            fprintf(out, "  worker-%d is down, last status: %s\n", i, w->last_text);
    }
    fprintf(out, "  virtual time %.3f s\n", (double)now / 1e6);
}
