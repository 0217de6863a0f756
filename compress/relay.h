/* An update that carries the deltas themselves, as they came: who gets it merges them by the run's rule and takes the
 * outer step. All of them are in it, the receiver's own too: the log then needs nothing but itself, whoever reads it.
 *
 *     n x u64   bytes of each payload, in the order of the update's named deltas (ascending worker id)
 *     payloads  end to end, codec.up */
#ifndef COMPRESS_RELAY_H
#define COMPRESS_RELAY_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "compress/merge.h"

size_t relay_head_size(uint32_t n);
/* dst[relay_head_size(n)]; the payloads follow it. */
void relay_head_write(const struct merge_delta *deltas, uint32_t n, uint8_t *dst);
/* deltas[n].payload and .size from src. CORRUPT unless the sizes add up. */
enum status relay_split(struct merge_delta *deltas, uint32_t n, const uint8_t *src, size_t size) MUST_CHECK;
/* Where the payload of delta `index` of n lies, counted from src, as far as src[size] goes. AGAIN: the sizes have not
 * all come yet. CORRUPT: no such delta, or sizes that cannot be. */
enum status relay_range(const uint8_t *src, size_t size, uint32_t n, uint32_t index, uint64_t *from_p,
                        uint64_t *to_p) MUST_CHECK;
/* Merge split deltas, whose tokens are set: merge was started for them. Opens them together where the rule asks for
 * that (sparse codecs; no byte stages then), else one after the other, which takes no memory. CORRUPT or NONFINITE: a
 * payload is bad, the accumulator is not to be used. */
enum status relay_merge(struct merge *merge, struct merge_delta *deltas) MUST_CHECK;

#endif
