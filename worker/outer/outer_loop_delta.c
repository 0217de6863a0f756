#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/pool.h"
#include "worker/outer/delta_host.h"
#include "worker/outer/outer_loop_impl.h"

enum { FAULTS_MAX = 3 };

static void anchor(struct outer_loop *loop, uint32_t fragment)
{
    const struct outer_fragment *f = &loop->f[fragment];
    if (loop->delta_device) delta_device_anchor(loop->delta_device, fragment, loop->theta + f->offset, f->hash);
}

/* As numbers, where they are; else it is on its way while other fragments are waited for. Who is catching up has many
 * updates before him, and sends what comes of them. */
void outer_anchor_update(struct outer_loop *loop, uint32_t fragment, uint64_t before, const struct update *u)
{
    const struct outer_fragment *f = &loop->f[fragment];
    enum worker_state state = loop->sync.state;
    if (!loop->delta_device || state == WORKER_TRAINING) return;
    bool numbers = f->down && u->form == UPDATE_INCREMENT && !strcmp(u->codec, codec_spec(f->down));
    if (numbers && delta_device_add(loop->delta_device, fragment, u->payload, u->payload_size, before, f->hash)) return;
    if (state == WORKER_SENDING || state == WORKER_WAITING) anchor(loop, fragment);
}

void outer_anchor_all(struct outer_loop *loop)
{
    for (uint32_t i = 0; i < loop->n_fragments; i++) anchor(loop, i);
}

enum status outer_residual_read(struct outer_loop *loop, uint32_t fragment)
{
    struct err err = {0};
    if (!loop->delta_device) return STATUS_OK;
    enum status status = delta_device_read_residual(loop->delta_device, fragment, &err);
    if (status != STATUS_OK) log_error("the residual of fragment %u cannot be read: %s", fragment, err.msg);
    return status;
}

void outer_residual_reset(struct outer_loop *loop, uint32_t fragment)
{
    outer_save_join(loop);
    feedback_reset(&loop->f[fragment].fb);
    assert(!loop->f[fragment].fb.pending);
    if (loop->delta_device) delta_device_residual_changed(loop->delta_device, fragment);
}

void outer_rollback(struct outer_loop *loop, uint32_t fragment)
{
    struct outer_fragment *f = &loop->f[fragment];
    if (!f->pending) return;
    outer_save_join(loop);
    f->pending = false;
    enum status status = outer_residual_read(loop, fragment);
    if (status == STATUS_OK) status = feedback_rollback(&f->fb, f->up, f->payload, f->payload_size);
    if (status == STATUS_OK && loop->delta_device) delta_device_residual_changed(loop->delta_device, fragment);
    if (status != STATUS_OK && status != STATUS_STATE) {
        log_error("fragment %u: own payload cannot be put back (%s): residual reset", fragment, status_text(status));
        outer_residual_reset(loop, fragment);
    }
    assert(!f->fb.pending);
}

void outer_drop_deltas(struct outer_loop *loop)
{
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        loop->f[i].pending = false;
        outer_residual_reset(loop, i);
    }
    loop->running.round = SYNC_NO_ROUND;
}

static void encoded(struct outer_fragment *f, double norm)
{
    f->norm = (float)norm;
    f->pending = true;
}

static enum status encode_fragment(struct outer_loop *loop, uint32_t i, const float *values)
{
    struct outer_fragment *f = &loop->f[i];
    double norm = delta_host(loop->model.pool, (enum delta_form)loop->form, loop->base + f->offset, values + f->offset,
                             loop->scratch, f->count);
    if (!isfinite((float)norm)) return STATUS_NONFINITE;
    TRY(feedback_encode(&f->fb, f->up, loop->model.pool, loop->scratch, f->payload, f->payload_cap, &f->payload_size));
    f->payload_crc = crc32c(0, f->payload, f->payload_size);
    encoded(f, norm);
    return STATUS_OK;
}

