#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "worker/outer/outer_loop_impl.h"

enum {
    SAVE_POLL_US = 2000, /* interval of polls for the end of a save */
};
#define SAVE_SHARE 0.005 /* share of the time that the outer path may take */
#define SAVE_SLOW_S 1.0  /* shorter delays are not logged */

/* --- save --------------------------------------------------------------------------------------------------------- */

bool outer_save_due(const struct outer_loop *loop, uint64_t round)
{
    uint64_t every = config_save_every(loop->model.config);
    return every && loop->setup.save_begin && round % every == 0;
}

static void fill_state(struct outer_loop *loop, uint64_t round)
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
    s->form = loop->f[0].form;
    s->has_residual = loop->feedback;
    s->has_live = loop->live != NULL;
    s->has_base = s->has_live && loop->base != loop->theta;
    s->in_round = loop->sync.round == round;
    if (s->in_round) {
        s->task = loop->sync.current;
        s->step = loop->sync.step;
    }
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        const struct outer_fragment *f = &loop->f[i];
        s->f[i] = (struct saved_fragment){
            .version = loop->sync.f[i].version,
            .hash = f->hash,
            .base_version = f->base_version,
            .payload_size = f->pending ? f->payload_size : 0,
            .count = f->count,
            .assigned = s->task.versions[i],
            .payload_crc = f->payload_crc,
            .norm = f->norm,
            .moved = f->moved,
        };
    }
}

/* Logs once if saves delay rounds by at least SAVE_SLOW_S and SAVE_SHARE of the time, with a larger worker_every. */
static void log_slow_save(struct outer_loop *loop)
{
    uint64_t every = loop->model.config->checkpoint.worker_every;
    double rounds_s = (double)every * (double)loop->saved.compute_us * 1e-6;
    double held_up_s = (double)loop->save.held_up_us * 1e-6;
    if (loop->save.slow || rounds_s == 0 || loop->model.config->train.method == METHOD_DDP) return;
    if (held_up_s < SAVE_SLOW_S || held_up_s < SAVE_SHARE * rounds_s) return;
    log_info("waited %s for the save of this worker's state (%s), %s of the time between two saves: "
             "set checkpoint.worker_every to %.0f to bring it below %s",
             units_duration(held_up_s).text, units_bytes((double)loop->save.bytes).text,
             units_percent(held_up_s / (rounds_s + held_up_s)).text,
             ceil(held_up_s * (double)every / (SAVE_SHARE * rounds_s)), units_percent(SAVE_SHARE).text);
    loop->save.slow = true;
}

/* Collects the parts of the state in loop->parts, in host memory. Returns their number; 0: an error, already logged. */
static size_t collect_parts(struct outer_loop *loop)
{
    struct outer_part *body = loop->parts;
    struct outer_inner *inner = &loop->model.inner;
    size_t n = 0;
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        if (loop->f[i].fb.residual && outer_residual_read(loop, i) != STATUS_OK) return 0;
    body[n++] = (struct outer_part){.data = loop->theta, .size = loop->n_params * sizeof(float)};
    if (loop->saved.has_live)
        body[n++] = (struct outer_part){.data = loop->live, .size = loop->n_params * sizeof(float)};
    if (loop->saved.has_base)
        body[n++] = (struct outer_part){.data = loop->base, .size = loop->n_params * sizeof(float)};
    for (uint32_t i = 0; loop->feedback && i < loop->n_fragments; i++) {
        const struct outer_fragment *f = &loop->f[i];
        const float *residual = f->fb.residual ? f->fb.residual : loop->zeros;
        body[n++] = (struct outer_part){.data = residual, .size = f->count * sizeof(float)};
    }
    bool has_inner = inner->parts && !loop->reset_inner; /* one that is about to be reset is saved as none */
    size_t n_inner = has_inner ? inner->parts(inner->ctx, body + n, OUTER_PARTS_MAX) : 0;
    if (has_inner && !n_inner) return 0;
    for (size_t i = 0; i < n_inner; i++) loop->saved.inner_size += body[n++].size;
    if (has_inner && inner->files) inner->files(inner->ctx, &loop->saved.tag, &loop->saved.n_ranks);
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        if (loop->f[i].pending)
            body[n++] = (struct outer_part){.data = loop->f[i].payload, .size = loop->f[i].payload_size};
    assert(n <= OUTER_PARTS_MAX + 3 + 2 * (size_t)loop->n_fragments);
    return n;
}

