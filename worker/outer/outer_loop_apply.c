#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "compress/apply_update.h"
#include "compress/relay.h"
#include "worker/outer/outer_loop_impl.h"

enum { DAMAGED_MAX = 3 }; /* corrupt copies of one object before all snapshots are loaded again */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "snapshots are assembled in place");

/* --- assembling --------------------------------------------------------------------------------------------------- */

static uint64_t snapshot_bytes(const struct outer_fragment *f)
{
    return SNAPSHOT_HEAD_BYTES + f->count * sizeof(float);
}

void outer_replace_initial(struct outer_loop *loop)
{
    if (loop->model.initial == loop->theta) loop->model.initial = NULL;
}

/* Writes the head to snapshot_head and the floats directly to theta, whose old values are no longer needed. */
static void store_snapshot_bytes(struct outer_loop *loop, struct outer_fragment *f, uint64_t offset,
                                 const uint8_t *data, size_t size)
{
    assert(offset + size <= snapshot_bytes(f));
    while (size && offset < SNAPSHOT_HEAD_BYTES) {
        f->snapshot_head[offset++] = *data++;
        size--;
    }
    if (!size) return;
    outer_replace_initial(loop);
    memcpy((uint8_t *)(loop->theta + f->offset) + (offset - SNAPSHOT_HEAD_BYTES), data, size);
}

/* A relayed update arrives without this worker's own delta: copy it from the payload. If the checksum of the whole
 * object then fails, the worker downloads all bytes. */
static void insert_own_delta(struct outer_loop *loop, uint32_t i)
{
    struct outer_fragment *f = &loop->f[i];
    const struct sync_fragment *sf = &loop->sync.f[i];
    struct update u;
    uint64_t from, to;
    size_t at;
    if (!f->pending || f->damaged || sf->complete || sf->own_to) return;
    if (update_peek(&u, loop->named, WIRE_NAMED_MAX, f->object, sf->have, &at) != STATUS_OK || strcmp(u.codec, "relay"))
        return;
    for (uint32_t k = 0; k < u.n_named; k++) {
        if (u.named[k].worker_id != loop->sync.worker_id || u.named[k].round != loop->sync.round) continue;
        if (relay_range(f->object + at, sf->have - at, u.n_named, k, &from, &to) != STATUS_OK) return;
        if (to - from != f->payload_size || to >= sf->total - at) return;
        assert(from <= to && at + to <= f->object_cap);
        memcpy(f->object + at + from, f->payload, f->payload_size);
        sync_on_local_bytes(&loop->sync, i, at + from, at + to);
        return;
    }
}

/* A retry would not help: the loop fails. */
static void fail_no_memory(struct outer_loop *loop, uint64_t bytes)
{
    snprintf(loop->text, sizeof loop->text,
             "no memory for an update of %s: codec.down relays the deltas of all workers",
             units_bytes((double)bytes).text);
    sync_fail(&loop->sync, loop->text);
}

/* An update, or a part of it, came twice. */
static bool has_bytes(const struct outer_loop *loop, const struct msg_chunk *m)
{
    if (m->kind != OBJECT_UPDATE || m->fragment >= loop->sync.n_fragments) return false;
    const struct sync_fragment *f = &loop->sync.f[m->fragment];
    return m->key <= f->version || (m->key == f->get_version && m->offset + m->size <= f->have);
}

void outer_on_chunk(struct outer_loop *loop, const struct msg_chunk *m, uint64_t now_us)
{
    sync_on_chunk(&loop->sync, m->size, has_bytes(loop, m), now_us);
    if (!sync_expects(&loop->sync, m->kind, m->fragment, m->key)) return;
    struct outer_fragment *f = &loop->f[m->fragment];
    const struct sync_fragment *sf = &loop->sync.f[m->fragment];
    uint64_t have = sf->have;
    bool snapshot = m->kind == OBJECT_SNAPSHOT;
    enum status room = snapshot ? STATUS_OK : outer_reserve_object(f, m->total);
    if (room == STATUS_NOMEM) {
        fail_no_memory(loop, m->total);
        return;
    }
    bool fits = snapshot ? m->total == snapshot_bytes(f) : room == STATUS_OK;
    if (!fits || (sf->total && m->total != sf->total) || m->offset > m->total || m->size > m->total - m->offset) {
        log_warn("ignored a chunk of %s %" PRIu64 ", fragment %u: its sizes are invalid",
                 snapshot ? "snapshot" : "update", m->key, m->fragment);
        return;
    }
    if (m->offset > have || m->offset + m->size <= have) return; /* a gap, or a duplicate */
    if (crc32c(0, m->data, m->size) != m->crc) {
        log_warn("ignored a chunk of fragment %u: checksum mismatch", m->fragment);
        return;
    }
    size_t skip = (size_t)(have - m->offset);
    assert(skip < m->size && (snapshot || m->total <= f->object_cap));
    if (snapshot)
        store_snapshot_bytes(loop, f, have, m->data + skip, m->size - skip);
    else
        memcpy(f->object + have, m->data + skip, m->size - skip);
    sync_on_progress(&loop->sync, m->fragment, m->offset + m->size, m->total, now_us);
    if (!snapshot && loop->relays) insert_own_delta(loop, m->fragment);
}

