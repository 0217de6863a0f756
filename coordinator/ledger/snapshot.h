/* A snapshot: theta as a model folder, and the rest of the ledger as one blob beside it.
 *
 *     state = "ATOLLS1\n", u64 head bytes, u32 crc32c of the head, u32 zero, head, momentum, second vector, residuals
 *
 * The head contains everything except the float arrays, and hash_floats of each array. */
#ifndef COORDINATOR_SNAPSHOT_H
#define COORDINATOR_SNAPSHOT_H

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/store.h"

/* The part of a snapshot that snapshot_look reads, without its floats. */
struct snapshot_info {
    uint64_t round;   /* its name */
    uint64_t segment; /* the journal segment after it */
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], hashes[LAYOUT_FRAGMENTS_MAX];
};

/* Writes the ledger as snapshot `round`; journal segment `segment` follows it. No part may be in state HELD. */
enum status snapshot_save(const struct ledger *l, struct store *store, uint64_t round, uint64_t segment,
                          struct err *err) MUST_CHECK;
/* Fills a fresh ledger from snapshot `round`. CORRUPT: a check failed; the text names it. MISMATCH: the snapshot was
 * written under other settings, so its arrays have unknown shapes; no text, but l->config_text is set. */
enum status snapshot_load(struct ledger *l, struct store *store, uint64_t round, struct snapshot_info *info,
                          struct err *err) MUST_CHECK;
enum status snapshot_look(struct store *store, uint64_t round, struct snapshot_info *info, struct err *err) MUST_CHECK;

#endif
