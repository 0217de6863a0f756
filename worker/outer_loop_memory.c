#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/codec_spec.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/mem.h"
#include "compress/relay.h"
#include "worker/outer_loop_impl.h"

enum {
    UPDATE_HEAD_MAX = 512,
    DDP_SAVE_ROUNDS = 50, /* a round of ddp is one step: its residual is worth a save only now and then */
};
#define SAVE_SHARE 0.005 /* what the outer path may take of the time */
#define SAVE_SLOW_S 1.0

/* ---- allocation ---------------------------------------------------------------------------------------------------
 */

static enum status fragment_init(struct outer_loop *loop, uint32_t i, struct err *err)
{
    struct outer_fragment *f = &loop->f[i];
    const struct config *config = loop->model.config;
    const struct layout *layout = loop->model.layout;
    f->offset = layout->fragments[i].offset;
    f->count = layout->fragments[i].count;
    TRY(codec_create_for_fragment(&f->up, config_up_spec(config, i), layout, i, err));
    char down[CODEC_SPEC_MAX];
    config_down_spec(config, i, down);
    if (down[0]) TRY(codec_create_for_fragment(&f->down, down, layout, i, err));
    if (feedback_init(&f->fb, f->count, codec_feedback_decay(f->up), loop->feedback) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the residual of fragment %u (%.1f MB)", i,
                       (double)f->count * 4e-6);
    f->payload_cap = codec_bound(f->up);
    f->object_cap = f->object_max =
        (f->down ? codec_bound(f->down) : 0) + UPDATE_HEAD_MAX + WIRE_NAMED_MAX * (size_t)24;
    if (loop->relays) f->object_max += WIRE_NAMED_MAX * (f->payload_cap + relay_head_size(1));
    f->payload = mem_alloc(1, f->payload_cap);
    f->object = mem_alloc(1, f->object_cap);
    if (!f->payload || !f->object)
        return err_set(err, STATUS_NOMEM, "no memory for the buffers of fragment %u (%.1f MB)", i,
                       (double)(f->payload_cap + f->object_cap) / 1e6);
    return STATUS_OK;
}

bool outer_object_room(struct outer_fragment *f, size_t bytes)
{
    if (bytes <= f->object_cap) return true;
    if (bytes > f->object_max) return false;
    uint8_t *larger = mem_resize(f->object, f->object_cap, bytes);
    if (!larger) return false;
    f->object = larger;
    f->object_cap = bytes;
    return true;
}

/* What merging relayed deltas takes. */
static enum status merger_make(struct outer_loop *loop, struct err *err)
{
    size_t part_max = 0;
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        if (merge_part_max(loop->f[i].up) > part_max) part_max = merge_part_max(loop->f[i].up);
    loop->deltas = mem_alloc(WIRE_NAMED_MAX, sizeof *loop->deltas);
    loop->weights = mem_alloc(WIRE_NAMED_MAX, sizeof *loop->weights);
    enum status status = merger_init(&loop->merger, loop->model.config, loop->lossless, loop->model.pool, part_max);
    return loop->deltas && loop->weights && status == STATUS_OK
               ? STATUS_OK
               : err_set(err, STATUS_NOMEM, "no memory to merge relayed deltas");
}

static enum status layout_bytes_init(struct outer_loop *loop, struct err *err)
{
    loop->layout_size = layout_encoded_size(loop->model.layout);
    loop->layout_bytes = mem_alloc(1, loop->layout_size);
    if (!loop->layout_bytes) return err_set(err, STATUS_NOMEM, "no memory for the layout");
    struct writer w = writer_of(loop->layout_bytes, loop->layout_size);
    layout_encode(loop->model.layout, &w);
    return w.bad ? err_set(err, STATUS_LIMIT, "the layout does not fit its own size") : STATUS_OK;
}

/* Where the parameters are on a device: the deltas are made there, too, or the host does without. */
static enum status maker_make(struct outer_loop *loop, struct err *err)
{
    struct delta_source sources[LAYOUT_FRAGMENTS_MAX];
    const struct outer_model *model = &loop->model;
    if (!model->device || model->config->train.method == METHOD_DDP || loop->lossless) return STATUS_OK;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        sources[i] = (struct delta_source){
            .offset = f->offset, .count = f->count, .codec = f->up, .down = f->down, .feedback = &f->fb};
    }
    enum status status =
        delta_maker_create(&loop->maker, model->device, model->device_theta, sources, loop->n_fragments, err);
    if (status != STATUS_UNSUPPORTED && status != STATUS_NOMEM) return status;
    log_info("deltas are made by the CPU: %s", err->msg);
    *err = (struct err){0};
    return STATUS_OK;
}

