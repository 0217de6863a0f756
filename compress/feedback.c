#include "compress/feedback.h"

#include <string.h>

#include "common/mem.h"
#include "compress/codec.h"

enum status feedback_init(struct feedback *fb, size_t count, float decay, bool enabled)
{
    memset(fb, 0, sizeof *fb);
    if (!count || !(decay >= 0.0f && decay <= 1.0f)) return STATUS_INVALID;
    fb->count = count;
    fb->decay = decay;
    if (!enabled) return STATUS_OK;
    fb->residual = mem_alloc(count, sizeof *fb->residual);
    return fb->residual ? STATUS_OK : STATUS_NOMEM;
}

void feedback_finish(struct feedback *fb)
{
    mem_free(fb->residual);
    memset(fb, 0, sizeof *fb);
}

/* residual = x - what the payload decodes to. */
static enum status keep_rest(struct feedback *fb, struct codec *codec, const float *x, const uint8_t *payload,
                             size_t size)
{
    struct codec_view view;
    TRY(codec_open(codec, payload, size, NULL, &view)); /* a refusal leaves the residual as it was */
    for (size_t p = 0, parts = codec_parts(codec); p < parts; p++) {
        struct codec_part part = codec_part(codec, p);
        memcpy(fb->residual + part.from, x + part.from, (part.to - part.from) * sizeof *x);
        codec_view_axpy(&view, p, -1.0f, fb->residual + part.from);
    }
    return STATUS_OK;
}

enum status feedback_encode(struct feedback *fb, struct codec *codec, float *delta, uint8_t *dst, size_t cap,
                            size_t *size_p)
{
    size_t size;
    if (fb->pending) return STATUS_STATE;
    if (codec_count(codec) != fb->count) return STATUS_INVALID;
    if (fb->residual)
        for (size_t i = 0; i < fb->count; i++) delta[i] = delta[i] + fb->decay * fb->residual[i];
    TRY(codec_encode(codec, delta, dst, cap, &size, NULL));
    if (fb->residual) TRY(keep_rest(fb, codec, delta, dst, size));
    fb->pending = true;
    *size_p = size;
    return STATUS_OK;
}

void feedback_commit(struct feedback *fb)
{
    fb->pending = false;
}

enum status feedback_rollback(struct feedback *fb, struct codec *codec, const uint8_t *payload, size_t size)
{
    if (!fb->pending) return STATUS_STATE;
    if (fb->residual) TRY(codec_decode_axpy(codec, 1.0f, payload, size, fb->residual));
    fb->pending = false;
    return STATUS_OK;
}

void feedback_reset(struct feedback *fb)
{
    if (fb->residual) memset(fb->residual, 0, fb->count * sizeof *fb->residual);
    fb->pending = false;
}
