/* fp32: the floats themselves, little-endian. 4n bytes, lossless, -0 and denormals included. */
#include <string.h>

#include "compress/codec_simd.h"
#include "compress/codec_stage.h"

static enum status fp32_parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    (void)ctx;
    if (args) return err_set(err, STATUS_INVALID, "fp32 takes no parameter");
    memcpy(canonical, "fp32", 5);
    return STATUS_OK;
}

static size_t fp32_bound(const struct value_ctx *ctx)
{
    return 4 * ctx->n;
}

static void fp32_encode_part(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst)
{
    (void)ctx;
    memcpy(dst + 4 * part.from, x, 4 * (part.to - part.from));
}

static enum status fp32_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)
{
    if (size != 4 * ctx->n) return STATUS_CORRUPT;
    return codec_first_nonfinite(src, ctx->n) == ctx->n ? STATUS_OK : STATUS_NONFINITE;
}

static void fp32_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x)
{
    (void)ctx, (void)size;
    memcpy(x, src + 4 * part.from, 4 * (part.to - part.from));
}

CODEC_SIMD(axpy, (float a, const uint8_t *restrict src, size_t n, float *restrict acc), (a, src, n, acc))
{
    for (size_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, src + 4 * i, 4);
        acc[i] = acc[i] + a * x;
    }
}

static void fp32_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size,
                             struct codec_part part, float *acc)
{
    (void)ctx, (void)size;
    axpy(a, src + 4 * part.from, part.to - part.from, acc);
}

const struct value_stage codec_fp32 = {
    .name = "fp32",
    .usage = "fp32",
    .help = "32 bits a value, lossless",
    .feedback_decay = 1.0f,
    .width = 4,
    .parse = fp32_parse,
    .bound = fp32_bound,
    .encode_part = fp32_encode_part,
    .check = fp32_check,
    .decode = fp32_decode,
    .decode_axpy = fp32_decode_axpy,
};