enum status outer_memory_init(struct outer_loop *loop, struct err *err)
{
    const struct config *config = loop->model.config;
    const struct layout *layout = loop->model.layout;
    uint64_t largest = 0;
    loop->async = config->train.method == METHOD_ASYNC;
    loop->lossless = codec_spec_lossless(config->codec.up);
    loop->feedback = config_error_feedback(config, config->codec.up);
    loop->relays = config_may_relay(config);
    loop->n_params = layout->n_params;
    loop->n_fragments = layout->n_fragments;
    for (uint32_t i = 0; i < layout->n_fragments; i++) {
        if (layout->fragments[i].count > largest) largest = layout->fragments[i].count;
        TRY(fragment_init(loop, i, err));
    }
    if (loop->relays) TRY(merger_make(loop, err));
    TRY(layout_bytes_init(loop, err));
    loop->theta = mem_alloc(loop->n_params, sizeof *loop->theta);
    loop->scratch = mem_alloc(largest, sizeof *loop->scratch);
    loop->named = mem_alloc(WIRE_NAMED_MAX, sizeof *loop->named);
    loop->parts = mem_alloc(OUTER_PARTS_MAX + 1 + 3 * (size_t)loop->n_fragments, sizeof *loop->parts);
    loop->saved_head = mem_alloc(1, SAVED_HEAD_MAX);
    bool all = loop->theta && loop->scratch && loop->named && loop->parts && loop->saved_head;
    if (all) TRY(maker_make(loop, err));
    /* Updates that come while it trains move theta: what it started from is kept, by the maker where there is one. */
    loop->base = loop->async && !loop->maker ? mem_alloc(loop->n_params, sizeof *loop->base) : loop->theta;
    if (all && loop->base) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory for the parameters (%.1f MB)", (double)loop->n_params * 4e-6);
}

void outer_memory_finish(struct outer_loop *loop)
{
    delta_maker_destroy(loop->maker);
    for (uint32_t i = 0; i < LAYOUT_FRAGMENTS_MAX; i++) {
        struct outer_fragment *f = &loop->f[i];
        codec_destroy(f->up);
        codec_destroy(f->down);
        feedback_finish(&f->fb);
        mem_free(f->payload);
        mem_free(f->object);
    }
    if (loop->base != loop->theta) mem_free(loop->base);
    mem_free(loop->theta);
    mem_free(loop->scratch);
    mem_free(loop->named);
    merger_finish(&loop->merger);
    mem_free(loop->deltas);
    mem_free(loop->weights);
    mem_free(loop->parts);
    mem_free(loop->saved_head);
    mem_free(loop->layout_bytes);
}

/* ---- save ---------------------------------------------------------------------------------------------------------
 */

bool outer_save_due(const struct outer_loop *loop, uint64_t round)
{
    uint64_t every = loop->model.config->checkpoint.worker_every;
    if (!every || !loop->setup.save) return false;
    if (loop->model.config->train.method == METHOD_DDP) {
        if (!loop->feedback) return false; /* a step depends on the parameters only, which the run's log gives back */
        every *= DDP_SAVE_ROUNDS;
    }
    return round % every == 0;
}

static void describe(struct outer_loop *loop, uint64_t round)
{
    struct saved_state *s = &loop->saved;
    memset(s, 0, sizeof *s);
    memcpy(s->uuid, loop->setup.uuid, WIRE_UUID);
    memcpy(s->run_id, loop->run_id, WIRE_UUID);
    s->layout_hash = layout_hash(loop->model.layout);
    s->n_params = loop->n_params;
    s->round = round;
    s->tokens = loop->tokens;
    s->compute_us = loop->compute_us;
    s->loss_sum = loop->loss_sum;
    s->steps = loop->steps;
    s->worker_id = loop->sync.worker_id;
    s->n_fragments = loop->n_fragments;
    s->form = loop->form;
    s->has_residual = loop->feedback;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        const struct outer_fragment *f = &loop->f[i];
        s->f[i] = (struct saved_fragment){
            .version = loop->sync.f[i].version,
            .hash = f->hash,
            .base_version = f->base_version,
            .payload_size = f->pending ? f->payload_size : 0,
            .count = f->count,
            .payload_crc = f->payload_crc,
            .norm = f->norm,
        };
    }
}

