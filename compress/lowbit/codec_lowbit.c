/* int4:BLOCK, 2bit:BLOCK, 1bit:BLOCK: heads and codes of blocks (compress/lowbit/lowbit_format.h), 1-D
 * tensors as bf16 (compress/lowbit/block_runs.h). */
#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/codec_simd.h"
#include "compress/codec_stage.h"
#include "compress/half.h"
#include "compress/lowbit/block_runs.h"
#include "compress/lowbit/lowbit_format.h"

/* Blocks are multiples of 64 values: the codes of every block start at a byte, and only the last block of a run is
 * short. */
enum { BLOCK_DEFAULT = 256, BLOCK_STEP = 64, BLOCK_MAX = 65536 };

static const struct lowbit_format *const formats[] = {&lowbit_int4, &lowbit_2bit, &lowbit_1bit};

/* param[0]: block; param[1]: index of the format. */
static const struct lowbit_format *format_of(const struct value_ctx *ctx)
{
    return formats[ctx->param[1]];
}

static enum status lowbit_parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    const char *name = ctx->stage->name;
    long block = BLOCK_DEFAULT;
    if (args) {
        size_t digits = strspn(args, "0123456789");
        block = digits && digits <= 6 && !args[digits] ? atol(args) : 0;
    }
    if (block < BLOCK_STEP || block > BLOCK_MAX || block % BLOCK_STEP)
        return err_set(err, STATUS_INVALID, "%s block \"%s\" is not allowed; write %s:%d to %s:%d, a multiple of %d",
                       name, args ? args : "", name, BLOCK_STEP, name, BLOCK_MAX, BLOCK_STEP);
    ctx->param[0] = (uint32_t)block;
    while (strcmp(format_of(ctx)->name, name)) ctx->param[1]++;
    snprintf(canonical, CODEC_SPEC_MAX, "%s:%ld", name, block);
    return STATUS_OK;
}

static enum status lowbit_prepare(const struct value_ctx *ctx)
{
    runs_fill(ctx->plan, ctx, ctx->param[0], format_of(ctx)->bits);
    return STATUS_OK;
}

static size_t lowbit_parts(const struct value_ctx *ctx)
{
    return ((const struct runs *)ctx->plan)->n_parts;
}

static struct codec_part lowbit_part(const struct value_ctx *ctx, size_t index)
{
    assert(index < ((const struct runs *)ctx->plan)->n_parts);
    return ((const struct runs *)ctx->plan)->part[index];
}

/* Layout of a payload. */
struct sections {
    const struct lowbit_format *format;
    size_t block;
    size_t heads, codes, size; /* byte offsets; size: of the payload */
};

static struct sections sections_of(const struct value_ctx *ctx, struct runs_total total)
{
    const struct lowbit_format *format = format_of(ctx);
    struct sections s = {.format = format, .block = ctx->param[0]};
    s.heads = 2 * total.n_plain;
    s.codes = s.heads + format->head * total.n_blocks;
    s.size = s.codes + total.code_bytes;
    return s;
}

static size_t lowbit_bound(const struct value_ctx *ctx)
{
    return sections_of(ctx, runs_count(ctx, ctx->param[0], format_of(ctx)->bits)).size;
}

static void lowbit_encode_part(const struct value_ctx *ctx, const float *x, struct codec_part part, uint8_t *dst)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    const struct lowbit_kernels *kernels = lowbit_kernels();
    assert(part.from < part.to && part.to <= ctx->n);
    const struct run *run = &runs->run[runs_find(runs, part.from)];
    for (size_t i = part.from, to; i < part.to; i = to, run++) {
        to = run->to < part.to ? run->to : part.to;
        size_t into = i - run->from;
        if (run->plain) {
            bf16_narrow(x, to - i, dst + 2 * (run->at + into));
            x += to - i;
            continue;
        }
        uint8_t *head = dst + s.heads + s.format->head * (run->at + into / s.block);
        uint8_t *codes = dst + s.codes + run->codes_at + into * s.format->bits / 8;
        for (size_t at = i; at < to; at += s.block, head += s.format->head) {
            size_t count = to - at < s.block ? to - at : s.block;
            s.format->encode(kernels, x, count, head, codes);
            x += count;
            codes += s.block * s.format->bits / 8;
        }
    }
}

static void lowbit_shape(const struct value_ctx *ctx, struct payload_shape *out)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    out->n_plain = runs->total.n_plain;
    out->n_sections = 2;
    out->section[0].to = s.heads;
    out->section[0].width = 2;
    out->section[1].to = s.codes;
    out->section[1].width = s.format->head;
}

