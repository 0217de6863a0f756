#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/region/region_impl.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/config/config_resolve.h"
#include "coordinator/ledger/delta_read.h"
#include "coordinator/ledger/record.h"

enum {
    WAIT_US = 20000,    /* between two looks at the region while it trains */
    IDLE_US = 60000000, /* without a worker for this long, the region leaves the run upstream */

};

/* --- asking the main loop ----------------------------------------------------------------------------------------- */

/* False: the main loop ends. */
static bool answered(struct region *r, struct region_ask *ask)
{
    pthread_mutex_lock(&r->lock);
    r->ask = *ask;
    r->wake(r->wake_ctx);
    while (r->ask.what != ASK_NOTHING && !r->stop) pthread_cond_wait(&r->changed, &r->lock);
    bool done = r->ask.what == ASK_NOTHING;
    *ask = r->ask;
    r->ask.what = ASK_NOTHING;
    pthread_mutex_unlock(&r->lock);
    return done;
}

static bool port_event(void *ctx, const struct engine_upstream *event)
{
    struct region_ask ask = {.what = ASK_EVENT, .event = event};
    return answered(ctx, &ask);
}

static bool port_jump(void *ctx, const struct engine_upstream *event, bool *known_p)
{
    struct region_ask ask = {.what = ASK_JUMP, .event = event};
    bool done = answered(ctx, &ask);
    *known_p = ask.yes;
    return done;
}

static bool port_values(void *ctx, uint64_t round, float *values, struct delta_sum *sum, bool *sealed_p)
{
    struct region *r = ctx;
    struct region_ask ask = {.what = ASK_VALUES, .round = round, .values = values, .sum = sum};
    pthread_mutex_lock(&r->lock);
    bool sealed = r->sealed == round + 1, stop = r->stop;
    pthread_mutex_unlock(&r->lock);
    *sealed_p = false;
    if (!sealed || stop) return !stop;
    bool done = answered(r, &ask);
    *sealed_p = ask.yes;
    return done;
}

static bool port_evaluated(void *ctx, struct msg_eval_result *result, bool *done_p)
{
    struct region_ask ask = {.what = ASK_RESULT, .result = result};
    bool done = answered(ctx, &ask);
    *done_p = ask.yes;
    return done;
}

static uint32_t port_workers(void *ctx)
{
    struct region *r = ctx;
    pthread_mutex_lock(&r->lock);
    uint32_t workers = r->workers;
    pthread_mutex_unlock(&r->lock);
    return workers;
}

/* --- the session -------------------------------------------------------------------------------------------------- */

static bool on_update(void *ctx, const uint8_t *object, size_t size, bool taken, bool named)
{
    return region_loop_update(&((struct region *)ctx)->loop, object, size, taken, named);
}

/* The region's workers have these settings from its own coordinator: both must be the same. */
static enum status same_settings(struct region *r, const struct msg_config *m, struct err *err)
{
    struct config_sources sources;
    config_defaults(&r->config, &sources);
    TRY(config_parse(&r->config, &sources, m->text, strlen(m->text), "settings of the run upstream", CONFIG_COORDINATOR,
                     err));
    TRY(worker_session_check_run(&r->options, m->run_id, r->config.run.name, err));
    TRY(config_resolve(&r->config, &sources, err));
    TRY(region_check(&r->config, err));
    if (config_run_hash(&r->config) == r->config_hash) return STATUS_OK;
    return err_set(
        err, STATUS_INVALID,
        "the run upstream has other settings than this region: if --change gave it one, give this region the "
        "same --change");
}

static enum status on_settings(void *ctx, const struct msg_config *m, struct err *err)
{
    return same_settings(ctx, m, err);
}

