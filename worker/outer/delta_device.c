#include "worker/outer/delta_device.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"

/* Which copy of a residual is the newest. */
enum newest { NEWEST_BOTH, NEWEST_HOST, NEWEST_DEVICE };

struct delta_device_fragment {
    struct delta_source source;
    struct delta_format shape;
    struct delta_plan *plan, *down; /* down: NULL: updates come as floats; may be plan */
    void *numbers, *host_numbers;   /* device, pinned memory of the host; of deltas and of updates */
    size_t bytes, down_bytes;
    struct quantized_delta made;
    double norm;
    enum newest newest;
    bool anchored;
    uint64_t hash; /* of the floats that `anchor` has here */
};

struct delta_device {
    struct device *dev;
    const float *theta;
    float *anchor, *residual, *rest; /* [n_params], device; the last two NULL when feedback is off */
    uint64_t n_params;
    uint32_t n;
    struct delta_device_fragment *f;
};

/* ---- creation ---------------------------------------------------------------------------------------------------- */

/* Of a codec that has pieces. */
static enum status cut(struct device *dev, const struct codec *codec, struct delta_format *shape,
                       struct delta_plan **plan)
{
    (void)codec_delta_format(codec, shape, NULL);
    struct piece_range *pieces = mem_alloc(shape->n_pieces, sizeof *pieces);
    if (!pieces) return STATUS_NOMEM;
    (void)codec_delta_format(codec, shape, pieces);
    enum status status = dev->ops->delta_plan(dev, shape, pieces, plan);
    mem_free(pieces);
    return status;
}

static enum status make_plan(struct delta_device *m, struct delta_device_fragment *f, struct err *err)
{
    const char *spec = codec_spec(f->source.codec);
    if (!codec_delta_format(f->source.codec, &f->shape, NULL))
        return err_set(err, STATUS_UNSUPPORTED, "codec.up %s has no form for devices", spec);
    enum status status = cut(m->dev, f->source.codec, &f->shape, &f->plan);
    if (status == STATUS_UNSUPPORTED)
        return err_set(err, status, "codec.up %s takes too much at a time for %s", spec, m->dev->name);
    if (status != STATUS_OK) return err_set(err, status, "device %s: no plan for codec.up %s", m->dev->name, spec);
    return STATUS_OK;
}

bool delta_device_supports(const struct codec *down, struct delta_format *shape)
{
    struct quantized_delta unused;
    return down && codec_delta_format(down, shape, NULL) &&
           4 * delta_format_lay_out(shape, NULL, &unused) <= 3 * codec_count(down) * sizeof(float);
}

/* Where the device does not take it updates come as floats. */
static enum status plan_down(struct delta_device *m, struct delta_device_fragment *f)
{
    const struct codec *down = f->source.down;
    struct delta_format shape;
    struct quantized_delta unused;
    if (!delta_device_supports(down, &shape)) return STATUS_OK;
    f->down_bytes = delta_format_lay_out(&shape, NULL, &unused);
    f->down = f->plan;
    if (!strcmp(codec_spec(down), codec_spec(f->source.codec))) return STATUS_OK;
    f->down = NULL;
    enum status status = cut(m->dev, down, &shape, &f->down);
    if (status != STATUS_UNSUPPORTED) return status;
    f->down_bytes = 0;
    return STATUS_OK;
}

static enum status make_fragment(struct delta_device *m, struct delta_device_fragment *f, struct err *err)
{
    TRY(make_plan(m, f, err));
    if (plan_down(m, f) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory to cut a fragment for codec.down");
    f->bytes = delta_format_lay_out(&f->shape, NULL, &f->made);
    size_t room = f->bytes > f->down_bytes ? f->bytes : f->down_bytes;
    f->numbers = m->dev->ops->alloc(m->dev, room);
    f->host_numbers = device_host_alloc(m->dev, room);
    f->newest = NEWEST_HOST;
    if (f->numbers && f->host_numbers) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory for the numbers of a delta (%.1f MB)", (double)f->bytes * 1e-6);
}

static enum status fill(struct delta_device *m, const struct delta_source *sources, struct err *err)
{
    const struct device_ops *ops = m->dev->ops;
    bool feedback = false;
    for (uint32_t i = 0; i < m->n; i++) {
        m->f[i].source = sources[i];
        m->n_params += sources[i].count;
        feedback = feedback || sources[i].feedback->residual;
        TRY(make_fragment(m, &m->f[i], err));
    }
    size_t bytes = m->n_params * sizeof *m->anchor;
    m->anchor = ops->alloc(m->dev, bytes);
    if (feedback) m->residual = ops->alloc(m->dev, bytes);
    if (feedback) m->rest = ops->alloc(m->dev, bytes);
    if (m->anchor && (!feedback || (m->residual && m->rest))) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory on %s for anchor and residual (%.1f MB)", m->dev->name,
                   (double)bytes * (feedback ? 3e-6 : 1e-6));
}

