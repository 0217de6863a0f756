/* gpu/cuda/comm/cuda_comm.h between emulated devices. Each rank is a thread; when its COMM queue reaches the operation,
 * it waits here for the other ranks or for an abort of its communicator. Sums are taken in rank order. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/mem.h"
#include "gpu/cuda/comm/cuda_comm.h"
#include "tests/cuda/emulator/emulate_impl.h"

enum { RANKS_MAX = 64, POLL_NS = 2000000 };

struct call {
    enum collective_op kind;
    float *buf;
    size_t n; /* elements of a share, or of the whole buffer */
    int root;
};

struct hall { /* rendezvous of the ranks */
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int n_ranks, waiting, refs;
    unsigned turn;
    struct call posted[RANKS_MAX];
};

struct cuda_comm {
    struct hall *hall;
    struct cuda_rt *rt;
    int rank;
    bool aborted; /* protected by the hall's lock */
    bool met;     /* the first call is done */
    void *buffers;
};

struct job {
    struct cuda_comm *comm;
    struct call call;
};

enum status cuda_comm_check(struct err *err)
{
    const char *missing = getenv("ATOLL_EMULATED_NO_NCCL");
    return missing && *missing ? err_set(err, STATUS_UNSUPPORTED, "NCCL: none, as the test wanted") : STATUS_OK;
}

enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    TRY(cuda_comm_check(err));
    struct hall *hall = mem_alloc(1, sizeof *hall);
    if (!hall || n > RANKS_MAX) return err_set(err, STATUS_NOMEM, "out of memory");
    pthread_mutex_init(&hall->lock, NULL);
    pthread_cond_init(&hall->turned, NULL);
    hall->n_ranks = hall->refs = n;
    for (int r = 0; r < n; r++) {
        out[r] = mem_alloc(1, sizeof *out[r]);
        if (!out[r]) abort();
        *out[r] = (struct cuda_comm){.hall = hall, .rt = ranks[r], .rank = r};
    }
    return STATUS_OK;
}

void cuda_comm_close(struct cuda_comm *c)
{
    if (!c) return;
    const char *hangs = getenv("ATOLL_EMULATED_CLOSE");
    if (hangs && *hangs && atoi(hangs) == c->rank) emulate_hang(c->rt, false);
    emulate_drain(c->rt);
    emulate_memory_release(c->rt, c->buffers);
    if (--c->hall->refs == 0) { /* one thread closes all ranks, so no lock */
        pthread_cond_destroy(&c->hall->turned);
        pthread_mutex_destroy(&c->hall->lock);
        mem_free(c->hall);
    }
    mem_free(c);
}

bool cuda_comm_failed(struct cuda_comm *c, struct err *why)
{
    (void)c;
    (void)why;
    return false;
}

static void abort_one(struct cuda_comm *c)
{
    pthread_mutex_lock(&c->hall->lock);
    c->aborted = true;
    pthread_cond_broadcast(&c->hall->turned);
    pthread_mutex_unlock(&c->hall->lock);
}

static bool is_aborted(struct cuda_comm *c)
{
    pthread_mutex_lock(&c->hall->lock);
    bool aborted = c->aborted;
    pthread_mutex_unlock(&c->hall->lock);
    return aborted;
}

void cuda_comm_abort(struct cuda_comm *const *comms, int n)
{
    const char *hangs = getenv("ATOLL_EMULATED_ABORT");
    if (hangs && *hangs) emulate_hang(comms[0]->rt, false);
    for (int r = 0; r < n; r++) abort_one(comms[r]);
}

/* --- rendezvous --------------------------------------------------------------------------------------------------- */

/* Wait for all ranks. False: aborted, or the host's wait ended and the operation runs again later. After the first
 * rendezvous a rank stays for the rest of the call, because the others read its memory. */
static bool meet(struct cuda_comm *c, bool may_stop)
{
    struct hall *hall = c->hall;
    pthread_mutex_lock(&hall->lock);
    unsigned turn = hall->turn;
    if (++hall->waiting == hall->n_ranks) {
        hall->waiting = 0;
        hall->turn++;
        pthread_cond_broadcast(&hall->turned);
    }
    while (hall->turn == turn && !(may_stop && (c->aborted || emulate_leave(c->rt)))) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += POLL_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        (void)pthread_cond_timedwait(&hall->turned, &hall->lock, &until);
    }
    bool met = hall->turn != turn;
    if (!met) hall->waiting--;
    if (met) c->rt->left = false;
    pthread_mutex_unlock(&hall->lock);
    return met;
}

static bool same(struct cuda_comm *c)
{
    const struct call *first = &c->hall->posted[0];
    for (int r = 1; r < c->hall->n_ranks; r++) {
        const struct call *other = &c->hall->posted[r];
        if (other->kind == first->kind && other->n == first->n && other->root == first->root) continue;
        cuda_rt_fail(c->rt, STATUS_INVALID, "the ranks submitted different calls");
        return false;
    }
    return true;
}

