#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/units.h"
#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/sync_points.h"
#include "common/tensor/frozen.h"
#include "compress/relay.h"
#include "worker/outer/outer_loop_impl.h"
#include "worker/outer/outer_memory.h"

enum { UPDATE_HEAD_MAX = 512 };

static uint8_t form_of(const struct config *config, bool mean)
{
    if (config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    return config_delta_replaces(config, mean) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
}

static enum status fragment_init(struct outer_loop *loop, uint32_t i, struct err *err)
{
    struct outer_fragment *f = &loop->f[i];
    const struct config *config = loop->model.config;
    const struct layout *layout = loop->model.layout;
    f->offset = layout->fragments[i].offset;
    f->count = layout->fragments[i].count;
    bool mean = layout_is_mean(layout, i);
    TRY(codec_create_for_fragment(&f->up, config_up_spec(config, mean), layout, i, err));
    char down[CODEC_SPEC_MAX];
    config_down_spec(config, mean, down);
    if (down[0]) TRY(codec_create_for_fragment(&f->down, down, layout, i, err));
    bool keeps = loop->feedback && !mean;
    float decay = codec_feedback_decay(f->up);
    enum status status = keeps && loop->adds
                             ? feedback_init_lent(&f->fb, f->count, decay, loop->model.change + f->offset)
                             : feedback_init(&f->fb, f->count, decay, keeps);
    if (status != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the residual of fragment %u (%s)", i,
                       units_bytes((double)f->count * sizeof(float)).text);
    f->form = form_of(config, mean);
    f->copied = outer_copies_delta(config, mean, loop->adds);
    f->head = config_up_mixed(config) && !mean ? 1 + strlen(codec_spec(f->up)) : 0;
    f->payload_cap = f->head + codec_bound(f->up);
    size_t head = UPDATE_HEAD_MAX + WIRE_NAMED_MAX * (size_t)24, coded = f->down ? codec_bound(f->down) : 0;
    size_t delta = f->payload_cap + relay_head_size(1);
    bool relayed = loop->relays && !mean; /* the coordinator sends `down` where that is smaller */
    f->object_cap = head + (relayed ? delta : coded);
    f->object_max = head + coded + (relayed ? WIRE_NAMED_MAX * delta : 0);
    f->payload = mem_alloc(1, f->payload_cap);
    f->object = mem_alloc(1, f->object_cap);
    if (!f->payload || !f->object)
        return err_set(err, STATUS_NOMEM, "no memory for the buffers of fragment %u (%s)", i,
                       units_bytes((double)(f->payload_cap + f->object_cap)).text);
    if (f->head) {
        f->payload[0] = (uint8_t)(f->head - 1);
        memcpy(f->payload + 1, codec_spec(f->up), f->head - 1);
    }
    return STATUS_OK;
}

enum status outer_reserve_object(struct outer_fragment *f, size_t bytes)
{
    if (bytes <= f->object_cap) return STATUS_OK;
    if (bytes > f->object_max) return STATUS_LIMIT;
    uint8_t *larger = mem_resize(f->object, f->object_cap, bytes);
    if (!larger) return STATUS_NOMEM;
    f->object = larger;
    f->object_cap = bytes;
    return STATUS_OK;
}

/* Allocates the memory that merges relayed deltas. */
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
    return w.bad ? err_set(err, STATUS_LIMIT, "the encoded layout exceeds its computed size") : STATUS_OK;
}

static enum status frozen_bytes_init(struct outer_loop *loop, struct err *err)
{
    const struct frozen *list = loop->model.frozen;
    if (!list || !list->n) return STATUS_OK;
    loop->frozen_size = frozen_encoded_size(list);
    loop->frozen_bytes = mem_alloc(1, loop->frozen_size);
    if (!loop->frozen_bytes) return err_set(err, STATUS_NOMEM, "no memory for the list of frozen tensors");
    struct writer w = writer_of(loop->frozen_bytes, loop->frozen_size);
    frozen_encode(list, &w);
    assert(!w.bad);
    return STATUS_OK;
}

/* Lets the device that holds the parameters make the deltas, if it can; otherwise the host makes them. */
static enum status make_delta_device(struct outer_loop *loop, struct err *err)
{
    struct delta_source sources[LAYOUT_FRAGMENTS_MAX];
    const struct outer_model *model = &loop->model;
    if (!model->device || model->config->train.method == METHOD_DDP || loop->lossless || loop->sync.overlaps)
        return STATUS_OK;
    for (uint32_t i = 0; i < loop->n_fragments; i++) {
        struct outer_fragment *f = &loop->f[i];
        sources[i] = (struct delta_source){
            .offset = f->offset, .count = f->count, .codec = f->up, .down = f->down, .feedback = &f->fb};
    }
    enum status status =
        delta_device_create(&loop->delta_device, model->device, model->device_theta, sources, loop->n_fragments, err);
    if (status != STATUS_UNSUPPORTED && status != STATUS_NOMEM) return status;
    log_info("making deltas on the CPU: %s", err->msg);
    *err = (struct err){0};
    return STATUS_OK;
}

