#include "worker/inner/inner_step.h"

#include <assert.h>

struct step_count *inner_step_count(float *scalars)
{
    return (struct step_count *)(void *)(scalars + SCALAR_COUNT);
}

static void apply_sgd(const struct inner_step *s, double weight_decay, float *theta, const float *grad, double lr)
{
    for (size_t i = 0; i < s->n_spans; i++) {
        const struct adamw_span *span = &s->spans[i];
        float keep = span->decay ? (float)(1 - lr * weight_decay) : 1;
        s->dev->ops->sgd(s->dev, span->count, theta + span->offset, grad + span->offset, (float)lr, keep,
                         s->scalars + SCALAR_SCALE);
    }
}

void inner_step_apply(const struct inner_step *s, const struct inner_opt_config *c, float *theta, const float *grad,
                      double lr)
{
    const struct device_ops *ops = s->dev->ops;
    float *scale = s->scalars + SCALAR_SCALE;
    struct step_count *count = inner_step_count(s->scalars);
    struct adamw_hyper adamw = {.lr = (float)lr,
                                .beta1 = (float)c->beta1,
                                .beta2 = (float)c->beta2,
                                .eps = (float)c->eps,
                                .weight_decay = (float)c->weight_decay,
                                .count = count,
                                .bf16_moments = c->bf16};
    struct muon_hyper muon = {.lr = (float)lr,
                              .momentum = (float)c->muon_momentum,
                              .weight_decay = (float)c->weight_decay,
                              .steps = c->muon_steps,
                              .count = count,
                              .bf16_moments = c->bf16};
    assert(!s->muon || (c->kind == OPTIMIZER_MUON && s->momentum));
    assert(c->kind == OPTIMIZER_SGD || !s->n_spans || (s->m && s->v));
    ops->clip_scale(s->dev, s->scalars + SCALAR_SUMSQ, (float)c->grad_clip, scale, s->scalars + SCALAR_NORM);
    if (c->kind == OPTIMIZER_SGD) {
        apply_sgd(s, c->weight_decay, theta, grad, lr);
        return;
    }
    ops->count_step(s->dev, scale, adamw.beta1, adamw.beta2, count);
    if (s->n_spans) ops->adamw(s->dev, s->spans, s->n_spans, theta, grad, s->m, s->v, &adamw, scale);
    if (s->muon) ops->muon(s->dev, s->muon, theta, grad, s->momentum, &muon, scale);
}
