/* Estimates the bytes of a union: an update of codec topk:4095/4096+sign, which carries every coordinate that any delta
 * carries.
 *
 * - Positions take nearly all of it and are known once the deltas are merged. They are counted exactly as the encoder
 *   writes them, group by group, with the parameter that it will choose.
 * - A sign is one bit.
 * - A scale depends on the outer step and the residual, which come later; it counts as 3 bits, the usual size.
 * - Values that become 0 later are counted, although the encoder does not write them.
 *
 * The estimate is within 0.3 % of the encoder for deltas with some dozen values a chunk or more
 * (tests/unit/compress/test_union.c). All arithmetic is integer: the same on every machine. */
#ifndef COMPRESS_UNION_SIZE_H
#define COMPRESS_UNION_SIZE_H

#include <stdint.h>

#include "common/base/pool.h"
#include "common/tensor/layout.h"

/* merged[count of the fragment]: -0 marks a coordinate that no delta carries (compress/merge.h). pool NULL: one
 * thread. */
uint64_t union_bytes(const struct layout *layout, uint32_t fragment, const float *merged, struct pool *pool);

#endif
