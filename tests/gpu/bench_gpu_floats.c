/* Benchmark of the outer path for codecs without a device form (fp32, bf16, fp16): the host makes the delta from
 * parameters in its memory, encodes it, and applies an update to theta. */
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "compress/codec.h"
#include "compress/feedback.h"
#include "tests/gpu/bench_gpu.h"
#include "worker/outer/delta_host.h"

enum { THREADS = 8, TIMES_MAX = 50 }; /* THREADS: as in worker/train_setup.c */

struct floats {
    size_t n, size;
    float *base, *values, *delta; /* [n] */
    struct codec *codec;
    struct feedback feedback;
    uint8_t *payload;
    struct pool *pool;
    double norm;
};

static enum status set_up(struct floats *f, const char *spec, struct err *err)
{
    const struct codec_span span = {.count = f->n, .rows = 1, .cols = f->n, .ndim = 2};
    TRY(codec_create(&f->codec, spec, &span, 1, err));
    TRY(feedback_init(&f->feedback, f->n, codec_feedback_decay(f->codec), !codec_lossless(f->codec)));
    TRY(pool_create(pool_cores(THREADS), POOL_FLOATS_EXACT, &f->pool));
    f->base = mem_alloc(f->n, sizeof *f->base);
    f->values = mem_alloc(f->n, sizeof *f->values);
    f->delta = mem_alloc(f->n, sizeof *f->delta);
    f->payload = mem_alloc(1, codec_bound(f->codec));
    if (!f->base || !f->values || !f->delta || !f->payload)
        return err_set(err, STATUS_NOMEM, "no memory for %zu parameters", f->n);
    rng_normal_fill(1, RNG_TEST, 0, 1, f->base, f->n);
    rng_normal_fill(2, RNG_TEST, 0, 1, f->values, f->n);
    return STATUS_OK;
}

/* Make a delta in the same steps as worker/outer/outer_loop_delta.c. */
static enum status make(struct floats *f)
{
    enum delta_form form = codec_lossless(f->codec) ? DELTA_PARAMETERS : DELTA_PSEUDO_GRADIENT;
    if (!delta_host_finite(f->pool, f->values, f->n)) return STATUS_NONFINITE;
    f->norm = delta_host(f->pool, form, f->base, f->values, f->delta, f->n);
    f->feedback.pending = false;
    TRY(feedback_encode(&f->feedback, f->codec, f->pool, f->delta, f->payload, codec_bound(f->codec), &f->size));
    f->norm += crc32c(0, f->payload, f->size);
    return STATUS_OK;
}

static enum status run(struct floats *f, const char *spec, double seconds, struct err *err)
{
    uint64_t until = clock_monotonic_us() + (uint64_t)(seconds * 1e6);
    double best = 1e9;
    TRY(set_up(f, spec, err));
    for (int i = 0; i < TIMES_MAX && (i < 3 || clock_monotonic_us() < until); i++) {
        uint64_t begun = clock_monotonic_us();
        TRY(make(f));
        double took = (double)(clock_monotonic_us() - begun) * 1e-6;
        if (took < best) best = took;
    }
    struct bench_host host = {
        .codec = f->codec, .pool = f->pool, .theta = f->base, .payload = f->payload, .size = f->size};
    TRY(bench_host_apply(&host, seconds));
    printf("{\"codec\": \"%s\", \"params\": %zu, \"threads\": %d, \"ms_make\": %.6g, \"ms_apply\": %.6g, "
           "\"ms_hash\": %.6g}\n",
           spec, f->n, pool_threads(f->pool), best * 1e3, host.move_s * 1e3, host.hash_s * 1e3);
    return STATUS_OK;
}

enum status bench_floats(double seconds, const char *spec, size_t n, struct err *err)
{
    struct floats f = {.n = n};
    enum status status = run(&f, spec, seconds, err);
    pool_destroy(f.pool);
    codec_destroy(f.codec);
    feedback_finish(&f.feedback);
    mem_free(f.base);
    mem_free(f.values);
    mem_free(f.delta);
    mem_free(f.payload);
    return status;
}
