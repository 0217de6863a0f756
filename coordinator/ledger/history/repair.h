/* Repairs the journal of a run that does not start any more: bytes have changed, or files are missing.
 *
 * - The newest undamaged checkpoint is the base: recovery needs only the journal behind it. Without any checkpoint the
 *   base is the beginning of the journal.
 * - The journal behind the base is replayed, as a start does, and cut at the first damage: bytes that changed, a
 *   missing segment, or a record that contradicts those before it (a segment that ends too early). All rounds before
 *   the damage are kept; without a checkpoint, a round of which only some fragments are merged goes, too.
 * - Damage before the base loses nothing. Older checkpoints that need the damaged part are put aside. Undamaged
 *   segments that no checkpoint needs stay; the coordinator removes them as usual.
 * - Nothing is deleted: the store renames what is cut away.
 * - Workers that are ahead of the cut load a snapshot when they join.
 *
 * The caller holds the lock of the run folder. A crash during a repair leaves a journal that another repair can read.
 */
#ifndef COORDINATOR_REPAIR_H
#define COORDINATOR_REPAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"
#include "wire/msg.h"

/* The deltas of one member in the part that was cut away. */
struct repair_worker {
    char name[WIRE_NAME_MAX]; /* "": its record is not readable */
    uint64_t deltas;
};

struct repair {
    bool needed;          /* false: nothing was damaged, and nothing was changed */
    bool has_base;        /* a checkpoint is the base */
    uint64_t base;        /* its round */
    bool cut;             /* the journal was cut */
    uint64_t segment, at; /* the damage */
    bool missing;         /* that segment is missing */
    uint64_t rounds_kept;
    uint64_t rounds_lost, updates_lost; /* as far as the part that was cut away is readable */
    struct repair_worker *workers;      /* [n_workers], by member id; owned */
    size_t n_workers;
    size_t n_moved;
};

/* Called for each file or folder that was put aside, with its old and its new name in the run folder. */
typedef void (*repair_moved_fn)(void *ctx, const char *from, const char *to);

/* Finds the damage, then puts it aside. NOTFOUND: no round can be kept. MISMATCH: another program
 * version wrote the run. Otherwise IO, NOMEM, UNSUPPORTED (a file of
 * another format). Free with repair_finish, also after an error. */
enum status repair_run(struct repair *r, struct store *store, repair_moved_fn moved, void *ctx,
                       struct err *err) MUST_CHECK;
void repair_finish(struct repair *r);

#endif
