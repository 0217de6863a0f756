/* A snapshot: theta as a model folder, and the rest of the ledger as one blob of bytes beside it.
 *
 *     state = "ATOLLS1\n", u64 head bytes, u32 crc32c of the head, u32 zero, head, momentum, second vector, residuals
 *
 * The head holds everything but the floats, and hash_floats of each array of floats. */
#ifndef COORDINATOR_SNAPSHOT_H
#define COORDINATOR_SNAPSHOT_H

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/store.h"

/* What can be said about a snapshot without its floats. */
struct snapshot_info {
    uint64_t round;   /* its name */
    uint64_t segment; /* journal segment that follows it */
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], hashes[LAYOUT_FRAGMENTS_MAX];
};

/* Write the ledger as snapshot `round`, to be followed by journal segment `segment`. No part may be held. */
enum status snapshot_save(const struct ledger *l, struct store *store, uint64_t round, uint64_t segment,
                          struct err *err) MUST_CHECK;
/* Fill a fresh ledger from snapshot `round`. CORRUPT with what of it does not check; MISMATCH, without a line
 * but with the ledger's config_text, when it was written under other settings: its arrays then cannot be understood. */
enum status snapshot_load(struct ledger *l, struct store *store, uint64_t round, struct snapshot_info *info,
                          struct err *err) MUST_CHECK;
enum status snapshot_look(struct store *store, uint64_t round, struct snapshot_info *info, struct err *err) MUST_CHECK;

#endif
