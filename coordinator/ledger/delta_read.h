/* Reads the deltas of one fragment from the journal and merges them into the outer state's accumulator. */
#ifndef COORDINATOR_DELTA_READ_H
#define COORDINATOR_DELTA_READ_H

#include <stddef.h>

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"

/* Sets l->outer.acc to the merge of the fragment's held parts, in order of worker ids. Payloads are read into
 * l->outer.payload from byte `at` on, concatenated. `together` false: as many at a time as fit; true: all at once, with
 * four free bytes after them. IO, CORRUPT, NOMEM, each with text. */
enum status delta_read_merge(struct ledger *l, const struct round_close *close, size_t at, bool together,
                             struct err *err) MUST_CHECK;

/* A region's round as the work of one worker. */
struct delta_sum {
    uint64_t tokens, compute_us; /* compute_us: of the slowest member */
    uint32_t workers;
    double loss_sum; /* NaN: a worker does not know it */
};

/* A region whose round is sealed: values[n_params] = the parameters that its members reached, merged by the run's rule:
 *
 *     payloads that are parameters: their mean; otherwise theta - merged delta
 *
 * The same journal gives the same bits. IO, CORRUPT, NOMEM, each with text. */
enum status delta_read_values(struct ledger *l, float *values, struct delta_sum *sum, struct err *err) MUST_CHECK;

#endif
