/* coordinator/ledger/store.h in memory, with the crashes of a real disk.
 * - After a power cut, unsynced bytes may be lost, cut at any byte, or hold zeros in some blocks.
 * - Synced bytes stay.
 * - Snapshots are atomic. */
#ifndef TESTS_LIB_STORE_MEM_H
#define TESTS_LIB_STORE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"

enum status store_mem_create(struct store **s_p) MUST_CHECK;
void store_mem_destroy(struct store *s); /* ops->close only ends a use: the contents stay for the next engine */

/* Watches the use of a store; any may be NULL. */
struct store_mem_watch {
    bool (*alive)(void *ctx); /* before every operation that writes. False: the process is dead, nothing is written */
    void (*appended)(void *ctx, const struct store_part *parts, size_t n);
    void (*synced)(void *ctx);
    void *ctx;
};
void store_mem_watch(struct store *s, const struct store_mem_watch *watch);

/* The process that used the store is dead. power: unsynced bytes are lost in part; `draw` decides which. */
void store_mem_crash(struct store *s, bool power, uint64_t draw);
/* Appends beyond `bytes` in total fail like a full disk: they return IO and write nothing. UINT64_MAX: no limit. */
void store_mem_set_room(struct store *s, uint64_t bytes);

/* Keep an uploaded initial model in run/init of this folder, as on a disk. Without this call there is none. */
/* What free_bytes answers; at first 1 TiB, which the disk has in all. */
void store_mem_set_free(struct store *s, uint64_t bytes);
void store_mem_keep_init(struct store *s, const char *run);

struct store_mem_counts {
    uint64_t appended, syncs, snapshots, spooled;
};
struct store_mem_counts store_mem_counts(const struct store *s);

/* Return the bytes of a segment, for tests that damage them; NULL if there is no such segment. synced_p (may be
 * NULL): number of bytes that survive a power cut. */
uint8_t *store_mem_segment(struct store *s, uint64_t segment, size_t *size_p, size_t *synced_p);
/* Return the state of the newest checkpoint; NULL if there is none. */
uint8_t *store_mem_state(struct store *s, uint64_t *round_p);
/* From now on reads of these bytes fail like those of a bad sector: of a segment, of a checkpoint's state, or of its
 * theta. They can be renamed and removed. One range of each file. */
void store_mem_spoil(struct store *s, uint64_t segment, size_t from, size_t to);
void store_mem_spoil_state(struct store *s, uint64_t round, size_t from, size_t to);
void store_mem_spoil_theta(struct store *s, uint64_t round, size_t from, size_t to);
/* Cut a segment at `size`, as if the rest had never been written. */
void store_mem_cut(struct store *s, uint64_t segment, size_t size);
/* Make an independent copy of the store. */
enum status store_mem_copy(struct store **copy_p, const struct store *s) MUST_CHECK;

#endif