/* Nothing is trained meanwhile: what it costs is said once where it is more than SAVE_SHARE of the rounds. */
static void note_save(struct outer_loop *loop, size_t n_parts, uint64_t took_us)
{
    uint64_t bytes = 0, every = loop->model.config->checkpoint.worker_every;
    double rounds_us = (double)every * (double)loop->compute_us, took = (double)took_us * 1e-6;
    if (loop->save_slow || !loop->compute_us || loop->model.config->train.method == METHOD_DDP) return;
    if (took < SAVE_SLOW_S || (double)took_us < SAVE_SHARE * rounds_us) return;
    for (size_t i = 0; i < n_parts; i++) bytes += loop->parts[i].size;
    log_info("saving this worker's state (%.2f GB) took %.1f s, %.1f %% of the training between two saves; "
             "checkpoint.worker_every: %.0f would bring it below %.1f %%", (double)bytes * 1e-9, took,
             100 * took / (rounds_us * 1e-6 + took), ceil(took / (SAVE_SHARE * 1e-6 * (double)loop->compute_us)),
             100 * SAVE_SHARE);
    loop->save_slow = true;
}

void outer_save(struct outer_loop *loop, uint64_t round)
{
    struct outer_part *parts = loop->parts, *body = parts + 1;
    struct outer_inner *inner = &loop->model.inner;
    struct err err = {0};
    size_t n = 0;
    if (!loop->setup.save) return;
    uint64_t started = outer_stopwatch(loop);
    describe(loop, round);
    for (uint32_t i = 0; loop->feedback && i < loop->n_fragments; i++) {
        if (outer_residual_read(loop, i) == STATUS_OK) continue;
        loop->save_failed = true;
        return;
    }
    body[n++] = (struct outer_part){.data = loop->theta, .size = loop->n_params * sizeof(float)};
    for (uint32_t i = 0; loop->feedback && i < loop->n_fragments; i++)
        body[n++] = (struct outer_part){.data = loop->f[i].fb.residual, .size = loop->f[i].count * sizeof(float)};
    size_t n_inner = inner->parts ? inner->parts(inner->ctx, body + n, OUTER_PARTS_MAX) : 0;
    for (size_t i = 0; i < n_inner; i++) loop->saved.inner_size += body[n + i].size;
    if (inner->parts && !n_inner) {
        loop->save_failed = true; /* the one who knows why has said so */
        return;
    }
    n += n_inner;
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        if (loop->f[i].pending)
            body[n++] = (struct outer_part){.data = loop->f[i].payload, .size = loop->f[i].payload_size};
    size_t head = saved_state_head(&loop->saved, body, n, loop->model.pool, loop->saved_head);
    parts[0] = (struct outer_part){.data = loop->saved_head, .size = head};
    if (loop->setup.save(loop->setup.storage_ctx, parts, n + 1, &err) == STATUS_OK) {
        loop->saved_round = round;
        loop->save_failed = false;
        note_save(loop, n + 1, outer_stopwatch(loop) - started);
        return;
    }
    if (!loop->save_failed) log_error("%s: if this worker dies now, its optimizer state is lost", err.msg);
    loop->save_failed = true;
}

/* ---- restore ------------------------------------------------------------------------------------------------------
 */

void outer_saved_run(struct outer_loop *loop, uint8_t run_id[WIRE_UUID])
{
    memset(run_id, 0, WIRE_UUID);
    for (int age = 0; loop->setup.load && age < 2; age++) {
        const uint8_t *data;
        size_t size;
        struct err err = {0};
        if (loop->setup.load(loop->setup.storage_ctx, age, &data, &size, &err) != STATUS_OK) continue;
        enum status status = saved_state_peek(&loop->saved, data, size, &err);
        if (status == STATUS_OK) memcpy(run_id, loop->saved.run_id, WIRE_UUID);
        loop->setup.release(loop->setup.storage_ctx, data, size);
        if (status == STATUS_OK) return;
    }
}

