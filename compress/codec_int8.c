/* int8:BLOCK: symmetric 8-bit integers, one fp32 scale for BLOCK consecutive values (the last block may be short).
 *
 *     payload = scale[ceil(n / BLOCK)] as fp32, then code[n] as signed bytes;  value = code * scale
 *     scale   = max|x| / 127 over the block;  code = round(x * (127 / max|x|)), nearest, ties to even
 *
 * |code| <= 127, an exact 0 stays 0, and the largest value of a block is off by rounding only. A block whose largest
 * magnitude is below 2^-119 is sent as zeros: its scale would be denormal, and devices multiply denormals
 * differently. */
#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/float_bits.h"
#include "compress/codec_simd.h"
#include "compress/codec_stage.h"

enum { BLOCK_DEFAULT = 256, BLOCK_MIN = 16, BLOCK_MAX = 65536 };

#define ABSMAX_MIN 0x1p-119f
#define SCALE_MAX_BITS 0x7c010203u /* the largest scale with 127 * scale finite */
#define SCALE_MIN_BITS 0x00800000u /* the smallest normal float */

static enum status int8_parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    long block = BLOCK_DEFAULT;
    if (args) {
        size_t digits = strspn(args, "0123456789");
        block = digits && digits <= 6 && !args[digits] ? atol(args) : 0;
    }
    if (block < BLOCK_MIN || block > BLOCK_MAX)
        return err_set(err, STATUS_INVALID, "int8 block \"%s\" is not allowed; write int8:%d to int8:%d",
                       args ? args : "", BLOCK_MIN, BLOCK_MAX);
    ctx->param[0] = (uint32_t)block;
    snprintf(canonical, CODEC_SPEC_MAX, "int8:%ld", block);
    return STATUS_OK;
}

static size_t n_blocks(const struct value_ctx *ctx)
{
    return (ctx->n + ctx->param[0] - 1) / ctx->param[0];
}

static size_t int8_bound(const struct value_ctx *ctx)
{
    return 4 * n_blocks(ctx) + ctx->n;
}

/* Scale of a block and the factor of its values; both are 0 if the block is sent as zeros. */
static inline void block_scale(uint32_t absmax_bits, float *scale, float *factor)
{
    float absmax = float_of_bits(absmax_bits);
    *scale = *factor = 0.0f;
    if (absmax < ABSMAX_MIN) return;
    *scale = absmax / 127.0f;
    *factor = 127.0f / absmax;
    uint32_t bits = float_bits(*scale);
    if (bits > SCALE_MAX_BITS) bits = SCALE_MAX_BITS; /* FLT_MAX / 127 rounds up */
    memcpy(scale, &bits, 4);
}

/* Positive floats have the order of their bits, so the largest magnitude is an integer maximum. Adding 1.5 * 2^23
 * leaves the nearest integer in the low bits. */
CODEC_SIMD(encode, (const float *restrict x, size_t n, size_t block, uint8_t *restrict scales, uint8_t *restrict codes),
           (x, n, block, scales, codes))
{
    for (size_t from = 0; from < n; from += block, scales += 4) {
        size_t count = n - from < block ? n - from : block;
        uint32_t absmax = 0;
        for (size_t i = 0; i < count; i++) {
            uint32_t bits = float_bits(x[from + i]) & 0x7fffffffu;
            absmax = bits > absmax ? bits : absmax;
        }
        float scale, factor;
        block_scale(absmax, &scale, &factor);
        memcpy(scales, &scale, 4);
        for (size_t i = 0; i < count; i++) {
            codes[from + i] = (uint8_t)float_bits(x[from + i] * factor + 0x1.8p23f);
        }
    }
}

CODEC_SIMD(decode,
           (const uint8_t *restrict scales, const uint8_t *restrict codes, size_t n, size_t block, float *restrict x),
           (scales, codes, n, block, x))
{
    for (size_t from = 0; from < n; from += block, scales += 4) {
        size_t count = n - from < block ? n - from : block;
        float scale;
        memcpy(&scale, scales, 4);
        for (size_t i = 0; i < count; i++) x[from + i] = (float)(int8_t)codes[from + i] * scale;
    }
}

CODEC_SIMD(axpy,
           (float a, const uint8_t *restrict scales, const uint8_t *restrict codes, size_t n, size_t block,
            float *restrict acc),
           (a, scales, codes, n, block, acc))
{
    for (size_t from = 0; from < n; from += block, scales += 4) {
        size_t count = n - from < block ? n - from : block;
        float scale;
        memcpy(&scale, scales, 4);
        for (size_t i = 0; i < count; i++) {
            float x = (float)(int8_t)codes[from + i] * scale;
            acc[from + i] = acc[from + i] + a * x;
        }
    }
}

