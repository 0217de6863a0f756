#include "gpu/collective.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "common/base/mem.h"

enum { REDUCE_CHUNK = 16384 }; /* floats: every rank's piece of a chunk stays in cache while it is summed and copied */

/* The ranks are threads of this process. A rank reads the others' buffers directly, between two barriers. */
struct cpu_group {
    pthread_mutex_t lock;
    pthread_cond_t released;
    int n_ranks, waiting;
    unsigned generation;
    bool aborted;
    struct err why; /* complete once aborted is set */
    struct {
        float *buf;
        size_t n;
    } posted[COLLECTIVE_RANKS_MAX];
};

static enum status cpu_barrier(struct collective *coll)
{
    struct cpu_group *group = coll->group;
    pthread_mutex_lock(&group->lock);
    assert(group->waiting < group->n_ranks);
    unsigned generation = group->generation;
    if (!group->aborted && ++group->waiting == group->n_ranks) {
        group->waiting = 0;
        group->generation++;
        pthread_cond_broadcast(&group->released);
    }
    while (!group->aborted && group->generation == generation) pthread_cond_wait(&group->released, &group->lock);
    enum status status = group->aborted ? STATUS_CLOSED : STATUS_OK;
    pthread_mutex_unlock(&group->lock);
    return status;
}

static void cpu_abort(struct collective *coll, const struct err *why)
{
    struct cpu_group *group = coll->group;
    pthread_mutex_lock(&group->lock);
    if (!group->aborted && why && why->code != STATUS_CLOSED)
        group->why = *why;
    else if (!group->aborted)
        err_set(&group->why, STATUS_CLOSED, "rank %d stopped", coll->rank);
    group->aborted = true;
    pthread_cond_broadcast(&group->released);
    pthread_mutex_unlock(&group->lock);
}

static const struct err *cpu_failure(struct collective *coll)
{
    struct cpu_group *group = coll->group;
    pthread_mutex_lock(&group->lock);
    bool aborted = group->aborted;
    pthread_mutex_unlock(&group->lock);
    return aborted ? &group->why : NULL;
}

static enum status abort_with(struct collective *coll, enum status status, const char *what)
{
    struct err why;
    err_set(&why, status, "rank %d: %s: %s", coll->rank, what, status_text(status));
    cpu_abort(coll, &why);
    return status;
}

/* Publishes this rank's buffer and waits for the others'. Different lengths are a defect of the caller: all ranks
 * abort. */
static enum status exchange(struct collective *coll, float *buf, size_t n)
{
    struct cpu_group *group = coll->group;
    assert(coll->rank >= 0 && coll->rank < group->n_ranks);
    enum status status = coll->dev->ops->sync(coll->dev, NULL);
    if (status != STATUS_OK) return abort_with(coll, status, "device error");
    group->posted[coll->rank].buf = buf;
    group->posted[coll->rank].n = n;
    TRY(cpu_barrier(coll));
    for (int r = 0; r < group->n_ranks; r++) {
        if (group->posted[r].n != n) return abort_with(coll, STATUS_INVALID, "the ranks' lengths differ");
    }
    return STATUS_OK;
}

/* Sums in rank order, so that the first rank's buffer takes the sum; returns its place. */
static float *sum_into_first(struct collective *coll, size_t at, size_t n)
{
    struct cpu_group *group = coll->group;
    float *sum = group->posted[0].buf + at;
    for (int r = 1; r < group->n_ranks; r++) coll->dev->ops->axpy(coll->dev, n, 1.0f, group->posted[r].buf + at, sum);
    return sum;
}

/* This rank's range of [n] becomes the sum, on every rank. */
static void sum_range(struct collective *coll, size_t n)
{
    struct cpu_group *group = coll->group;
    size_t share = (n / (size_t)group->n_ranks + 15) / 16 * 16 + 16, begin = share * (size_t)coll->rank;
    size_t end = begin + share < n ? begin + share : n;
    for (size_t at = begin; at < end; at += REDUCE_CHUNK) {
        size_t count = end - at < REDUCE_CHUNK ? end - at : REDUCE_CHUNK;
        const float *sum = sum_into_first(coll, at, count);
        for (int r = 1; r < group->n_ranks; r++)
            coll->dev->ops->copy(coll->dev, group->posted[r].buf + at, sum, count * sizeof *sum);
    }
}

static void run_part(struct collective *coll, enum collective_op op, float *buf, const struct collective_part *part)
{
    const struct cpu_group *group = coll->group;
    const float *from = group->posted[part->root].buf + part->offset;
    if ((op == COLLECTIVE_REDUCE) != (part->root == coll->rank)) return;
    if (op == COLLECTIVE_REDUCE) from = sum_into_first(coll, part->offset, part->n);
    if (from != buf + part->offset) coll->dev->ops->copy(coll->dev, buf + part->offset, from, part->n * sizeof *buf);
}

static enum status cpu_start_parts(struct collective *coll, enum collective_op op, float *buf,
                                   const struct collective_part *parts, size_t n_parts, unsigned ticket)
{
    size_t floats = 0;
    (void)ticket;
    for (size_t i = 0; i < n_parts; i++) floats += parts[i].n;
    TRY(exchange(coll, buf, floats));
    for (size_t i = 0; i < n_parts; i++) run_part(coll, op, buf, &parts[i]);
    return cpu_barrier(coll);
}

static enum status cpu_start(struct collective *coll, enum collective_op op, float *buf, size_t n, unsigned ticket)
{
    (void)ticket;
    TRY(exchange(coll, buf, n));
    if (op == COLLECTIVE_ALL_REDUCE) sum_range(coll, n);
    for (int r = 0; r < coll->n_ranks && op != COLLECTIVE_ALL_REDUCE; r++) {
        const struct collective_part share = {.offset = n * (size_t)r, .n = n, .root = r};
        run_part(coll, op == COLLECTIVE_ALL_GATHER ? COLLECTIVE_BROADCAST : COLLECTIVE_REDUCE, buf, &share);
    }
    return cpu_barrier(coll);
}

static void cpu_close(struct collective *coll)
{
    struct cpu_group *group = coll->group;
    pthread_cond_destroy(&group->released);
    pthread_mutex_destroy(&group->lock);
    mem_free(group);
}

static const struct collective_ops cpu_collective = {
    .start = cpu_start,
    .start_parts = cpu_start_parts,
    .abort = cpu_abort,
    .failure = cpu_failure,
    .close = cpu_close,
};

enum status collective_open(struct device *const *devices, int n_ranks, void (*end)(const char *line),
                            struct collective *out, struct err *err)
{
    if (n_ranks < 1 || n_ranks > COLLECTIVE_RANKS_MAX) {
        return err_set(err, STATUS_INVALID, "collective of %d ranks: want 1 to %d", n_ranks, COLLECTIVE_RANKS_MAX);
    }
    if (devices[0]->ops->collective) return devices[0]->ops->collective(devices, n_ranks, end, out, err);
    struct cpu_group *group = mem_alloc(1, sizeof *group);
    if (!group) return err_set(err, STATUS_NOMEM, "collective: out of memory");
    group->n_ranks = n_ranks;
    pthread_mutex_init(&group->lock, NULL);
    pthread_cond_init(&group->released, NULL);
    for (int r = 0; r < n_ranks; r++) {
        out[r] = (struct collective){
            .ops = &cpu_collective, .rank = r, .n_ranks = n_ranks, .dev = devices[r], .group = group};
    }
    return STATUS_OK;
}

void collective_close(struct collective *ranks)
{
    if (ranks && ranks->group) ranks->ops->close(ranks);
}
