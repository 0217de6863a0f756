/* The outer path: one pass over theta, anchor and residual, and the numbers of it brought to the host; the next round's
 * theta brought up, as floats, and as an update's numbers that are added there. */
#include <stdio.h>

#include "common/mem.h"
#include "compress/codec.h"
#include "tests/gpu/bench_gpu.h"

enum { STAGE_BYTES = 32 << 20 }; /* as in worker/replica_create.c */

struct outer {
    struct delta_plan *plan;
    size_t n;
    float *floats; /* [n] of the host */
    float *theta, *anchor, *residual, *rest;
    void *numbers, *host;
    size_t bytes;
};

static void delta(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    dev->ops->delta(dev, o->plan, o->theta, o->anchor, 0.9f, o->residual, o->rest, o->numbers);
}

static void delta_and_download(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    delta(dev, ctx);
    dev->ops->download(dev, o->host, o->numbers, o->bytes);
}

static void send(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    dev->ops->send(dev, o->anchor, o->floats, o->n * sizeof *o->floats);
}

static void add(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    dev->ops->send(dev, o->numbers, o->host, o->bytes);
    dev->ops->delta_add(dev, o->plan, o->numbers, o->anchor);
}

enum status bench_delta(struct device *dev, double seconds, const char *spec, size_t n, struct err *err)
{
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    struct codec *codec;
    struct piece_shape shape;
    struct piece_numbers laid;
    struct outer o = {.n = n,
                      .floats = mem_alloc(n, sizeof(float)),
                      .theta = bench_random(dev, n, false, 1), .anchor = bench_random(dev, n, false, 1),
                      .residual = bench_random(dev, n, false, 0.1f), .rest = bench_random(dev, n, false, 1)};
    double alone, whole, sent, added;
    TRY(codec_create(&codec, spec, &span, 1, err));
    if (!codec_pieces(codec, &shape, NULL)) return err_set(err, STATUS_UNSUPPORTED, "%s has no form for devices", spec);
    struct piece_range *pieces = mem_alloc(shape.n_pieces, sizeof *pieces);
    o.bytes = pieces_lay_out(&shape, NULL, &laid);
    o.numbers = dev->ops->alloc(dev, o.bytes);
    o.host = dev->ops->host_alloc(dev, o.bytes); /* as worker/delta_maker.c has it */
    if (!o.floats || !o.theta || !o.anchor || !o.residual || !o.rest || !pieces || !o.numbers || !o.host)
        return err_set(err, STATUS_NOMEM, "no memory for %zu parameters", n);
    (void)codec_pieces(codec, &shape, pieces);
    TRY(dev->ops->delta_plan(dev, &shape, pieces, &o.plan));
    TRY(bench_time(dev, delta, &o, seconds, &alone, err));
    TRY(bench_time(dev, delta_and_download, &o, seconds, &whole, err));
    TRY(dev->ops->stage_plan(dev, STAGE_BYTES, NULL));
    TRY(bench_time(dev, add, &o, seconds, &added, err)); /* of the numbers that came */
    TRY(bench_time(dev, send, &o, seconds, &sent, err));
    printf("{\"codec\": \"%s\", \"params\": %zu, \"gb_s\": %.6g, \"ms\": %.6g, \"ms_with_download\": %.6g, "
           "\"numbers_mb\": %.6g, \"ms_up_as_numbers\": %.6g, \"ms_up_as_floats\": %.6g}\n",
           spec, n, 16e-9 * (double)n / alone, alone * 1e3, whole * 1e3, (double)o.bytes * 1e-6, added * 1e3,
           sent * 1e3);
    mem_free(o.floats);
    mem_free(pieces);
    dev->ops->host_release(dev, o.host);
    codec_destroy(codec);
    return STATUS_OK;
}
