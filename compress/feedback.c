#include "compress/feedback.h"

#include <assert.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "compress/codec.h"

enum { GRAIN = 1 << 14 };

static enum status init(struct feedback *fb, size_t count, float decay)
{
    memset(fb, 0, sizeof *fb);
    if (!count || !(decay >= 0.0f && decay <= 1.0f)) return STATUS_INVALID;
    fb->count = count;
    fb->decay = decay;
    return STATUS_OK;
}

enum status feedback_init(struct feedback *fb, size_t count, float decay, bool enabled)
{
    TRY(init(fb, count, decay));
    if (!enabled) return STATUS_OK;
    fb->residual = mem_alloc(count, sizeof *fb->residual);
    return fb->residual ? STATUS_OK : STATUS_NOMEM;
}

enum status feedback_init_lent(struct feedback *fb, size_t count, float decay, float *memory)
{
    TRY(init(fb, count, decay));
    fb->residual = memory;
    fb->lent = true;
    feedback_reset(fb);
    return STATUS_OK;
}

void feedback_finish(struct feedback *fb)
{
    if (!fb->lent) mem_free(fb->residual);
    memset(fb, 0, sizeof *fb);
}

/* Threads share the parts of the codec. */
struct feedback_job {
    const struct feedback *fb;
    const struct codec *codec;
    float *delta;
    const float *x; /* the delta and the residual; the residual itself, if the caller added its delta there */
    struct codec_view view;
};

/* x = delta + beta * residual */
static void add_residual(void *ctx, int thread, int threads)
{
    const struct feedback_job *job = ctx;
    const float *residual = job->fb->residual, decay = job->fb->decayed ? 1.0f : job->fb->decay;
    assert(residual && decay >= 0.0f && decay <= 1.0f);
    float *x = job->delta;
    size_t first, end;
    pool_share(codec_parts(job->codec), 1, thread, threads, &first, &end);
    for (size_t p = first; p < end; p++) {
        struct codec_part part = codec_part(job->codec, p);
        for (size_t i = part.from; i < part.to; i++) x[i] = x[i] + decay * residual[i];
    }
}

/* residual = x - decode(payload) */
static void store_residual(void *ctx, int thread, int threads)
{
    const struct feedback_job *job = ctx;
    float *residual = job->fb->residual;
    size_t first, end;
    assert(residual && job->view.codec == job->codec);
    pool_share(codec_parts(job->codec), 1, thread, threads, &first, &end);
    for (size_t p = first; p < end; p++) {
        struct codec_part part = codec_part(job->codec, p);
        if (residual != job->x)
            memcpy(residual + part.from, job->x + part.from, (part.to - part.from) * sizeof *residual);
        codec_view_axpy(&job->view, p, -1.0f, residual + part.from);
    }
}

/* residual = beta * residual */
static void decay_residual(void *ctx, int thread, int threads)
{
    const struct feedback *fb = ctx;
    size_t first, end;
    pool_share(fb->count, GRAIN, thread, threads, &first, &end);
    for (size_t i = first; i < end; i++) fb->residual[i] = fb->decay * fb->residual[i];
}

void feedback_ready(struct feedback *fb, struct pool *pool)
{
    assert(!fb->pending);
    if (!fb->residual || fb->decayed) return;
    if (fb->decay < 1.0f) pool_run_if(pool, fb->count > GRAIN, decay_residual, fb);
    fb->decayed = true;
}

/* Encodes job->x, and keeps the rest as the residual. */
static enum status encode(struct feedback *fb, struct feedback_job *job, struct codec *codec, struct pool *pool,
                          uint8_t *dst, size_t cap, size_t *size_p)
{
    size_t size;
    TRY(codec_encode_pool(codec, pool, job->x, dst, cap, &size, NULL));
    if (fb->residual) {
        TRY(codec_open(codec, dst, size, NULL, &job->view)); /* on an error the residual stays as it was */
        pool_run_if(pool, codec_parts(codec) > 1, store_residual, job);
    }
    assert(!fb->pending && size <= cap);
    fb->pending = true;
    fb->decayed = false;
    *size_p = size;
    return STATUS_OK;
}

enum status feedback_encode(struct feedback *fb, struct codec *codec, struct pool *pool, float *delta, uint8_t *dst,
                            size_t cap, size_t *size_p)
{
    struct feedback_job job = {.fb = fb, .codec = codec, .delta = delta, .x = delta};
    assert(delta && dst && size_p);
    if (fb->pending) return STATUS_STATE;
    if (codec_count(codec) != fb->count) return STATUS_INVALID;
    if (fb->residual) pool_run_if(pool, codec_parts(codec) > 1, add_residual, &job);
    return encode(fb, &job, codec, pool, dst, cap, size_p);
}

enum status feedback_encode_in_place(struct feedback *fb, struct codec *codec, struct pool *pool, uint8_t *dst,
                                     size_t cap, size_t *size_p)
{
    struct feedback_job job = {.fb = fb, .codec = codec, .x = fb->residual};
    assert(fb->residual && dst && size_p);
    if (fb->pending || !fb->decayed) return STATUS_STATE;
    if (codec_count(codec) != fb->count) return STATUS_INVALID;
    return encode(fb, &job, codec, pool, dst, cap, size_p);
}

enum status feedback_encode_plain(struct feedback *fb, struct codec *codec, struct pool *pool, const float *values,
                                  uint8_t *dst, size_t cap, size_t *size_p)
{
    struct feedback_job job = {.fb = fb, .codec = codec, .x = values};
    assert(!fb->residual && values && dst && size_p);
    if (fb->pending) return STATUS_STATE;
    if (codec_count(codec) != fb->count) return STATUS_INVALID;
    return encode(fb, &job, codec, pool, dst, cap, size_p);
}

void feedback_commit(struct feedback *fb)
{
    fb->pending = false;
}

enum status feedback_rollback(struct feedback *fb, struct codec *codec, const uint8_t *payload, size_t size)
{
    if (!fb->pending) return STATUS_STATE;
    assert(codec_count(codec) == fb->count);
    if (fb->residual) TRY(codec_decode_axpy(codec, 1.0f, payload, size, fb->residual));
    fb->pending = false;
    return STATUS_OK;
}

void feedback_reset(struct feedback *fb)
{
    assert(fb->count || !fb->residual);
    if (fb->residual) memset(fb->residual, 0, fb->count * sizeof *fb->residual);
    fb->pending = false; /* and `decayed` stays: 0 is its own multiple */
}
