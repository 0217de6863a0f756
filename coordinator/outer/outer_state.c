#include "coordinator/outer/outer_state.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/minmax.h"
#include "common/base/pool.h"
#include "common/base/units.h"
#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/schedule.h"
#include "common/config/sync_points.h"
#include "common/tensor/hf_folder.h"
#include "compress/codec.h"
#include "compress/relay.h"
#include "compress/topk/union_size.h"
#include "coordinator/outer/arrival.h"
#include "coordinator/outer/delta_measure.h"
#include "coordinator/outer/held.h"
#include "coordinator/outer/outer_arrays.h"
#include "coordinator/outer/outer_opt.h"
#include "coordinator/round/upload.h"
#include "wire/msg.h"
#include "wire/object.h"

/* The largest update object without its payload. */
enum { OBJECT_HEAD_MAX = 256 + 20 * WIRE_NAMED_MAX };

enum { THREADS_AUTO_MAX = 16, GATHER_BYTES = 32 << 20 };

/* coordinator.threads, or the cores that this process may use. */
static int thread_count(const struct config *config)
{
    return config->coordinator.threads ? (int)config->coordinator.threads : pool_cores(THREADS_AUTO_MAX);
}

/* The fragment's downlink has error feedback: later updates carry the coding error. */
static bool keeps_residual(const struct outer_state *s, uint32_t f)
{
    return config_down_loses(s->config) && !layout_is_mean(s->layout, f);
}

typedef enum status (*create_fn)(struct codec **codec_p, const char *spec, const struct layout *layout,
                                 uint32_t fragment, struct err *err);

/* Creates both codecs of a fragment and raises the buffer sizes to their needs. */
static enum status init_codecs(struct outer_state *s, uint32_t f, create_fn create, size_t *part_max, struct err *err)
{
    const struct config *c = s->config;
    struct outer_fragment *frag = &s->fragments[f];
    bool mean = layout_is_mean(s->layout, f);
    TRY(create(&frag->up, config_merge_spec(c, mean), s->layout, f, err));
    char spec[CODEC_SPEC_MAX], specs[CONFIG_UP_MAX][CODEC_SPEC_MAX];
    uint32_t n = config_up_mixed(c) && !mean ? config_up_specs(c, specs) : 0;
    for (; frag->n_arriving < n; frag->n_arriving++) {
        struct codec **codec = &frag->arriving[frag->n_arriving];
        TRY(create(codec, specs[frag->n_arriving], s->layout, f, err));
        if (merge_part_max(*codec) > *part_max) *part_max = merge_part_max(*codec);
    }
    config_down_spec(c, mean, spec);
    if (spec[0]) TRY(create(&frag->down, spec, s->layout, f, err));
    size_t up = merge_part_max(frag->up), down = frag->down ? merge_part_max(frag->down) : 0;
    if (up > *part_max) *part_max = up;
    if (down > *part_max) *part_max = down;
    if (arrival_bound(frag) > s->delta_cap) s->delta_cap = arrival_bound(frag);
    if (frag->down && codec_bound(frag->down) > s->payload_cap) s->payload_cap = codec_bound(frag->down);
    return STATUS_OK;
}

static enum status no_room(const struct outer_state *s, struct err *err)
{
    uint64_t n = s->layout->n_params, bytes = outer_arrays_bytes(s->config, s->layout);
    if (s->file >= 0)
        return err_set(err, STATUS_NOMEM, "no room in the run folder for the state of %s parameters (about %s): %s",
                       units_count((double)n).text, units_bytes((double)bytes).text, strerror(errno));
    return err_set(err, STATUS_NOMEM, "no memory for the state of %s parameters (about %s)",
                   units_count((double)n).text, units_bytes((double)bytes).text);
}

