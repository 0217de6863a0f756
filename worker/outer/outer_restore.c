#include <inttypes.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "worker/outer/outer_loop_impl.h"

void outer_saved_run_id(struct outer_loop *loop, uint8_t run_id[WIRE_UUID])
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
        return err_set(err, STATUS_MISMATCH, "it belongs to another model");
    if (s->has_live != (loop->live != NULL) || s->has_base != (loop->live && loop->base != loop->theta))
        return err_set(err, STATUS_MISMATCH, "train.overlap, train.stagger or train.apply was different");
    for (uint32_t i = 0; i < s->n_fragments; i++) {
        const struct outer_fragment *f = &loop->f[i];
        bool of_means = layout_is_mean(loop->model.layout, i); /* earlier versions sent them in codec.up */
        bool fits = of_means ? !s->f[i].payload_size || s->f[i].payload_size == f->payload_cap
                             : s->f[i].payload_size <= f->payload_cap;
        if (s->f[i].count != f->count || !fits || s->form != loop->f[0].form)
            return err_set(err, STATUS_MISMATCH, "its fragments differ from those of the run");
        if (hash_floats(loop->model.pool, s->theta + f->offset, f->count) != s->f[i].hash)
            return err_set(err, STATUS_CORRUPT, "its parameters do not match their hash");
    }
    return STATUS_OK;
}

/* Loads a checked state. Returns whether deltas are pending. */
static bool adopt_state(struct outer_loop *loop)
{
    const struct saved_state *s = &loop->saved;
    const struct outer_inner *inner = &loop->model.inner;
    bool pending = false;
    outer_replace_initial(loop);
    memcpy(loop->theta, s->theta, loop->n_params * sizeof(float));
    loop->fresh = !s->live;
    if (s->live) memcpy(loop->live, s->live, loop->n_params * sizeof(float));
    if (s->base) memcpy(loop->base, s->base, loop->n_params * sizeof(float));
    if (inner->load && s->inner_size && inner->load(inner->ctx, s->inner, s->inner_size) != STATUS_OK) {
        log_warn("reset the inner optimizer: its saved state does not fit this model");
        if (inner->load(inner->ctx, NULL, 0) != STATUS_OK) log_error("cannot reset the inner optimizer");
    }
    loop->steps = s->steps;
    loop->tokens = s->tokens;
    loop->loss_sum = s->loss_sum;
    loop->compute_us = s->compute_us;
    loop->save.saved_round = s->round;
    loop->sync.worker_id = s->worker_id;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        f->hash = s->f[i].hash;
        f->base_version = s->f[i].base_version;
        f->moved = s->f[i].moved;
        f->norm = s->f[i].norm;
        f->payload_size = s->f[i].payload_size;
        f->payload_crc = s->f[i].payload_crc;
        f->pending = s->payload[i] != NULL;
        if (f->pending) memcpy(f->payload, s->payload[i], f->payload_size);
        if (f->fb.residual && s->residual) {
            memcpy(f->fb.residual, s->residual + f->offset, f->count * sizeof(float));
            f->fb.pending = f->pending;
            f->fb.decayed = s->has_residual == SAVED_RESIDUAL_DECAYED;
        }
        pending = pending || f->pending;
    }
    return pending;
}

void outer_restore(struct outer_loop *loop, uint64_t now_us)
{
    static const char *const age_names[] = {"newest", "older"};
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
            if (status == STATUS_OK && s->n_ranks && loop->setup.has_files)
                status = loop->setup.has_files(loop->setup.storage_ctx, s->tag, s->n_ranks, &err);
            bool pending = status == STATUS_OK && adopt_state(loop);
            loop->setup.release(loop->setup.storage_ctx, data, size);
            if (status == STATUS_OK) {
                for (uint32_t i = 0; i < loop->n_fragments; i++) {
                    versions[i] = s->f[i].version;
                    bytes[i] = s->f[i].payload_size;
                }
                sync_configured(&loop->sync, loop->async, loop->n_fragments, versions, now_us);
                if (s->in_round) sync_resume_round(&loop->sync, &s->task, s->step);
                if (pending || s->in_round)
                    sync_work_ready(&loop->sync, s->round, bytes, now_us);
                else
                    loop->sync.last_round = s->round;
                log_info("loaded the saved state after round %" PRIu64 " (version %" PRIu64 "%s)", s->round + 1,
                         versions[0], pending ? ", delta not yet merged" : "");
                return;
            }
        }
        log_warn("ignored this worker's %s saved state: %s", age_names[age], err.msg);
    }
    sync_configured(&loop->sync, loop->async, loop->n_fragments, NULL, now_us);
}
