#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/pool.h"
#include "common/tensor/sum_squares.h"
#include "worker/outer/delta_host.h"
#include "worker/outer/outer_loop_impl.h"

enum { FAULTS_MAX = 3 };

static void anchor(struct outer_loop *loop, uint32_t fragment)
{
    const struct outer_fragment *f = &loop->f[fragment];
    if (loop->delta_device) delta_device_anchor(loop->delta_device, fragment, loop->theta + f->offset, f->hash);
}

/* Sends the update's quantized values if the device holds the matching anchor. Otherwise uploads the fragment while
 * other fragments arrive. While catching up it uploads nothing: outer_anchor_all uploads the final anchor once. */
void outer_anchor_update(struct outer_loop *loop, uint32_t fragment, uint64_t before, const struct update *u)
{
    const struct outer_fragment *f = &loop->f[fragment];
    enum worker_state state = loop->sync.state;
    if (!loop->delta_device || loop->sync.computing) return;
    bool quantized = f->down && u->form == UPDATE_INCREMENT && !strcmp(u->codec, codec_spec(f->down));
    if (quantized && delta_device_add(loop->delta_device, fragment, u->payload, u->payload_size, before, f->hash))
        return;
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
    if (status != STATUS_OK) log_error("cannot read the residual of fragment %u: %s", fragment, err.msg);
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
    if (status == STATUS_OK) status = feedback_rollback(&f->fb, f->up, f->payload + f->head, f->payload_size - f->head);
    if (status == STATUS_OK && loop->delta_device) delta_device_residual_changed(loop->delta_device, fragment);
    if (status != STATUS_OK && status != STATUS_STATE) {
        log_error("fragment %u: reset the residual, cannot roll back the payload: %s", fragment, status_text(status));
        outer_residual_reset(loop, fragment);
    }
    assert(!f->fb.pending);
}

static void leave_round(struct outer_loop *loop)
{
    loop->running.round = SYNC_NO_ROUND;
    loop->window = (struct outer_window){0};
    loop->fresh = true;
}

void outer_drop_deltas(struct outer_loop *loop)
{
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        loop->f[i].pending = false;
        outer_residual_reset(loop, i);
    }
    leave_round(loop);
}

void outer_return_deltas(struct outer_loop *loop)
{
    outer_save_join(loop);
    for (uint32_t i = 0; i < loop->n_fragments; i++) outer_rollback(loop, i);
    leave_round(loop);
}

static void mark_encoded(struct outer_fragment *f, double norm)
{
    f->norm = (float)norm;
    f->pending = true;
}

/* Makes the payload, in place where no copy is needed. values [count]: trained parameters; where the program adds its
 * changes to the residual, that residual. */
static enum status make_payload(struct outer_loop *loop, uint32_t i, const float *values, double *norm_p)
{
    struct outer_fragment *f = &loop->f[i];
    struct pool *pool = loop->model.pool;
    uint8_t *dst = f->payload + f->head;
    size_t cap = f->payload_cap - f->head;
    if (f->fb.lent) {
        *norm_p = sqrt(sum_squares(pool, values, f->count));
        if (!isfinite((float)*norm_p)) return STATUS_NONFINITE;
        return feedback_encode_in_place(&f->fb, f->up, pool, dst, cap, &f->payload_size);
    }
    float *copy = f->copied ? loop->scratch : NULL;
    *norm_p = delta_host(pool, (enum delta_form)f->form, loop->base + f->offset, values, copy, f->count);
    if (!isfinite((float)*norm_p)) return STATUS_NONFINITE;
    if (!copy) return feedback_encode_plain(&f->fb, f->up, pool, values, dst, cap, &f->payload_size);
    return feedback_encode(&f->fb, f->up, pool, copy, dst, cap, &f->payload_size);
}

static enum status encode_fragment(struct outer_loop *loop, uint32_t i, const float *values)
{
    struct outer_fragment *f = &loop->f[i];
    double norm;
    TRY(make_payload(loop, i, values + f->offset, &norm));
    f->payload_size += f->head;
    f->payload_crc = crc32c(0, f->payload, f->payload_size);
    mark_encoded(f, norm);
    return STATUS_OK;
}

struct encode_job {
    struct outer_loop *loop;
    double norm[LAYOUT_FRAGMENTS_MAX];
    enum status status[LAYOUT_FRAGMENTS_MAX];
};

/* Each fragment has its own codec: threads share the fragments. */
static void encode_share(void *ctx, int thread, int threads)
{
    struct encode_job *e = ctx;
    for (uint32_t i = (uint32_t)thread; i < e->loop->n_fragments; i += (uint32_t)threads) {
        struct outer_fragment *f = &e->loop->f[i];
        const struct quantized_delta *quantized = delta_device_quantized(e->loop->delta_device, i, &e->norm[i]);
        e->status[i] = f->fb.pending ? STATUS_STATE : isfinite((float)e->norm[i]) ? STATUS_OK : STATUS_NONFINITE;
        if (e->status[i] != STATUS_OK) continue;
        e->status[i] =
            codec_encode_quantized(f->up, quantized, f->payload + f->head, f->payload_cap - f->head, &f->payload_size);
        if (e->status[i] != STATUS_OK) continue;
        f->payload_size += f->head;
        f->payload_crc = crc32c(0, f->payload, f->payload_size);
    }
}

