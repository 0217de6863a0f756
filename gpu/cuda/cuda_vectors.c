/* Vectors of the CUDA device: fill, sums, and the optimizers but Muon. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>

#include "common/base/mem.h"
#include "gpu/cuda/cuda_bf16_weights.h"
#include "gpu/moment_rules.h"

enum { SPANS = 4096 }; /* spans of theta in one launch of AdamW */

struct cuda_vectors {
    double *sums; /* [CUDA_SEGMENTS] */
    /* The spans of the last AdamW step. They stay the same from step to step, so they are uploaded once. */
    struct cuda_adamw_span *spans, *spans_device; /* [SPANS] */
    size_t n_spans;
};

static void fill(struct device *dev, float *p, size_t n, float value)
{
    if (!n) return;
    cuda_written(cuda_of(dev), p, n * sizeof *p);
    LAUNCH(cuda_of(dev), cuda_fill, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = value, .y = p);
}

static void axpy(struct device *dev, size_t n, float a, const float *x, float *y)
{
    if (!n) return;
    cuda_written(cuda_of(dev), y, n * sizeof *y);
    LAUNCH(cuda_of(dev), cuda_axpy, blocks_of(n, CUDA_BLOCK), 1, cuda_vector_args, .n = n, .alpha = a, .x = x, .y = y);
}

static void sgd(struct device *dev, size_t n, float *theta, const float *grad, float lr, float keep, const float *scale)
{
    if (!n) return;
    cuda_written(cuda_of(dev), theta, n * sizeof *theta);
    LAUNCH(cuda_of(dev), cuda_sgd, blocks_of(n, CUDA_BLOCK), 1, cuda_sgd_args, .n = n, .theta = theta, .grad = grad,
           .lr = lr, .keep = keep, .scale = scale);
}

static void reduce(struct cuda_device *cuda, size_t n, const float *x, bool square, float *out)
{
    bool wide = (uintptr_t)x % 16 == 0;
    size_t segment = blocks_of(blocks_of(n, CUDA_SEGMENTS), CUDA_BLOCK * CUDA_WIDE) * CUDA_BLOCK * CUDA_WIDE;
    size_t segments = n ? blocks_of(n, segment) : 0;
    assert(segments <= CUDA_SEGMENTS);
    if (segments)
        LAUNCH(cuda, cuda_reduce, segments, 1, cuda_reduce_args, .n = n, .segment = segment, .square = square,
               .wide = wide, .x = x, .sums = cuda->vectors->sums);
    LAUNCH(cuda, cuda_reduce_end, 1, 1, cuda_reduce_args, .segments = segments, .sums = cuda->vectors->sums,
           .out = out);
}

static void sum(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(cuda_of(dev), n, x, false, out);
}

static void sumsq(struct device *dev, size_t n, const float *x, float *out)
{
    reduce(cuda_of(dev), n, x, true, out);
}

static void clip_scale(struct device *dev, const float *sumsq, float max_norm, float *scale, float *norm)
{
    LAUNCH(cuda_of(dev), cuda_clip, 1, 1, cuda_clip_args, .sumsq = sumsq, .max_norm = max_norm, .scale = scale,
           .norm = norm);
}

static void count_step(struct device *dev, const float *scale, float beta1, float beta2, struct step_count *count)
{
    LAUNCH(cuda_of(dev), cuda_count_step, 1, 1, cuda_count_args, .scale = scale, .beta1 = beta1, .beta2 = beta2,
           .count = count);
}

/* Assigns blocks to the spans, and uploads the spans unless the device already has them. Returns the number of
 * blocks. */
static size_t adamw_blocks(struct cuda_device *cuda, const struct adamw_span *spans, size_t n)
{
    struct cuda_vectors *v = cuda->vectors;
    assert(n <= SPANS && v->n_spans <= SPANS);
    size_t blocks = 0, kept = 0;
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        if (!spans[i].count) continue;
        assert(spans[i].skipped <= spans[i].offset && kept < SPANS);
        struct cuda_adamw_span *had = &v->spans[kept];
        struct cuda_adamw_span span = {.offset = spans[i].offset,
                                       .count = spans[i].count,
                                       .block = blocks,
                                       .skipped = spans[i].skipped,
                                       .decay = spans[i].decay};
        if (same && (kept >= v->n_spans || had->offset != span.offset || had->count != span.count ||
                     had->skipped != span.skipped || had->decay != span.decay)) {
            /* The upload of the old spans may still read the host copy. An error stays for the caller. */
            if (v->n_spans && cuda_rt_sync(cuda->rt, NULL) != STATUS_OK) return 0;
            same = false;
        }
        v->spans[kept++] = span;
        blocks += blocks_of(span.count, CUDA_BLOCK * CUDA_ADAMW_EACH);
    }
    if (!same || kept != v->n_spans)
        cuda_rt_copy(cuda->rt, v->spans_device, v->spans, kept * sizeof *v->spans, CUDA_UPLOAD);
    v->n_spans = kept;
    return blocks;
}

/* The kernel updates the bf16 image, too; stale ranges stay stale. */
static void adamw(struct device *dev, const struct adamw_span *spans, size_t n_spans, float *theta, const float *grad,
                  void *m, void *v, const struct adamw_hyper *h, const float *scale)
{
    assert(!h->bf16_moments || h->count);
    struct cuda_device *cuda = cuda_of(dev);
    float correct1 = h->count ? 0 : moment_correct(h->beta1, h->step);
    float correct2 = h->count ? 0 : moment_correct(h->beta2, h->step);
    for (size_t at = 0; at < n_spans; at += SPANS) {
        size_t n = n_spans - at < SPANS ? n_spans - at : SPANS, blocks = adamw_blocks(cuda, spans + at, n);
        if (!blocks) continue;
        LAUNCH(cuda, cuda_adamw, blocks, 1, cuda_adamw_args, .n_spans = cuda->vectors->n_spans,
               .spans = cuda->vectors->spans_device, .theta = theta, .m = m, .v = v, .bf16 = h->bf16_moments,
               .image = cuda_image_of(cuda, theta), .grad = grad, .scale = scale, .lr = h->lr, .beta1 = h->beta1,
               .beta2 = h->beta2, .eps = h->eps, .keep = 1 - h->lr * h->weight_decay, .correct1 = correct1,
               .correct2 = correct2, .count = h->count);
    }
}

enum status cuda_vectors_open(struct cuda_device *cuda)
{
    struct cuda_vectors *v = cuda->vectors = mem_alloc(1, sizeof *v);
    cuda->ops.fill = fill;
    cuda->ops.axpy = axpy;
    cuda->ops.sgd = sgd;
    cuda->ops.sum = sum;
    cuda->ops.sumsq = sumsq;
    cuda->ops.clip_scale = clip_scale;
    cuda->ops.count_step = count_step;
    cuda->ops.adamw = adamw;
    if (!v) return STATUS_NOMEM;
    v->sums = cuda_rt_alloc(cuda->rt, CUDA_SEGMENTS * sizeof *v->sums);
    v->spans_device = cuda_rt_alloc(cuda->rt, SPANS * sizeof *v->spans_device);
    v->spans = mem_alloc(SPANS, sizeof *v->spans);
    return v->sums && v->spans_device && v->spans ? STATUS_OK : STATUS_NOMEM;
}

void cuda_vectors_close(struct cuda_device *cuda)
{
    struct cuda_vectors *v = cuda->vectors;
    if (!v) return;
    cuda_rt_release(cuda->rt, v->sums);
    cuda_rt_release(cuda->rt, v->spans_device);
    mem_free(v->spans);
    mem_free(v);
}
