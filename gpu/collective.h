/* Collectives between the ranks of one worker (its GPUs, or groups of CPU threads): every rank is a thread with its own
 * device and its own handle, and all ranks make the same calls in the same order.
 *
 * Every rank gets the same bits, whatever the timing; on the CPU sums are taken in rank order. A rank that fails calls
 * `abort`: every call of every rank, waiting or to come, then returns STATUS_CLOSED, and so does `sync` of a device
 * that waits for another's share. Nobody hangs: between GPUs a watchdog sees to that (gpu/cuda/comm/cuda_watchdog.h),
 * which also gives up for a rank that does not come. */
#ifndef GPU_COLLECTIVE_H
#define GPU_COLLECTIVE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"
#include "gpu/device.h"

enum {
    COLLECTIVE_RANKS_MAX = 64,
    COLLECTIVE_TICKETS = 128 /* that may be open at a time */
};

struct collective_ops;

/* Some of a buffer, and the rank it belongs to. */
struct collective_part {
    size_t offset, n;
    int root;
};

struct collective {
    const struct collective_ops *ops;
    int rank, n_ranks;
    struct device *dev; /* this rank's; borrowed */
    void *group;        /* shared by the ranks */
};

/* A slot marked (optional) may be NULL; callers use collective_wait and collective_at_work.
 *
 * Calls are ordered after what was submitted to the rank's device, and later operations see their result. */
struct collective_ops {
    /* buf[n] becomes the sum over ranks, on every rank. */
    enum status (*all_reduce_sum)(struct collective *coll, float *buf, size_t n) MUST_CHECK;
    /* Beside the device: each begins when what was submitted to the device so far is done, and runs beside what is
     * submitted later, up to wait(ticket): what is submitted after that finds its result. A ticket is free again once
     * it was waited for. buf is cut into n_ranks shares, rank r's at r * share. */
    /* This rank's share becomes the sum over ranks; what the other shares hold then is not defined. */
    enum status (*start_reduce_scatter)(struct collective *coll, float *buf, size_t share, unsigned ticket) MUST_CHECK;
    /* Each share is copied from its rank to all others. */
    enum status (*start_all_gather)(struct collective *coll, float *buf, size_t share, unsigned ticket) MUST_CHECK;
    /* The same for parts of any size, which do not overlap: each becomes the sum over ranks on its root, and is not
     * defined on others then; or is copied from its root to all others. `parts` are the same on every rank, and read
     * during the call only. */
    enum status (*start_reduce)(struct collective *coll, float *buf, const struct collective_part *parts,
                                size_t n_parts, unsigned ticket) MUST_CHECK;
    enum status (*start_broadcast)(struct collective *coll, float *buf, const struct collective_part *parts,
                                   size_t n_parts, unsigned ticket) MUST_CHECK;
    /* buf[n] becomes the sum over ranks. */
    enum status (*start_all_reduce)(struct collective *coll, float *buf, size_t n, unsigned ticket) MUST_CHECK;
    /* (optional) NULL: the start_ calls have done all. */
    void (*wait)(struct collective *coll, unsigned ticket);
    /* (optional) This rank begins a piece of work that needs the others, or has ended it: in between the watchdog
     * expects progress. NULL: there is no watchdog. */
    void (*at_work)(struct collective *coll, bool begins);
    /* This rank gives up, because of *why (NULL, CLOSED: of no failure of its own); any thread may call it, more than
     * once. */
    void (*abort)(struct collective *coll, const struct err *why);
    /* The first failure of any rank, or of none that could say so itself; NULL: none. Stays as it is up to `close`. */
    const struct err *(*failure)(struct collective *coll);
    /* Frees the group; once, when no rank is inside a call. */
    void (*close)(struct collective *coll);
};

/* Make handles out[0..n_ranks-1] over devices[0..n_ranks-1] (all of one kind). One rank is allowed: its calls do
 * nothing. `out` is the caller's array, which stays; any of its handles closes the group, before the devices are. Where
 * the devices' memory is not the host's they make it (device.h); UNSUPPORTED with one line when they cannot (no NCCL).
 * `end`, which may be NULL, is the last resort where a GPU hangs in spite of all (gpu/cuda/comm/cuda_watchdog.h):
 * called with a line, from a thread of its own, even after the group was closed; it ends the process. */
enum status collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                            struct collective *out, struct err *err) MUST_CHECK;
void collective_close(struct collective *ranks);

/* The optional operations. */
static inline void collective_wait(struct collective *coll, unsigned ticket)
{
    assert(ticket < COLLECTIVE_TICKETS);
    if (coll->ops->wait) coll->ops->wait(coll, ticket);
}

static inline void collective_at_work(struct collective *coll, bool begins)
{
    if (coll->ops->at_work) coll->ops->at_work(coll, begins);
}

#endif
