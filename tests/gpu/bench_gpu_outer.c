/* Benchmark of the outer path of a device:
 * - make the quantized delta in one pass over theta, anchor and residual, and download it;
 * - upload the next theta, as floats or as quantized values that the device adds to its anchor;
 * - the host's part between (bench_gpu_host.c).
 * ms_round: time that a round waits, without network and disk. It is an upper bound, because one thread encodes the
 * delta here, but one per fragment in a worker.
 * ms_save: additional wait if the worker saves its state: the download of the residual and two moments. The rest of
 * saving overlaps with the upload. */
#include <stdio.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "compress/codec.h"
#include "tests/gpu/bench_gpu.h"

enum { STAGE_BYTES = 32 << 20, THREADS = 8 }; /* as in worker/replica/replica_create.c, train_setup.c */

struct outer {
    struct delta_plan *plan;
    size_t n;
    float *floats; /* [n] on the host */
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
    device_send(dev, o->anchor, o->floats, o->n * sizeof *o->floats);
}

static void fetch(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    enum status ignored = device_fetch(dev, o->floats, o->theta, o->n * sizeof *o->floats, NULL);
    (void)ignored; /* the sync in bench_time reports the same error */
}

static void place(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    dev->ops->copy(dev, o->rest, o->anchor, o->n * sizeof *o->anchor);
}

static void add(struct device *dev, void *ctx)
{
    struct outer *o = ctx;
    device_send(dev, o->numbers, o->host, o->bytes);
    dev->ops->delta_add(dev, o->plan, o->numbers, o->anchor);
}

enum status bench_delta(struct device *dev, double seconds, const char *spec, size_t n, struct err *err)
{
    const struct codec_span span = {.count = n, .rows = 1, .cols = n, .ndim = 2};
    struct codec *codec;
    struct delta_format shape;
    struct quantized_delta laid;
    struct pool *pool;
    struct outer o = {.n = n,
                      .floats = mem_alloc(n, sizeof(float)),
                      .theta = bench_random(dev, n, false, 1),
                      .anchor = bench_random(dev, n, false, 1),
                      .residual = bench_random(dev, n, false, 0.1f),
                      .rest = bench_random(dev, n, false, 1)};
    double alone, whole, sent, added, fetched, placed;
    TRY(codec_create(&codec, spec, &span, 1, err));
    if (!codec_delta_format(codec, &shape, NULL)) {
        codec_destroy(codec);
        mem_free(o.floats);
        return bench_floats(seconds, spec, n, err);
    }
    struct piece_range *pieces = mem_alloc(shape.n_pieces, sizeof *pieces);
    o.bytes = delta_format_lay_out(&shape, NULL, &laid);
    o.numbers = dev->ops->alloc(dev, o.bytes);
    o.host = device_host_alloc(dev, o.bytes); /* pinned, like in worker/outer/delta_device.c */
    if (!o.floats || !o.theta || !o.anchor || !o.residual || !o.rest || !pieces || !o.numbers || !o.host)
        return err_set(err, STATUS_NOMEM, "no memory for %zu parameters", n);
    (void)codec_delta_format(codec, &shape, pieces);
    TRY(dev->ops->delta_plan(dev, &shape, pieces, &o.plan));
    TRY(bench_time(dev, delta, &o, seconds, &alone, err));
    TRY(bench_time(dev, delta_and_download, &o, seconds, &whole, err));
    TRY(pool_create(pool_cores(THREADS), POOL_FLOATS_EXACT, &pool));
    TRY(device_stage_plan(dev, STAGE_BYTES, pool));
    TRY(bench_time(dev, add, &o, seconds, &added, err)); /* adds the delta of the download above */
    TRY(bench_time(dev, send, &o, seconds, &sent, err));
    TRY(bench_time(dev, place, &o, seconds, &placed, err));
    TRY(bench_time(dev, fetch, &o, seconds, &fetched, err));
    delta_format_lay_out(&shape, o.host, &laid);
    struct bench_host host = {.codec = codec, .pool = pool, .numbers = &laid, .theta = o.floats, .room = o.host};
    TRY(bench_host_run(&host, seconds, err));
    double host_s = host.encode_s + host.move_s + host.hash_s + host.decode_s;
    printf("{\"codec\": \"%s\", \"params\": %zu, \"gb_s\": %.6g, \"ms\": %.6g, \"ms_with_download\": %.6g, "
           "\"numbers_mb\": %.6g, \"ms_up_as_numbers\": %.6g, \"ms_up_as_floats\": %.6g, \"ms_down_as_floats\": %.6g, "
           "\"threads\": %d, \"ms_encode\": %.6g, \"ms_apply\": %.6g, \"ms_hash\": %.6g, \"ms_decode\": %.6g, "
           "\"ms_place\": %.6g, \"ms_round\": %.6g, \"ms_save\": %.6g}\n",
           spec, n, 16e-9 * (double)n / alone, alone * 1e3, whole * 1e3, (double)o.bytes * 1e-6, added * 1e3,
           sent * 1e3, fetched * 1e3, pool_threads(pool), host.encode_s * 1e3, host.move_s * 1e3, host.hash_s * 1e3,
           host.decode_s * 1e3, placed * 1e3, (whole + host_s + added + placed) * 1e3, 3 * fetched * 1e3);
    TRY(dev->ops->sync(dev, err));
    pool_destroy(pool);
    mem_free(o.floats);
    mem_free(pieces);
    device_host_release(dev, o.host);
    codec_destroy(codec);
    return STATUS_OK;
}
