/* topk:K/CHUNK+VALUES: the K values of largest magnitude in each chunk of a tensor; their positions as Golomb-coded
 * gaps. SparseLoCo (arXiv 2508.15706) sends 12 bits a position; the gaps take 7.5 bits at 64 of 4096.
 *
 *     payload = the 1-D tensors as bf16;  u32 offset of each group of chunks except the first;  the groups
 *     group   = u16 m, then its chunks, without padding;  chunk = scales, then K times: gap, value
 *
 * A group is 2^17 / CHUNK chunks: the unit of random access. Exact rules: docs/codecs.md. */
#include "compress/topk/codec_topk.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const values_names[] = {
    [TOPK_SIGN] = "sign", [TOPK_2BIT] = "2bit", [TOPK_INT8] = "int8", [TOPK_FP16] = "fp16"};

static void write_canonical(const struct value_ctx *ctx, char *canonical)
{
    snprintf(canonical, CODEC_SPEC_MAX, "topk:%u/%u+%s", ctx->param[TOPK_K], ctx->param[TOPK_CHUNK],
             values_names[ctx->param[TOPK_VALUES]]);
}

/* Parses up to 5 digits that end at `end`; returns 0 on anything else. */
static uint32_t parse_number(const char **text, char end)
{
    size_t digits = strspn(*text, "0123456789");
    if (!digits || digits > 5 || (*text)[digits] != end) return 0;
    uint32_t value = (uint32_t)atol(*text);
    *text += digits + (end != 0);
    return value;
}

static enum status topk_parse(struct value_ctx *ctx, const char *args, char *canonical, struct err *err)
{
    const char *text = args ? args : "";
    uint32_t k = parse_number(&text, '/'), chunk = k ? parse_number(&text, 0) : 0;
    bool power = chunk >= TOPK_CHUNK_MIN && chunk <= TOPK_CHUNK_MAX && !(chunk & (chunk - 1));
    if (!power || k >= chunk)
        return err_set(
            err, STATUS_INVALID,
            "topk \"%s\" is not allowed; write topk:K/CHUNK, such as topk:64/4096, with CHUNK a power of two "
            "from %d to %d and K below it",
            args ? args : "", TOPK_CHUNK_MIN, TOPK_CHUNK_MAX);
    ctx->param[TOPK_K] = k;
    ctx->param[TOPK_CHUNK] = chunk;
    ctx->param[TOPK_VALUES] = TOPK_SIGN;
    write_canonical(ctx, canonical);
    return STATUS_OK;
}

static bool topk_modify(struct value_ctx *ctx, const char *word, unsigned nth, char *canonical)
{
    if (nth) return false;
    for (uint32_t i = 0; i < sizeof values_names / sizeof *values_names; i++) {
        if (strcmp(word, values_names[i])) continue;
        ctx->param[TOPK_VALUES] = i;
        write_canonical(ctx, canonical);
        return true;
    }
    return false;
}

static uint32_t topk_period(const struct value_ctx *ctx)
{
    return ctx->param[TOPK_CHUNK] / ctx->param[TOPK_K];
}

/* n_plain stays 0: topk_bound_bits counts the 1-D tensors. */
static void topk_shape(const struct value_ctx *ctx, struct payload_shape *out)
{
    const struct topk_plan *plan = ctx->plan;
    out->n_sections = 1;
    out->section[0].to = 2 * plan->n_dense;
    out->section[0].width = 2;
}

const struct value_stage codec_topk = {
    .name = "topk",
    .usage = "topk:K/CHUNK[+VALUES]",
    .help = "the K largest of each CHUNK (256 to 65536) values; VALUES: sign (default), 2bit, int8, fp16; 1-D as bf16",
    .feedback_decay = 0.95f,
    .width = 1,
    .parse = topk_parse,
    .period = topk_period,
    .modify = topk_modify,
    .plan = topk_plan_size,
    .prepare = topk_prepare,
    .shape = topk_shape,
    .bound = topk_bound,
    .bound_bits = topk_bound_bits,
    .scratch = topk_scratch_size,
    .parts = topk_parts,
    .part = topk_part,
    .encode = topk_encode,
    .delta_format = topk_delta_format,
    .encode_quantized = topk_encode_quantized,
    .decode_quantized = topk_decode_quantized,
    .check = topk_check,
    .decode = topk_decode,
    .list = topk_list,
    .add = topk_add,
};
