#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/outer/outer_loop_impl.h"

enum status outer_send(struct outer_loop *loop, enum wire_lane lane)
{
    enum status status = loop->setup.send(loop->setup.io_ctx, lane, &loop->out);
    if (status == STATUS_AGAIN || status == STATUS_CLOSED)
        log_trace("%s not sent: %s", msg_name(loop->out.type), status_text(status));
    else if (status != STATUS_OK)
        log_error("cannot send %s: %s", msg_name(loop->out.type), status_text(status));
    return status;
}

/* HELLO carries the run id of the saved state, so that the coordinator of another run refuses it. The id is left out if
 * it is that of the run to join: the coordinator at its address may serve another run, and would blame the saved state.
 * The worker then finds out from CONFIG. */
static void fill_hello(struct outer_loop *loop)
{
    struct msg_hello *m = &loop->out.hello;
    bool run_to_join = !loop->configured && !memcmp(loop->setup.run_id, loop->run_id, WIRE_UUID);
    memcpy(m->uuid, loop->setup.uuid, WIRE_UUID);
    memset(m->run_id, 0, WIRE_UUID);
    if (!run_to_join) memcpy(m->run_id, loop->run_id, WIRE_UUID);
    snprintf(m->name, sizeof m->name, "%s", loop->setup.name);
    snprintf(m->software, sizeof m->software, "atoll %s", ATOLL_VERSION);
}

static void fill_join(struct outer_loop *loop)
{
    struct msg_join *m = &loop->out.join;
    const struct outer_model *model = &loop->model;
    const struct sync *s = &loop->sync;
    memcpy(m->uuid, loop->setup.uuid, WIRE_UUID);
    snprintf(m->name, sizeof m->name, "%s", loop->setup.name);
    m->config_hash = loop->config_hash;
    m->layout_hash = layout_hash(model->layout);
    m->train_hash = model->train_hash;
    m->val_hash = model->val_hash;
    m->train_samples = model->train_samples;
    m->val_samples = model->val_samples;
    m->sample_tokens = model->sample_tokens;
    m->ranks = model->ranks;
    snprintf(m->devices, sizeof m->devices, "%s", model->devices);
    m->layout = loop->layout_bytes;
    m->layout_size = loop->layout_size;
    m->model_config = model->model_config;
    m->frozen_any = model->frozen_any;
    m->frozen_whole = model->frozen_read != NULL;
    m->frozen = loop->frozen_bytes;
    m->frozen_size = loop->frozen_size;
    m->n_held = s->holds ? s->n_fragments : 0;
    for (uint32_t i = 0; i < m->n_held; i++)
        m->held[i] = (struct wire_version){.version = s->f[i].version, .hash = loop->f[i].hash};
    m->round = s->round;
}

static void fill_offer(struct outer_loop *loop, uint32_t fragment)
{
    const struct outer_fragment *f = &loop->f[fragment];
    assert(f->payload_size && f->payload_size <= f->payload_cap);
    loop->out.offer = (struct msg_offer){
        .session = loop->sync.session,
        .round = loop->sync.round,
        .fragment = fragment,
        .form = f->form,
        .base_version = f->base_version,
        .bytes = f->payload_size,
        .crc = f->payload_crc,
        .tokens = loop->tokens,
        .steps = loop->steps,
        .loss_sum = loop->loss_sum,
        .norm = f->norm,
        .compute_us = loop->compute_us,
    };
}

static void fill_chunk(struct outer_loop *loop, const struct sync_action *a)
{
    const struct outer_fragment *f = &loop->f[a->fragment];
    const uint8_t *data = f->payload + a->offset;
    assert(a->offset + a->length <= f->payload_size);
    loop->out.chunk = (struct msg_chunk){
        .kind = OBJECT_DELTA,
        .fragment = a->fragment,
        .key = loop->sync.round,
        .offset = a->offset,
        .total = f->payload_size,
        .crc = crc32c(0, data, a->length),
        .data = data,
        .size = a->length,
    };
}

/* False: the program cannot read a tensor, and the loop fails. */
static bool fill_initial(struct outer_loop *loop, const struct sync_action *a)
{
    struct err err = {0};
    const uint8_t *data = outer_initial_read(loop->initial, a->offset, (size_t)a->length, &err);
    if (!data) {
        sync_fail(&loop->sync, err.msg);
        return false;
    }
    loop->out.chunk = (struct msg_chunk){.kind = OBJECT_INITIAL,
                                         .key = a->version,
                                         .offset = a->offset,
                                         .total = outer_initial_total(loop->initial),
                                         .crc = crc32c(0, data, a->length),
                                         .data = data,
                                         .size = a->length};
    return true;
}

static void send_action(struct outer_loop *loop, const struct sync_action *a, uint64_t now_us)
{
    struct msg *m = &loop->out;
    const struct sync *s = &loop->sync;
    memset(m, 0, sizeof *m);
    switch (a->type) {
    case SYNC_SEND_HELLO:
        m->type = MSG_HELLO;
        fill_hello(loop);
        break;
    case SYNC_SEND_JOIN:
        m->type = MSG_JOIN;
        fill_join(loop);
        break;
    case SYNC_SEND_BIND:
        m->type = MSG_BIND;
        m->bind.session = s->session;
        break;
    case SYNC_SEND_OFFER:
        m->type = MSG_OFFER;
        fill_offer(loop, a->fragment);
        break;
    case SYNC_SEND_CHUNK:
        m->type = MSG_CHUNK;
        fill_chunk(loop, a);
        break;
    case SYNC_SEND_INITIAL:
        m->type = MSG_CHUNK;
        if (!fill_initial(loop, a)) return;
        break;
    case SYNC_SEND_GET:
        m->type = MSG_GET;
        m->get = (struct msg_get){.session = s->session,
                                  .kind = a->kind,
                                  .fragment = a->fragment,
                                  .version = a->version,
                                  .offset = a->offset,
                                  .length = a->length};
        break;
    case SYNC_SEND_EVAL_RESULT:
        m->type = MSG_EVAL_RESULT;
        m->eval_result = s->eval.result;
        m->eval_result.session = s->session;
        break;
    case SYNC_SEND_LEAVE:
        m->type = MSG_LEAVE;
        m->leave.session = s->session;
        m->leave.finished = s->finished;
        snprintf(m->leave.text, sizeof m->leave.text, "%s", s->finished ? "" : s->text);
        break;
    }
    enum status status = outer_send(loop, msg_lane(m->type) == WIRE_BULK ? WIRE_BULK : WIRE_CONTROL);
    if (status != STATUS_OK && m->type == MSG_CHUNK) sync_blocked(&loop->sync, a, now_us);
}

void outer_send_due(struct outer_loop *loop, uint64_t now_us)
{
    struct sync_action a;
    while (sync_poll(&loop->sync, now_us, &a)) send_action(loop, &a, now_us);
}
