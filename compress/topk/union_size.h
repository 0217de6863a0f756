/* How many bytes a union takes: an update of codec topk:4095/4096+sign, which carries every coordinate that any delta
 * carried.
 *
 * The places decide nearly all of it, and they are known as soon as the deltas are merged: they are counted as the
 * encoder will write them, group by group, with the parameter it will choose. Signs are a bit each. The scales follow
 * from values that the outer step and the residual have still to make: each is taken for 3 bits, the usual size. Values
 * that come out as 0 are not written in the end. Within 0.3 % of what the encoder makes of deltas with some dozen
 * values a chunk or more (tests/unit/compress/test_union.c). Integers only: the same on every machine. */
#ifndef COMPRESS_UNION_SIZE_H
#define COMPRESS_UNION_SIZE_H

#include <stdint.h>

#include "common/base/pool.h"
#include "common/tensor/layout.h"

/* merged[count of the fragment]: -0 marks what no delta carried (compress/merge.h). pool: NULL, one thread. */
uint64_t union_bytes(const struct layout *layout, uint32_t fragment, const float *merged, struct pool *pool);

#endif
