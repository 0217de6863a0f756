/* gpu/collective.h over the GPUs of one worker: events order the COMM queue and the device's own. */
#include "gpu/collective.h"

#include <stdatomic.h>

#include "common/mem.h"
#include "gpu/cuda_comm.h"
#include "gpu/cuda_impl.h"

/* Of the calls that do not run beside the device. */
enum { OWN_TICKET = COLLECTIVE_TICKETS, EVENTS };

struct member {
    struct cuda_device *cuda;
    struct cuda_rt *rt; /* the device's */
    struct cuda_comm *comm;
    struct cuda_event *enter, *done[EVENTS];
    float *one; /* device memory, of the barrier */
    struct cuda_group *group;
};

struct cuda_group {
    atomic_bool aborted; /* by any thread; each member ends its own communicator when it sees it */
    int n_ranks;
    struct member members[];
};

static struct member *member_of(struct collective *coll)
{
    struct cuda_group *group = coll->group;
    return &group->members[coll->rank];
}

/* What the host asks while it waits for the device (cuda_rt_watch). */
static bool member_stopped(void *ctx)
{
    struct member *m = ctx;
    if (!cuda_comm_failed(m->comm) && !atomic_load(&m->group->aborted)) return false;
    cuda_comm_abort(m->comm);
    return true;
}

static void cuda_abort(struct collective *coll)
{
    struct cuda_group *group = coll->group;
    atomic_store(&group->aborted, true);
}

/* COMM goes on when all that was submitted to the device is done, and changes buf[n]. */
static enum status enter(struct collective *coll, struct member *m, float *buf, size_t n)
{
    struct cuda_group *group = coll->group;
    if (atomic_load(&group->aborted)) return STATUS_CLOSED;
    cuda_rt_record(m->rt, CUDA_MAIN, m->enter);
    cuda_rt_wait(m->rt, CUDA_COMM, m->enter);
    cuda_written(m->cuda, buf, n * sizeof *buf);
    return STATUS_OK;
}

static void leave(struct member *m, unsigned ticket)
{
    cuda_rt_record(m->rt, CUDA_COMM, m->done[ticket]);
}

/* buf holds that many shares. */
static enum status start(struct collective *coll, void (*run)(struct cuda_comm *, float *, size_t), float *buf,
                         size_t share, size_t shares, unsigned ticket)
{
    struct member *m = member_of(coll);
    TRY(enter(coll, m, buf, share * shares));
    run(m->comm, buf, share);
    leave(m, ticket);
    return STATUS_OK;
}

static enum status cuda_start_reduce_scatter(struct collective *coll, float *buf, size_t share, unsigned ticket)
{
    return start(coll, cuda_comm_reduce_scatter, buf, share, (size_t)coll->n_ranks, ticket);
}

static enum status cuda_start_all_gather(struct collective *coll, float *buf, size_t share, unsigned ticket)
{
    return start(coll, cuda_comm_all_gather, buf, share, (size_t)coll->n_ranks, ticket);
}

/* COMM goes on as in `enter`, and changes the parts. */
static enum status enter_parts(struct collective *coll, struct member *m, float *buf,
                               const struct collective_part *parts, size_t n_parts)
{
    TRY(enter(coll, m, buf, 0));
    for (size_t i = 0; i < n_parts; i++) cuda_written(m->cuda, buf + parts[i].offset, parts[i].n * sizeof *buf);
    return STATUS_OK;
}

static enum status cuda_start_reduce(struct collective *coll, float *buf, const struct collective_part *parts,
                                     size_t n_parts, unsigned ticket)
{
    struct member *m = member_of(coll);
    TRY(enter_parts(coll, m, buf, parts, n_parts));
    cuda_comm_reduce(m->comm, buf, parts, n_parts);
    leave(m, ticket);
    return STATUS_OK;
}

static enum status cuda_start_broadcast(struct collective *coll, float *buf, const struct collective_part *parts,
                                        size_t n_parts, unsigned ticket)
{
    struct member *m = member_of(coll);
    TRY(enter_parts(coll, m, buf, parts, n_parts));
    cuda_comm_broadcast(m->comm, buf, parts, n_parts);
    leave(m, ticket);
    return STATUS_OK;
}

static enum status cuda_start_all_reduce(struct collective *coll, float *buf, size_t n, unsigned ticket)
{
    return start(coll, cuda_comm_all_reduce, buf, n, 1, ticket);
}

static void cuda_wait(struct collective *coll, unsigned ticket)
{
    struct member *m = member_of(coll);
    cuda_rt_wait(m->rt, CUDA_MAIN, m->done[ticket]);
}

