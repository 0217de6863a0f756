/* The arrays of the outer state beside theta, in the order of a checkpoint: momentum, AdamW's second vector, the
 * residual of each fragment. All are fp32, or all are bf16 (outer.state). */
#ifndef COORDINATOR_OUTER_ARRAYS_H
#define COORDINATOR_OUTER_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/tensor/layout.h"

struct outer_state;
struct pool;

enum { OUTER_ARRAYS_MAX = 2 + LAYOUT_FRAGMENTS_MAX };

struct outer_array {
    void *data; /* borrowed from the state */
    size_t count;
};

/* Returns their number. */
size_t outer_arrays_list(const struct outer_state *s, struct outer_array out[OUTER_ARRAYS_MAX]);
/* half: the arrays are bf16. */
bool outer_arrays_half(const struct outer_state *s);
size_t outer_value_bytes(bool half);
/* hash_floats of the bytes as they are stored. Two bf16 count as one float, an odd one at the end as one with zeros. */
uint64_t outer_array_hash(struct pool *pool, const void *data, size_t count, bool half);

#endif
