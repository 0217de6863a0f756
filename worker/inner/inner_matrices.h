/* Which parts of theta inner.optimizer muon takes as matrices, and which rank takes which. Everything else (embeddings,
 * output layer, vectors) is AdamW's. A matrix is not cut: orthogonalizing needs all of it, so whole ones are dealt to
 * the ranks by the work they make, the heaviest first, each to the rank that has least. */
#ifndef WORKER_INNER_MATRICES_H
#define WORKER_INNER_MATRICES_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "gpu/device.h"

/* Column blocks of a tensor that are matrices of their own between hidden layers (3 for q, k and v side by side); 0:
 * the tensor is none. The shape is [rows, cols], blocks divide cols. */
typedef uint32_t (*hidden_blocks_fn)(const struct tensor *tensor);

struct inner_matrices {
    struct muon_matrix *matrices; /* in the order of theta */
    int *ranks;                   /* of each */
    uint32_t *tensors;            /* of the layout, that each is in */
    size_t n;
};

/* blocks NULL: no matrices. NOMEM; INVALID for blocks that do not fit the shape. */
enum status inner_matrices_deal(struct inner_matrices *m, const struct layout *layout, hidden_blocks_fn blocks,
                                int n_ranks) MUST_CHECK;
/* The same with all matrices of a tensor on one rank. */
enum status inner_matrices_deal_tensors(struct inner_matrices *m, const struct layout *layout, hidden_blocks_fn blocks,
                                        int n_ranks) MUST_CHECK;
void inner_matrices_finish(struct inner_matrices *m);
/* Those of one rank into out[m->n]; returns how many. */
size_t inner_matrices_of(const struct inner_matrices *m, int rank, struct muon_matrix *out);

#endif
