#include "worker/outer/delta_device.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/units.h"

/* Which copy of a residual is newest. */
enum newest { NEWEST_BOTH, NEWEST_HOST, NEWEST_DEVICE };

struct delta_device_fragment {
    struct delta_source source;
    struct delta_format format;
    struct delta_plan *plan, *down; /* down: NULL: updates are uploaded as floats; may equal plan */
    void *values, *host_values;     /* quantized deltas or updates: device memory, pinned host memory */
    size_t bytes, down_bytes;       /* of a quantized delta, of a quantized update */
    struct quantized_delta made;
    double norm;
    enum newest newest;
    bool anchored;
    uint64_t hash; /* of the anchor's floats in this fragment */
};

struct delta_device {
    struct device *dev;
    const float *theta;
    float *anchor, *residual, *next_residual; /* [n_params], device; the last two NULL if feedback is off */
    uint64_t n_params;
    uint32_t n;
    struct delta_device_fragment *f;
};

/* --- creation ----------------------------------------------------------------------------------------------------- */

/* Creates the plan of a codec that has a device format. */
static enum status plan_create(struct device *dev, const struct codec *codec, struct delta_format *format,
                               struct delta_plan **plan)
{
    (void)codec_delta_format(codec, format, NULL);
    struct piece_range *pieces = mem_alloc(format->n_pieces, sizeof *pieces);
    if (!pieces) return STATUS_NOMEM;
    (void)codec_delta_format(codec, format, pieces);
    enum status status = dev->ops->delta_plan(dev, format, pieces, plan);
    mem_free(pieces);
    return status;
}

static enum status plan_up(struct delta_device *m, struct delta_device_fragment *f, struct err *err)
{
    const char *spec = codec_spec(f->source.codec);
    if (!codec_delta_format(f->source.codec, &f->format, NULL))
        return err_set(err, STATUS_UNSUPPORTED, "codec.up %s has no format for devices", spec);
    enum status status = plan_create(m->dev, f->source.codec, &f->format, &f->plan);
    if (status == STATUS_UNSUPPORTED)
        return err_set(err, status, "codec.up %s: its chunks are too large for %s", spec, m->dev->name);
    if (status != STATUS_OK)
        return err_set(err, status, "device %s cannot create a plan for codec.up %s", m->dev->name, spec);
    return STATUS_OK;
}

bool delta_device_supports(const struct codec *down, struct delta_format *format)
{
    struct quantized_delta unused;
    return down && codec_delta_format(down, format, NULL) &&
           4 * delta_format_lay_out(format, NULL, &unused) <= 3 * codec_count(down) * sizeof(float);
}

/* If the device does not support codec.down, updates are uploaded as floats. */
static enum status plan_down(struct delta_device *m, struct delta_device_fragment *f)
{
    const struct codec *down = f->source.down;
    struct delta_format format;
    struct quantized_delta unused;
    if (!delta_device_supports(down, &format)) return STATUS_OK;
    f->down_bytes = delta_format_lay_out(&format, NULL, &unused);
    f->down = f->plan;
    if (!strcmp(codec_spec(down), codec_spec(f->source.codec))) return STATUS_OK;
    f->down = NULL;
    enum status status = plan_create(m->dev, down, &format, &f->down);
    if (status != STATUS_UNSUPPORTED) return status;
    f->down_bytes = 0;
    return STATUS_OK;
}

static enum status fragment_init(struct delta_device *m, struct delta_device_fragment *f, struct err *err)
{
    TRY(plan_up(m, f, err));
    if (plan_down(m, f) != STATUS_OK) return err_set(err, STATUS_NOMEM, "no memory for the plan of codec.down");
    f->bytes = delta_format_lay_out(&f->format, NULL, &f->made);
    size_t room = f->bytes > f->down_bytes ? f->bytes : f->down_bytes;
    f->values = m->dev->ops->alloc(m->dev, room);
    f->host_values = device_host_alloc(m->dev, room);
    f->newest = NEWEST_HOST;
    if (f->values && f->host_values) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory for the quantized delta of a fragment (%s)",
                   units_bytes((double)f->bytes).text);
}

static enum status init_fragments(struct delta_device *m, const struct delta_source *sources, struct err *err)
{
    const struct device_ops *ops = m->dev->ops;
    bool feedback = false;
    for (uint32_t i = 0; i < m->n; i++) {
        m->f[i].source = sources[i];
        m->n_params += sources[i].count;
        feedback = feedback || sources[i].feedback->residual;
        TRY(fragment_init(m, &m->f[i], err));
    }
    size_t bytes = m->n_params * sizeof *m->anchor;
    m->anchor = ops->alloc(m->dev, bytes);
    if (feedback) m->residual = ops->alloc(m->dev, bytes);
    if (feedback) m->next_residual = ops->alloc(m->dev, bytes);
    if (m->anchor && (!feedback || (m->residual && m->next_residual))) return STATUS_OK;
    return err_set(err, STATUS_NOMEM, "no memory on %s for anchor and residual (%s)", m->dev->name,
                   units_bytes((double)bytes * (feedback ? 3 : 1)).text);
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
    enum status status = m->f ? init_fragments(m, sources, err) : err_set(err, STATUS_NOMEM, "out of memory");
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
        ops->release(m->dev, m->f[i].values);
        device_host_release(m->dev, m->f[i].host_values);
    }
    ops->release(m->dev, m->anchor);
    ops->release(m->dev, m->residual);
    ops->release(m->dev, m->next_residual);
    mem_free(m->f);
    mem_free(m);
}

/* --- rounds ------------------------------------------------------------------------------------------------------- */

void delta_device_anchor(struct delta_device *m, uint32_t i, const float *values, uint64_t hash)
{
    struct delta_device_fragment *f = &m->f[i];
    assert(i < m->n);
    if (f->anchored && f->hash == hash) return;
    device_send(m->dev, m->anchor + f->source.offset, values, f->source.count * sizeof *values);
    f->anchored = true; /* if the upload fails, delta_device_make returns the error */
    f->hash = hash;
}

bool delta_device_add(struct delta_device *m, uint32_t i, const uint8_t *payload, size_t size, uint64_t before,
                      uint64_t after)
{
    struct delta_device_fragment *f = &m->f[i];
    const struct device_ops *ops = m->dev->ops;
    assert(i < m->n);
    if (!f->down || !f->anchored || f->hash != before) return false;
    if (codec_decode_quantized(f->source.down, payload, size, f->host_values) != STATUS_OK) return false;
    device_send(m->dev, f->values, f->host_values, f->down_bytes);
    ops->delta_add(m->dev, f->down, f->values, m->anchor + f->source.offset);
    f->hash = after;
    return true;
}

const float *delta_device_base(const struct delta_device *m)
{
    return m->anchor;
}

static void quantize_fragment(struct delta_device *m, struct delta_device_fragment *f)
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
               fb->residual ? m->next_residual + at : NULL, f->values);
    ops->download(m->dev, f->host_values, f->values, f->bytes);
}

enum status delta_device_make(struct delta_device *m, struct err *err)
{
    for (uint32_t i = 0; i < m->n; i++) quantize_fragment(m, &m->f[i]);
    TRY(m->dev->ops->sync(m->dev, err));
    for (uint32_t i = 0; i < m->n; i++) {
        struct delta_device_fragment *f = &m->f[i];
        double square = 0;
        delta_format_lay_out(&f->format, f->host_values, &f->made);
        for (size_t p = 0; p < f->format.n_pieces; p++) {
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
    float *spare = m->residual;
    m->residual = m->next_residual;
    m->next_residual = spare;
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