bool outer_loop_adds(const struct config *config)
{
    enum train_method method = config->train.method;
    return method != METHOD_ASYNC && method != METHOD_DDP && !sync_overlaps(config) &&
           !codec_spec_lossless(config->codec.up);
}

enum status outer_memory_init(struct outer_loop *loop, struct err *err)
{
    const struct config *config = loop->model.config;
    const struct layout *layout = loop->model.layout;
    uint64_t largest = 0, largest_mean = 0;
    loop->async = config->train.method == METHOD_ASYNC;
    loop->fresh = true;
    sync_set_schedule(&loop->sync, config);
    if (!apply_rule_parse(config->train.apply, &loop->rule, &loop->alpha))
        return err_set(err, STATUS_INVALID, "train.apply: \"%s\" is not known to this version", config->train.apply);
    loop->lossless = codec_spec_lossless(config->codec.up) && !config_up_mixed(config);
    loop->feedback = !codec_spec_lossless(config->codec.up);
    loop->adds = loop->model.change && outer_loop_adds(config);
    loop->relays = config_may_relay(config);
    loop->n_params = layout->n_params;
    loop->n_fragments = layout->n_fragments;
    bool copies = loop->relays; /* their merge needs scratch, too */
    for (uint32_t i = 0; i < layout->n_fragments; i++) {
        if (layout->fragments[i].count > largest) largest = layout->fragments[i].count;
        if (layout_is_mean(layout, i) && layout->fragments[i].count > largest_mean)
            largest_mean = layout->fragments[i].count;
        TRY(fragment_init(loop, i, err));
        copies = copies || loop->f[i].copied;
    }
    if (loop->relays) TRY(merger_make(loop, err));
    TRY(layout_bytes_init(loop, err));
    TRY(frozen_bytes_init(loop, err));
    loop->theta = loop->model.theta ? loop->model.theta : mem_alloc(loop->n_params, sizeof *loop->theta);
    if (copies) loop->scratch = mem_alloc(largest, sizeof *loop->scratch);
    loop->named = mem_alloc(WIRE_NAMED_MAX, sizeof *loop->named);
    loop->parts = mem_alloc(OUTER_PARTS_MAX + 3 + 2 * (size_t)loop->n_fragments, sizeof *loop->parts);
    if (loop->feedback && largest_mean) loop->zeros = mem_alloc(largest_mean, sizeof *loop->zeros);
    bool scratch = loop->scratch || !copies, zeros = loop->zeros || !loop->feedback || !largest_mean;
    bool all = loop->theta && scratch && zeros && loop->named && loop->parts;
    if (all) TRY(make_delta_device(loop, err));
    if (loop->sync.overlaps) loop->live = mem_alloc(loop->n_params, sizeof *loop->live);
    /* async: updates during training change theta, so base is a copy. The delta device keeps it, if there is one. */
    bool copy = (loop->async && !loop->delta_device) || (loop->live && loop->rule == APPLY_CORRECT);
    loop->base = copy ? mem_alloc(loop->n_params, sizeof *loop->base) : loop->theta;
    if (all && loop->base && (loop->live || !loop->sync.overlaps)) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory for the parameters (%s)",
                   units_bytes((double)loop->n_params * sizeof(float)).text);
}

void outer_memory_finish(struct outer_loop *loop)
{
    delta_device_destroy(loop->delta_device);
    outer_initial_close(loop->initial);
    for (uint32_t i = 0; i < LAYOUT_FRAGMENTS_MAX; i++) {
        struct outer_fragment *f = &loop->f[i];
        codec_destroy(f->up);
        codec_destroy(f->down);
        feedback_finish(&f->fb);
        mem_free(f->payload);
        mem_free(f->object);
    }
    if (loop->base != loop->theta) mem_free(loop->base);
    mem_free(loop->live);
    mem_free(loop->save.copy);
    if (!loop->model.theta) mem_free(loop->theta);
    mem_free(loop->scratch);
    mem_free(loop->zeros);
    mem_free(loop->named);
    merger_finish(&loop->merger);
    mem_free(loop->deltas);
    mem_free(loop->weights);
    mem_free(loop->parts);
    mem_free(loop->layout_bytes);
    mem_free(loop->frozen_bytes);
}