enum status delta_device_create(struct delta_device **out, struct device *dev, const float *theta,
                                const struct delta_source *sources, uint32_t n, struct err *err)
{
    struct delta_device *m = mem_alloc(1, sizeof *m);
    if (!m) return err_set(err, STATUS_NOMEM, "out of memory");
    m->dev = dev;
    m->theta = theta;
    m->f = mem_alloc(n, sizeof *m->f);
    if (m->f) m->n = n;
    enum status status = m->f ? fill(m, sources, err) : err_set(err, STATUS_NOMEM, "out of memory");
    if (status == STATUS_OK)
        *out = m;
    else
        delta_device_destroy(m);
    return status;
}

void delta_device_destroy(struct delta_device *m)
{
    if (!m) return;
    const struct device_ops *ops = m->dev->ops;
    for (uint32_t i = 0; i < m->n; i++) {
        if (m->f[i].down != m->f[i].plan) ops->plan_free(m->dev, m->f[i].down);
        ops->plan_free(m->dev, m->f[i].plan);
        ops->release(m->dev, m->f[i].numbers);
        device_host_release(m->dev, m->f[i].host_numbers);
    }
    ops->release(m->dev, m->anchor);
    ops->release(m->dev, m->residual);
    ops->release(m->dev, m->rest);
    mem_free(m->f);
    mem_free(m);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

void delta_device_anchor(struct delta_device *m, uint32_t i, const float *values, uint64_t hash)
{
    struct delta_device_fragment *f = &m->f[i];
    assert(i < m->n);
    if (f->anchored && f->hash == hash) return;
    device_send(m->dev, m->anchor + f->source.offset, values, f->source.count * sizeof *values);
    f->anchored = true; /* where that fails, so will delta_device_make */
    f->hash = hash;
}

bool delta_device_add(struct delta_device *m, uint32_t i, const uint8_t *payload, size_t size, uint64_t before,
                      uint64_t after)
{
    struct delta_device_fragment *f = &m->f[i];
    const struct device_ops *ops = m->dev->ops;
    assert(i < m->n);
    if (!f->down || !f->anchored || f->hash != before) return false;
    if (codec_decode_quantized(f->source.down, payload, size, f->host_numbers) != STATUS_OK) return false;
    device_send(m->dev, f->numbers, f->host_numbers, f->down_bytes);
    ops->delta_add(m->dev, f->down, f->numbers, m->anchor + f->source.offset);
    f->hash = after;
    return true;
}

const float *delta_device_base(const struct delta_device *m)
{
    return m->anchor;
}

static void start_fragment(struct delta_device *m, struct delta_device_fragment *f)
{
    const struct device_ops *ops = m->dev->ops;
    uint64_t at = f->source.offset;
    assert(at + f->source.count <= m->n_params);
    const struct feedback *fb = f->source.feedback;
    if (fb->residual && f->newest == NEWEST_HOST) {
        device_send(m->dev, m->residual + at, fb->residual, f->source.count * sizeof *fb->residual);
        f->newest = NEWEST_BOTH;
    }
    ops->delta(m->dev, f->plan, m->theta + at, m->anchor + at, fb->decay, fb->residual ? m->residual + at : NULL,
               fb->residual ? m->rest + at : NULL, f->numbers);
    ops->download(m->dev, f->host_numbers, f->numbers, f->bytes);
}

enum status delta_device_make(struct delta_device *m, struct err *err)
{
    for (uint32_t i = 0; i < m->n; i++) start_fragment(m, &m->f[i]);
    TRY(m->dev->ops->sync(m->dev, err));
    for (uint32_t i = 0; i < m->n; i++) {
        struct delta_device_fragment *f = &m->f[i];
        double square = 0;
        delta_format_lay_out(&f->shape, f->host_numbers, &f->made);
        for (size_t p = 0; p < f->shape.n_pieces; p++) {
            if (f->made.heads[p].bad) return STATUS_NONFINITE;
            square += f->made.heads[p].square;
        }
        f->norm = sqrt(square);
    }
    return STATUS_OK;
}

const struct quantized_delta *delta_device_quantized(const struct delta_device *m, uint32_t i, double *norm)
{
    *norm = m->f[i].norm;
    return &m->f[i].made;
}

void delta_device_keep_residuals(struct delta_device *m)
{
    float *was = m->residual;
    m->residual = m->rest;
    m->rest = was;
    for (uint32_t i = 0; i < m->n; i++)
        if (m->f[i].source.feedback->residual) m->f[i].newest = NEWEST_DEVICE;
}

enum status delta_device_read_residual(struct delta_device *m, uint32_t i, struct err *err)
{
    struct delta_device_fragment *f = &m->f[i];
    assert(i < m->n);
    if (f->newest != NEWEST_DEVICE) return STATUS_OK;
    assert(f->source.feedback->residual && m->residual);
    TRY(device_fetch(m->dev, f->source.feedback->residual, m->residual + f->source.offset,
                     f->source.count * sizeof *m->residual, err));
    f->newest = NEWEST_BOTH;
    return STATUS_OK;
}

void delta_device_residual_changed(struct delta_device *m, uint32_t i)
{
    assert(i < m->n);
    m->f[i].newest = NEWEST_HOST;
}
