#include <assert.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "worker/outer/outer_loop_impl.h"

enum {
    SAVE_POLL_US = 2000, /* interval of polls for the end of a save */
};

bool outer_save_due(const struct outer_loop *loop, uint64_t round)
{
    uint64_t worst, every = outer_loop_save_every(loop, &worst);
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
    s->has_residual = loop->feedback ? SAVED_RESIDUAL : SAVED_RESIDUAL_NONE;
    for (uint32_t i = 0; i < loop->n_fragments; i++)
        if (loop->f[i].fb.decayed) s->has_residual = SAVED_RESIDUAL_DECAYED; /* all are, or they are 0 */
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

/* A save beside the training: copies the parts. False: no memory. */
static bool copy_parts(struct outer_loop *loop, size_t n)
{
    struct outer_save *save = &loop->save;
    size_t at = 0;
    if (save->bytes > save->copy_cap) {
        mem_free(save->copy);
        save->copy = mem_alloc(1, save->bytes);
        save->copy_cap = save->copy ? save->bytes : 0;
    }
    if (!save->copy) return false;
    uint64_t started = outer_stopwatch(loop);
    for (size_t i = 0; i < n; i++) {
        pool_copy(loop->model.pool, save->copy + at, loop->parts[i].data, loop->parts[i].size);
        loop->parts[i].data = save->copy + at;
        at += loop->parts[i].size;
    }
    save->pace.copy_us = outer_stopwatch(loop) - started;
    return true;
}

/* Decides whether the save runs beside the training, and then copies its parts. False: no memory. */
static bool take_copy(struct outer_loop *loop, size_t n)
{
    struct outer_save *save = &loop->save;
    save->beside = save->pace.asked ? save->pace.beside : outer_save_goes_beside(loop, save->bytes, 0);
    save->pace.asked = false;
    save->pace.copy_us = 0;
    if (!outer_save_is_beside(loop) || copy_parts(loop, n)) return true;
    save->beside = false;
    return !loop->live;
}

void outer_save_begin(struct outer_loop *loop, uint64_t round, uint64_t now_us)
{
    struct outer_save *save = &loop->save;
    uint64_t worst;
    if (!loop->setup.save_begin) return;
    if (outer_save_is_beside(loop)) outer_save_finish(loop); /* the save before may still run */
    if (save->pace.unmeasured) outer_save_measured(loop, now_us);
    save->pace.unmeasured = false;
    assert(!save->running);
    uint64_t started = outer_stopwatch(loop);
    fill_state(loop, round);
    size_t n = collect_parts(loop);
    save->bytes = save->look_us = 0;
    for (size_t i = 0; i < n; i++) save->bytes += loop->parts[i].size;
    if (!n || !take_copy(loop, n)) {
        if (n)
            log_error("cannot save this worker's state: no memory for a copy of %s",
                      units_bytes((double)save->bytes).text);
        save->failed = true;
        return;
    }
    save->running = true;
    save->round = round;
    save->alone_us = UINT64_MAX;
    save->begun_us = now_us;
    /* A worker that comes back with an older state anyway does not wait. */
    save->held_back = !outer_save_is_beside(loop) || outer_loop_save_every(loop, &worst) <= 1;
    if (save->held_back) sync_unsaved(&loop->sync, now_us);
    loop->setup.save_begin(loop->setup.storage_ctx, &loop->saved, loop->parts, n);
    save->held_up_us = outer_stopwatch(loop) - started + save->pace.waited_us;
    save->pace.waited_us = 0;
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
        if (!save->failed) outer_save_measured(loop, now_us);
    }
    assert(!save->running);
    if (loop->sync.unsaved) sync_saved(&loop->sync, now_us);
}

void outer_save_finish(struct outer_loop *loop)
{
    uint64_t started = outer_stopwatch(loop);
    if (!loop->save.running) return;
    (void)poll_save(loop, true);
    loop->save.pace.waited_us += outer_stopwatch(loop) - started;
    loop->save.pace.unmeasured = !loop->save.failed;
    assert(!loop->save.running);
}

void outer_save_join(struct outer_loop *loop)
{
    if (!outer_save_is_beside(loop)) outer_save_finish(loop);
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
