/* Stub of libnccl.so.2 for machines without GPUs (ATOLL_NCCL_LIBRARY): collectives between the streams of
 * cudart_stub.h.
 *
 * - Communicators are nonblocking, as gpu/cuda/comm/cuda_nccl.c requires: a call is in progress until a few polls, and
 * a second call during that time is refused.
 * - An error of the caller ends the process with a line: ranks with different calls, two ranks on one device, polling a
 *   call from another thread than the caller's, polling during an abort, use after free, destroying with work queued.
 * - nccl_faults makes one call fail. After a failed collective the communicator reports no error, and nothing of its
 * group runs. A communicator that failed to join still exists and must be aborted. With status ncclInProgress,
 *   ncclCommGetAsyncError reports a permanent failure.
 *
 * Environment:
 * ATOLL_STUB_NCCL_VERSION=21800      version of the library
 * ATOLL_STUB_NCCL_JOIN=never|refused joining hangs or fails
 * ATOLL_STUB_NCCL_REFUSE=1:3         the third collective of rank 1 is refused
 * ATOLL_STUB_NCCL_BREAK=1:3          it never ends, and its communicator reports an error
 * ATOLL_STUB_NCCL_STALL=1:3          it stays in progress
 * ATOLL_STUB_NCCL_BLOCK=1:3          its call returns some time after the abort of the communicator
 * ATOLL_STUB_NCCL_DESTROY=1          destroying the communicator of rank 1 hangs */
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/cuda/stubs/stub_faults.h"

enum { RANKS_MAX = 8, GROUP_MAX = 1024, POLLS = 3 };

enum kind { REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, REDUCE, BROADCAST };

struct call {
    enum kind kind;
    const float *from;
    float *to;
    size_t n; /* count argument of the call */
    int root;
    ncclComm_t comm;
    cudaStream_t stream;
};

struct world { /* communicators of one group of ranks */
    struct world *next;
    ncclUniqueId id;
    int n, joined, posted, aborted;
    unsigned long turn;
    ncclComm_t comms[RANKS_MAX];
    struct call calls[RANKS_MAX];
};

struct ncclComm {
    struct world *world;
    int rank, device; /* device -1: unknown before the first call */
    int polls;        /* polls until the call in progress ends */
    pthread_t caller; /* thread of that call */
    bool stalled, aborted;
    enum { LIVES, DESTROYED, FREED } end;
    unsigned long collectives;
    int running;                    /* calls on its stream */
    struct call waiting[GROUP_MAX]; /* calls in progress, not on the stream yet */
    size_t n_waiting;
    ncclResult_t error;
};

extern struct stub_faults nccl_faults; /* left: communicators */
struct stub_faults nccl_faults = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define FAILS() stub_fault(&nccl_faults, __func__)
#define FAILED ((ncclResult_t)nccl_faults.status)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static struct world *worlds; /* kept to detect the use of freed communicators */
static int stuck;            /* number of calls so far that do not end without an abort */
static _Thread_local struct {
    int depth;
    ncclComm_t comm;     /* communicator with calls in the group, */
    struct world *world; /* or ranks that join in it */
    ncclResult_t error;  /* error of a call in the group */
} group;

static _Noreturn void wrong(const char *what, const struct ncclComm *c)
{
    fprintf(stderr, "nccl_stub: %s: rank %d\n", what, c ? c->rank : -1);
    abort();
}

static bool is_set_for(const char *name, const struct ncclComm *c)
{
    int rank = -1;
    unsigned long nth = 0;
    const char *set = getenv(name);
    return set && sscanf(set, "%d:%lu", &rank, &nth) == 2 && rank == c->rank && nth == c->collectives;
}

static void alive(const struct ncclComm *c)
{
    if (!c || c->end != LIVES) wrong("used after it was freed", c);
}

int nccl_stub_stuck(void);
int nccl_stub_stuck(void)
{
    pthread_mutex_lock(&lock);
    int n = stuck;
    pthread_mutex_unlock(&lock);
    return n;
}

/* ---- execution on the streams
 * -------------------------------------------------------------------------------------------------
 */

/* Run the collective when all ranks arrived, with sums in rank order. */
static void calculate(struct world *w)
{
    const struct call *first = &w->calls[0];
    size_t n = first->n, all = first->kind == REDUCE_SCATTER ? n * (size_t)w->n : n;
    float *sum = calloc(all + 1, sizeof *sum);
    if (!sum) abort();
    for (int r = 0; r < w->n; r++) {
        const struct call *c = &w->calls[r];
        bool same = c->kind == first->kind && c->n == n && c->root == first->root;
        if (!same) wrong("ranks submitted different calls", c->comm);
        for (int other = 0; other < r; other++)
            if (w->comms[other]->device == c->comm->device) wrong("two ranks on one device", c->comm);
        for (size_t i = 0; first->kind != ALL_GATHER && first->kind != BROADCAST && i < all; i++) sum[i] += c->from[i];
    }
    for (int r = 0; r < w->n; r++) {
        const struct call *c = &w->calls[r];
        if (c->kind == ALL_REDUCE || (c->kind == REDUCE && r == c->root)) memcpy(c->to, sum, n * sizeof *sum);
        if (c->kind == REDUCE_SCATTER) memcpy(c->to, sum + (size_t)r * n, n * sizeof *sum);
        if (c->kind == BROADCAST) memmove(c->to, w->calls[c->root].from, n * sizeof *sum);
        for (int other = 0; c->kind == ALL_GATHER && other < w->n; other++)
            memmove(c->to + (size_t)other * n, w->calls[other].from, n * sizeof *sum);
    }
    free(sum);
}