/* *bad = 1 if a nibble is 8, which int4 does not make. */
CODEC_SIMD(scan, (const uint8_t *restrict codes, size_t n, uint8_t *bad), (codes, n, bad))
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= (uint8_t)((codes[i] & 0x0f) == 0x08) | (uint8_t)((codes[i] & 0xf0) == 0x80);
    *bad = any;
}

static bool all_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;
    for (size_t i = 0; i < n; i++) any |= bytes[i];
    return !any;
}

static enum status check_run(const struct sections *s, const struct run *run, const uint8_t *src)
{
    static const uint8_t zero[LOWBIT_HEAD_MAX];
    const uint8_t *head = src + s->heads + s->format->head * run->at, *codes = src + s->codes + run->codes_at;
    size_t count = run->to - run->from, step = s->block * s->format->bits / 8;
    size_t bytes = (count * s->format->bits + 7) / 8, spare = 8 * bytes - count * s->format->bits;
    if (spare && codes[bytes - 1] >> (8 - spare)) return STATUS_CORRUPT;
    for (size_t at = 0; at < bytes; at += step, head += s->format->head) {
        TRY(s->format->check(head));
        if (memcmp(head, zero, s->format->head)) continue;
        if (!all_zero(codes + at, bytes - at < step ? bytes - at : step)) return STATUS_CORRUPT;
    }
    return STATUS_OK;
}

static enum status lowbit_check(const struct value_ctx *ctx, const uint8_t *src, size_t size)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    if (size != s.size) return STATUS_CORRUPT;
    if (!bf16_finite(src, runs->total.n_plain)) return STATUS_NONFINITE;
    for (size_t r = 0; r < runs->n_runs; r++)
        if (!runs->run[r].plain) TRY(check_run(&s, &runs->run[r], src));
    uint8_t bad = 0;
    if (s.format->bits == 4) scan(src + s.codes, runs->total.code_bytes, &bad);
    return bad ? STATUS_CORRUPT : STATUS_OK;
}

static const enum piece_kind piece_kinds[] = {PIECE_INT4, PIECE_2BIT, PIECE_1BIT}; /* in the order of `formats` */

static void lowbit_delta_format(const struct value_ctx *ctx, struct delta_format *shape, struct piece_range *pieces)
{
    const struct runs *runs = ctx->plan;
    size_t block = ctx->param[0], block_bytes = block * format_of(ctx)->bits / 8;
    *shape = (struct delta_format){.kind = piece_kinds[ctx->param[1]],
                                   .n_values = ctx->n,
                                   .n_plain = runs->total.n_plain,
                                   .n_bytes = runs->total.code_bytes,
                                   .longest = (uint32_t)block,
                                   .k_max = (uint32_t)block};
    for (size_t r = 0; r < runs->n_runs; r++) {
        const struct run *run = &runs->run[r];
        size_t step = run->plain ? PIECE_PLAIN_MAX : block;
        for (size_t i = run->from; i < run->to; i += step, shape->n_pieces++) {
            uint32_t length = (uint32_t)(run->to - i < step ? run->to - i : step);
            size_t nth = (i - run->from) / step;
            if (!pieces) continue;
            pieces[shape->n_pieces] =
                (struct piece_range){.from = i,
                                     .out = run->plain ? run->at + nth * step : run->codes_at + nth * block_bytes,
                                     .length = length,
                                     .k = run->plain ? 0 : length};
        }
    }
}

static enum status lowbit_encode_quantized(const struct value_ctx *ctx, const struct quantized_delta *quantized,
                                           uint8_t *dst, size_t cap, size_t *size_p)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    const struct piece_head *piece = quantized->heads;
    uint8_t *head = dst + s.heads;
    if (cap < s.size) return STATUS_LIMIT;
    assert(s.heads <= s.codes && s.codes <= s.size);
    memcpy(dst, quantized->plain, 2 * runs->total.n_plain);
    memcpy(dst + s.codes, quantized->bytes, runs->total.code_bytes);
    for (size_t r = 0; r < runs->n_runs; r++) {
        const struct run *run = &runs->run[r];
        size_t step = run->plain ? PIECE_PLAIN_MAX : s.block;
        for (size_t i = run->from; i < run->to; i += step, piece++) {
            uint8_t bytes[] = {(uint8_t)piece->scale[0], (uint8_t)(piece->scale[0] >> 8), (uint8_t)piece->scale[1]};
            if (run->plain) continue;
            if (piece->scale[0] >> 16 || piece->scale[1] > 255) return STATUS_CORRUPT;
            memcpy(head, bytes, s.format->head);
            head += s.format->head;
        }
    }
    *size_p = s.size;
    return lowbit_check(ctx, dst, s.size) == STATUS_OK ? STATUS_OK : STATUS_CORRUPT;
}