/* --- applying ----------------------------------------------------------------------------------------------------- */

static void drop_all(struct outer_loop *loop, uint64_t now_us)
{
    outer_drop_deltas(loop);
    sync_drop(&loop->sync, now_us);
}

static void damaged(struct outer_loop *loop, uint32_t i, const char *what, uint64_t now_us)
{
    struct outer_fragment *f = &loop->f[i];
    log_error("fragment %u, version %" PRIu64 ": %s", i, loop->sync.f[i].get_version, what);
    if (++f->damaged < DAMAGED_MAX) {
        sync_on_damaged(&loop->sync, i, now_us);
        return;
    }
    f->damaged = 0;
    drop_all(loop, now_us);
}

static void load_snapshot(struct outer_loop *loop, uint32_t i, uint64_t now_us)
{
    struct outer_fragment *f = &loop->f[i];
    struct snapshot_head head;
    if (snapshot_head_decode(&head, f->snapshot_head, sizeof f->snapshot_head) != STATUS_OK || head.fragment != i ||
        head.version != loop->sync.f[i].get_version || head.count != f->count) {
        damaged(loop, i, "malformed snapshot head", now_us);
        return;
    }
    uint64_t hash = hash_floats(loop->model.pool, loop->theta + f->offset, f->count);
    if (hash != head.hash) {
        damaged(loop, i, "snapshot does not match its hash", now_us);
        return;
    }
    f->hash = hash;
    f->damaged = 0;
    sync_loaded(&loop->sync, i, head.version, now_us);
    assert(loop->sync.f[i].version == head.version && !loop->sync.f[i].loading);
    log_debug("loaded fragment %u at version %" PRIu64, i, head.version);
}

/* Merges relayed deltas into scratch as the coordinator did. The outer step is not yet applied. */
static enum status merge_relayed(struct outer_loop *loop, const struct outer_fragment *f, uint32_t i,
                                 const struct update *u)
{
    struct merge merge;
    const float *theta = loop->theta + f->offset;
    TRY(relay_split(loop->deltas, u->n_named, u->payload, u->payload_size));
    for (uint32_t k = 0; k < u->n_named; k++) loop->weights[k] = loop->deltas[k].tokens = u->named[k].tokens;
    TRY(merge_start(&merge, &loop->merger, loop->model.layout, i, f->up, theta, loop->scratch, loop->weights,
                    u->n_named));
    return relay_merge(&merge, loop->deltas);
}

static bool is_relayed(const struct outer_loop *loop, const struct update *u)
{
    return loop->relays && !strcmp(u->codec, "relay");
}

/* Checks the assembled update without changing theta: opens it in *view, or merges relayed deltas into scratch. Returns
 * an error text, or NULL. */
static const char *open_update(struct outer_loop *loop, uint32_t i, struct update *u, struct codec_view *view)
{
    struct outer_fragment *f = &loop->f[i];
    const struct sync_fragment *sf = &loop->sync.f[i];
    if (update_decode(u, loop->named, WIRE_NAMED_MAX, f->object, sf->total) != STATUS_OK) return "malformed update";
    if (u->fragment != i || u->version != sf->version + 1)
        return "update of another version or fragment than requested";
    bool relayed = is_relayed(loop, u);
    if (!relayed && (!f->down || strcmp(u->codec, codec_spec(f->down)) != 0))
        return "update not encoded with the run's codec.down";
    enum status status =
        relayed ? merge_relayed(loop, f, i, u) : codec_open(f->down, u->payload, u->payload_size, NULL, view);
    if (status == STATUS_NONFINITE) return "update holds NaN or infinity";
    return status == STATUS_OK ? NULL : "malformed update payload";
}

static void apply_to_theta(struct outer_loop *loop, uint32_t i, const struct update *u, const struct codec_view *view)
{
    const struct outer_fragment *f = &loop->f[i];
    const struct apply_update_sgd step = {
        .lr = u->rate, .parameters = loop->lossless, .increment = u->form == UPDATE_INCREMENT};
    if (is_relayed(loop, u))
        apply_update_step(loop->model.pool, &step, loop->scratch, loop->theta + f->offset, f->count);
    else
        apply_update_view(loop->model.pool, view, u->form == UPDATE_PARAMETERS, loop->theta + f->offset);
}

static uint64_t named_round(const struct outer_loop *loop, const struct update *u)
{
    uint64_t round = SYNC_NO_ROUND;
    for (uint32_t i = 0; i < u->n_named; i++) {
        if (u->named[i].worker_id != loop->sync.worker_id || loop->sync.worker_id == UINT32_MAX) continue;
        if (u->named[i].round == loop->sync.round) return loop->sync.round;
        if (round == SYNC_NO_ROUND || u->named[i].round > round) round = u->named[i].round;
    }
    return round;
}