/* *bad = 1 if a code is -128, which encode never makes. */
CODEC_SIMD(scan, (const uint8_t *restrict codes, size_t n, uint8_t *bad), (codes, n, bad))
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= (uint8_t)(codes[i] == 0x80);
    *bad = any;
}

static void int8_encode_part(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst)
{
    assert(part.from % ctx->param[0] == 0 && part.to <= ctx->n);
    size_t block = ctx->param[0];
    encode(x, part.to - part.from, block, dst + 4 * (part.from / block), dst + 4 * n_blocks(ctx) + part.from);
}

static void int8_shape(const struct value_ctx *ctx, struct payload_shape *out)
{
    out->n_sections = 1;
    out->section[0].to = 4 * n_blocks(ctx);
    out->section[0].width = 4;
}

static enum status int8_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)
{
    size_t blocks = n_blocks(ctx);
    if (size != int8_bound(ctx)) return STATUS_CORRUPT;
    for (size_t i = 0; i < blocks; i++) {
        uint32_t bits;
        memcpy(&bits, src + 4 * i, 4);
        if (bits && (bits < SCALE_MIN_BITS || bits > SCALE_MAX_BITS))
            return (bits & 0x7fffffffu) > SCALE_MAX_BITS ? STATUS_NONFINITE : STATUS_CORRUPT;
    }
    uint8_t bad;
    scan(src + 4 * blocks, ctx->n, &bad);
    return bad ? STATUS_CORRUPT : STATUS_OK;
}

static void int8_delta_format(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces)
{
    size_t block = ctx->param[0];
    *shape = (struct delta_format){.kind = PIECE_INT8,
                                   .n_values = ctx->n,
                                   .n_pieces = n_blocks(ctx),
                                   .n_bytes = ctx->n,
                                   .longest = (uint32_t)block,
                                   .k_max = (uint32_t)block};
    for (size_t i = 0; pieces && i < shape->n_pieces; i++) {
        uint32_t length = (uint32_t)(ctx->n - i * block < block ? ctx->n - i * block : block);
        pieces[i] = (struct piece_range){.from = i * block, .out = i * block, .length = length, .k = length};
    }
}

static enum status int8_encode_quantized(const struct value_ctx *ctx, const struct quantized_delta *quantized,
                                         uint8_t *dst, size_t cap, size_t *size_p)
{
    size_t blocks = n_blocks(ctx);
    if (cap < int8_bound(ctx)) return STATUS_LIMIT;
    for (size_t i = 0; i < blocks; i++) memcpy(dst + 4 * i, &quantized->heads[i].scale[0], 4);
    memcpy(dst + 4 * blocks, quantized->bytes, ctx->n);
    *size_p = int8_bound(ctx);
    return int8_check(ctx, dst, *size_p) == STATUS_OK ? STATUS_OK : STATUS_CORRUPT;
}

static void int8_decode_quantized(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                                  const struct quantized_delta *quantized)
{
    size_t blocks = n_blocks(ctx);
    (void)size;
    for (size_t i = 0; i < blocks; i++) memcpy(&quantized->heads[i].scale[0], src + 4 * i, 4);
    memcpy(quantized->bytes, src + 4 * blocks, ctx->n);
}

static size_t int8_align(const struct value_ctx *ctx)
{
    return ctx->param[0];
}

static void int8_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part, float *x)
{
    size_t block = ctx->param[0];
    (void)size;
    decode(src + 4 * (part.from / block), src + 4 * n_blocks(ctx) + part.from, part.to - part.from, block, x);
}

static void int8_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size,
                             struct codec_part part, float *acc)
{
    size_t block = ctx->param[0];
    (void)size;
    axpy(a, src + 4 * (part.from / block), src + 4 * n_blocks(ctx) + part.from, part.to - part.from, block, acc);
}

const struct value_stage codec_int8 = {
    .name = "int8",
    .usage = "int8[:BLOCK]",
    .help = "8 bits a value, one fp32 scale for BLOCK values (16 to 65536, default 256)",
    .feedback_decay = 1.0f,
    .width = 1,
    .parse = int8_parse,
    .bound = int8_bound,
    .align = int8_align,
    .shape = int8_shape,
    .encode_part = int8_encode_part,
    .check = int8_check,
    .decode = int8_decode,
    .decode_axpy = int8_decode_axpy,
    .delta_format = int8_delta_format,
    .encode_quantized = int8_encode_quantized,
    .decode_quantized = int8_decode_quantized,
};
