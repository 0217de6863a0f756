/* A relay update carries the deltas themselves, unchanged. Each receiver merges them by the run's rule and takes the
 * outer step. The update holds all deltas, the receiver's own included, so any reader of the log can replay it without
 * other data.
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
/* Writes dst[relay_head_size(n)]; the payloads follow it. */
void relay_head_write(const struct merge_delta *deltas, uint32_t n, uint8_t *dst);
/* Sets deltas[n]: payload and size from src, all else 0. CORRUPT unless the sizes add up to `size`. */
enum status relay_split(struct merge_delta *deltas, uint32_t n, const uint8_t *src, size_t size) MUST_CHECK;
/* Range of the payload of delta `index` of n, in bytes from src; src[size] may be incomplete. AGAIN: the sizes are not
 * complete yet. CORRUPT: no such delta, or impossible sizes. */
enum status relay_range(const uint8_t *src, size_t size, uint32_t n, uint32_t index, uint64_t *from_p,
                        uint64_t *to_p) MUST_CHECK;
/* Merges split deltas, whose tokens are set; the caller has started `merge` for them. Opens them together if the rule
 * needs it (sparse codecs; no byte stages then), otherwise one after the other, which takes no memory. CORRUPT or
 * NONFINITE: a payload is bad, and the accumulator is undefined. */
enum status relay_merge(struct merge *merge, struct merge_delta *deltas) MUST_CHECK;

#endif
