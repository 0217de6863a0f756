/* The deltas of one fragment, read back from the journal and merged into the outer state's accumulator. */
#ifndef COORDINATOR_DELTA_READ_H
#define COORDINATOR_DELTA_READ_H

#include <stddef.h>

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"

/* l->outer.acc = the merge of the fragment's held parts, in worker order. The payloads are read to l->outer.payload
 * from byte `at` on, end to end, as many at a time as there is room for; or all at once (`together`), four bytes behind
 * them free. IO, CORRUPT, NOMEM with a line. */
enum status delta_read_merge(struct ledger *l, const struct round_close *close, size_t at, bool together,
                             struct err *err) MUST_CHECK;

#endif
