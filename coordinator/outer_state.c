#include "coordinator/outer_state.h"

#include <math.h>
#include <string.h>

#include "common/hash.h"
#include "common/hf_folder.h"
#include "common/mem.h"
#include "common/schedule.h"
#include "compress/codec.h"
#include "coordinator/outer_opt.h"
#include "coordinator/publish.h"
#include "wire/msg.h"
#include "wire/object.h"

/* Of an update object: everything but the payload. */
enum { OBJECT_HEAD_MAX = 256 + 20 * WIRE_NAMED_MAX };

uint8_t outer_delta_form(const struct config *config)
{
    if (config->train.method == METHOD_DDP) return DELTA_GRADIENT;
    bool barrier = config->train.method != METHOD_ASYNC;
    return barrier && config_codec_lossless(config->codec.up) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
}

uint8_t outer_update_form(const struct config *config)
{
    return config_codec_lossless(config->codec.down) ? UPDATE_PARAMETERS : UPDATE_INCREMENT;
}

static bool delayed(const struct config *c)
{
    return c->train.method == METHOD_ASYNC && c->outer.optimizer == OPTIMIZER_NESTEROV;
}

static enum status init_fragment(struct outer_state *s, uint32_t f, struct err *err)
{
    const struct config *c = s->config;
    struct outer_fragment *frag = &s->fragments[f];
    size_t count = s->layout->fragments[f].count;
    TRY(codec_create_for_fragment(&frag->up, c->codec.up, s->layout, f, err));
    TRY(codec_create_for_fragment(&frag->down, c->codec.down, s->layout, f, err));
    bool keep = outer_update_form(c) == UPDATE_INCREMENT && config_error_feedback(c, c->codec.down);
    if (feedback_init(&frag->residual, count, codec_feedback_decay(frag->down), keep) != STATUS_OK)
        return err_set(err, STATUS_NOMEM, "no memory for the residual of %zu parameters", count);
    if (codec_bound(frag->up) > s->delta_cap) s->delta_cap = codec_bound(frag->up);
    if (codec_bound(frag->down) > s->payload_cap) s->payload_cap = codec_bound(frag->down);
    return STATUS_OK;
}

