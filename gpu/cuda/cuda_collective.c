/* gpu/collective.h over the GPUs of one worker. Events order the COMM queue and the MAIN queue of each device. Ranks
 * only submit and wait; the watchdog ends waits that would never end (gpu/cuda/comm/cuda_watchdog.h).
 *
 * A group of one GPU has no communicator and no events: its collectives do nothing. The same watchdog watches it. Host
 * waits of a single GPU block, so only the last resort ends a hang there. */
#include "gpu/cuda/cuda_impl.h"

#include <assert.h>
#include <stdatomic.h>

#include "common/base/mem.h"
#include "gpu/collective.h"
#include "gpu/cuda/comm/cuda_comm.h"
#include "gpu/cuda/comm/cuda_watchdog.h"
#include "gpu/cuda/cuda_bf16_weights.h"

enum { EVENTS = COLLECTIVE_TICKETS + 1 }; /* the last one: of collective_sum */
/* Number of latest collectives whose arrival on the GPU is known: two steps submit at most so many. */
enum { ARRIVALS = 4 * COLLECTIVE_TICKETS };

struct cuda_rank {
    struct cuda_device *cuda;
    struct cuda_rt *rt; /* runtime of the device */
    struct cuda_event *enter, *done[EVENTS], *arrive[ARRIVALS];
    atomic_ulong submitted; /* collectives submitted so far; collective n records arrive[n % ARRIVALS] */
    atomic_bool at_work;
};

struct cuda_group {
    struct cuda_watchdog *watchdog;
    void (*end)(const char *line); /* see struct cuda_watch */
    atomic_bool joined;            /* all comms are open */
    atomic_int closed;             /* number of closed comms */
    int n_ranks;
    struct cuda_comm *comms[COLLECTIVE_RANKS_MAX];
    struct cuda_rank members[];
};

static struct cuda_rank *member_of(struct collective *coll)
{
    struct cuda_group *group = coll->group;
    assert(coll->rank >= 0 && coll->rank < group->n_ranks);
    return &group->members[coll->rank];
}

static struct cuda_comm *comm_of(struct collective *coll)
{
    struct cuda_group *group = coll->group;
    assert(group->comms[coll->rank]);
    return group->comms[coll->rank];
}

/* The host polls this while it waits for the device (cuda_rt_watch). */
static const struct err *group_stopped(void *ctx)
{
    struct cuda_group *group = ctx;
    return cuda_watchdog_failure(group->watchdog);
}

static const struct err *cuda_failure(struct collective *coll)
{
    return group_stopped(coll->group);
}

static void cuda_abort(struct collective *coll, const struct err *why)
{
    struct cuda_group *group = coll->group;
    cuda_watchdog_fail(group->watchdog, why);
}

static void cuda_at_work(struct collective *coll, bool begins)
{
    atomic_store(&member_of(coll)->at_work, begins);
}

/* --- for the watchdog --------------------------------------------------------------------------------------------- */

static bool member_busy(struct cuda_rank *m)
{
    return atomic_load(&m->at_work) || atomic_load(&cuda_rt_progress(m->rt)->waits) > 0;
}

static bool group_busy(void *ctx)
{
    struct cuda_group *group = ctx;
    bool busy = false;
    for (int r = 0; r < group->n_ranks; r++) busy = busy || member_busy(&group->members[r]);
    return busy;
}

static uint64_t group_moves(void *ctx)
{
    struct cuda_group *group = ctx;
    uint64_t moves = 0;
    for (int r = 0; r < group->n_ranks; r++) moves += atomic_load(&cuda_rt_progress(group->members[r].rt)->moves);
    return moves;
}

static bool group_failed(void *ctx, struct err *why)
{
    struct cuda_group *group = ctx;
    bool failed = false;
    for (int r = 0; r < group->n_ranks && !failed && atomic_load(&group->joined); r++)
        failed = cuda_comm_failed(group->comms[r], why);
    return failed;
}

/* Number of collectives that the GPU has reached; without `ask`, that the host has submitted. */
static unsigned long member_arrivals(struct cuda_rank *m, bool ask)
{
    unsigned long submitted = atomic_load(&m->submitted), at = submitted > ARRIVALS ? submitted - ARRIVALS : 0;
    if (!ask) return submitted;
    while (at < submitted && cuda_rt_event_done(m->rt, m->arrive[at % ARRIVALS])) at++;
    return at;
}

