/* gpu/collective.h for a worker's only GPU: nothing to sum and nobody to wait for, but a GPU that never answers is
 * named, and the worker ends (gpu/cuda/comm/cuda_watchdog.h). Waits of the host stay calls that block, so it is the
 * last resort that ends it then. */
#include "gpu/collective.h"

#include <stdatomic.h>

#include "common/base/mem.h"
#include "gpu/cuda/comm/cuda_watchdog.h"
#include "gpu/cuda/cuda_impl.h"

struct cuda_alone {
    struct cuda_watchdog *watchdog;
    struct cuda_rt *rt; /* the device's */
    atomic_bool at_work;
};

/* --- for the watchdog --------------------------------------------------------------------------------------------- */

static bool alone_busy(void *ctx)
{
    struct cuda_alone *alone = ctx;
    return atomic_load(&alone->at_work) || atomic_load(&cuda_rt_pulse(alone->rt)->waits) > 0;
}

static uint64_t alone_moves(void *ctx)
{
    struct cuda_alone *alone = ctx;
    return atomic_load(&cuda_rt_pulse(alone->rt)->moves);
}

static void alone_blame(void *ctx, unsigned seconds, bool ask, struct err *why)
{
    struct cuda_alone *alone = ctx;
    (void)ask;
    err_set(why, STATUS_IO, "%s: did not get on for %u s (ATOLL_GPU_TIMEOUT): it hangs, or the thread that feeds it",
            cuda_rt_name(alone->rt), seconds);
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

static const struct err *alone_failure(struct collective *coll)
{
    struct cuda_alone *alone = coll->group;
    return cuda_watchdog_failure(alone->watchdog);
}

static enum status alone_status(struct collective *coll)
{
    return alone_failure(coll) ? STATUS_CLOSED : STATUS_OK;
}

static enum status alone_sum(struct collective *coll, float *buf, size_t n)
{
    (void)buf;
    (void)n;
    return alone_status(coll);
}

static enum status alone_start_share(struct collective *coll, float *buf, size_t share, unsigned ticket)
{
    (void)buf;
    (void)share;
    (void)ticket;
    return alone_status(coll);
}

static enum status alone_start_parts(struct collective *coll, float *buf, const struct collective_part *parts,
                                     size_t n_parts, unsigned ticket)
{
    (void)buf;
    (void)parts;
    (void)n_parts;
    (void)ticket;
    return alone_status(coll);
}

static void alone_wait(struct collective *coll, unsigned ticket)
{
    (void)coll;
    (void)ticket;
}

static void alone_at_work(struct collective *coll, bool begins)
{
    struct cuda_alone *alone = coll->group;
    atomic_store(&alone->at_work, begins);
}

static void alone_abort(struct collective *coll, const struct err *why)
{
    struct cuda_alone *alone = coll->group;
    cuda_watchdog_fail(alone->watchdog, why);
}

static void alone_close(struct collective *coll)
{
    struct cuda_alone *alone = coll->group;
    cuda_watchdog_stop(alone->watchdog);
    mem_free(alone);
}

static const struct collective_ops cuda_alone = {
    .all_reduce_sum = alone_sum,
    .start_reduce_scatter = alone_start_share,
    .start_all_gather = alone_start_share,
    .start_reduce = alone_start_parts,
    .start_broadcast = alone_start_parts,
    .start_all_reduce = alone_start_share,
    .wait = alone_wait,
    .at_work = alone_at_work,
    .abort = alone_abort,
    .failure = alone_failure,
    .close = alone_close,
};

enum status cuda_alone_open(struct device *dev, void (*end)(const char *line), struct collective *out, struct err *err)
{
    struct cuda_alone *alone = mem_alloc(1, sizeof *alone);
    if (!alone) return err_set(err, STATUS_NOMEM, "collective: out of memory");
    alone->rt = cuda_of(dev)->rt;
    const struct cuda_watch watch = {
        .ctx = alone, .busy = alone_busy, .moves = alone_moves, .blame = alone_blame, .end = end};
    enum status status = cuda_watchdog_start(&watch, &alone->watchdog, err);
    if (status != STATUS_OK) {
        mem_free(alone);
        return status;
    }
    *out = (struct collective){.ops = &cuda_alone, .n_ranks = 1, .dev = dev, .group = alone};
    return STATUS_OK;
}