static enum status init_fragment(struct outer_state *s, uint32_t f, size_t *part_max, struct err *err)
{
    struct outer_fragment *frag = &s->fragments[f];
    assert(f < s->layout->n_fragments && !frag->up && !frag->down);
    size_t count = s->layout->fragments[f].count;
    TRY(init_codecs(s, f, codec_create_for_fragment, part_max, err));
    /* The residual of a union does not decay: it stays valid until a worker sends the coordinate again. */
    float decay = config_down(s->config) == CONFIG_DOWN_CODEC ? codec_feedback_decay(frag->down) : 1;
    bool keeps = keeps_residual(s, f), half = config_outer_half(s->config);
    TRY(feedback_init(&frag->residual, count, decay, false));
    if (keeps && half)
        frag->owed = outer_array_alloc(s->file, count, sizeof *frag->owed);
    else if (keeps)
        frag->residual.residual = outer_array_alloc(s->file, count, sizeof *frag->residual.residual);
    if (!keeps || frag->owed || frag->residual.residual) return STATUS_OK;
    return no_room(s, err);
}

static size_t most_parts(const struct outer_state *s)
{
    size_t most = 0;
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        const struct outer_fragment *frag = &s->fragments[f];
        if (codec_parts(frag->up) > most) most = codec_parts(frag->up);
        for (uint32_t i = 0; i < frag->n_arriving; i++)
            if (codec_parts(frag->arriving[i]) > most) most = codec_parts(frag->arriving[i]);
    }
    return most;
}

/* Codecs run on the pool, with the merger's scratch memory: no merge runs meanwhile. */
static void lend_pool(struct outer_state *s)
{
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        struct outer_fragment *frag = &s->fragments[f];
        size_t each = 2 * s->merger.part_max * sizeof *s->merger.scratch;
        codec_use_pool(frag->up, s->pool, s->merger.scratch, each);
        if (frag->down) codec_use_pool(frag->down, s->pool, s->merger.scratch, each);
        for (uint32_t i = 0; i < frag->n_arriving; i++)
            codec_use_pool(frag->arriving[i], s->pool, s->merger.scratch, each);
    }
}

static enum status init_merger(struct outer_state *s, size_t part_max, struct err *err)
{
    int threads = thread_count(s->config);
    s->deltas = mem_alloc(WIRE_NAMED_MAX, sizeof *s->deltas);
    s->tokens = mem_alloc(WIRE_NAMED_MAX, sizeof *s->tokens);
    s->squares = mem_alloc(most_parts(s), sizeof *s->squares);
    if (threads > 1 && pool_create(threads, POOL_FLOATS_EXACT, &s->pool) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "cannot start %d threads: set coordinator.threads", threads);
    bool parameters = config_delta_replaces(s->config, false);
    enum status status = merger_init(&s->merger, s->config, parameters, s->pool, part_max);
    if (status == STATUS_OK) lend_pool(s);
    bool all = s->deltas && s->tokens && s->squares;
    return all && status == STATUS_OK ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory to merge deltas");
}

/* Bytes of one opened delta: its payload and the room that codec_open needs. */
static size_t opened_bytes(const struct outer_state *s)
{
    size_t room = 0;
    for (uint32_t f = 0; f < s->layout->n_fragments; f++)
        if (codec_open_room(s->fragments[f].up) > room) room = codec_open_room(s->fragments[f].up);
    return s->delta_cap + room + 2 * MEM_ALIGN;
}

/* Bytes of the payload buffer. Deltas that are read together share one pass over the accumulator. The buffer therefore
 * takes the deltas of max_workers, limited to GATHER_BYTES, but at least one delta and one update. */
static size_t payload_bytes(const struct outer_state *s)
{
    size_t one = opened_bytes(s), all = one * s->config->coordinator.max_workers;
    size_t cap = all < GATHER_BYTES ? all : GATHER_BYTES;
    if (cap < one) cap = one;
    return OBJECT_HEAD_MAX + (cap > s->payload_cap ? cap : s->payload_cap);
}

enum status outer_state_init(struct outer_state *s, const struct config *config, const struct layout *layout,
                             struct err *err)
{
    return outer_state_init_with(s, config, layout, -1, NULL, err);
}

