/* bf16: the upper half of each float, rounded to nearest even. 2n bytes. What would round to infinity becomes the
 * largest finite value of its sign. */
#include <string.h>

#include "compress/codec_simd.h"
#include "compress/codec_stage.h"

static enum status bf16_parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    (void)ctx;
    if (args) return err_set(err, STATUS_INVALID, "bf16 takes no parameter");
    memcpy(canonical, "bf16", 5);
    return STATUS_OK;
}

static size_t bf16_bound(const struct value_ctx *ctx)
{
    return 2 * ctx->n;
}

CODEC_SIMD_BODY narrow_body(const float *restrict x, size_t n, uint8_t *restrict dst)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        uint32_t up = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16; /* ties go to the even neighbour */
        up -= (up & 0x7fffu) == 0x7f80u;                         /* infinity: one step back */
        uint16_t half = (uint16_t)up;
        memcpy(dst + 2 * i, &half, 2);
    }
}
CODEC_SIMD_VARIANTS(narrow, (const float *restrict x, size_t n, uint8_t *restrict dst), (x, n, dst))

CODEC_SIMD_BODY widen_body(const uint8_t *restrict src, size_t n, float *restrict x)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(x + i, &bits, 4);
    }
}
CODEC_SIMD_VARIANTS(widen, (const uint8_t *restrict src, size_t n, float *restrict x), (src, n, x))

CODEC_SIMD_BODY axpy_body(float a, const uint8_t *restrict src, size_t n, float *restrict acc)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * i, 2);
        uint32_t bits = (uint32_t)half << 16;
        float x;
        memcpy(&x, &bits, 4);
        acc[i] = acc[i] + a * x;
    }
}
CODEC_SIMD_VARIANTS(axpy, (float a, const uint8_t *restrict src, size_t n, float *restrict acc), (a, src, n, acc))

/* *bad = some value is not finite. */
CODEC_SIMD_BODY scan_body(const uint8_t *restrict src, size_t n, uint32_t *bad)
{
    uint16_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, src + 2 * i, 2);
        any |= (uint16_t)((half & 0x7f80u) == 0x7f80u);
    }
    *bad = any;
}
CODEC_SIMD_VARIANTS(scan, (const uint8_t *restrict src, size_t n, uint32_t *bad), (src, n, bad))

static enum status bf16_encode(const struct value_ctx *ctx, const float *x, uint8_t *dst, size_t cap, size_t *size_p)
{
    if (cap < 2 * ctx->n) return STATUS_LIMIT;
    narrow(x, ctx->n, dst);
    *size_p = 2 * ctx->n;
    return STATUS_OK;
}

static enum status bf16_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)
{
    uint32_t bad;
    if (size != 2 * ctx->n) return STATUS_CORRUPT;
    scan(src, ctx->n, &bad);
    return bad ? STATUS_NONFINITE : STATUS_OK;
}

static void bf16_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x)
{
    (void)ctx, (void)size;
    widen(src + 2 * part.from, part.to - part.from, x);
}

static void bf16_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size,
                             struct codec_part part, float *acc)
{
    (void)ctx, (void)size;
    axpy(a, src + 2 * part.from, part.to - part.from, acc);
}

const struct value_stage codec_bf16 = {
    .name = "bf16",
    .usage = "bf16",
    .help = "16 bits a value, 8 of them significant",
    .feedback_decay = 1.0f,
    .width = 2,
    .parse = bf16_parse,
    .bound = bf16_bound,
    .encode = bf16_encode,
    .check = bf16_check,
    .decode = bf16_decode,
    .decode_axpy = bf16_decode_axpy,
};