/* out[n] = sum of buf[at .. at + n - 1] over the ranks. */
static void sum(const struct hall *hall, size_t at, size_t n, float *out)
{
    memcpy(out, hall->posted[0].buf + at, n * sizeof *out);
    for (int r = 1; r < hall->n_ranks; r++)
        for (size_t i = 0; i < n; i++) out[i] += hall->posted[r].buf[at + i];
}

static void touch(struct cuda_comm *c, const struct call *call)
{
    size_t n = call->n, whole = call->kind == COLLECTIVE_REDUCE_SCATTER || call->kind == COLLECTIVE_ALL_GATHER
                                    ? n * (size_t)c->hall->n_ranks
                                    : n;
    if (call->kind == COLLECTIVE_ALL_GATHER || call->kind == COLLECTIVE_BROADCAST)
        emulate_touch(c->rt, call->kind == COLLECTIVE_ALL_GATHER ? call->buf + n * (size_t)c->rank : call->buf,
                      n * sizeof(float), false);
    emulate_touch(c->rt, call->buf, whole * sizeof(float), true);
}

static void poison(float *p, size_t n)
{
    memset(p, 0xff, n * sizeof *p); /* NaN */
}

/* Between the two rendezvous, ranks read each other's memory and write only memory of their own that no rank reads. */
static void exchange(struct cuda_comm *c, const struct call *call)
{
    struct hall *hall = c->hall;
    size_t n = call->n, mine = n * (size_t)c->rank;
    float *own = malloc((n ? n : 1) * sizeof *own);
    if (!own) abort();
    if (call->kind == COLLECTIVE_REDUCE_SCATTER) sum(hall, mine, n, own);
    if (call->kind == COLLECTIVE_ALL_REDUCE || (call->kind == COLLECTIVE_REDUCE && call->root == c->rank))
        sum(hall, 0, n, own);
    if (call->kind == COLLECTIVE_REDUCE && call->root != c->rank)
        poison(own, n); /* the content of other owners' parts is undefined */
    if (call->kind == COLLECTIVE_BROADCAST) memcpy(own, hall->posted[call->root].buf, n * sizeof *own);
    for (int r = 0; r < hall->n_ranks && call->kind == COLLECTIVE_ALL_GATHER; r++)
        if (r != c->rank) memcpy(call->buf + n * (size_t)r, hall->posted[r].buf + n * (size_t)r, n * sizeof *own);
    if (call->kind == COLLECTIVE_REDUCE_SCATTER && meet(c, false)) {
        poison(call->buf, n * (size_t)hall->n_ranks); /* the content of the other shares is undefined */
        memcpy(call->buf + mine, own, n * sizeof *own);
    }
    if ((call->kind == COLLECTIVE_ALL_REDUCE || call->kind == COLLECTIVE_REDUCE ||
         call->kind == COLLECTIVE_BROADCAST) &&
        meet(c, false))
        memcpy(call->buf, own, n * sizeof *own);
    free(own);
}

static void run(struct cuda_rt *rt, const void *args)
{
    const struct job *job = args;
    struct cuda_comm *c = job->comm;
    (void)rt;
    if (is_aborted(c)) return;
    touch(c, &job->call);
    c->hall->posted[c->rank] = job->call;
    if (!meet(c, true)) return;
    if (same(c)) exchange(c, &job->call);
    (void)meet(c, false); /* a rank must not continue while others read its memory */
}

/* Allocate the library's buffers at the first call: ATOLL_EMULATED_NCCL_MEMORY bytes. */
static void take_buffers(struct cuda_comm *c)
{
    const char *set = getenv("ATOLL_EMULATED_NCCL_MEMORY");
    if (c->met || !set || !*set) return;
    c->met = true;
    c->buffers = emulate_memory_alloc(c->rt, (size_t)strtoull(set, NULL, 10));
    if (!c->buffers) cuda_rt_fail(c->rt, STATUS_NOMEM, "NCCL: out of memory");
}

static void submit(struct cuda_comm *c, struct call call)
{
    static const char *const names[] = {[COLLECTIVE_ALL_REDUCE] = "all-reduce",
                                        [COLLECTIVE_REDUCE_SCATTER] = "reduce-scatter",
                                        [COLLECTIVE_ALL_GATHER] = "all-gather",
                                        [COLLECTIVE_REDUCE] = "reduce",
                                        [COLLECTIVE_BROADCAST] = "broadcast"};
    struct job job = {.comm = c, .call = call};
    take_buffers(c);
    if (!is_aborted(c)) emulate_submit(c->rt, CUDA_COMM, names[call.kind], run, &job, sizeof job);
}

void cuda_comm_run(struct cuda_comm *c, enum collective_op op, float *buf, size_t n)
{
    submit(c, (struct call){.kind = op, .buf = buf, .n = n});
}

void cuda_comm_parts(struct cuda_comm *c, enum collective_op op, float *buf, const struct collective_part *parts,
                     size_t n_parts)
{
    for (size_t i = 0; i < n_parts; i++)
        submit(c, (struct call){.kind = op, .buf = buf + parts[i].offset, .n = parts[i].n, .root = parts[i].root});
}