/* Run on a stream's thread: wait for the other ranks or an abort. */
static void run(void *args, bool dead)
{
    const struct call *call = args;
    struct ncclComm *c = call->comm;
    struct world *w = c->world;
    pthread_mutex_lock(&lock);
    unsigned long turn = w->turn;
    bool broken = c->error != ncclSuccess; /* by this call or an earlier one */
    if (!c->aborted && !broken && !dead) {
        w->calls[c->rank] = *call;
        if (++w->posted == w->n) {
            calculate(w);
            w->posted = 0;
            w->turn++;
            pthread_cond_broadcast(&turned);
        }
    }
    while (!c->aborted && !dead && (broken || w->turn == turn)) pthread_cond_wait(&turned, &lock);
    if (w->turn == turn && !broken && !dead && w->posted) w->posted--;
    c->running--;
    pthread_cond_broadcast(&turned);
    pthread_mutex_unlock(&lock);
}

static void submit_waiting(struct ncclComm *c)
{
    for (size_t i = 0; i < c->n_waiting; i++)
        c->waiting[i].stream->submit(c->waiting[i].stream, run, &c->waiting[i], sizeof c->waiting[i]);
    c->n_waiting = 0;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int *version)
{
    const char *set = getenv("ATOLL_STUB_NCCL_VERSION");
    *version = set && *set ? atoi(set) : NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError    ? "remote process exited or there was a network error"
           : result == ncclInvalidUsage ? "invalid usage"
           : result == ncclSystemError  ? "unhandled system error"
                                        : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm && comm->error != ncclSuccess ? "as the test wanted" : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static unsigned made;
    memset(id, 0x57, sizeof *id);
    if (FAILS()) return FAILED;
    memset(id, 0, sizeof *id);
    pthread_mutex_lock(&lock);
    made++;
    memcpy(id->internal, &made, sizeof made);
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

static struct world *world_of(const ncclUniqueId *id, int n)
{
    struct world *w = worlds;
    while (w && memcmp(&w->id, id, sizeof *id) != 0) w = w->next;
    if (w) return w;
    w = calloc(1, sizeof *w);
    if (!w || n > RANKS_MAX) abort();
    w->id = *id;
    w->n = n;
    w->next = worlds;
    return worlds = w;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    const char *join = getenv("ATOLL_STUB_NCCL_JOIN");
    if (config->blocking != 0) wrong("a blocking communicator", NULL);
    if (!group.depth) wrong("several ranks of one thread join outside of a group", NULL);
    if (join && !strcmp(join, "refused")) return ncclSystemError;
    bool fails = FAILS();
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c) abort();
    pthread_mutex_lock(&lock);
    *c = (struct ncclComm){
        .world = world_of(&id, n), .rank = rank, .device = -1, .polls = POLLS, .caller = pthread_self()};
    if (c->world->n != n || rank < 0 || rank >= n || c->world->comms[rank]) wrong("an invalid or repeated rank", c);
    c->world->comms[rank] = c;
    c->world->joined++;
    c->stalled = fails || (join && !strcmp(join, "never"));
    if (fails) group.error = c->error = FAILED;
    group.world = c->world;
    pthread_mutex_unlock(&lock);
    stub_made(&nccl_faults, 1);
    *out = c;
    return fails ? FAILED : ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    bool fails = FAILS(), told_so = fails && FAILED == ncclInProgress;
    pthread_mutex_lock(&lock);
    alive(c);
    if (c->aborted) wrong("polled during an abort", c);
    *error = (ncclResult_t)0x57;
    if (told_so) c->error = ncclRemoteError;
    if (fails && !told_so) {
        pthread_mutex_unlock(&lock);
        return FAILED;
    }
    if (c->polls && !pthread_equal(c->caller, pthread_self())) wrong("polled by two threads", c);
    if (c->polls && !c->stalled && c->world->joined == c->world->n && --c->polls == 0) submit_waiting(c);
    *error = c->error != ncclSuccess ? c->error : c->polls ? ncclInProgress : ncclSuccess;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    bool fails = FAILS();
    pthread_mutex_lock(&lock);
    alive(c);
    if (c->running) wrong("destroyed with work queued", c);
    c->end = DESTROYED;
    const char *hangs = getenv("ATOLL_STUB_NCCL_DESTROY");
    while (hangs && *hangs && atoi(hangs) == c->rank) pthread_cond_wait(&turned, &lock);
    pthread_mutex_unlock(&lock);
    stub_made(&nccl_faults, -1);
    return fails ? FAILED : ncclSuccess;
}

