/* The arrays of the outer state beside theta, in the order of a checkpoint: momentum, AdamW's second vector, the
 * residual of each fragment. All are fp32, or all are bf16 (outer.state). */
#ifndef COORDINATOR_OUTER_ARRAYS_H
#define COORDINATOR_OUTER_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"

struct outer_state;
struct pool;

enum { OUTER_ARRAYS_MAX = 2 + LAYOUT_FRAGMENTS_MAX };

struct outer_array {
    void *data; /* borrowed from the state */
    size_t count;
};

/* A zeroed array of theta or the outer state: in memory, or in `file` if it is not -1 (mem_map). mem_free frees it. */
void *outer_array_alloc(int file, size_t count, size_t size) MUST_CHECK;
/* Bytes of theta and the arrays together, as outer_state_init allocates them. */
uint64_t outer_arrays_bytes(const struct config *config, const struct layout *layout);
/* Returns their number. */
size_t outer_arrays_list(const struct outer_state *s, struct outer_array out[OUTER_ARRAYS_MAX]);
/* half: the arrays are bf16. */
bool outer_arrays_half(const struct outer_state *s);
size_t outer_value_bytes(bool half);
/* hash_floats of the bytes as they are stored. Two bf16 count as one float, an odd one at the end as one with zeros. */
uint64_t outer_array_hash(struct pool *pool, const void *data, size_t count, bool half);

#endif