/* Names the rank that reached the fewest collectives: the others wait for it. */
static void group_blame(void *ctx, unsigned seconds, bool ask, struct err *why)
{
    struct cuda_group *group = ctx;
    struct cuda_rank *missing = &group->members[0];
    unsigned long least = 0, most = 0;
    int busy = 0;
    for (int r = 0; r < group->n_ranks; r++) {
        struct cuda_rank *m = &group->members[r];
        if (!member_busy(m)) continue;
        unsigned long arrivals = member_arrivals(m, ask);
        if (busy == 0 || arrivals < least) {
            least = arrivals;
            missing = m;
        }
        if (arrivals > most) most = arrivals;
        busy++;
    }
    const char *name = cuda_rt_name(missing->rt);
    if (group->n_ranks == 1)
        err_set(why, STATUS_IO, "%s: no progress for %u s (ATOLL_GPU_TIMEOUT): the GPU or its host thread hangs", name,
                seconds);
    else if (!atomic_load(&group->joined))
        err_set(why, STATUS_IO,
                "NCCL: the %d GPUs of this worker did not connect within %u s (ATOLL_GPU_TIMEOUT): set "
                "NCCL_DEBUG=INFO for details, or start one worker per GPU",
                group->n_ranks, seconds);
    else if (least < most)
        err_set(why, STATUS_IO,
                "%s: did not reach collective %lu, where other GPUs wait for it; no GPU of this worker made progress "
                "for %u s (ATOLL_GPU_TIMEOUT): the GPU or its host thread hangs",
                name, least, seconds);
    else if (busy < group->n_ranks)
        err_set(why, STATUS_IO,
                "%s: did not finish work that the other GPUs have finished; no GPU of this worker made progress for "
                "%u s (ATOLL_GPU_TIMEOUT): the GPU or its host thread hangs",
                name, seconds);
    else
        err_set(why, STATUS_IO,
                "%s and the other GPUs of this worker: no progress for %u s (ATOLL_GPU_TIMEOUT), although all reached "
                "collective %lu: set NCCL_DEBUG=INFO for details",
                name, seconds, least - (least > 0));
}