/* The last communicator of a world waits for running calls and frees all. */
ncclResult_t ncclCommAbort(ncclComm_t c)
{
    bool fails = FAILS();
    pthread_mutex_lock(&lock);
    alive(c);
    struct world *w = c->world;
    c->aborted = true;
    if (c->polls) c->error = ncclRemoteError;
    c->running -= (int)c->n_waiting; /* these calls never reach the stream */
    c->n_waiting = 0;
    pthread_cond_broadcast(&turned);
    while (c->running) pthread_cond_wait(&turned, &lock);
    if (++w->aborted == w->joined)
        for (int r = 0; r < w->n; r++) {
            if (!w->comms[r]) continue;
            w->comms[r]->end = FREED;
            stub_made(&nccl_faults, -1);
        }
    pthread_mutex_unlock(&lock);
    return fails ? FAILED : ncclSuccess;
}

ncclResult_t ncclGroupStart(void); /* the header declares it without a prototype */
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    if (FAILS()) return FAILED;
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    ncclComm_t c = group.comm;
    struct world *w = group.world;
    ncclResult_t error = FAILS() ? FAILED : group.error;
    if (--group.depth < 0) wrong("the end of a group that was not started", c);
    group.comm = NULL;
    group.world = NULL;
    group.error = ncclSuccess;
    pthread_mutex_lock(&lock);
    if (error != ncclSuccess && c) { /* no call of the group runs */
        c->running -= (int)c->n_waiting;
        c->n_waiting = 0;
        c->polls = 0;
    }
    for (int r = 0; w && error != ncclSuccess && r < w->n; r++)
        if (w->comms[r]) w->comms[r]->error = error;
    if (error == ncclSuccess) error = c && c->error != ncclSuccess ? c->error : ncclInProgress;
    pthread_mutex_unlock(&lock);
    return error;
}

/* Requires the lock. Queue a call, or return its error. */
static ncclResult_t take(struct ncclComm *c, const struct call *call)
{
    bool grouped = group.depth > 0;
    alive(c);
    if (c->error != ncclSuccess) return c->error;
    if (c->aborted) return ncclRemoteError;                                 /* by another thread, during this call */
    if (c->polls && !(grouped && group.comm == c)) return ncclInvalidUsage; /* another call is in progress */
    if (c->device < 0) c->device = call->stream->device;
    if (c->device != call->stream->device || call->root >= c->world->n) return ncclInvalidUsage;
    c->collectives++;
    if (is_set_for("ATOLL_STUB_NCCL_REFUSE", c)) return c->error = ncclSystemError;
    if (is_set_for("ATOLL_STUB_NCCL_BREAK", c)) c->error = ncclRemoteError;
    if (is_set_for("ATOLL_STUB_NCCL_STALL", c)) {
        c->stalled = true;
        stuck++;
    }
    if (c->n_waiting == GROUP_MAX) wrong("too many calls in a group", c);
    c->waiting[c->n_waiting++] = *call;
    c->running++;
    c->polls = POLLS;
    c->caller = pthread_self();
    if (grouped) group.comm = c;
    if (c->error != ncclSuccess) { /* fails without an error of the call */
        c->polls = 0;
        submit_waiting(c);
        return ncclSuccess;
    }
    return grouped ? ncclSuccess : ncclInProgress;
}

static ncclResult_t enter(enum kind kind, const void *from, void *to, size_t n, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream)
{
    const struct call call = {
        .kind = kind, .from = from, .to = to, .n = n, .root = root, .comm = comm, .stream = stream};
    static const char *const names[] = {"ncclReduceScatter", "ncclAllGather", "ncclAllReduce", "ncclReduce",
                                        "ncclBroadcast"};
    if (stub_fault(&nccl_faults, names[kind])) {
        if (group.depth) group.error = FAILED;
        return FAILED;
    }
    pthread_mutex_lock(&lock);
    ncclResult_t result = type == ncclFloat && n ? take(comm, &call) : ncclInvalidArgument;
    if (is_set_for("ATOLL_STUB_NCCL_BLOCK", comm)) {
        stuck++;
        while (!comm->aborted) pthread_cond_wait(&turned, &lock);
        pthread_mutex_unlock(&lock);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        pthread_mutex_lock(&lock);
        alive(comm);
        result = ncclRemoteError;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return op == ncclSum ? enter(REDUCE_SCATTER, from, to, n, type, 0, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
    return enter(ALL_GATHER, from, to, n, type, 0, comm, stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream)
{
    return op == ncclSum ? enter(ALL_REDUCE, from, to, n, type, 0, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return op == ncclSum ? enter(REDUCE, from, to, n, type, root, comm, stream) : ncclInvalidArgument;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return enter(BROADCAST, from, to, n, type, root, comm, stream);
}
