/* Collectives between the ranks of one worker (its GPUs, or groups of CPU threads). Each rank is a thread with its own
 * device and its own handle. All ranks make the same calls in the same order.
 *
 * - Every rank gets the same bits, whatever the timing. The CPU sums in rank order.
 * - A rank that fails calls `abort`. After it, every pending and later call of every rank returns STATUS_CLOSED, and so
 *   does `sync` of a device that waits for another rank's data.
 * - A call cannot hang: between GPUs a watchdog (gpu/cuda/comm/cuda_watchdog.h) aborts the group, also if a rank does
 *   not arrive. */
#ifndef GPU_COLLECTIVE_H
#define GPU_COLLECTIVE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "gpu/device.h"

enum {
    COLLECTIVE_RANKS_MAX = 64,
    COLLECTIVE_TICKETS = 128 /* open at one time, besides that of collective_sum */
};

struct collective_ops;

/* REDUCE_SCATTER and ALL_GATHER cut the buffer into n_ranks shares; rank r owns the one at r * share. */
enum collective_op {
    COLLECTIVE_ALL_REDUCE,     /* the sum over ranks, on every rank */
    COLLECTIVE_REDUCE_SCATTER, /* this rank's share = sum over ranks; the other shares are then undefined */
    COLLECTIVE_ALL_GATHER,     /* copies each share from its rank to all others */
    COLLECTIVE_REDUCE,         /* each part = sum over ranks on its root, and is undefined on the others */
    COLLECTIVE_BROADCAST,      /* copies each part from its root to all others */
};

/* A range of a buffer and the rank that owns it. */
struct collective_part {
    size_t offset, n;
    int root;
};

struct collective {
    const struct collective_ops *ops;
    int rank, n_ranks;
    struct device *dev; /* of this rank; borrowed */
    void *group;        /* shared by the ranks */
};

/* A slot marked (optional) may be NULL; callers use collective_wait and collective_at_work.
 *
 * A call runs after the operations submitted earlier to the rank's device, and later operations see its result. */
struct collective_ops {
    /* The start calls run asynchronously. Each begins when the operations submitted so far are done, and runs in
     * parallel with operations submitted later. Operations submitted after wait(ticket) see its result; wait frees the
     * ticket. */
    /* ALL_REDUCE of buf[n]; REDUCE_SCATTER or ALL_GATHER of shares of n floats. */
    enum status (*start)(struct collective *coll, enum collective_op op, float *buf, size_t n,
                         unsigned ticket) MUST_CHECK;
    /* REDUCE or BROADCAST of parts of any size, which do not overlap. `parts` is the same on every rank; the call does
     * not keep it. */
    enum status (*start_parts)(struct collective *coll, enum collective_op op, float *buf,
                               const struct collective_part *parts, size_t n_parts, unsigned ticket) MUST_CHECK;
    /* (optional) NULL: the start calls are synchronous. */
    void (*wait)(struct collective *coll, unsigned ticket);
    /* (optional) The rank begins or ends work that needs the others; in between, the watchdog expects progress. NULL:
     * no watchdog. */
    void (*at_work)(struct collective *coll, bool begins);
    /* This rank aborts the group because of *why. NULL or CLOSED: not by its own failure. Any thread may call it, any
     * number of times. */
    void (*abort)(struct collective *coll, const struct err *why);
    /* The first failure in the group; NULL: none. It does not change until `close`. */
    const struct err *(*failure)(struct collective *coll);
    /* Frees the group; call it once, when no rank is inside a call. */
    void (*close)(struct collective *coll);
};

/* Makes handles out[n_ranks] over devices[n_ranks], all of one kind.
 * - With one rank, the calls do nothing.
 * - The caller keeps the array `out`. Any of its handles closes the group; close it before the devices.
 * - If the devices' memory is not host memory, the devices make the handles (device.h). UNSUPPORTED with one line if
 *   they cannot (no NCCL).
 * - `end` (may be NULL) is the last resort if a GPU hangs and cannot be aborted (gpu/cuda/comm/cuda_watchdog.h). A
 *   separate thread calls it with a line, possibly after the group was closed; it ends the process. */
enum status collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                            struct collective *out, struct err *err) MUST_CHECK;
void collective_close(struct collective *ranks);

/* Optional operations: the slot, or its default. */
static inline void collective_wait(struct collective *coll, unsigned ticket)
{
    assert(ticket <= COLLECTIVE_TICKETS);
    if (coll->ops->wait) coll->ops->wait(coll, ticket);
}

/* buf[n] = sum over ranks, on every rank. */
static inline enum status collective_sum(struct collective *coll, float *buf, size_t n)
{
    TRY(coll->ops->start(coll, COLLECTIVE_ALL_REDUCE, buf, n, COLLECTIVE_TICKETS));
    collective_wait(coll, COLLECTIVE_TICKETS);
    return STATUS_OK;
}

static inline void collective_at_work(struct collective *coll, bool begins)
{
    if (coll->ops->at_work) coll->ops->at_work(coll, begins);
}

#endif