static void group_abort(void *ctx)
{
    struct cuda_group *group = ctx;
    struct cuda_comm *comms[COLLECTIVE_RANKS_MAX];
    int n = 0;
    for (int r = 0; r < group->n_ranks; r++)
        if (group->comms[r]) comms[n++] = group->comms[r];
    if (n) cuda_comm_abort(comms, n);
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* Orders COMM after all work that the device has been given so far. The collective then changes buf[n]. */
static void enter(struct cuda_rank *m, float *buf, size_t n)
{
    assert(m->enter);
    cuda_rt_event_record(m->rt, CUDA_MAIN, m->enter);
    cuda_rt_queue_wait(m->rt, CUDA_COMM, m->enter);
    cuda_rt_event_record(m->rt, CUDA_COMM, m->arrive[atomic_load(&m->submitted) % ARRIVALS]);
    atomic_fetch_add(&m->submitted, 1);
    cuda_written(m->cuda, buf, n * sizeof *buf);
}

static enum status leave(struct cuda_rank *m, unsigned ticket)
{
    assert(ticket < EVENTS);
    cuda_rt_event_record(m->rt, CUDA_COMM, m->done[ticket]);
    return STATUS_OK;
}

static enum status cuda_start(struct collective *coll, enum collective_op op, float *buf, size_t n, unsigned ticket)
{
    struct cuda_rank *m = member_of(coll);
    if (cuda_failure(coll)) return STATUS_CLOSED;
    if (coll->n_ranks == 1) return STATUS_OK;
    enter(m, buf, op == COLLECTIVE_ALL_REDUCE ? n : n * (size_t)coll->n_ranks);
    cuda_comm_run(comm_of(coll), op, buf, n);
    return leave(m, ticket);
}

static enum status cuda_start_parts(struct collective *coll, enum collective_op op, float *buf,
                                    const struct collective_part *parts, size_t n_parts, unsigned ticket)
{
    struct cuda_rank *m = member_of(coll);
    if (cuda_failure(coll)) return STATUS_CLOSED;
    if (coll->n_ranks == 1) return STATUS_OK;
    enter(m, buf, 0);
    for (size_t i = 0; i < n_parts; i++) {
        assert(parts[i].root >= 0 && parts[i].root < coll->n_ranks);
        cuda_written(m->cuda, buf + parts[i].offset, parts[i].n * sizeof *buf);
    }
    cuda_comm_parts(comm_of(coll), op, buf, parts, n_parts);
    return leave(m, ticket);
}

static void cuda_wait(struct collective *coll, unsigned ticket)
{
    struct cuda_rank *m = member_of(coll);
    assert(ticket < EVENTS);
    if (coll->n_ranks > 1) cuda_rt_queue_wait(m->rt, CUDA_MAIN, m->done[ticket]);
}

/* --- closing ------------------------------------------------------------------------------------------------------ */

static uint64_t closing_moves(void *ctx)
{
    struct cuda_group *group = ctx;
    return (uint64_t)atomic_load(&group->closed);
}

static void closing_blame(void *ctx, unsigned seconds, bool ask, struct err *why)
{
    struct cuda_group *group = ctx;
    int closed = atomic_load(&group->closed), last = group->n_ranks - 1;
    (void)ask;
    struct cuda_rt *rt = group->members[closed < last ? closed : last].rt;
    err_set(why, STATUS_IO,
            "%s: communication with the other GPUs of this worker did not close within %u s (ATOLL_GPU_TIMEOUT)",
            cuda_rt_name(rt), seconds);
}

/* A GPU that hangs may keep a communicator from closing, so the watchdog now watches the closing. */
static void cuda_collective_close(struct collective *coll)
{
    struct cuda_group *group = coll->group;
    const struct cuda_watch watch = {.ctx = group, .moves = closing_moves, .blame = closing_blame, .end = group->end};
    cuda_watchdog_turn(group->watchdog, &watch);
    for (int r = 0; r < group->n_ranks; r++) cuda_rt_watch(group->members[r].rt, NULL, NULL);
    for (int r = 0; r < group->n_ranks; r++) {
        cuda_comm_close(group->comms[r]);
        atomic_store(&group->closed, r + 1);
    }
    cuda_watchdog_stop(group->watchdog);
    for (int r = 0; r < group->n_ranks; r++) {
        struct cuda_rank *m = &group->members[r];
        for (int e = 0; e < EVENTS; e++) cuda_rt_event_free(m->rt, m->done[e]);
        for (int e = 0; e < ARRIVALS; e++) cuda_rt_event_free(m->rt, m->arrive[e]);
        cuda_rt_event_free(m->rt, m->enter);
    }
    mem_free(group);
}

static const struct collective_ops cuda_collective = {
    .start = cuda_start,
    .start_parts = cuda_start_parts,
    .wait = cuda_wait,
    .at_work = cuda_at_work,
    .abort = cuda_abort,
    .failure = cuda_failure,
    .close = cuda_collective_close,
};

static enum status member_fill(struct cuda_rank *m, struct err *err)
{
    enum status status = cuda_rt_event_create(m->rt, &m->enter);
    for (int e = 0; e < EVENTS && status == STATUS_OK; e++) status = cuda_rt_event_create(m->rt, &m->done[e]);
    for (int e = 0; e < ARRIVALS && status == STATUS_OK; e++) status = cuda_rt_event_create(m->rt, &m->arrive[e]);
    if (status != STATUS_OK)
        return err_set(err, status, "%s: cannot create events for collectives", cuda_rt_name(m->rt));
    return STATUS_OK;
}

/* Opens the communicators. at_work of rank 0 makes the watchdog expect progress meanwhile. */
static enum status group_join(struct cuda_group *group, struct err *err)
{
    struct cuda_rt *ranks[COLLECTIVE_RANKS_MAX];
    struct err why = {0};
    assert(group->watchdog && !atomic_load(&group->joined));
    for (int r = 0; r < group->n_ranks; r++) ranks[r] = group->members[r].rt;
    atomic_store(&group->members[0].at_work, true);
    enum status status = cuda_comm_open(ranks, group->n_ranks, group->comms, &why);
    atomic_store(&group->members[0].at_work, false);
    atomic_store(&group->joined, status == STATUS_OK);
    if (status == STATUS_OK) return status;
    if (group->comms[0]) cuda_watchdog_fail(group->watchdog, &why); /* aborts the open communicators */
    const struct err *first = cuda_watchdog_failure(group->watchdog);
    return err_set(err, status, "%s", first ? first->msg : why.msg);
}

static enum status group_fill(struct cuda_group *group, struct err *err)
{
    const struct cuda_watch watch = {.ctx = group,
                                     .busy = group_busy,
                                     .moves = group_moves,
                                     .failed = group_failed,
                                     .blame = group_blame,
                                     .abort = group_abort,
                                     .end = group->end};
    if (group->n_ranks == 1) return cuda_watchdog_start(&watch, &group->watchdog, err);
    for (int r = 0; r < group->n_ranks; r++) TRY(member_fill(&group->members[r], err));
    TRY(cuda_watchdog_start(&watch, &group->watchdog, err));
    for (int r = 0; r < group->n_ranks; r++) cuda_rt_watch(group->members[r].rt, group_stopped, group);
    return group_join(group, err);
}

enum status cuda_collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                                 struct collective *out, struct err *err)
{
    assert(n_ranks >= 1 && n_ranks <= COLLECTIVE_RANKS_MAX);
    struct cuda_group *group = mem_alloc(1, sizeof *group + (size_t)n_ranks * sizeof *group->members);
    if (!group) return err_set(err, STATUS_NOMEM, "collective: out of memory");
    group->n_ranks = n_ranks;
    group->end = end;
    for (int r = 0; r < n_ranks; r++) {
        group->members[r].cuda = cuda_of(devices[r]);
        group->members[r].rt = cuda_of(devices[r])->rt;
        out[r] = (struct collective){
            .ops = &cuda_collective, .rank = r, .n_ranks = n_ranks, .dev = devices[r], .group = group};
    }
    enum status status = group_fill(group, err);
    if (status != STATUS_OK) cuda_collective_close(&out[0]);
    return status;
}
