/* Maps global sample counters to tokens and targets.
 *
 * Counter k is sample k mod n of epoch k / n, for n windows in the data set; rng_permute maps the sample to a window.
 * Any node can therefore draw any sample alone. A range of counters granted to one worker is a set of windows that no
 * other worker sees in that epoch. Validation reads windows in file order. */
#ifndef WORKER_BATCH_H
#define WORKER_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/tensor/tokens.h"

struct batch_source {
    const struct tokens *tokens; /* borrowed */
    uint64_t seed;
    uint64_t n_samples; /* windows of seq + 1 tokens */
    uint32_t seq, vocab_size;
    bool in_order; /* validation: counter k is window k mod n, without permutation */
};

/* INVALID if the data set has no window of seq + 1 tokens, or for a vocabulary above INT32_MAX. */
enum status batch_source_init(struct batch_source *source, const struct tokens *tokens, uint32_t seq,
                              uint32_t vocab_size, uint64_t seed, bool in_order, struct err *err) MUST_CHECK;
/* Returns the window of counter k. */
uint64_t batch_window(const struct batch_source *source, uint64_t k);
/* Fills tokens[rows*seq] and targets[rows*seq] for counters[n]. Rows n .. rows - 1 are padding: token 0, target -1 (no
 * loss). scratch: [seq+1]. INVALID for a token outside the vocabulary; CORRUPT or IO if a
 * shard was truncated or cannot be read. */
enum status batch_fill(const struct batch_source *source, const uint64_t *counters, size_t n, size_t rows,
                       int32_t *tokens, int32_t *targets, uint32_t *scratch, struct err *err) MUST_CHECK;

#endif