static enum status on_config(void *ctx, const struct msg_config *m, struct outer_model *model, struct err *err)
{
    struct region *r = ctx;
    const struct engine_region_model *own = &r->model;
    TRY(same_settings(r, m, err));
    /* A delta that the state lacks goes back to the region's workers. */
    snprintf(r->config.checkpoint.worker_every, sizeof r->config.checkpoint.worker_every, "1");
    r->values = mem_alloc(own->layout->n_params, sizeof *r->values);
    if (!r->values) return err_set(err, STATUS_NOMEM, "no memory for the deltas of this region");
    r->loop.values = r->values;
    r->loop.config = &r->config;
    r->loop.n_fragments = own->layout->n_fragments;
    r->loop.sample_tokens = own->record->sample_tokens;
    *model = (struct outer_model){.config = &r->config,
                                  .layout = own->layout,
                                  .train_hash = own->record->train_hash,
                                  .train_samples = own->record->train_samples,
                                  .val_hash = own->record->val_hash,
                                  .val_samples = own->record->val_samples,
                                  .sample_tokens = own->record->sample_tokens,
                                  .ranks = 1,
                                  .devices = "a region",
                                  .model_config = own->config,
                                  .frozen = own->frozen,
                                  .pool = r->pool};
    return STATUS_OK;
}

static enum status open_session(struct region *r, struct err *err)
{
    r->options.host_ctx = r;
    r->options.on_config = on_config;
    r->options.on_settings = on_settings;
    r->options.on_update = on_update;
    r->loop = (struct region_loop){.port = {r, port_event, port_jump, port_values, port_evaluated, port_workers}};
    TRY(region_resolve(r, err));
    TRY(worker_session_open(&r->session, &r->options, err));
    r->loop.loop = worker_session_loop(r->session);
    return worker_session_dial(r->session, err);
}

static void close_session(struct region *r)
{
    worker_session_close(r->session);
    mem_free(r->values);
    r->session = NULL;
    r->values = NULL;
}

/* What the region waits for upstream: the main loop shows it. */
static void note_wait(struct region *r)
{
    char others[WIRE_TEXT_MAX];
    uint64_t now = clock_monotonic_us();
    const char *text = outer_loop_text(r->loop.loop, now);
    heartbeat_waiting_for(outer_loop_heartbeat(r->loop.loop), now, others);
    pthread_mutex_lock(&r->lock);
    snprintf(r->waits, sizeof r->waits, "%.500s%s%.400s", text, others[0] ? "; it waits for " : "", others);
    pthread_mutex_unlock(&r->lock);
}

/* The coordinator of the run upstream has exited. */
static enum status end(struct region *r, bool *over_p)
{
    const struct engine_upstream done = {.kind = UPSTREAM_DONE};
    (void)port_event(r, &done);
    *over_p = true;
    return STATUS_OK;
}

/* One turn of the session. *over_p: the run upstream is done. */
static enum status serve(struct region *r, bool *over_p, struct err *err)
{
    struct outer_loop *loop = r->loop.loop;
    enum status status = worker_session_wait(r->session, WAIT_US, err);
    if (status == STATUS_END) return end(r, over_p);
    TRY(status);
    region_loop_turn(&r->loop, clock_monotonic_us());
    note_wait(r);
    enum outer_want want = outer_loop_want(loop);
    if (want != OUTER_WAIT) worker_session_worked(r->session);
    if (want == OUTER_FAILED && !r->loop.ended) return worker_session_failure(r->session, err);
    *over_p = want == OUTER_DONE;
    return STATUS_OK;
}

/* --- the thread --------------------------------------------------------------------------------------------------- */

/* The region is upstream from its first worker on, and while it has one or a delta to deliver. Waits a moment; false:
 * the main loop ends. */
static bool is_needed(struct region *r, uint64_t *idle_us, bool *needed_p)
{
    struct timespec at;
    pthread_mutex_lock(&r->lock);
    bool needed = r->modelled && (!r->loaded || r->workers || r->sealed), stop = r->stop;
    if (!stop && !needed && !r->session) {
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_sec++;
        pthread_cond_timedwait(&r->changed, &r->lock, &at);
    }
    pthread_mutex_unlock(&r->lock);
    uint64_t now = clock_monotonic_us();
    if (needed) *idle_us = 0;
    if (!needed && !*idle_us) *idle_us = now;
    *needed_p = needed || (r->session && now - *idle_us < IDLE_US);
    return !stop;
}

