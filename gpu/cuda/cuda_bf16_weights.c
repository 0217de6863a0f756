#include "gpu/cuda/cuda_bf16_weights.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"

static size_t params_bytes(struct device *dev, size_t n)
{
    return cuda_of(dev)->bf16 ? (n + CUDA_IMAGE_SLACK) * sizeof(uint16_t) : 0;
}

static enum status params_plan(struct device *dev, size_t n)
{
    struct cuda_device *cuda = cuda_of(dev);
    if (!cuda->bf16 || n <= cuda->image->size) return STATUS_OK;
    uint16_t *values = cuda_rt_alloc(cuda->rt, params_bytes(dev, n));
    if (!values) return STATUS_NOMEM;
    cuda_rt_release(cuda->rt, cuda->image->values);
    *cuda->image = (struct cuda_bf16_weights){.values = values, .size = n};
    return STATUS_OK;
}

/* Inserts [begin, end) at index `at` of the list. If the list is full, its last two ranges become one. */
static void stale_insert(struct cuda_bf16_weights *image, size_t at, size_t begin, size_t end)
{
    size_t room = sizeof image->stale / sizeof *image->stale;
    assert(begin <= end && end <= image->n && image->n_stale <= room && at <= image->n_stale);
    if (image->n_stale == room) {
        image->stale[room - 2].end = image->stale[room - 1].end;
        image->n_stale--;
        if (at >= image->n_stale) { /* the range lies behind the merged range, or inside of it */
            size_t *last = &image->stale[room - 2].end;
            if (begin < image->stale[room - 2].begin) image->stale[room - 2].begin = begin;
            if (*last < end) *last = end;
            return;
        }
    }
    memmove(&image->stale[at + 1], &image->stale[at], (image->n_stale - at) * sizeof *image->stale);
    image->stale[at].begin = begin;
    image->stale[at].end = end;
    image->n_stale++;
}

static void stale_add(struct cuda_bf16_weights *image, size_t begin, size_t end)
{
    size_t first = 0, last;
    assert(begin <= end && end <= image->n);
    while (first < image->n_stale && image->stale[first].end < begin) first++;
    for (last = first; last < image->n_stale && image->stale[last].begin <= end; last++) { /* merge ranges that touch */
        if (image->stale[last].begin < begin) begin = image->stale[last].begin;
        if (image->stale[last].end > end) end = image->stale[last].end;
    }
    memmove(&image->stale[first], &image->stale[last], (image->n_stale - last) * sizeof *image->stale);
    image->n_stale -= last - first;
    stale_insert(image, first, begin, end);
}

void cuda_written(struct cuda_device *cuda, const void *p, size_t bytes)
{
    struct cuda_bf16_weights *image = cuda->image;
    uintptr_t begin = (uintptr_t)p, theta = (uintptr_t)image->theta, size = image->n * sizeof(float);
    if (!image->theta || !bytes || begin >= theta + size || begin + bytes <= theta) return;
    size_t from = begin > theta ? (begin - theta) / sizeof(float) : 0, end = begin + bytes - theta;
    stale_add(image, from, end < size ? (end + sizeof(float) - 1) / sizeof(float) : image->n);
}

static void round_range(struct cuda_device *cuda, size_t begin, size_t end)
{
    assert(begin < end && end <= cuda->image->n && cuda->image->n <= cuda->image->size);
    size_t n = end - begin, width = (begin | n) % CUDA_WIDE ? 1 : CUDA_WIDE;
    LAUNCH(cuda, cuda_round, blocks_of(n / width, CUDA_BLOCK), 1, cuda_round_args, .n = n, .width = width,
           .x = cuda->image->theta + begin, .y = cuda->image->values + begin);
}

static void params(struct device *dev, const float *theta, size_t n, size_t offset, size_t count)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_bf16_weights *image = cuda->image;
    if (!cuda->bf16) return;
    if (n > image->size || offset > n || count > n - offset) {
        cuda_rt_fail(cuda->rt, STATUS_INVALID, "more parameters than planned");
        return;
    }
    if (image->theta != theta || image->n != n) {
        image->theta = theta;
        image->n = n;
        image->n_stale = 0;
        stale_add(image, 0, n);
    }
    for (size_t i = 0; i < image->n_stale;) {
        size_t begin = image->stale[i].begin, end = image->stale[i].end;
        size_t from = begin > offset ? begin : offset, to = end < offset + count ? end : offset + count;
        if (from >= to) {
            i++;
            continue;
        }
        round_range(cuda, from, to); /* and nothing else: a collective may still write the rest */
        memmove(&image->stale[i], &image->stale[i + 1], (image->n_stale - i - 1) * sizeof *image->stale);
        image->n_stale--;
        if (begin < from) stale_insert(image, i++, begin, from);
        if (to < end) stale_insert(image, i++, to, end);
    }
}

const void *cuda_weights(struct cuda_device *cuda, const float *w)
{
    const struct cuda_bf16_weights *image = cuda->image;
    if (!cuda->bf16) return w;
    if (image->theta && w >= image->theta && w < image->theta + image->n) return image->values + (w - image->theta);
    cuda_rt_fail(cuda->rt, STATUS_INVALID, "weights lie outside of the parameters");
    return NULL;
}

uint16_t *cuda_image_of(struct cuda_device *cuda, const float *theta)
{
    return cuda->image->theta == theta ? cuda->image->values : NULL;
}

enum status cuda_bf16_weights_open(struct cuda_device *cuda)
{
    cuda->ops.params_plan = params_plan;
    cuda->ops.params_bytes = params_bytes;
    cuda->ops.params = params;
    cuda->image = mem_alloc(1, sizeof *cuda->image);
    return cuda->image ? STATUS_OK : STATUS_NOMEM;
}

void cuda_bf16_weights_close(struct cuda_device *cuda)
{
    if (cuda->image) cuda_rt_release(cuda->rt, cuda->image->values);
    mem_free(cuda->image);
}
