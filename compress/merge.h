/* Merges the deltas of a round: decodes them straight into one accumulator, in worker order, in fp32.
 *
 *     mean          acc = sum over workers, ascending id, of w_i * x_i,   w_i = tokens_i / sum of tokens
 *                   of parameters: acc += v_i * (x_i - acc),   v_i = tokens_i / tokens up to i. Equal ones stay equal.
 *     contributors  acc = (sum of w_i * x_i) / (sum of w_i), both over the workers whose payload carries the
 *                   coordinate, w_i = tokens_i / largest of them. Sparse codecs only: with a dense codec every
 *                   worker carries every coordinate, and this is the mean. (SparseLoCo's reference code,
 *                   2508.15706; its paper has the mean.)
 *
 *     rda           by tensor: acc = (sum of w_i |x_i|) * u / |u|,   u = sum of w_i x_i / |x_i|, w_i as for the mean.
 * The mean of the norms and the mean of the directions: orthogonal deltas keep their length, which the mean shrinks by
 * the root of their number. The plain mean if |u| < 1e-4, of embeddings (names of tensor_is_embedding), of mean
 * tensors, and if all x_i are 0. Dense codecs only. (Decoupled DiLoCo, 2604.21428.)
 *
 * - A single worker weighs exactly 1: the accumulator equals its payload, down to the sign of zeros.
 * - Sparse codec: a coordinate is -0 in the accumulator if and only if no worker sent it.
 * - Clipping bounds the influence of one worker (struct merge_bounds). A delta beyond `whole` times the median norm of
 *   the deltas (the lower one of two) is scaled down to the median before it is weighed, and so is each of its tensors
 *   beyond `tensor` times the median of that tensor: the norm of a whole fragment would hide one tensor that blew up.
 *   If that median is 0, the median of the whole deltas takes its place. A median keeps its meaning while fewer than
 *   half of the workers lie (Yin et al., 1803.01498).
 * - With clipping, a worker also weighs at most MERGE_WEIGHT_MOST times the median tokens of the merge.
 * - rda averages clipped norms.
 * - Threads share the codec's parts of the fragment; each part takes all workers in order. There is one summation
 *   order: the same deltas give the same bits with any number of threads.
 * - The coordinator merges the published update with this code, and workers merge relayed deltas with it. */
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

/* True if no payload carried the coordinate of this decoded or merged value. */
static inline bool merge_unsent(float value)
{
    return float_bits(value) == 0x80000000u;
}

/* One worker's delta of the fragment. */
struct merge_delta {
    const uint8_t *payload; /* [size] */
    size_t size;
    uint64_t tokens;
    double excess;          /* async: divides its values; 0: nothing does. Not for parameters */
    uint8_t *room;          /* [codec_open_room], for this delta alone; unused if that is 0 */
    struct codec_view view; /* filled by merge_open */
};

enum { MERGE_WEIGHT_MOST = 2 };

/* What merge.clip means in this run. */
struct merge_bounds {
    uint32_t least; /* deltas of a merge that is clipped; UINT32_MAX: none is */
    double whole;   /* medians of the deltas' norms; INFINITY: no limit */
    double tensor;  /* medians of a tensor's norm */
    bool by_tokens; /* steps differ by worker (train.dynamic_steps): the limit grows with a worker's tokens */
};

/* State shared by all merges of a run: rules, threads, scratch memory. */
struct merger {
    enum merge_rule rule;
    struct merge_bounds bounds;
    bool parameters;          /* payloads are parameters: delta = theta - payload */
    bool parameters_of_means; /* same, of mean tensors */
    struct pool *pool;        /* borrowed; NULL: the calling thread alone */
    int threads;
    size_t part_max; /* floats of the largest part */
    float *scratch;  /* [threads][2][part_max] */
    double *norms;   /* clip, rda: [norms_cap], (delta, tensor): norms, then the factors of the values */
    size_t norms_cap;
};

/* The merge of one fragment. */
struct merge {
    struct merger *m;
    const struct layout *layout;
    uint32_t fragment;
    struct codec *codec;    /* of the workers' payloads */
    float *acc;             /* [count of the fragment] */
    const float *theta;     /* [count]: the deltas' anchor; only for `parameters` with clip or rda */
    uint32_t n, added;      /* deltas in total, and added so far */
    uint64_t total;         /* weighed tokens: sum (mean) or maximum (contributors) */
    uint64_t most;          /* tokens: the largest weight */
    double median;          /* tokens of the median delta; 0: unknown */
    const uint64_t *tokens; /* [n] of all deltas; borrowed */
    uint32_t measured;      /* clip, rda: deltas whose norms are known */
    bool parameters;        /* payloads are parameters */
    bool rda;               /* the rule applies to this merge: several deltas of trained tensors */
};

/* parameters: of trained tensors. part_max: floats of the largest part of any codec used with it. NOMEM. */
enum status merger_init(struct merger *m, const struct config *config, bool parameters, struct pool *pool,
                        size_t part_max) MUST_CHECK;
/* True if the payloads of this fragment are parameters. */
bool merger_takes_parameters(const struct merger *m, const struct layout *layout, uint32_t fragment);
/* Accepts a zeroed struct. */
void merger_finish(struct merger *m);
/* Floats of the largest part. */
size_t merge_part_max(const struct codec *codec);
/* True if all deltas must be in memory at once: sparse codecs whose senders are counted, and rda. Otherwise the caller
 * may add them in groups. */
bool merge_needs_all(const struct merger *m, const struct codec *codec);

/* Checks a payload and opens it. CORRUPT or NONFINITE as codec_open. */
enum status merge_open(struct codec *codec, struct merge_delta *delta) MUST_CHECK;

/* Starts a merge. tokens[n]: of each delta, in order of worker id, not all 0; borrowed until
 * the last delta is added. NOMEM (clip and rda only). */
enum status merge_start(struct merge *merge, struct merger *m, const struct layout *layout, uint32_t fragment,
                        struct codec *codec, const float *theta, float *acc, const uint64_t *tokens,
                        uint32_t n) MUST_CHECK;
/* True if the caller must compute the norms of all deltas before it adds one. */
bool merge_needs_norms(const struct merge *merge);
/* Computes the norms of the next `count` deltas, which are open. */
void merge_compute_norms(struct merge *merge, const struct merge_delta *deltas, uint32_t count);
/* Adds the next `count` deltas, which are open. After the n-th delta, acc holds the result. */
void merge_add(struct merge *merge, const struct merge_delta *deltas, uint32_t count);

/* Tokens of one worker over the total: exactly 1 for a single worker. */
float merge_weight(uint64_t tokens, uint64_t total);

#endif