/* A region publishes the update before it is applied here: no saved state is ahead of its journal. */
static bool pass_on(struct outer_loop *loop, uint32_t i, const struct update *u)
{
    const struct sync *s = &loop->sync;
    uint64_t made = s->round != SYNC_NO_ROUND ? s->round : s->last_round;
    if (!loop->setup.on_update) return true;
    bool named = named_round(loop, u) == u->round; /* also by an earlier process, whose state is lost */
    return loop->setup.on_update(loop->setup.host_ctx, loop->f[i].object, s->f[i].total, named || made == u->round,
                                 named);
}

static void note_round_end(struct outer_loop *loop, uint64_t now_us)
{
    if (loop->sync.round != SYNC_NO_ROUND || loop->running.round == SYNC_NO_ROUND) return;
    if (loop->delivered_us)
        loop->running.wait_s = outer_wait_seconds(loop, loop->delivered_us, now_us);
    else
        loop->running.send_s = outer_wait_seconds(loop, loop->sent_us, now_us);
    loop->times = loop->running;
    loop->running = (struct outer_times){.round = SYNC_NO_ROUND};
}

static void apply_update_object(struct outer_loop *loop, uint32_t i, uint64_t now_us)
{
    struct outer_fragment *f = &loop->f[i];
    struct update u;
    struct codec_view view;
    uint64_t started = outer_stopwatch(loop), took;
    enum worker_state state = loop->sync.state;
    assert(!loop->save.running || outer_save_is_beside(loop)); /* without a copy the save reads theta */
    const char *error = open_update(loop, i, &u, &view);
    if (error) {
        damaged(loop, i, error, now_us);
        return;
    }
    if (!pass_on(loop, i, &u)) {
        sync_fail(&loop->sync, "the region takes no more updates");
        return;
    }
    outer_replace_initial(loop);
    apply_to_theta(loop, i, &u, &view);
    uint64_t hash = hash_floats(loop->model.pool, loop->theta + f->offset, f->count);
    if (hash != u.theta_hash) {
        log_error("fragment %u at version %" PRIu64 " has hash %016" PRIx64 ", the run has %016" PRIx64
                  ": wrong parameters on this worker (memory fault or software defect), loading a snapshot",
                  i, u.version, hash, u.theta_hash);
        drop_all(loop, now_us);
        return;
    }
    f->moved = true;
    uint64_t before = f->hash;
    f->hash = hash;
    f->damaged = 0;
    outer_anchor_update(loop, i, before, &u);
    switch (sync_applied(&loop->sync, i, u.round, named_round(loop, &u), now_us)) {
    case SYNC_NAMED:
        feedback_commit(&f->fb);
        f->pending = false;
        break;
    case SYNC_NAMED_LATER:
        log_debug("fragment %u: reset the residual, the run merged a delta that this worker did not save", i);
        outer_residual_reset(loop, i);
        f->pending = false;
        break;
    case SYNC_NOT_MINE: break;
    }
    assert(loop->sync.f[i].version == u.version);
    took = outer_stopwatch(loop) - started;
    bool of_round = state == WORKER_TRAINING || state == WORKER_SENDING || state == WORKER_WAITING;
    if (of_round) loop->running.apply_s += (double)took / 1e6; /* a worker that catches up has no round */
    note_round_end(loop, now_us + took);
}

void outer_apply_ready(struct outer_loop *loop, uint64_t now_us)
{
    uint32_t i;
    while (sync_apply(&loop->sync, &i)) {
        if (loop->sync.f[i].loading)
            load_snapshot(loop, i, now_us);
        else
            apply_update_object(loop, i, now_us);
    }
    note_round_end(loop, now_us);
}

/* Fills a fragment from the program's own parameters, or by the layout's rules. False: neither has this hash. */
static bool fill_version0(struct outer_loop *loop, uint32_t i, uint64_t hash)
{
    const struct outer_fragment *f = &loop->f[i];
    float *theta = loop->theta + f->offset;
    const float *first = loop->model.theta ? loop->theta : loop->model.initial; /* the hash tells if it still is */
    const float *initial = first ? first + f->offset : NULL;
    if (initial && hash_floats(loop->model.pool, initial, f->count) == hash) {
        if (initial != theta) memcpy(theta, initial, f->count * sizeof *theta);
        return true;
    }
    if (config_is_external(loop->model.config)) return false;
    layout_fill(loop->model.layout, i, loop->model.config->run.seed, theta);
    return hash_floats(loop->model.pool, theta, f->count) == hash;
}

void outer_make_version0(struct outer_loop *loop, const struct msg_welcome *w, uint64_t now_us)
{
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        const struct sync_fragment *sf = &loop->sync.f[i];
        if (w->snapshot[i].version != 0 || !sf->loading || sf->have)
            continue;                                               /* its download has begun or is complete */
        if (!fill_version0(loop, i, w->snapshot[i].hash)) continue; /* it starts from other weights: download them */
        f->hash = w->snapshot[i].hash;
        sync_loaded(&loop->sync, i, 0, now_us);
    }
}