static void lowbit_decode_quantized(const struct value_ctx *ctx, const uint8_t *src, size_t size,
                                    const struct quantized_delta *quantized)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    const uint8_t *head = src + s.heads;
    struct piece_head *piece = quantized->heads;
    (void)size;
    memcpy(quantized->plain, src, 2 * runs->total.n_plain);
    memcpy(quantized->bytes, src + s.codes, runs->total.code_bytes);
    for (size_t r = 0; r < runs->n_runs; r++) {
        const struct run *run = &runs->run[r];
        size_t step = run->plain ? PIECE_PLAIN_MAX : s.block;
        for (size_t i = run->from; i < run->to; i += step, piece++) {
            if (run->plain) continue;
            piece->scale[0] = head[0] | (uint32_t)head[1] << 8;
            piece->scale[1] = s.format->head > 2 ? head[2] : 0;
            head += s.format->head;
        }
    }
}

/* out = values; or out += *a * values if a is not NULL. */
static void decode_blocks(const struct value_ctx *ctx, const float *a, const uint8_t *src, struct codec_part part,
                          float *out)
{
    const struct runs *runs = ctx->plan;
    const struct sections s = sections_of(ctx, runs->total);
    assert(part.from < part.to && part.to <= ctx->n);
    const struct lowbit_kernels *k = lowbit_kernels();
    void (*expand)(const uint8_t *, size_t, const float *, float *) = s.format->bits == 4   ? k->expand4
                                                                      : s.format->bits == 2 ? k->expand2
                                                                                            : k->expand1;
    if (a) expand = s.format->bits == 4 ? k->add4 : s.format->bits == 2 ? k->add2 : k->add1;
    const struct run *run = &runs->run[runs_find(runs, part.from)];
    for (size_t i = part.from, to; i < part.to; i = to, run++) {
        to = run->to < part.to ? run->to : part.to;
        size_t into = i - run->from;
        if (run->plain) {
            const uint8_t *values = src + 2 * (run->at + into);
            if (a)
                bf16_axpy(*a, values, to - i, out);
            else
                bf16_widen(values, to - i, out);
            out += to - i;
            continue;
        }
        const uint8_t *head = src + s.heads + s.format->head * (run->at + into / s.block);
        const uint8_t *codes = src + s.codes + run->codes_at + into * s.format->bits / 8;
        for (size_t at = i; at < to; at += s.block, head += s.format->head) {
            float levels[LOWBIT_LEVELS];
            size_t count = to - at < s.block ? to - at : s.block;
            s.format->levels(head, levels);
            for (int c = 0; a && c < 1 << s.format->bits; c++) levels[c] = *a * levels[c];
            expand(codes, count, levels, out);
            out += count;
            codes += s.block * s.format->bits / 8;
        }
    }
}

static void lowbit_decode(const struct value_ctx *ctx, const uint8_t *src, size_t size, struct codec_part part,
                          float *x)
{
    (void)size;
    decode_blocks(ctx, NULL, src, part, x);
}

static void lowbit_decode_axpy(const struct value_ctx *ctx, float a, const uint8_t *src, size_t size,
                               struct codec_part part, float *acc)
{
    (void)size;
    decode_blocks(ctx, &a, src, part, acc);
}

#define LOWBIT_STAGE(stage_name, what)                                                                                 \
    {                                                                                                                  \
        .name = stage_name, .usage = stage_name "[:BLOCK]", .help = what, .feedback_decay = 1.0f, .width = 1,          \
        .parse = lowbit_parse, .plan = runs_size, .prepare = lowbit_prepare, .bound = lowbit_bound,                    \
        .parts = lowbit_parts, .part = lowbit_part, .encode_part = lowbit_encode_part, .check = lowbit_check,          \
        .shape = lowbit_shape, .decode = lowbit_decode, .decode_axpy = lowbit_decode_axpy,                             \
        .delta_format = lowbit_delta_format, .encode_quantized = lowbit_encode_quantized,                              \
        .decode_quantized = lowbit_decode_quantized,                                                                   \
    }

const struct value_stage codec_int4 = LOWBIT_STAGE("int4", "4 bits a value, -7 to 7 times a scale for BLOCK values");
const struct value_stage codec_2bit = LOWBIT_STAGE("2bit", "sign and one of two magnitudes for BLOCK values");
const struct value_stage codec_1bit = LOWBIT_STAGE("1bit", "sign times the mean magnitude of BLOCK values");
