/* Operations on rows of the CUDA device: embedding, norms, rotary positions, gated units, and sums of columns. */
#ifndef GPU_CUDA_ROWS_H
#define GPU_CUDA_ROWS_H

#include "gpu/cuda/cuda_impl.h"

struct cuda_rows {
    float *partials;   /* partial sums of columns, and the order of tokens */
    size_t embed_rows; /* CUDA_EMBED_ROWS; tests lower it to get more parts */
};

/* out[c] = or += the column sums of x[n,c]. */
void cuda_columns_of(struct cuda_device *cuda, size_t n, size_t c, const void *x, float *out, bool accumulate);

#endif