static enum status check_saved(const struct outer_loop *loop, struct err *err)
{
    const struct saved_state *s = &loop->saved;
    if (memcmp(s->run_id, loop->run_id, WIRE_UUID) != 0)
        return err_set(err, STATUS_MISMATCH, "it belongs to another run");
    if (memcmp(s->uuid, loop->setup.uuid, WIRE_UUID) != 0)
        return err_set(err, STATUS_MISMATCH, "it belongs to another worker");
    if (s->layout_hash != layout_hash(loop->model.layout) || s->n_params != loop->n_params ||
        s->n_fragments != loop->n_fragments)
        return err_set(err, STATUS_MISMATCH, "its model is another one");
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct outer_fragment *f = &loop->f[i];
        if (s->f[i].count != f->count || s->f[i].payload_size > f->payload_cap)
            return err_set(err, STATUS_MISMATCH, "its fragments are others");
        if (hash64(s->theta + f->offset, f->count * sizeof(float)) != s->f[i].hash)
            return err_set(err, STATUS_CORRUPT, "its parameters do not match their hash");
    }
    return STATUS_OK;
}

/* Take over a checked state; returns true when deltas are pending. */
static bool adopt(struct outer_loop *loop)
{
    const struct saved_state *s = &loop->saved;
    const struct outer_inner *inner = &loop->model.inner;
    bool pending = false;
    memcpy(loop->theta, s->theta, loop->n_params * sizeof(float));
    if (inner->load && s->inner_size && inner->load(inner->ctx, s->inner, s->inner_size) != STATUS_OK) {
        log_warn("the saved inner optimizer does not fit this model: it starts anew");
        if (inner->load(inner->ctx, NULL, 0) != STATUS_OK) log_error("cannot reset the inner optimizer");
    }
    loop->form = s->form;
    loop->steps = s->steps;
    loop->tokens = s->tokens;
    loop->loss_sum = s->loss_sum;
    loop->compute_us = s->compute_us;
    loop->saved_round = s->round;
    loop->sync.worker_id = s->worker_id;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        f->hash = s->f[i].hash;
        f->base_version = s->f[i].base_version;
        f->norm = s->f[i].norm;
        f->payload_size = s->f[i].payload_size;
        f->payload_crc = s->f[i].payload_crc;
        f->pending = s->payload[i] != NULL;
        if (f->pending) memcpy(f->payload, s->payload[i], f->payload_size);
        if (loop->feedback && s->residual) {
            memcpy(f->fb.residual, s->residual + f->offset, f->count * sizeof(float));
            f->fb.pending = f->pending;
        }
        pending = pending || f->pending;
    }
    return pending;
}

void outer_restore(struct outer_loop *loop, uint64_t now_us)
{
    static const char *const which[] = {"newest", "older"};
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], bytes[LAYOUT_FRAGMENTS_MAX];
    struct saved_state *s = &loop->saved;
    for (int age = 0; loop->setup.load && age < 2; age++) {
        const uint8_t *data;
        size_t size;
        struct err err = {0};
        enum status status = loop->setup.load(loop->setup.storage_ctx, age, &data, &size, &err);
        if (status == STATUS_NOTFOUND) continue;
        if (status == STATUS_OK) {
            status = saved_state_decode(s, data, size, &err);
            if (status == STATUS_OK) status = check_saved(loop, &err);
            bool pending = status == STATUS_OK && adopt(loop);
            loop->setup.release(loop->setup.storage_ctx, data, size);
            if (status == STATUS_OK) {
                for (uint32_t i = 0; i < loop->n_fragments; i++) {
                    versions[i] = s->f[i].version;
                    bytes[i] = s->f[i].payload_size;
                }
                sync_configured(&loop->sync, loop->async, loop->n_fragments, versions, now_us);
                if (pending)
                    sync_work_ready(&loop->sync, s->round, bytes, now_us);
                else
                    loop->sync.last_round = s->round;
                log_info("continues from its state after round %" PRIu64 " (version %" PRIu64 "%s)", s->round + 1,
                         versions[0], pending ? ", delta not yet merged" : "");
                return;
            }
        }
        log_warn("the %s saved state of this worker cannot be used: %s", which[age], err.msg);
    }
    sync_configured(&loop->sync, loop->async, loop->n_fragments, NULL, now_us);
}