enum status outer_state_init(struct outer_state *s, const struct config *config, const struct layout *layout,
                             struct err *err)
{
    *s = (struct outer_state){.config = config, .layout = layout};
    size_t n = layout->n_params, largest = 0;
    s->fragments = mem_alloc(layout->n_fragments, sizeof *s->fragments);
    if (!s->fragments) return err_set(err, STATUS_NOMEM, "no memory for %u fragments", layout->n_fragments);
    for (uint32_t f = 0; f < layout->n_fragments; f++) {
        if (layout->fragments[f].count > largest) largest = layout->fragments[f].count;
        TRY(init_fragment(s, f, err));
    }
    bool two = config->outer.optimizer == OPTIMIZER_ADAMW || delayed(config);
    s->theta = mem_alloc(n, sizeof *s->theta);
    s->acc = mem_alloc(largest, sizeof *s->acc);
    if (config->outer.optimizer != OPTIMIZER_SGD) s->m = mem_alloc(n, sizeof *s->m);
    if (two) s->v = mem_alloc(n, sizeof *s->v);
    s->payload_cap += OBJECT_HEAD_MAX;
    if (s->payload_cap < s->delta_cap) s->payload_cap = s->delta_cap;
    s->payload = mem_alloc(1, s->payload_cap);
    bool all = s->theta && s->acc && s->payload && (s->m || config->outer.optimizer == OPTIMIZER_SGD) &&
               (s->v || !two);
    return all ? STATUS_OK
               : err_set(err, STATUS_NOMEM, "no memory for the state of %zu parameters (about %zu MiB)", n,
                         n * 16 >> 20);
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

/* AdamW goes tensor by tensor: decay is a property of the tensor. */
static void step_adamw(struct outer_state *s, const struct outer_step *step, const struct outer_in *in)
{
    const struct config *c = s->config;
    const struct fragment *frag = &s->layout->fragments[step->fragment];
    bool ddp = c->train.method == METHOD_DDP;
    struct outer_adamw p = {.lr = outer_state_lr(s, step->round), .beta1 = c->inner.beta1, .beta2 = c->inner.beta2,
                            .eps = c->inner.eps, .t = step->version,
                            .scale = ddp ? outer_clip_scale(step->norm, c->inner.grad_clip) : 1};
    for (uint32_t t = frag->first_tensor; t < frag->first_tensor + frag->n_tensors; t++) {
        const struct tensor *tensor = &s->layout->tensors[t];
        size_t at = tensor->offset - frag->offset;
        struct outer_in part = *in;
        part.theta += at;
        part.acc += at;
        part.n = tensor->count;
        p.decay = ddp && tensor->decay ? c->inner.weight_decay : 0;
        outer_adamw(&part, s->m + tensor->offset, s->v + tensor->offset, &p);
    }
}

/* Async: delayed Nesterov, or SGD with the same weights. */
static void step_async(struct outer_state *s, const struct outer_step *step, const struct outer_in *in)
{
    const struct config *c = s->config;
    struct outer_fragment *frag = &s->fragments[step->fragment];
    uint64_t offset = s->layout->fragments[step->fragment].offset;
    uint32_t n = c->outer.buffer ? c->outer.buffer : step->members;
    frag->merged++;
    frag->merged_tokens += step->tokens;
    double mean = (double)frag->merged_tokens / (double)frag->merged;
    double weight = pow(1 + (double)step->staleness, -c->outer.staleness_power) * (double)step->tokens / mean;
    struct outer_delayed p = {.lr = c->outer.learning_rate, .mu = c->outer.momentum, .c = c->outer.momentum_spread,
                              .weight = weight, .n_buffer = n ? n : 1};
    if (!delayed(c)) {
        outer_sgd(in, p.lr * weight / p.n_buffer);
        return;
    }
    p.flush = frag->buffered + 1 >= p.n_buffer;
    frag->buffered = p.flush ? 0 : frag->buffered + 1;
    outer_delayed_nesterov(in, s->m + offset, s->v + offset, &p);
}

static void clip(const struct outer_state *s, const struct outer_step *step, const struct outer_in *in)
{
    double scale = outer_clip_scale(step->norm, s->config->inner.grad_clip);
    if (scale < 1)
        for (size_t i = 0; i < in->n; i++) in->acc[i] = (float)(scale * (double)in->acc[i]);
}

/* What the worker's SGD does: theta - lr (gradient + weight_decay theta), after clipping. */
static void decay(const struct outer_state *s, const struct outer_step *step, const struct outer_in *in)
{
    const struct fragment *frag = &s->layout->fragments[step->fragment];
    double weight_decay = s->config->inner.weight_decay;
    if (weight_decay == 0) return;
    for (uint32_t t = frag->first_tensor; t < frag->first_tensor + frag->n_tensors; t++) {
        const struct tensor *tensor = &s->layout->tensors[t];
        uint64_t first = tensor->offset - frag->offset, end = first + tensor->count;
        for (uint64_t i = first; tensor->decay && i < end; i++)
            in->acc[i] = (float)((double)in->acc[i] + weight_decay * (double)in->theta[i]);
    }
}

enum status outer_state_step(struct outer_state *s, const struct outer_step *step, size_t at, size_t *size_p)
{
    const struct config *c = s->config;
    const struct fragment *frag = &s->layout->fragments[step->fragment];
    float *theta = s->theta + frag->offset;
    bool replace = outer_update_form(c) == UPDATE_PARAMETERS;
    struct outer_in in = {.theta = theta, .acc = s->acc, .n = frag->count, .increment = !replace,
                          .parameters = outer_delta_form(c) == DELTA_PARAMETERS};
    if (!outer_finite(s->acc, frag->count)) return STATUS_NONFINITE;
    if (c->train.method == METHOD_ASYNC && c->outer.optimizer != OPTIMIZER_ADAMW) {
        step_async(s, step, &in);
    } else if (c->outer.optimizer == OPTIMIZER_ADAMW) {
        step_adamw(s, step, &in);
    } else {
        if (c->train.method == METHOD_DDP) clip(s, step, &in);
        double lr = outer_state_lr(s, step->round);
        if (c->outer.optimizer == OPTIMIZER_NESTEROV) {
            outer_nesterov(&in, s->m + frag->offset, lr, c->outer.momentum);
        } else {
            if (c->train.method == METHOD_DDP) decay(s, step, &in);
            outer_sgd(&in, lr);
        }
    }
    if (!outer_finite(s->acc, frag->count)) return STATUS_NONFINITE;
    struct outer_fragment *mine = &s->fragments[step->fragment];
    return publish_step(mine->down, &mine->residual, replace, s->acc, theta, frag->count, s->payload + at,
                        s->payload_cap - at, size_p, &mine->hash);
}