/* Encodes the deltas that the device quantized. The residuals change after all fragments are encoded. */
static enum status encode_on_device(struct outer_loop *loop)
{
    struct encode_job e = {.loop = loop};
    struct err err = {0};
    enum status status = delta_device_make(loop->delta_device, &err);
    if (status != STATUS_OK && status != STATUS_NONFINITE) log_error("%s", err.msg);
    TRY(status);
    pool_run_if(loop->model.pool, true, encode_share, &e);
    for (uint32_t i = 0; i < loop->n_fragments; i++) TRY(e.status[i]);
    delta_device_keep_residuals(loop->delta_device);
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        assert(!loop->f[i].fb.pending);
        mark_encoded(&loop->f[i], e.norm[i]);
        loop->f[i].fb.pending = true;
    }
    return STATUS_OK;
}

static enum status encode_all(struct outer_loop *loop, const float *values)
{
    if (loop->delta_device) return encode_on_device(loop);
    if (loop->adds) values = loop->model.change;
    /* Check before encoding: a rollback would leave the deltas of finite fragments in their residuals. */
    if (!delta_host_finite(loop->model.pool, values, loop->n_params)) return STATUS_NONFINITE;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        if (!sync_is_sent(&loop->sync, i)) continue;
        enum status status = encode_fragment(loop, i, values);
        if (status == STATUS_OK) {
            outer_segment_sent(loop, i);
            continue;
        }
        for (uint32_t j = 0; j < i; j++)
            if (sync_is_sent(&loop->sync, j)) outer_rollback(loop, j);
        return status;
    }
    return STATUS_OK;
}

/* The program's changes are in the residuals, and cannot be told from them: drops both. */
static void drop_added(struct outer_loop *loop)
{
    const struct outer_model *model = &loop->model;
    loop->nonfinite_text[0] = '\0';
    (void)delta_host_nonfinite_text(model->layout, model->change, loop->nonfinite_text);
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        loop->f[i].pending = false;
        outer_residual_reset(loop, i);
    }
}

const char *outer_loop_nonfinite(const struct outer_loop *loop)
{
    return loop->nonfinite_text;
}

static void log_dropped_round(const struct outer_loop *loop, const char *text)
{
    log_error("%s: dropped this round%s", text, loop->model.inner.load ? ", resetting the inner optimizer" : "");
}

void outer_reset_inner_opt(struct outer_loop *loop)
{
    loop->reset_inner = false;
    if (loop->model.inner.load && loop->model.inner.load(loop->model.inner.ctx, NULL, 0) != STATUS_OK)
        loop->faults = FAULTS_MAX;
}

static void fail_diverged(struct outer_loop *loop)
{
    char text[200];
    snprintf(text, sizeof text, "training diverges to NaN or infinity: %s",
             config_divergence_advice(loop->model.config));
    sync_fail(&loop->sync, text);
}

/* Drops parameters and moments of a round that is not finite. LEAVE returns the lease. */
static void handle_nonfinite(struct outer_loop *loop, uint64_t round, uint64_t now_us)
{
    char text[200];
    loop->faults++;
    snprintf(text, sizeof text, "NaN or infinity after round %" PRIu64 " (time %u in a row)", round + 1, loop->faults);
    log_dropped_round(loop, text);
    if (loop->adds) drop_added(loop);
    outer_reset_inner_opt(loop);
    if (loop->sync.phase == SYNC_JOINED) {
        memset(&loop->out, 0, sizeof loop->out);
        loop->out.type = MSG_LEAVE;
        loop->out.leave.session = loop->sync.session;
        snprintf(loop->out.leave.text, sizeof loop->out.leave.text, "%s", text);
        (void)outer_send(loop, WIRE_CONTROL);
    }
    loop->window = (struct outer_window){0};
    if (loop->live) { /* deltas of this round may be on their way: start anew from the run's parameters */
        outer_drop_deltas(loop);
        sync_drop(&loop->sync, now_us);
    }
    sync_train_abandon(&loop->sync, now_us);
    if (loop->faults < FAULTS_MAX)
        sync_rejoin(&loop->sync, now_us);
    else
        fail_diverged(loop);
}

void outer_drop_nonfinite_delta(struct outer_loop *loop, uint32_t fragment, uint64_t round)
{
    char text[200];
    loop->f[fragment].pending = false;
    outer_residual_reset(loop, fragment);
    if (loop->nonfinite) return; /* already handled for another fragment of this round */
    loop->nonfinite = loop->reset_inner = true;
    loop->faults++;
    snprintf(text, sizeof text, "values too large for the coordinator after round %" PRIu64 " (time %u in a row)",
             round + 1, loop->faults);
    log_dropped_round(loop, text);
    if (loop->faults >= FAULTS_MAX) fail_diverged(loop);
}

