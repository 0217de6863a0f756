/* The weighted mean of deltas: decoded straight into one accumulator, in worker order, in fp32.
 *
 *     acc = sum over workers, ascending id, of weight_w * decode(payload_w),   weight_w = tokens_w / sum of tokens
 *
 * One summation order, so the same deltas give the same bits. A single worker weighs exactly 1: the accumulator then is
 * what it sent, down to the sign of zeros. */
#ifndef COORDINATOR_MERGE_H
#define COORDINATOR_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct codec;

struct merge {
    float *acc; /* [n], borrowed */
    size_t n;
    uint64_t tokens; /* of all deltas that will be added */
    uint32_t added;
};

/* tokens > 0 in total. */
void merge_start(struct merge *merge, float *acc, size_t n, uint64_t tokens);
/* CORRUPT or NONFINITE leave the accumulator as it was. codec: of the worker's fragment, n floats. */
enum status merge_add(struct merge *merge, struct codec *codec, uint64_t tokens, const uint8_t *payload,
                      size_t size) MUST_CHECK;
float merge_weight(uint64_t tokens, uint64_t total);

#endif
