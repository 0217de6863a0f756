/* A checkpoint: theta as a model folder, and the rest of the ledger as one blob beside it.
 *
 *     state = "ATOLLS4\n", u64 head bytes, u32 crc32c of the head, u32 zero, head, momentum, second vector, residuals
 *
 * The digit is 4, + 1 if something was taken back, + 2 if the arrays are bf16 (outer.state) instead of fp32.
 *
 * The head contains everything except the arrays, and the hash of each array (coordinator/outer/outer_arrays.h). */
#ifndef COORDINATOR_CHECKPOINT_H
#define COORDINATOR_CHECKPOINT_H

#include "common/base/status.h"
#include "coordinator/ledger/ledger.h"
#include "coordinator/ledger/store.h"
#include "coordinator/outer/outer_arrays.h"

#define CHECKPOINT_ANY UINT64_MAX

/* The part of a checkpoint that checkpoint_look reads, without its floats. */
struct checkpoint_info {
    uint64_t round;   /* its name */
    uint64_t segment; /* the journal segment after it */
    uint32_t n_fragments;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX], hashes[LAYOUT_FRAGMENTS_MAX];
};

/* The first part of the head, which needs no settings. Texts and the model are borrowed. */
struct checkpoint_head {
    struct checkpoint_info info;
    uint32_t n; /* arrays of the outer state */
    uint64_t hashes[OUTER_ARRAYS_MAX];
    struct record_run run;
    uint32_t n_earlier;
    uint64_t earlier[LEDGER_EARLIER_MAX];
    const uint8_t *model; /* body of the MODEL record */
    size_t model_size;
};

extern const struct field checkpoint_head_fields[];
extern const struct field_part checkpoint_parts[]; /* of the whole head */

/* Copies held deltas to the open segment: recovery from the checkpoint that the caller writes next reads no older one.
 * Checkpoints are written while no delta is held, except the first one after a start without any, and in an async run
 * that was taken back. */
enum status checkpoint_carry_held(struct ledger *l, struct err *err) MUST_CHECK;
/* Writes the ledger as checkpoint `round`; journal segment `segment` follows it. A part in state HELD is written as
 * WAITED: the caller has put a copy of its DELTA record into that segment. */
enum status checkpoint_save(const struct ledger *l, struct store *store, uint64_t round, uint64_t segment,
                            struct err *err) MUST_CHECK;
/* Fills a fresh ledger from checkpoint `round`, and its settings with those of that time. CORRUPT: a check failed; the
 * text names it. */
enum status checkpoint_load(struct ledger *l, struct store *store, uint64_t round, struct checkpoint_info *info,
                            struct err *err) MUST_CHECK;
/* Checks a checkpoint as checkpoint_load does, but without the run's settings: sizes, the checksum of the head, and the
 * hashes of every float array and of every fragment of theta. Needs memory for one copy of theta. `round`
 * CHECKPOINT_ANY: the round in the state need not match. */
enum status checkpoint_check(struct store *store, uint64_t round, struct checkpoint_info *info,
                             struct err *err) MUST_CHECK;
/* Compares the recorded hashes of a checkpoint with the ledger's floats, which a replay has brought to that place.
 * *differs_p: what differs, or NULL. */
enum status checkpoint_compare(const struct ledger *l, struct store *store, uint64_t round, const char **differs_p,
                               struct err *err) MUST_CHECK;
enum status checkpoint_look(struct store *store, uint64_t round, struct checkpoint_info *info,
                            struct err *err) MUST_CHECK;

#endif