enum status outer_state_init_with(struct outer_state *s, const struct config *config, const struct layout *layout,
                                  int file, float *theta, struct err *err)
{
    *s = (struct outer_state){.config = config, .layout = layout, .file = file, .theta = theta};
    size_t n = layout->n_params, largest = 0, part_max = 0;
    s->fragments = mem_alloc(layout->n_fragments, sizeof *s->fragments);
    if (!s->fragments) return err_set(err, STATUS_NOMEM, "no memory for %u fragments", layout->n_fragments);
    for (uint32_t f = 0; f < layout->n_fragments; f++) {
        if (layout->fragments[f].count > largest) largest = layout->fragments[f].count;
        TRY(init_fragment(s, f, &part_max, err));
    }
    TRY(init_merger(s, part_max, err));
    uint32_t vectors = config_outer_vectors(config);
    if (!theta) s->theta = outer_array_alloc(file, n, sizeof *s->theta);
    s->acc = mem_alloc(largest, sizeof *s->acc);
    s->cells = mem_alloc(outer_cells(largest), sizeof *s->cells);
    bool half = config_outer_half(config);
    if (vectors > 0 && half) s->m_half = outer_array_alloc(file, n, sizeof *s->m_half);
    if (vectors > 0 && !half) s->m = outer_array_alloc(file, n, sizeof *s->m);
    if (vectors > 1) s->v = outer_array_alloc(file, n, sizeof *s->v);
    s->payload_cap = payload_bytes(s);
    assert(s->payload_cap >= s->delta_cap && s->payload_cap >= OBJECT_HEAD_MAX);
    s->payload = mem_alloc(1, s->payload_cap);
    bool all = s->theta && s->acc && s->cells && s->payload;
    all = all && (s->m || s->m_half || !vectors) && (s->v || vectors < 2);
    return all ? STATUS_OK : no_room(s, err);
}

/* All deltas of a round must be in memory together: the merge counts senders or adds directions, or the deltas are
 * relayed (coordinator/ledger/delta_read.c). */
static bool wants_all(const struct config *c)
{
    if (c->merge.rule == MERGE_RDA) return true;
    if (c->train.method == METHOD_ASYNC) return false;
    return config_may_relay(c) ||
           (c->merge.rule == MERGE_CONTRIBUTORS && codec_spec_sparse(config_merge_spec(c, false)));
}

enum status outer_state_bytes(uint64_t *bytes, const struct config *config, const struct layout *layout,
                              uint32_t workers, struct err *err)
{
    struct outer_state s = {.config = config, .layout = layout};
    size_t largest = 0, part_max = 0;
    enum status status = STATUS_OK;
    uint64_t codecs = 0, floats = 0, deltas = wants_all(config) ? workers : 0;
    s.fragments = mem_alloc(layout->n_fragments, sizeof *s.fragments);
    if (!s.fragments) return err_set(err, STATUS_NOMEM, "no memory for %u fragments", layout->n_fragments);
    for (uint32_t f = 0; f < layout->n_fragments && status == STATUS_OK; f++) {
        if (layout->fragments[f].count > largest) largest = layout->fragments[f].count;
        status = init_codecs(&s, f, codec_describe_for_fragment, &part_max, err);
        if (s.fragments[f].up) codecs += codec_memory(s.fragments[f].up);
        if (s.fragments[f].down) codecs += codec_memory(s.fragments[f].down);
        for (uint32_t i = 0; i < s.fragments[f].n_arriving; i++) codecs += codec_memory(s.fragments[f].arriving[i]);
    }
    if (status == STATUS_OK) {
        uint64_t together = OBJECT_HEAD_MAX + deltas * opened_bytes(&s), payload = payload_bytes(&s);
        floats += largest + (uint64_t)thread_count(config) * 2 * part_max;
        *bytes = codecs + layout->n_fragments * sizeof *s.fragments + outer_arrays_bytes(config, layout) +
                 floats * sizeof(float) + (together > payload ? together : payload) +
                 WIRE_NAMED_MAX * (sizeof *s.deltas + sizeof *s.tokens) + most_parts(&s) * sizeof *s.squares +
                 outer_cells(largest) * sizeof *s.cells;
    }
    outer_state_finish(&s);
    return status;
}

enum status outer_state_reserve(struct outer_state *s, size_t bytes)
{
    if (bytes <= s->payload_cap) return STATUS_OK;
    mem_free(s->payload); /* first, so that both buffers never exist together */
    s->payload = mem_alloc(1, bytes);
    s->payload_cap = s->payload ? bytes : 0;
    assert(!s->payload || s->payload_cap >= s->delta_cap);
    return s->payload ? STATUS_OK : STATUS_NOMEM;
}

