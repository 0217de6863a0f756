/* How a low-bit stage cuts a fragment: matrices become blocks of consecutive values, 1-D tensors (norms, biases: well
 * under 1 % of a model) go as bf16. Neighbouring tensors of one kind form a run; blocks start anew at each run, its
 * last block may be short, and its codes start at a byte of their own.
 *
 *     payload = bf16 x n_plain, head x n_blocks, then each run's codes */
#ifndef COMPRESS_BLOCK_RUNS_H
#define COMPRESS_BLOCK_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/codec_stage.h"

struct run {
    size_t from, to; /* coordinates */
    bool plain;      /* bf16 */
    size_t at;       /* plain: values before it; else blocks before it */
    size_t codes_at; /* bytes of codes before it; blocks only */
};

struct runs_total {
    size_t n_plain, n_blocks, code_bytes;
};

struct runs {
    size_t n_runs, n_parts;
    struct runs_total total;
    struct run *run;         /* [n_runs] */
    struct codec_part *part; /* [n_parts] */
};

/* What the spans of ctx add up to. */
struct runs_total runs_count(const struct value_ctx *ctx, size_t block, size_t bits);
/* Bytes of a struct runs for ctx, and fill one there: blocks of `block` values, codes of `bits` bits; a part holds
 * whole blocks and at least CODEC_PART values, but for the last one. block * bits is a multiple of 8. */
size_t runs_size(const struct value_ctx *ctx);
void runs_fill(struct runs *runs, const struct value_ctx *ctx, size_t block, size_t bits);
/* The run that holds coordinate i < n. */
size_t runs_find(const struct runs *runs, size_t i);

#endif
