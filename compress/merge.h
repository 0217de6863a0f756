/* The deltas of a round become one: decoded straight into one accumulator, in worker order, in fp32.
 *
 *     mean          acc = sum over workers, ascending id, of w_i * x_i,   w_i = tokens_i / sum of tokens
 *     contributors  acc = (sum of w_i * x_i) / (sum of w_i), both over the workers whose payload carries the
 *                   coordinate, w_i = tokens_i / largest of them. Sparse codecs only: with a dense one everybody
 *                   carries everything, and this is the mean. (SparseLoCo's reference code, 2508.15706; its paper has
 *                   the mean.)
 *
 * With equal weights every worker counts one token. A single worker weighs exactly 1: the accumulator is what it sent,
 * down to the sign of zeros. With a sparse codec coordinates that nobody sent are -0 in the accumulator, and no others.
 *
 * clip median: for every tensor, a worker's delta with a larger norm than the median over the workers (the lower one of
 * two) is scaled down to it, before it is weighed. A median of 0 clips nothing. (Per tensor, as SparseLoCo's code does:
 * one tensor that blew up would hide in the norm of a whole fragment.)
 *
 * The fragment's coordinates are cut into the codec's parts, which are shared out to threads; each part takes all
 * workers in order. So there is one summation order, and the same deltas give the same bits at any number of threads.
 * The coordinator merges what it publishes, and workers merge what is relayed to them, with this same code. */
#ifndef COMPRESS_MERGE_H
#define COMPRESS_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/float_bits.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "compress/codec.h"

struct layout;
struct pool;

/* Is this decoded or merged value that of a coordinate which no payload carried? */
static inline bool merge_unsent(float value)
{
    return float_bits(value) == 0x80000000u;
}

/* One worker's delta of the fragment. */
struct merge_delta {
    const uint8_t *payload; /* [size] */
    size_t size;
    uint64_t tokens;
    uint8_t *room;          /* [codec_open_room], of this delta alone; unused when that is 0 */
    struct codec_view view; /* filled by merge_open */
};

/* What a run's merges have in common: rules, threads, scratch memory. */
struct merger {
    enum merge_rule rule;
    enum merge_weights weights;
    enum merge_clip clip;
    bool parameters;   /* payloads are parameters: the delta is theta - payload */
    struct pool *pool; /* borrowed; NULL: the calling thread alone */
    int threads;
    size_t part_max; /* floats of the largest part */
    float *scratch;  /* [threads][2][part_max] */
    double *norms;   /* clip: [norms_cap], (delta, tensor); then what the delta's values are multiplied by */
    size_t norms_cap;
};

/* The merge of one fragment. */
struct merge {
    struct merger *m;
    const struct layout *layout;
    uint32_t fragment;
    struct codec *codec; /* of the workers' payloads */
    float *acc;          /* [count of the fragment] */
    const float *theta;  /* [count]: what the deltas were computed from; only for `parameters` with clip */
    uint32_t n, added;   /* deltas in all, and so far */
    uint64_t total;      /* tokens: sum (mean) or largest (contributors) */
    uint32_t measured;   /* clip: deltas whose norms are known */
};

/* part_max: of the largest part of any codec used with it. NOMEM. */
enum status merger_init(struct merger *m, const struct config *config, bool parameters, struct pool *pool,
                        size_t part_max) MUST_CHECK;
/* Accepts a zeroed struct. */
void merger_finish(struct merger *m);
/* Floats of the largest part. */
size_t merge_part_max(const struct codec *codec);
/* All deltas must lie in memory together: sparse codecs whose senders are counted. Otherwise they may come in
 * groups. */
bool merge_needs_all(const struct merger *m, const struct codec *codec);

/* Check a payload and prepare it. CORRUPT or NONFINITE as codec_open. */
enum status merge_open(struct codec *codec, struct merge_delta *delta) MUST_CHECK;

/* tokens: of each of the n deltas, in order of worker id; not all 0. NOMEM (clip only). */
enum status merge_start(struct merge *merge, struct merger *m, const struct layout *layout, uint32_t fragment,
                        struct codec *codec, const float *theta, float *acc, const uint64_t *tokens,
                        uint32_t n) MUST_CHECK;
/* True when the norms of all deltas are wanted before any is added. */
bool merge_needs_norms(const struct merge *merge);
/* Norms of the next `count` deltas, opened. */
void merge_compute_norms(struct merge *merge, const struct merge_delta *deltas, uint32_t count);
/* Add the next `count` deltas, opened; after the n-th, acc holds the result. */
void merge_add(struct merge *merge, const struct merge_delta *deltas, uint32_t count);

/* Tokens of one over those of all: exactly 1 for a single worker. */
float merge_weight(uint64_t tokens, uint64_t total);

#endif