static void record_times(struct outer_loop *loop, const struct outer_result *result, uint64_t round, uint64_t took_us,
                         uint64_t now_us)
{
    struct outer_times *t = &loop->running;
    const struct sync *s = &loop->sync;
    assert(t->round == SYNC_NO_ROUND || t->round == round);
    if (t->round == SYNC_NO_ROUND) {
        t->round = round;
        t->compute_s = t->compress_s = t->send_s = t->wait_s = 0;
    }
    t->compute_s += (double)result->compute_us / 1e6;
    t->compress_s += (double)(result->fetch_us + took_us) / 1e6;
    t->apply_s += (double)result->place_us / 1e6;
    loop->applied_s = t->apply_s;
    loop->idle_us = loop->sent_us = now_us + took_us;
    loop->delivered_us = 0;
    bool sending = false;
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        sending = sending || s->f[i].upload == SYNC_UPLOAD_OFFERED || s->f[i].upload == SYNC_UPLOAD_SENDING;
    if (!sending) loop->delivered_us = loop->sent_us; /* earlier, during training */
}

/* async: updates during training moved theta away from the device's anchor, which is free now. Upload it while the
 * deltas are sent, so that later updates can be added on the device again. */
static void anchor_ahead(struct outer_loop *loop)
{
    enum worker_state state = loop->sync.state;
    if (!loop->async || (state != WORKER_SENDING && state != WORKER_WAITING)) return;
    uint64_t started = outer_stopwatch(loop);
    outer_anchor_all(loop);
    loop->running.apply_s += (double)(outer_stopwatch(loop) - started) / 1e6;
}

/* Makes and offers the deltas of the fragments whose sync point the round has reached, if there are any. */
static enum status send_deltas(struct outer_loop *loop, const float *values, uint64_t now_us)
{
    uint64_t round = loop->sync.round, bytes[LAYOUT_FRAGMENTS_MAX] = {0};
    bool any = false;
    for (uint32_t i = 0; i < loop->n_fragments; i++) any = any || sync_is_sent(&loop->sync, i);
    if (any) {
        TRY(encode_all(loop, values));
        /* Earlier deltas of a round can be computed again from the state of the round before, if there is one. */
        bool first = loop->save.saved_round == SYNC_NO_ROUND && !loop->save.running && !loop->async;
        bool saves = sync_is_last_sent(&loop->sync) || first;
        outer_segment_report(loop);
        for (uint32_t i = 0; i < loop->n_fragments; i++)
            if (sync_is_sent(&loop->sync, i)) bytes[i] = loop->f[i].payload_size;
        if (saves && outer_save_due(loop, round)) outer_save_begin(loop, round, now_us);
    }
    sync_work_ready(&loop->sync, round, bytes, now_us);
    return STATUS_OK;
}

void outer_send_at_start(struct outer_loop *loop, uint64_t now_us)
{
    assert(loop->live && !loop->sync.step);
    enum status status = send_deltas(loop, loop->live, now_us);
    if (status == STATUS_NONFINITE)
        handle_nonfinite(loop, loop->sync.round, now_us);
    else if (status != STATUS_OK)
        sync_fail(&loop->sync, "cannot encode the deltas of the last round");
}

enum status outer_loop_train_done(struct outer_loop *loop, const struct outer_result *result, uint64_t now_us)
{
    if (!loop->sync.computing) return STATUS_OK; /* the round was revoked */
    assert(loop->sync.round != SYNC_NO_ROUND && (!loop->save.running || outer_save_is_beside(loop)));
    uint64_t round = loop->sync.round, started = outer_stopwatch(loop);
    enum status status = result->loss_unknown || isfinite(result->loss_sum) ? STATUS_OK : STATUS_NONFINITE;
    /* What is not sent now is trained on, and sent later. */
    bool finite = !loop->live || delta_host_finite(loop->model.pool, result->values, loop->n_params);
    if (!finite) status = STATUS_NONFINITE;
    if (status == STATUS_OK) {
        outer_segment_add(loop, result);
        sync_segment_done(&loop->sync);
        status = send_deltas(loop, result->values, now_us);
    }
    if (status == STATUS_NONFINITE) {
        handle_nonfinite(loop, round, now_us);
    } else if (status != STATUS_OK) {
        snprintf(loop->text, sizeof loop->text, "cannot encode the delta of round %" PRIu64 ": %s", round + 1,
                 status_text(status));
        sync_fail(&loop->sync, loop->text);
    } else {
        if (!loop->nonfinite) loop->faults = 0;
        loop->nonfinite = false;
        record_times(loop, result, round, outer_stopwatch(loop) - started, now_us);
    }
    outer_loop_tick(loop, now_us);
    anchor_ahead(loop);
    return status;
}