uint64_t outer_buffer_bytes(uint32_t workers, uint64_t n_params)
{
    uint64_t theta = n_params * sizeof(float);
    return min_u64(UPLOAD_CREDIT + HELD_MOST, workers * theta) + min_u64(CHUNKS_MOST, theta);
}

void outer_state_finish(struct outer_state *s)
{
    for (uint32_t f = 0; s->fragments && f < s->layout->n_fragments; f++) {
        codec_destroy(s->fragments[f].up);
        codec_destroy(s->fragments[f].down);
        for (uint32_t i = 0; i < CONFIG_UP_MAX; i++) codec_destroy(s->fragments[f].arriving[i]);
        feedback_finish(&s->fragments[f].residual);
        mem_free(s->fragments[f].owed);
    }
    mem_free(s->fragments);
    mem_free(s->theta);
    mem_free(s->m);
    mem_free(s->m_half);
    mem_free(s->v);
    mem_free(s->acc);
    mem_free(s->cells);
    mem_free(s->payload);
    mem_free(s->deltas);
    mem_free(s->tokens);
    mem_free(s->squares);
    merger_finish(&s->merger);
    pool_destroy(s->pool);
    memset(s, 0, sizeof *s);
}

void outer_state_rehash(struct outer_state *s)
{
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        const struct fragment *frag = &s->layout->fragments[f];
        s->fragments[f].hash = hash_floats(s->pool, s->theta + frag->offset, frag->count);
    }
}

enum status outer_state_fill(struct outer_state *s, const char *init_dir, struct err *err)
{
    if (init_dir) {
        TRY(hf_folder_load_part(init_dir, s->layout, NULL, s->theta, err)); /* the hashes are compared */
        if (!outer_finite(s->theta, s->layout->n_params))
            return err_set(err, STATUS_NONFINITE, "%s: its weights contain NaN or infinity", init_dir);
    } else {
        for (uint32_t f = 0; f < s->layout->n_fragments; f++)
            layout_fill(s->layout, f, s->config->run.seed, s->theta + s->layout->fragments[f].offset);
    }
    outer_state_rehash(s);
    return STATUS_OK;
}

/* Each fragment gets the space of its own largest payload. Space of the largest fragment for all of them would exceed
 * the largest file. [derived: 8 G parameters in fp32 are 144 fragments, the largest with 2.1 GB. A slot has 32 GB
 * instead of 303 GB. The largest file of ext4 has 17.6 TB] */
uint64_t outer_state_spool_at(const struct outer_state *s, uint32_t slot, uint32_t fragment, uint64_t align)
{
    uint64_t at = 0, whole = 0;
    assert(align > 0 && fragment < s->layout->n_fragments);
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        uint64_t room = (arrival_bound(&s->fragments[f]) + align - 1) / align * align;
        if (f < fragment) at += room;
        whole += room;
    }
    return slot * whole + at;
}

bool outer_state_averages(const struct outer_state *s, uint64_t round)
{
    struct sync_rounds rounds = sync_rounds_of(s->config);
    return sync_round_at(&rounds, round).is_averaged;
}

double outer_state_lr(const struct outer_state *s, const struct outer_step *step)
{
    const struct config *c = s->config;
    if (layout_is_mean(s->layout, step->fragment) || outer_state_averages(s, step->round)) return 1;
    if (c->train.method != METHOD_DDP) return c->outer.learning_rate;
    struct lr_schedule schedule = lr_inner_schedule(c);
    return lr_schedule_at(&schedule, (double)step->round);
}

bool outer_state_relays(const struct outer_state *s, struct outer_ways *w)
{
    enum { CHUNK_HEAD_BYTES = 64 }; /* head of the second CHUNK, after the skipped delta */
    uint64_t members = w->members > w->named ? w->members : w->named;
    const struct outer_fragment *frag = &s->fragments[w->fragment];
    assert(frag->down && w->named > 0);
    uint64_t relay = w->head + strlen("relay") + w->deltas + relay_head_size(w->named);
    uint64_t encoded = w->head + strlen(codec_spec(frag->down)) + union_bytes(s->layout, w->fragment, s->acc, s->pool);
    assert(members * relay >= w->deltas);
    w->relay_bytes = members * relay - w->deltas + CHUNK_HEAD_BYTES * w->named;
    w->union_bytes = members * encoded;
    return w->relay_bytes <= w->union_bytes;
}
