#include "coordinator/outer_state.h"

#include <string.h>

#include "common/codec_spec.h"
#include "common/hash.h"
#include "common/hf_folder.h"
#include "common/mem.h"
#include "common/pool.h"
#include "common/schedule.h"
#include "compress/codec.h"
#include "coordinator/outer_opt.h"
#include "wire/msg.h"
#include "wire/object.h"

/* Of an update object: everything but the payload. */
enum { OBJECT_HEAD_MAX = 256 + 20 * WIRE_NAMED_MAX };

enum { THREADS_AUTO_MAX = 16, GATHER_BYTES = 32 << 20 };

uint8_t outer_delta_form(const struct config *config)
{
    if (config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    bool barrier = config->train.method != METHOD_ASYNC;
    return barrier && codec_spec_lossless(config->codec.up) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
}

uint8_t outer_update_form(const struct config *config)
{
    return config_update_replaces(config) ? UPDATE_PARAMETERS : UPDATE_INCREMENT;
}

/* The momentum and what is to move it next lie apart only where a part of the momentum is due in between. */
static bool delayed_apart(const struct config *c)
{
    return c->train.method == METHOD_ASYNC && c->outer.optimizer == OPTIMIZER_NESTEROV && c->outer.momentum_spread != 0;
}

/* Cores this process may use, unless somebody says otherwise. */
static int threads_of(const struct config *config)
{
    return config->coordinator.threads ? (int)config->coordinator.threads : pool_cores(THREADS_AUTO_MAX);
}

static enum status init_fragment(struct outer_state *s, uint32_t f, size_t *part_max, struct err *err)
{
    const struct config *c = s->config;
    struct outer_fragment *frag = &s->fragments[f];
    size_t count = s->layout->fragments[f].count;
    TRY(codec_create_for_fragment(&frag->up, config_up_spec(c, f), s->layout, f, err));
    char spec[CODEC_SPEC_MAX];
    config_down_spec(c, f, spec);
    if (spec[0]) TRY(codec_create_for_fragment(&frag->down, spec, s->layout, f, err));
    bool keep = frag->down && outer_update_form(c) == UPDATE_INCREMENT && config_error_feedback(c, c->codec.down);
    /* What a union leaves behind waits for its coordinate to come up again: nothing makes it wrong meanwhile. */
    float decay = config_down_of(c, f) == CONFIG_DOWN_CODEC ? codec_feedback_decay(frag->down) : 1;
    if (feedback_init(&frag->residual, count, decay, keep) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the residual of %zu parameters", count);
    size_t up = merge_part_max(frag->up), down = frag->down ? merge_part_max(frag->down) : 0;
    if (up > *part_max) *part_max = up;
    if (down > *part_max) *part_max = down;
    if (codec_bound(frag->up) > s->delta_cap) s->delta_cap = codec_bound(frag->up);
    if (frag->down && codec_bound(frag->down) > s->payload_cap) s->payload_cap = codec_bound(frag->down);
    return STATUS_OK;
}

static enum status init_merger(struct outer_state *s, size_t part_max, struct err *err)
{
    int threads = threads_of(s->config);
    s->deltas = mem_alloc(WIRE_NAMED_MAX, sizeof *s->deltas);
    s->tokens = mem_alloc(WIRE_NAMED_MAX, sizeof *s->tokens);
    if (threads > 1 && pool_create(threads, POOL_FLOATS_EXACT, &s->pool) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "cannot start %d threads: set coordinator.threads", threads);
    bool parameters = outer_delta_form(s->config) == DELTA_PARAMETERS;
    enum status status = merger_init(&s->merger, s->config, parameters, s->pool, part_max);
    return s->deltas && s->tokens && status == STATUS_OK ? STATUS_OK
                                                         : err_set(err, STATUS_NOMEM, "no memory to merge deltas");
}

/* Deltas read back together share one walk over the accumulator: all that max_workers can send, as far as GATHER_BYTES
 * go, but at least one. */
static size_t gather_cap(const struct outer_state *s)
{
    size_t room = 0;
    for (uint32_t f = 0; f < s->layout->n_fragments; f++)
        if (codec_open_room(s->fragments[f].up) > room) room = codec_open_room(s->fragments[f].up);
    size_t one = s->delta_cap + room + 2 * MEM_ALIGN, all = one * s->config->coordinator.max_workers;
    size_t cap = all < GATHER_BYTES ? all : GATHER_BYTES;
    return OBJECT_HEAD_MAX + (cap > one ? cap : one);
}

enum status outer_state_init(struct outer_state *s, const struct config *config, const struct layout *layout,
                             struct err *err)
{
    *s = (struct outer_state){.config = config, .layout = layout};
    size_t n = layout->n_params, largest = 0, part_max = 0;
    s->fragments = mem_alloc(layout->n_fragments, sizeof *s->fragments);
    if (!s->fragments) return err_set(err, STATUS_NOMEM, "no memory for %u fragments", layout->n_fragments);
    for (uint32_t f = 0; f < layout->n_fragments; f++) {
        if (layout->fragments[f].count > largest) largest = layout->fragments[f].count;
        TRY(init_fragment(s, f, &part_max, err));
    }
    TRY(init_merger(s, part_max, err));
    bool two = config->outer.optimizer == OPTIMIZER_ADAMW || delayed_apart(config);
    s->theta = mem_alloc(n, sizeof *s->theta);
    s->acc = mem_alloc(largest, sizeof *s->acc);
    if (config->outer.optimizer != OPTIMIZER_SGD) s->m = mem_alloc(n, sizeof *s->m);
    if (two) s->v = mem_alloc(n, sizeof *s->v);
    s->payload_cap += OBJECT_HEAD_MAX;
    if (s->payload_cap < gather_cap(s)) s->payload_cap = gather_cap(s);
    s->payload = mem_alloc(1, s->payload_cap);
    bool all = s->theta && s->acc && s->payload && (s->m || config->outer.optimizer == OPTIMIZER_SGD) &&
               (s->v || !two);
    return all ? STATUS_OK
               : err_set(err, STATUS_NOMEM, "no memory for the state of %zu parameters (about %zu MiB)", n,
                         n * 16 >> 20);
}

enum status outer_state_reserve(struct outer_state *s, size_t bytes)
{
    if (bytes <= s->payload_cap) return STATUS_OK;
    uint8_t *larger = mem_alloc(1, bytes);
    if (!larger) return STATUS_NOMEM;
    mem_free(s->payload);
    s->payload = larger;
    s->payload_cap = bytes;
    return STATUS_OK;
}

void outer_state_finish(struct outer_state *s)
{
    for (uint32_t f = 0; s->fragments && f < s->layout->n_fragments; f++) {
        codec_destroy(s->fragments[f].up);
        codec_destroy(s->fragments[f].down);
        feedback_finish(&s->fragments[f].residual);
    }
    mem_free(s->fragments);
    mem_free(s->theta);
    mem_free(s->m);
    mem_free(s->v);
    mem_free(s->acc);
    mem_free(s->payload);
    mem_free(s->deltas);
    mem_free(s->tokens);
    merger_finish(&s->merger);
    pool_destroy(s->pool);
    memset(s, 0, sizeof *s);
}

void outer_state_rehash(struct outer_state *s)
{
    for (uint32_t f = 0; f < s->layout->n_fragments; f++) {
        const struct fragment *frag = &s->layout->fragments[f];
        s->fragments[f].hash = hash64(s->theta + frag->offset, frag->count * sizeof *s->theta);
    }
}

enum status outer_state_fill(struct outer_state *s, const char *init_dir, struct err *err)
{
    if (init_dir) {
        TRY(hf_folder_load(init_dir, s->layout, s->theta, err));
        if (!outer_finite(s->theta, s->layout->n_params))
            return err_set(err, STATUS_NONFINITE, "%s: its weights hold NaN or infinity", init_dir);
    } else {
        for (uint32_t f = 0; f < s->layout->n_fragments; f++)
            layout_fill(s->layout, f, s->config->run.seed, s->theta + s->layout->fragments[f].offset);
    }
    outer_state_rehash(s);
    return STATUS_OK;
}

double outer_state_lr(const struct outer_state *s, uint64_t round)
{
    const struct config *c = s->config;
    if (c->train.method != METHOD_DDP) return c->outer.learning_rate;
    struct lr_schedule schedule = {c->inner.schedule, c->inner.learning_rate, c->inner.min_lr_fraction,
                                   c->inner.warmup_steps, c->train.max_steps};
    return lr_schedule_at(&schedule, (double)round);
}
