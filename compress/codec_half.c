/* bf16 and fp16: 16 bits a value, 2n bytes (compress/half.h). */
#include <string.h>

#include "compress/codec_stage.h"
#include "compress/half.h"

static enum status parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    const char *name = ctx->stage->name;
    if (args) return err_set(err, STATUS_INVALID, "%s takes no parameter", name);
    memcpy(canonical, name, strlen(name) + 1);
    return STATUS_OK;
}

static size_t bound(const struct value_ctx *ctx)
{
    return 2 * ctx->n;
}

/* The stage functions of format `name`. */
#define STAGE(name)                                                                                                    \
    static void name##_encode_part(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst)  \
    {                                                                                                                  \
        (void)ctx;                                                                                                     \
        name##_narrow(x, part.to - part.from, dst + 2 * part.from);                                                    \
    }                                                                                                                  \
    static enum status name##_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)                      \
    {                                                                                                                  \
        if (size != 2 * ctx->n) return STATUS_CORRUPT;                                                                 \
        return name##_finite(src, ctx->n) ? STATUS_OK : STATUS_NONFINITE;                                              \
    }                                                                                                                  \
    static void name##_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part,    \
                              float *x)                                                                                \
    {                                                                                                                  \
        (void)ctx, (void)size;                                                                                         \
        name##_widen(src + 2 * part.from, part.to - part.from, x);                                                     \
    }                                                                                                                  \
    static void name##_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size,              \
                                   struct codec_part part, float *acc)                                                 \
    {                                                                                                                  \
        (void)ctx, (void)size;                                                                                         \
        name##_axpy(a, src + 2 * part.from, part.to - part.from, acc);                                                 \
    }
STAGE(bf16)
STAGE(fp16)

const struct value_stage codec_bf16 = {
    .name = "bf16",
    .usage = "bf16",
    .help = "16 bits a value, 8 of them significant",
    .feedback_decay = 1.0f,
    .width = 2,
    .parse = parse,
    .bound = bound,
    .encode_part = bf16_encode_part,
    .check = bf16_check,
    .decode = bf16_decode,
    .decode_axpy = bf16_decode_axpy,
};

const struct value_stage codec_fp16 = {
    .name = "fp16",
    .usage = "fp16",
    .help = "16 bits a value, 11 of them significant from 2^-14 to 65504",
    .feedback_decay = 1.0f,
    .width = 2,
    .parse = parse,
    .bound = bound,
    .encode_part = fp16_encode_part,
    .check = fp16_check,
    .decode = fp16_decode,
    .decode_axpy = fp16_decode_axpy,
};