struct encoding {
    struct outer_loop *loop;
    double norm[LAYOUT_FRAGMENTS_MAX];
    enum status status[LAYOUT_FRAGMENTS_MAX];
};

/* Fragments have codecs of their own: each thread takes some. */
static void encode_some(void *ctx, int thread, int threads)
{
    struct encoding *e = ctx;
    for (uint32_t i = (uint32_t)thread; i < e->loop->n_fragments; i += (uint32_t)threads) {
        struct outer_fragment *f = &e->loop->f[i];
        const struct quantized_delta *numbers = delta_device_quantized(e->loop->delta_device, i, &e->norm[i]);
        e->status[i] = f->fb.pending ? STATUS_STATE : isfinite((float)e->norm[i]) ? STATUS_OK : STATUS_NONFINITE;
        if (e->status[i] != STATUS_OK) continue;
        e->status[i] = codec_encode_quantized(f->up, numbers, f->payload, f->payload_cap, &f->payload_size);
        if (e->status[i] == STATUS_OK) f->payload_crc = crc32c(0, f->payload, f->payload_size);
    }
}

/* The payloads of all fragments from numbers that the device made; residuals change when the last one is there. */
static enum status encode_made(struct outer_loop *loop)
{
    struct encoding e = {.loop = loop};
    struct err err = {0};
    enum status status = delta_device_make(loop->delta_device, &err);
    if (status != STATUS_OK && status != STATUS_NONFINITE) log_error("%s", err.msg);
    TRY(status);
    pool_run_if(loop->model.pool, true, encode_some, &e);
    for (uint32_t i = 0; i < loop->n_fragments; i++) TRY(e.status[i]);
    delta_device_keep_residuals(loop->delta_device);
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        assert(!loop->f[i].fb.pending);
        encoded(&loop->f[i], e.norm[i]);
        loop->f[i].fb.pending = true;
    }
    return STATUS_OK;
}

static enum status encode_all(struct outer_loop *loop, const float *values)
{
    if (loop->delta_device) return encode_made(loop);
    /* Before anything is encoded: a rollback would leave the finite fragments' deltas in their residuals. */
    if (!delta_host_finite(loop->model.pool, values, loop->n_params)) return STATUS_NONFINITE;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        enum status status = encode_fragment(loop, i, values);
        if (status == STATUS_OK) continue;
        for (uint32_t j = 0; j < i; j++) outer_rollback(loop, j);
        return status;
    }
    return STATUS_OK;
}

static void log_thrown_away(const struct outer_loop *loop, const char *text)
{
    log_error("%s: this round is thrown away%s", text,
              loop->model.inner.load ? ", the inner optimizer starts anew" : "");
}

void outer_reset_inner_opt(struct outer_loop *loop)
{
    loop->inner_spoilt = false;
    if (loop->model.inner.load && loop->model.inner.load(loop->model.inner.ctx, NULL, 0) != STATUS_OK)
        loop->faults = FAULTS_MAX;
}

static void give_up(struct outer_loop *loop)
{
    char text[200];
    snprintf(text, sizeof text, "training does not stay finite: %s", config_divergence_advice(loop->model.config));
    sync_fail(&loop->sync, text);
}

/* Nothing of a poisoned round is used: neither parameters nor moments. The lease goes back with LEAVE. */
static void fault(struct outer_loop *loop, uint64_t round, uint64_t now_us)
{
    char text[200];
    loop->faults++;
    snprintf(text, sizeof text, "NaN or infinity after round %" PRIu64 " (time %u in a row)", round + 1, loop->faults);
    log_thrown_away(loop, text);
    outer_reset_inner_opt(loop);
    if (loop->sync.phase == SYNC_JOINED) {
        memset(&loop->out, 0, sizeof loop->out);
        loop->out.type = MSG_LEAVE;
        loop->out.leave.session = loop->sync.session;
        snprintf(loop->out.leave.text, sizeof loop->out.leave.text, "%s", text);
        (void)outer_send(loop, WIRE_CONTROL);
    }
    sync_train_abandon(&loop->sync, now_us);
    if (loop->faults < FAULTS_MAX)
        sync_rejoin(&loop->sync, now_us);
    else
        give_up(loop);
}

