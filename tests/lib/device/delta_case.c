#include "tests/lib/device/delta_case.h"
#include "tests/lib/test.h"

#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/tensor/apply.h"
#include "compress/feedback.h"

enum { LEAD = 3 }; /* floats before the fragment, so that addresses are unaligned */

static const struct codec_span odd_spans[] = {
    {.offset = 0, .count = 3, .rows = 1, .cols = 3, .ndim = 1},
    {.offset = 3, .count = 4113, .rows = 1371, .cols = 3, .ndim = 2},
    {.offset = 4116, .count = 4100, .rows = 1, .cols = 4100, .ndim = 1},
    {.offset = 8216, .count = 77, .rows = 1, .cols = 77, .ndim = 1},
    {.offset = 8293, .count = 1, .rows = 1, .cols = 1, .ndim = 2},
    {.offset = 8294, .count = 300, .rows = 20, .cols = 15, .ndim = 2},
    {.offset = 8594, .count = 4876, .rows = 23, .cols = 212, .ndim = 3},
};

const struct codec_span *delta_case_spans(size_t *n_spans)
{
    *n_spans = sizeof odd_spans / sizeof *odd_spans;
    return odd_spans;
}

struct codec *delta_case_codec(const char *spec, const struct codec_span *spans, size_t n_spans)
{
    struct codec *codec = NULL;
    struct err err = {0};
    if (codec_create(&codec, spec, spans, n_spans, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return codec;
}

/* Added one by one in fp64, the small values are lost: each is half of the last bit, and the sum before is even.
 * Their sum is not lost: in fp32 it lifts the mean from below a boundary between two scales to that boundary. */
static float chunk_order(size_t i)
{
    if (i == 0) return 1 + (float)((1 << 18) - 1) * 0x1p-23f;
    if (i < 3) return i == 1 ? 0x1p-25f : 0x1p-25f - 0x1p-49f;
    return i < 32 ? 0x1p-53f : 0.0f;
}

/* The same in fp32: 0, 16, 32, 48 are one partial sum; 8 and 9 are folded onto 0 one after the other. */
static float block_order(size_t i)
{
    if (i == 0) return 1 + 0x1p-9f;
    return i % 16 == 0 || i == 8 || i == 9 ? 0x1p-24f : 0.0f;
}

void delta_case_fill(enum delta_values values, uint64_t seed, float *x, size_t n)
{
    rng_normal_fill(seed, RNG_TEST, 0, 1e-3f, x, n);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = rng_u64(seed + 1, RNG_TEST, i);
        switch (values) {
        case DELTA_TIES: x[i] = copysignf(ldexpf(1, -(int)(r % 5)), x[i]); break;
        case DELTA_ZEROS: x[i] = r & 1 ? 0.0f : -0.0f; break;
        case DELTA_SPARSE: x[i] = r % 301 ? 0.0f : x[i]; break;
        case DELTA_TINY: x[i] = ldexpf(x[i], i / 4096 % 2 ? -130 : -102); break;
        case DELTA_WIDE: x[i] = ldexpf(x[i], (int)(r % 200) - 100); break;
        case DELTA_LARGE: x[i] = ldexpf(x[i], 130); break;
        case DELTA_CHUNK_ORDER: x[i] = chunk_order(i % 256); break;
        case DELTA_BLOCK_ORDER: x[i] = block_order(i % 64); break;
        default: break;
        }
    }
}

/* Copies one vector to the memory of the device, LEAD floats into it. */
static float *upload(struct device *dev, const float *values, size_t n)
{
    float *at = dev->ops->alloc(dev, (n + LEAD) * sizeof *at);
    assert_non_null(at);
    dev->ops->upload(dev, at + LEAD, values, n * sizeof *values);
    return at + LEAD;
}

static struct delta_plan *plan_for(struct device *dev, const struct codec *codec, struct delta_format *shape)
{
    struct delta_plan *plan = NULL;
    assert_true(codec_delta_format(codec, shape, NULL));
    struct piece_range *pieces = mem_alloc(shape->n_pieces, sizeof *pieces);
    assert_non_null(pieces);
    assert_true(codec_delta_format(codec, shape, pieces));
    assert_int_equal(dev->ops->delta_plan(dev, shape, pieces, &plan), STATUS_OK);
    mem_free(pieces);
    return plan;
}

/* The buffers of one case; arrays of n floats. */
struct run {
    size_t n;
    float decay;
    float *theta, *anchor, *residual; /* residual, anchor: NULL if the call has none */
    float *rest;                      /* output */
    struct delta_format shape;
    struct quantized_delta numbers;
    void *room;
};

static void on_device(struct device *dev, const struct codec *codec, struct run *r, bool in_place)
{
    const struct device_ops *ops = dev->ops;
    struct err err = {0};
    struct delta_plan *plan = plan_for(dev, codec, &r->shape);
    struct quantized_delta unused;
    size_t bytes = delta_format_lay_out(&r->shape, NULL, &unused);
    void *out = ops->alloc(dev, bytes);
    r->room = mem_alloc(1, bytes);
    assert_true(out && r->room);
    memset(r->room, 0xff, bytes);
    ops->upload(dev, out, r->room, bytes);
    float *theta = upload(dev, r->theta, r->n), *anchor = r->anchor ? upload(dev, r->anchor, r->n) : NULL;
    float *residual = r->residual ? upload(dev, r->residual, r->n) : NULL;
    float *rest = r->residual && !in_place ? upload(dev, r->rest, r->n) : residual;
    ops->delta(dev, plan, theta, anchor, r->decay, residual, rest, out);
    if (ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg); /* downloads overwrite the source of uploads */
    ops->download(dev, r->room, out, bytes);
    if (rest) ops->download(dev, r->rest, rest, r->n * sizeof *rest);
    if (ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    delta_format_lay_out(&r->shape, r->room, &r->numbers);
    if (rest != residual) ops->release(dev, rest - LEAD);
    if (residual) ops->release(dev, residual - LEAD);
    if (anchor) ops->release(dev, anchor - LEAD);
    ops->release(dev, theta - LEAD);
    ops->release(dev, out);
    ops->plan_free(dev, plan);
}

struct quantized_delta delta_case_numbers(struct device *dev, const struct codec *codec, const float *x, void **room)
{
    struct run r = {.n = codec_count(codec)};
    r.theta = mem_alloc(r.n, sizeof *r.theta);
    assert_non_null(r.theta);
    memcpy(r.theta, x, r.n * sizeof *x);
    on_device(dev, codec, &r, false);
    mem_free(r.theta);
    *room = r.room;
    return r.numbers;
}

/* The norm serves a guard; the bytes do not depend on it. */
static void check_square(const struct run *r, const float *delta)
{
    double want = 0, got = 0;
    for (size_t i = 0; i < r->n; i++) want += (double)delta[i] * (double)delta[i];
    for (size_t i = 0; i < r->shape.n_pieces; i++) got += r->numbers.heads[i].square;
    if (fabs(got - want) > 1e-12 * want) fail_msg("sum of squares %g, expected %g", got, want);
}

void delta_case_check(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                      enum delta_values values, enum delta_call call)
{
    struct codec *codec = delta_case_codec(spec, spans, n_spans);
    size_t n = codec_count(codec), cap = codec_bound(codec), size = 0, made = 0;
    bool feedback = call != DELTA_CALL_ALONE;
    struct run r = {.n = n, .decay = codec_feedback_decay(codec)};
    struct feedback fb;
    float *host = mem_alloc(5 * n, sizeof *host);
    uint8_t *payload = mem_alloc(2, cap);
    assert_true(host && payload);
    assert_int_equal(feedback_init(&fb, n, r.decay, feedback), STATUS_OK);
    r.theta = host;
    r.anchor = call == DELTA_CALL_GRADIENT ? NULL : host + n;
    r.residual = feedback ? host + 2 * n : NULL;
    r.rest = host + 3 * n;
    float *delta = host + 4 * n;
    delta_case_fill(values, 7, r.theta, n);
    if (r.anchor && (values == DELTA_NORMAL || values == DELTA_WIDE)) delta_case_fill(values, 8, r.anchor, n);
    if (feedback) delta_case_fill(values, 9, r.residual, n);
    for (size_t i = 0; i < n; i++) {
        delta[i] = r.anchor ? r.anchor[i] - r.theta[i] : r.theta[i];
        r.rest[i] = NAN;
    }
    on_device(dev, codec, &r, call == DELTA_CALL_IN_PLACE);
    check_square(&r, delta);
    if (feedback) memcpy(fb.residual, r.residual, n * sizeof *fb.residual);
    assert_int_equal(feedback_encode(&fb, codec, NULL, delta, payload, cap, &size), STATUS_OK);
    assert_int_equal(codec_encode_quantized(codec, &r.numbers, payload + cap, cap, &made), STATUS_OK);
    if (made != size || memcmp(payload, payload + cap, size))
        fail_msg("%s, values %d, call %d: the payload's %zu bytes differ (%zu)", spec, values, call, made, size);
    for (size_t i = 0; feedback && i < n; i++)
        if (memcmp(&fb.residual[i], &r.rest[i], sizeof *r.rest))
            fail_msg("%s, values %d, call %d: residual %zu is %a, expected %a", spec, values, call, i,
                     (double)r.rest[i], (double)fb.residual[i]);
    mem_free(r.room);
    mem_free(host);
    mem_free(payload);
    feedback_finish(&fb);
    codec_destroy(codec);
}

/* ---- adding a payload -------------------------------------------------------------------------------------------- */

/* Includes zeros of both signs and denormals. */
static void fill_theta(float *theta, size_t n)
{
    delta_case_fill(DELTA_NORMAL, 21, theta, n);
    for (size_t i = 0; i < n; i += 7) theta[i] = i % 2 ? 0.0f : -0.0f;
    for (size_t i = 3; i < n; i += 11) theta[i] = copysignf(0x1p-140f, theta[i]);
}

static void add_on_device(struct device *dev, const struct codec *codec, const void *room, size_t bytes, float *theta,
                          size_t n)
{
    const struct device_ops *ops = dev->ops;
    struct delta_format shape;
    struct err err = {0};
    struct delta_plan *plan = plan_for(dev, codec, &shape);
    void *numbers = ops->alloc(dev, bytes);
    assert_non_null(numbers);
    ops->upload(dev, numbers, room, bytes);
    float *there = upload(dev, theta, n);
    ops->delta_add(dev, plan, numbers, there);
    if (device_fetch(dev, theta, there, n * sizeof *theta, &err) != STATUS_OK) fail_msg("%s", err.msg);
    ops->release(dev, there - LEAD);
    ops->release(dev, numbers);
    ops->plan_free(dev, plan);
}

void delta_case_add(struct device *dev, const char *spec, const struct codec_span *spans, size_t n_spans,
                    enum delta_values values)
{
    struct codec *codec = delta_case_codec(spec, spans, n_spans);
    struct delta_format shape;
    struct quantized_delta numbers;
    size_t n = codec_count(codec), cap = codec_bound(codec), size = 0, made = 0;
    float *x = mem_alloc(3 * n, sizeof *x), *theta = x + n, *want = theta + n;
    uint8_t *payload = mem_alloc(2, cap);
    assert_true(codec_delta_format(codec, &shape, NULL));
    size_t bytes = delta_format_lay_out(&shape, NULL, &numbers);
    void *room = mem_alloc(1, bytes);
    assert_true(x && payload && room);
    memset(room, 0xff, bytes);
    delta_case_fill(values, 5, x, n);
    fill_theta(theta, n);
    memcpy(want, theta, n * sizeof *theta);
    assert_int_equal(codec_encode(codec, x, payload, cap, &size, NULL), STATUS_OK);
    assert_int_equal(codec_decode_quantized(codec, payload, size, room), STATUS_OK);
    delta_format_lay_out(&shape, room, &numbers);
    assert_int_equal(codec_encode_quantized(codec, &numbers, payload + cap, cap, &made), STATUS_OK);
    if (made != size || memcmp(payload, payload + cap, size))
        fail_msg("%s, values %d: the quantized values make a different payload", spec, values);
    add_on_device(dev, codec, room, bytes, theta, n);
    assert_int_equal(codec_decode(codec, payload, size, x), STATUS_OK);
    apply_update(want, false, x, n);
    for (size_t i = 0; i < n; i++)
        if (memcmp(&theta[i], &want[i], sizeof *want))
            fail_msg("%s, values %d: theta %zu is %a, expected %a", spec, values, i, (double)theta[i], (double)want[i]);
    mem_free(room);
    mem_free(payload);
    mem_free(x);
    codec_destroy(codec);
}
