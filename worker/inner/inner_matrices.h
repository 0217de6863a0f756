/* The matrices that inner.optimizer muon updates, and their assignment to ranks. AdamW updates everything else:
 * embeddings, output layer, vectors.
 *
 * Orthogonalization needs a whole matrix, so a matrix is never cut. Matrices are sorted by their work, the largest
 * first; each goes to the rank with the least work so far. */
#ifndef WORKER_INNER_MATRICES_H
#define WORKER_INNER_MATRICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "gpu/device.h"

/* Returns the number of column blocks of a tensor that are matrices of a hidden layer (3 if q, k and v are side by
 * side), or 0 if the tensor is no such matrix. The tensor is [rows,cols]; the number divides cols. */
typedef uint32_t (*hidden_blocks_fn)(const struct tensor *tensor);

struct inner_matrices {
    struct muon_matrix *matrices; /* [n] in the order of theta */
    int *ranks;                   /* [n] rank of each matrix */
    uint32_t *tensors;            /* [n] index in the layout of the tensor that holds each matrix */
    size_t n;
};

/* Lists the matrices and assigns each to a rank; `tensors`: all matrices of a tensor to the same one. blocks NULL: no
 * matrices. NOMEM; INVALID if the number of blocks does not divide the columns. Free with inner_matrices_finish. */
enum status inner_matrices_deal(struct inner_matrices *m, const struct layout *layout, hidden_blocks_fn blocks,
                                int n_ranks, bool tensors) MUST_CHECK;
void inner_matrices_finish(struct inner_matrices *m);
/* Copies the matrices of one rank to out[m->n] and returns their number. */
size_t inner_matrices_of(const struct inner_matrices *m, int rank, struct muon_matrix *out);

#endif
