/* Unequal shards of theta, for an optimizer that needs whole matrices (muon) on ranks with their own memory.
 *
 * - A tensor of matrices has one owner, chosen by work (worker/inner/inner_matrices.h). All other tensors are cut
 *   evenly, in the order of theta.
 * - The owner receives the reduced gradient of its pieces, keeps their optimizer state, and broadcasts the new
 *   parameters.
 * - Reduce and broadcast replace the reduce-scatter and all-gather of equal shares (worker/inner/shard.h), with the
 *   same number of bytes. Buckets are unchanged; their parts differ in size. */
#ifndef WORKER_SHARD_DEAL_H
#define WORKER_SHARD_DEAL_H

#include <stdbool.h>

#include "gpu/collective.h"
#include "worker/inner/inner_matrices.h"
#include "worker/inner/shard.h"

struct shard_piece {
    uint64_t offset, count; /* in theta */
    uint64_t state;         /* offset in the owner's moments, or in its momentum for matrices */
    int rank;
    bool matrices;
};

struct shard_deal {
    struct shard_piece *pieces; /* [n_pieces] in the order of theta; they cover all of it */
    size_t n_pieces;
    size_t most;                    /* largest number of pieces of one rank */
    struct inner_matrices matrices; /* `skipped` maps theta to the owner's momentum */
    struct collective_part *parts;  /* bucket b has parts first[b] .. first[b + 1] - 1; offsets in theta */
    size_t first[SHARD_BUCKETS_MAX + 1];
};

/* Assigns all of theta to the ranks of `map`. NOMEM; INVALID if the number of blocks does not divide the columns. */
enum status shard_deal_make(struct shard_deal *deal, const struct shard_map *map, const struct layout *layout,
                            hidden_blocks_fn blocks) MUST_CHECK;
void shard_deal_finish(struct shard_deal *deal);
/* Floats of a rank's pieces: of matrices, or of all other pieces. */
uint64_t shard_deal_floats(const struct shard_deal *deal, int rank, bool matrices);

#endif