void outer_drop_nonfinite_delta(struct outer_loop *loop, uint32_t fragment, uint64_t round)
{
    char text[200];
    loop->f[fragment].pending = false;
    outer_residual_reset(loop, fragment);
    if (loop->spoilt) return; /* by another fragment of this round */
    loop->spoilt = loop->inner_spoilt = true;
    loop->faults++;
    snprintf(text, sizeof text, "numbers too large after round %" PRIu64 " (time %u in a row)", round + 1,
             loop->faults);
    log_thrown_away(loop, text);
    if (loop->faults >= FAULTS_MAX) give_up(loop);
}

static uint8_t form_of(const struct outer_loop *loop)
{
    if (loop->model.config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    return loop->lossless && !loop->async ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
}

static void note_ready(struct outer_loop *loop, const struct outer_result *result, uint64_t round, uint64_t took_us,
                       uint64_t now_us)
{
    struct outer_times *t = &loop->running;
    assert(t->round == SYNC_NO_ROUND);
    t->round = round;
    t->compute_s = (double)result->compute_us / 1e6;
    t->compress_s = (double)(result->fetch_us + took_us) / 1e6;
    t->apply_s += (double)result->place_us / 1e6;
    t->send_s = t->wait_s = 0;
    loop->applied_s = t->apply_s;
    loop->sent_us = now_us + took_us;
    loop->delivered_us = 0;
}

/* Updates that came while it trained moved theta away from the device's anchor, which is free now: it follows while the
 * deltas are on their way, and what comes from here on goes up as numbers again. */
static void send_ahead(struct outer_loop *loop)
{
    enum worker_state state = loop->sync.state;
    if (!loop->async || (state != WORKER_SENDING && state != WORKER_WAITING)) return;
    uint64_t started = outer_stopwatch(loop);
    outer_anchor_all(loop);
    loop->running.apply_s += (double)(outer_stopwatch(loop) - started) / 1e6;
}

enum status outer_loop_train_done(struct outer_loop *loop, const struct outer_result *result, uint64_t now_us)
{
    if (loop->sync.state != WORKER_TRAINING) return STATUS_OK; /* revoked meanwhile */
    assert(loop->sync.round != SYNC_NO_ROUND && !loop->save.running);
    uint64_t round = loop->sync.round, started = outer_stopwatch(loop), bytes[LAYOUT_FRAGMENTS_MAX];
    loop->form = form_of(loop);
    loop->tokens = result->tokens;
    loop->steps = result->steps;
    loop->loss_sum = result->loss_sum;
    loop->compute_us = result->compute_us;
    enum status status = isfinite(result->loss_sum) ? encode_all(loop, result->values) : STATUS_NONFINITE;
    if (status == STATUS_NONFINITE) {
        fault(loop, round, now_us);
    } else if (status != STATUS_OK) {
        snprintf(loop->text, sizeof loop->text, "cannot encode the delta of round %" PRIu64 ": %s", round + 1,
                 status_text(status));
        sync_fail(&loop->sync, loop->text);
    } else {
        if (!loop->spoilt) loop->faults = 0;
        loop->spoilt = false;
        if (outer_save_due(loop, round)) outer_save_begin(loop, round, now_us);
        for (uint32_t i = 0; i < loop->n_fragments; i++) bytes[i] = loop->f[i].payload_size;
        sync_work_ready(&loop->sync, round, bytes, now_us);
        note_ready(loop, result, round, outer_stopwatch(loop) - started, now_us);
    }
    outer_loop_tick(loop, now_us);
    send_ahead(loop);
    return status;
}