/* With overlap, training goes on during the save: copies the parts. False: no memory. */
static bool copy_parts(struct outer_loop *loop, size_t n)
{
    struct outer_save *save = &loop->save;
    size_t at = 0;
    if (!loop->live) return true;
    if (save->bytes > save->copy_cap) {
        mem_free(save->copy);
        save->copy = mem_alloc(1, save->bytes);
        save->copy_cap = save->copy ? save->bytes : 0;
    }
    if (!save->copy) return false;
    for (size_t i = 0; i < n; i++) {
        pool_copy(loop->model.pool, save->copy + at, loop->parts[i].data, loop->parts[i].size);
        loop->parts[i].data = save->copy + at;
        at += loop->parts[i].size;
    }
    return true;
}

void outer_save_begin(struct outer_loop *loop, uint64_t round, uint64_t now_us)
{
    struct outer_save *save = &loop->save;
    if (!loop->setup.save_begin) return;
    if (loop->live) outer_save_join(loop); /* the save of the round before may still run */
    assert(!save->running);
    uint64_t started = outer_stopwatch(loop);
    fill_state(loop, round);
    size_t n = collect_parts(loop);
    save->bytes = save->look_us = 0;
    for (size_t i = 0; i < n; i++) save->bytes += loop->parts[i].size;
    if (!n || !copy_parts(loop, n)) {
        if (n)
            log_error("cannot save this worker's state: no memory for a copy of %s",
                      units_bytes((double)save->bytes).text);
        save->failed = true;
        return;
    }
    save->running = true;
    save->round = round;
    save->alone_us = UINT64_MAX;
    sync_unsaved(&loop->sync, now_us);
    loop->setup.save_begin(loop->setup.storage_ctx, &loop->saved, loop->parts, n);
    save->held_up_us = outer_stopwatch(loop) - started;
}

/* Returns false while the save is running. */
static bool poll_save(struct outer_loop *loop, bool wait)
{
    struct outer_save *save = &loop->save;
    struct err err = {0};
    assert(save->running);
    enum status status = loop->setup.save_poll(loop->setup.storage_ctx, wait, &err);
    if (status == STATUS_AGAIN) return false;
    save->running = false;
    if (status == STATUS_OK)
        save->saved_round = save->round;
    else if (!save->failed)
        log_error("cannot save this worker's state: %s (its optimizer state is lost if the worker dies)", err.msg);
    save->failed = status != STATUS_OK;
    return true;
}

void outer_save_tick(struct outer_loop *loop, uint64_t now_us)
{
    struct outer_save *save = &loop->save;
    if (save->running) {
        uint64_t left = sync_held_back_us(&loop->sync);
        if (left == UINT64_MAX)
            save->alone_us = UINT64_MAX;
        else if (now_us + left < save->alone_us)
            save->alone_us = now_us + left;
        save->look_us = now_us + SAVE_POLL_US;
        if (!poll_save(loop, false)) return;
        if (now_us > save->alone_us) save->held_up_us += now_us - save->alone_us;
        if (!save->failed) log_slow_save(loop);
    }
    assert(!save->running);
    if (loop->sync.unsaved) sync_saved(&loop->sync, now_us);
}

void outer_save_join(struct outer_loop *loop)
{
    if (loop->save.running) (void)poll_save(loop, true);
    assert(!loop->save.running);
}

/* The newest saved state holds a delta that was refused. The coordinator may assign the same round again, at the same
 * versions but with other samples. After a restart it would take the saved delta for the new one. */
static bool holds_refused_delta(const struct outer_loop *loop)
{
    const struct sync *s = &loop->sync;
    if (loop->saved.round != loop->save.saved_round || s->round != SYNC_NO_ROUND || !s->holds) return false;
    if (loop->async && (!s->last_again || s->last_round != loop->saved.round)) return false;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        const struct saved_fragment *saved = &loop->saved.f[i];
        bool passed = saved->base_version != s->f[i].version || s->f[i].have; /* the fragment's round has closed */
        if (saved->payload_size && (loop->async || !passed)) return true;
    }
    return false;
}

void outer_save_refusal(struct outer_loop *loop, uint64_t now_us)
{
    if (!loop->save.running && holds_refused_delta(loop)) outer_save_begin(loop, loop->save.saved_round, now_us);
}

/* --- restore ------------------------------------------------------------------------------------------------------ */

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