static enum status take_part(struct region *r, struct err *err)
{
    uint64_t idle_us = 0;
    bool needed, over = false;
    while (!over && !r->loop.ended && is_needed(r, &idle_us, &needed)) {
        enum status status = !r->session && needed ? open_session(r, err) : STATUS_OK;
        TRY(status == STATUS_END ? end(r, &over) : status);
        if (r->session && !needed) {
            log_info("leaving the run upstream: no worker is here");
            worker_session_leave(r->session, "its region has no worker");
            close_session(r);
        }
        if (r->session && !over) TRY(serve(r, &over, err));
    }
    if (over && r->session) worker_session_leave(r->session, "done");
    return STATUS_OK;
}

static void *thread_main(void *arg)
{
    struct region *r = arg;
    struct err err = {0};
    enum status status = take_part(r, &err);
    close_session(r);
    pthread_mutex_lock(&r->lock);
    if (status != STATUS_OK && !r->stop) {
        r->failed = true;
        r->err = err;
        r->err.code = status;
        r->wake(r->wake_ctx);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static enum status start(struct region *r, const struct config *config, void (*wake)(void *ctx), void *wake_ctx,
                         struct err *err)
{
    int threads = config->coordinator.threads ? (int)config->coordinator.threads : pool_cores(8);
    r->wake = wake;
    r->wake_ctx = wake_ctx;
    r->config_hash = config_run_hash(config);
    if (threads > 1 && pool_create(threads, POOL_FLOATS_EXACT, &r->pool) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "cannot start %d threads: set coordinator.threads", threads);
    if (pthread_create(&r->thread, NULL, thread_main, r) != 0)
        return err_set(err, STATUS_NOMEM, "cannot start a thread for the run upstream");
    r->started = true;
    return STATUS_OK;
}

void region_close(struct region *r)
{
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (r->started) pthread_join(r->thread, NULL);
    if (r->dir_open) worker_dir_close(&r->dir);
    pool_destroy(r->pool);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    explicit_bzero(&r->options.self.key, sizeof r->options.self.key);
    mem_free(r);
}

/* --- the main loop ------------------------------------------------------------------------------------------------ */

/* The client's thread waits: what it asks with stays as it is. */
static enum status answer(struct region_ask *ask, struct engine *e, uint64_t now_us, struct err *err)
{
    if (ask->what == ASK_VALUES) {
        ask->yes = engine_region_sealed(e, ask->round);
        return ask->yes ? engine_region_values(e, ask->values, ask->sum, err) : STATUS_OK;
    }
    if (ask->what == ASK_RESULT) {
        ask->yes = engine_region_evaluated(e, ask->result);
        return STATUS_OK;
    }
    TRY(engine_on_upstream(e, ask->event, now_us, err));
    if (ask->what == ASK_JUMP) ask->yes = engine_region_knows(e, ask->event->versions, ask->event->theta);
    return STATUS_OK;
}

static void show(struct region *r, struct engine *e)
{
    uint64_t round;
    r->modelled = engine_region_model(e, &r->model);
    r->loaded = engine_region_loaded(e);
    r->workers = engine_region_workers(e);
    r->sealed = engine_region_round(e, &round) ? round + 1 : 0;
    engine_region_waits(e, r->waits);
    pthread_cond_broadcast(&r->changed);
}

static enum status turn(struct region *r, struct engine *e, uint64_t now_us, struct err *err)
{
    pthread_mutex_lock(&r->lock);
    struct region_ask ask = r->ask;
    bool failed = r->failed;
    if (failed) *err = r->err;
    pthread_mutex_unlock(&r->lock);
    if (failed) return err->code;
    enum status status = ask.what ? answer(&ask, e, now_us, err) : STATUS_OK;
    pthread_mutex_lock(&r->lock);
    if (ask.what && status == STATUS_OK) {
        r->ask = ask;
        r->ask.what = ASK_NOTHING;
    }
    show(r, e);
    pthread_mutex_unlock(&r->lock);
    return status;
}

const struct region_upstream region_upstream = {region_find, region_check, start, turn, region_close};
