/* Who takes what of theta when the optimizer wants whole matrices (muon) and ranks have memory of their own: a tensor
 * of matrices has one owner, by the work it makes (worker/inner/inner_matrices.h); all else is cut evenly, in the order
 * of theta. An owner gets the sum of the gradient's part, keeps the state that goes with it, and sends the new
 * parameters to all: reduce and broadcast in place of the reduce-scatter and all-gather of equal shares
 * (worker/inner/shard.h), the same number of bytes. Buckets stay what they are; their parts differ in size. */
#ifndef WORKER_SHARD_DEAL_H
#define WORKER_SHARD_DEAL_H

#include <stdbool.h>

#include "gpu/collective.h"
#include "worker/inner/inner_matrices.h"
#include "worker/inner/shard.h"

struct shard_piece {
    uint64_t offset, count; /* in theta */
    uint64_t state;         /* where it lies in the owner's moments, or, of matrices, in its momentum */
    int rank;
    bool matrices;
};

struct shard_deal {
    struct shard_piece *pieces; /* in the order of theta, all of it */
    size_t n_pieces;
    size_t most;                    /* pieces of the rank that has most of them */
    struct inner_matrices matrices; /* `skipped` as the owner's momentum lies */
    struct collective_part *parts;  /* of bucket b: first[b] .. first[b + 1], offsets in theta */
    size_t first[SHARD_BUCKETS_MAX + 1];
};

/* NOMEM; INVALID for blocks that do not fit their tensor. */
enum status shard_deal_make(struct shard_deal *deal, const struct shard_map *map, const struct layout *layout,
                            hidden_blocks_fn blocks) MUST_CHECK;
void shard_deal_finish(struct shard_deal *deal);
/* Floats of a rank's pieces that are matrices, or that are not. */
uint64_t shard_deal_floats(const struct shard_deal *deal, int rank, bool matrices);

#endif
