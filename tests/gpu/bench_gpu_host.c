/* Benchmark of the host's part of the outer path, with the worker's functions: encode a quantized delta, apply an
 * update to theta, hash theta, decode the update's quantized values for the device. */
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "compress/apply_update.h"
#include "tests/gpu/bench_gpu.h"

enum { TIMES_MAX = 50 };

/* Write the fastest of up to TIMES_MAX calls to *each, in seconds. */
static enum status fastest(enum status (*once)(struct bench_host *h), struct bench_host *h, double seconds,
                           double *each)
{
    uint64_t until = clock_monotonic_us() + (uint64_t)(seconds * 1e6);
    *each = 1e9;
    for (int i = 0; i < TIMES_MAX && (i < 2 || clock_monotonic_us() < until); i++) {
        uint64_t begun = clock_monotonic_us();
        TRY(once(h));
        double took = (double)(clock_monotonic_us() - begun) * 1e-6;
        if (took < *each) *each = took;
    }
    return STATUS_OK;
}

static enum status encode(struct bench_host *h)
{
    TRY(codec_encode_quantized(h->codec, h->numbers, h->payload, codec_bound(h->codec), &h->size));
    h->sum = crc32c(0, h->payload, h->size);
    return STATUS_OK;
}

static enum status move(struct bench_host *h)
{
    struct codec_view view;
    TRY(codec_open(h->codec, h->payload, h->size, NULL, &view));
    apply_update_view(h->pool, &view, false, h->theta);
    return STATUS_OK;
}

static enum status hash(struct bench_host *h)
{
    h->sum += hash_floats(h->pool, h->theta, codec_count(h->codec));
    return STATUS_OK;
}

static enum status decode(struct bench_host *h)
{
    return codec_decode_quantized(h->codec, h->payload, h->size, h->room);
}

enum status bench_host_apply(struct bench_host *h, double seconds)
{
    TRY(fastest(move, h, seconds, &h->move_s));
    return fastest(hash, h, seconds, &h->hash_s);
}

enum status bench_host_run(struct bench_host *h, double seconds, struct err *err)
{
    h->payload = mem_alloc(1, codec_bound(h->codec));
    if (!h->payload) return err_set(err, STATUS_NOMEM, "no memory for a payload");
    enum status status = fastest(encode, h, seconds, &h->encode_s);
    if (status == STATUS_OK) status = bench_host_apply(h, seconds);
    if (status == STATUS_OK) status = fastest(decode, h, seconds, &h->decode_s);
    mem_free(h->payload);
    return status == STATUS_OK ? status : err_set(err, status, "the codec cannot decode its own payload");
}
