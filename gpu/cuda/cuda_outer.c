/* The outer path of the CUDA device: deltas as quantized values, and updates of the anchor. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>

#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/cuda/cuda_plans.h"

struct plan {
    struct cuda_plan base;
    struct delta_format shape;
    struct piece_range *pieces; /* device memory */
};

static void free_plan(struct cuda_device *cuda, void *plan)
{
    struct plan *p = plan;
    cuda_rt_release(cuda->rt, p->pieces);
}

static enum status delta_fill(struct cuda_device *cuda, struct plan *plan, const struct piece_range *pieces)
{
    size_t bytes = plan->shape.n_pieces * sizeof *pieces;
    assert(bytes > 0);
    plan->pieces = cuda_rt_alloc(cuda->rt, bytes);
    if (!plan->pieces) return STATUS_NOMEM;
    cuda_rt_copy(cuda->rt, plan->pieces, pieces, bytes, CUDA_UPLOAD);
    return cuda_rt_sync(cuda->rt, NULL); /* the caller may free its table */
}

static enum status delta_plan(struct device *dev, const struct delta_format *shape, const struct piece_range *pieces,
                              struct delta_plan **out)
{
    if (!shape->n_pieces) return STATUS_INVALID;
    if (shape->kind <= PIECE_HALF && (shape->longest > CUDA_CHUNK_MAX || shape->k_max > CUDA_CHOSEN_MAX))
        return STATUS_UNSUPPORTED;
    struct plan *plan = cuda_plan_new(sizeof *plan, free_plan);
    if (!plan) return STATUS_NOMEM;
    plan->shape = *shape;
    return cuda_plan_keep(cuda_of(dev), plan, delta_fill(cuda_of(dev), plan, pieces), out);
}

static void delta(struct device *dev, const struct delta_plan *plan, const float *theta, const float *anchor,
                  float decay, const float *residual, float *rest, void *quantized)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct delta_format *s = &p->shape;
    struct quantized_delta out;
    delta_format_lay_out(s, quantized, &out);
    assert(p->pieces && s->n_pieces > 0);
    struct cuda_delta_args args = {.kind = s->kind,
                                   .decay = decay,
                                   .n_pieces = s->n_pieces,
                                   .pieces = p->pieces,
                                   .theta = theta,
                                   .anchor = anchor,
                                   .residual = residual,
                                   .rest = rest,
                                   .out = out};
    if (s->kind <= PIECE_HALF)
        LAUNCH_ARGS(cuda, cuda_delta_chunk, s->n_pieces, 1, &args);
    else
        LAUNCH_ARGS(cuda, cuda_delta_block, blocks_of(s->n_pieces, CUDA_ROW_WARPS), 1, &args);
}

static void delta_add(struct device *dev, const struct delta_plan *plan, void *quantized, float *theta)
{
    struct cuda_device *cuda = cuda_of(dev);
    const struct plan *p = cuda_plan_of(cuda, plan, free_plan);
    if (!p) return;
    const struct delta_format *s = &p->shape;
    struct quantized_delta in;
    delta_format_lay_out(s, quantized, &in);
    assert(p->pieces && s->n_pieces > 0);
    cuda_written(cuda, theta, s->n_values * sizeof *theta);
    LAUNCH(cuda, cuda_delta_add, blocks_of(s->n_pieces, CUDA_ROW_WARPS), 1, cuda_add_args, .kind = s->kind,
           .n_pieces = s->n_pieces, .pieces = p->pieces, .in = in, .theta = theta);
}

enum status cuda_outer_open(struct cuda_device *cuda)
{
    cuda->ops.delta_plan = delta_plan;
    cuda->ops.delta = delta;
    cuda->ops.delta_add = delta_add;
    return STATUS_OK;
}
