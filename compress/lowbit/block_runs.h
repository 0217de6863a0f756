/* Cuts a fragment for a low-bit stage.
 *
 *     payload = bf16 x n_plain, head x n_blocks, then the codes of each run
 *
 * - Matrices become blocks of consecutive values. 1-D tensors (norms, biases: well under 1 % of a model) are sent as
 *   bf16.
 * - Neighbouring tensors of one kind form a run. Blocks restart at each run; the last block of a run may be short, and
 *   the codes of a run start at a byte boundary. */
#ifndef COMPRESS_BLOCK_RUNS_H
#define COMPRESS_BLOCK_RUNS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "compress/codec_stage.h"

struct run {
    size_t from, to; /* coordinates */
    bool plain;      /* bf16 */
    size_t at;       /* plain values before the run if plain, otherwise blocks before it */
    size_t codes_at; /* bytes of codes before the run; blocks only */
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

/* Totals over the spans of ctx. */
struct runs_total runs_count(const struct value_ctx *ctx, size_t block, size_t bits);
/* runs_size: bytes of a struct runs for ctx. runs_fill fills one: blocks of `block` values, codes of `bits` bits; block
 * * bits is a multiple of 8. A part holds whole blocks and, except for the last part, at least CODEC_PART values. */
size_t runs_size(const struct value_ctx *ctx);
void runs_fill(struct runs *runs, const struct value_ctx *ctx, size_t block, size_t bits);
/* Index of the run that holds coordinate i < n. */
size_t runs_find(const struct runs *runs, size_t i);

#endif
