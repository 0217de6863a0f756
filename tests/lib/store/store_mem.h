/* coordinator/ledger/store.h in memory, with the crashes of a real disk: what was not synced when the power failed may
 * be gone, cut at any byte, or hold zeros in some blocks; what was synced stays. Snapshots are atomic. */
#ifndef TESTS_LIB_STORE_MEM_H
#define TESTS_LIB_STORE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"

enum status store_mem_create(struct store **s_p) MUST_CHECK;
void store_mem_destroy(struct store *s); /* ops->close only ends a use: contents stay for the next engine */

/* The process that used the store is gone. power: so is part of what was not synced; `draw` chooses which. */
void store_mem_crash(struct store *s, bool power, uint64_t draw);
/* From now on appends beyond `bytes` in total fail like a full disk (IO, nothing of that append stays); UINT64_MAX: no
 * limit. */
void store_mem_set_room(struct store *s, uint64_t bytes);

struct store_mem_counts {
    uint64_t appended, syncs, snapshots, spooled;
};
struct store_mem_counts store_mem_counts(const struct store *s);

/* The bytes of a segment, for tests that damage them. synced_p (may be NULL): how many of them survive a power cut.
 * NULL when there is no such segment. */
uint8_t *store_mem_segment(struct store *s, uint64_t segment, size_t *size_p, size_t *synced_p);
/* The same of the newest checkpoint's state; NULL when there is none. */
uint8_t *store_mem_state(struct store *s, uint64_t *round_p);
/* Cut a segment, as if the rest had never been written. */
void store_mem_cut(struct store *s, uint64_t segment, size_t size);
/* An independent copy of everything. */
enum status store_mem_copy(struct store **copy_p, const struct store *s) MUST_CHECK;

#endif