static enum status cuda_all_reduce_sum(struct collective *coll, float *buf, size_t n)
{
    TRY(cuda_start_all_reduce(coll, buf, n, OWN_TICKET));
    cuda_wait(coll, OWN_TICKET);
    return STATUS_OK;
}

static enum status cuda_broadcast(struct collective *coll, float *buf, size_t n, int root)
{
    if (root < 0 || root >= coll->n_ranks) {
        cuda_abort(coll);
        return STATUS_INVALID;
    }
    TRY(cuda_start_broadcast(coll, buf, &(struct collective_part){.n = n, .root = root}, 1, OWN_TICKET));
    cuda_wait(coll, OWN_TICKET);
    return STATUS_OK;
}

static enum status cuda_barrier(struct collective *coll)
{
    struct member *m = member_of(coll);
    TRY(cuda_all_reduce_sum(coll, m->one, 1));
    return cuda_rt_sync(m->rt, NULL);
}

static void group_free(struct cuda_group *group)
{
    for (int r = 0; r < group->n_ranks; r++) {
        struct member *m = &group->members[r];
        if (m->comm && atomic_load(&group->aborted)) cuda_comm_abort(m->comm);
        cuda_rt_watch(m->rt, NULL, NULL);
        cuda_comm_close(m->comm);
        for (int e = 0; e < EVENTS; e++) cuda_rt_event_free(m->rt, m->done[e]);
        cuda_rt_event_free(m->rt, m->enter);
        cuda_rt_release(m->rt, m->one);
    }
    mem_free(group);
}

static void cuda_collective_close(struct collective *coll)
{
    group_free(coll->group);
}

static const struct collective_ops cuda_collective = {
    .all_reduce_sum = cuda_all_reduce_sum,
    .broadcast = cuda_broadcast,
    .start_reduce_scatter = cuda_start_reduce_scatter,
    .start_all_gather = cuda_start_all_gather,
    .start_reduce = cuda_start_reduce,
    .start_broadcast = cuda_start_broadcast,
    .start_all_reduce = cuda_start_all_reduce,
    .wait = cuda_wait,
    .barrier = cuda_barrier,
    .abort = cuda_abort,
    .close = cuda_collective_close,
};

static enum status member_fill(struct member *m, struct cuda_comm *comm, struct err *err)
{
    m->comm = comm;
    enum status status = cuda_rt_event_create(m->rt, &m->enter);
    for (int e = 0; e < EVENTS && status == STATUS_OK; e++) status = cuda_rt_event_create(m->rt, &m->done[e]);
    m->one = cuda_rt_alloc(m->rt, sizeof *m->one);
    if (status != STATUS_OK || !m->one)
        return err_set(err, STATUS_NOMEM, "%s: no memory for collectives", cuda_rt_name(m->rt));
    TRY(cuda_rt_sync(m->rt, err)); /* cleared */
    cuda_rt_watch(m->rt, member_stopped, m);
    return STATUS_OK;
}

static enum status group_fill(struct cuda_group *group, struct err *err)
{
    struct cuda_rt *ranks[COLLECTIVE_RANKS_MAX];
    struct cuda_comm *comms[COLLECTIVE_RANKS_MAX];
    for (int r = 0; r < group->n_ranks; r++) ranks[r] = group->members[r].rt;
    TRY(cuda_comm_open(ranks, group->n_ranks, comms, err));
    enum status status = STATUS_OK;
    for (int r = 0; r < group->n_ranks; r++) {
        enum status one = member_fill(&group->members[r], comms[r], status == STATUS_OK ? err : NULL);
        if (status == STATUS_OK) status = one;
    }
    return status;
}

enum status cuda_collective_open(struct device *const *devices, int n_ranks, struct collective *out, struct err *err)
{
    struct cuda_group *group = mem_alloc(1, sizeof *group + (size_t)n_ranks * sizeof *group->members);
    if (!group) return err_set(err, STATUS_NOMEM, "collective: out of memory");
    group->n_ranks = n_ranks;
    for (int r = 0; r < n_ranks; r++) {
        group->members[r].cuda = cuda_of(devices[r]);
        group->members[r].rt = cuda_of(devices[r])->rt;
        group->members[r].group = group;
        out[r] = (struct collective){.ops = &cuda_collective, .rank = r, .n_ranks = n_ranks, .dev = devices[r],
                                     .group = group};
    }
    enum status status = group_fill(group, err);
    if (status != STATUS_OK) group_free(group);
    return status;
}
