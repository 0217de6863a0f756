/* gpu/cuda/comm/cuda_comm.h with NCCL. The library is loaded when a worker asks for several GPUs, so programs start
 * without it. Communicators are non-blocking (blocking = 0), so a rank can abandon a call that waits for a missing
 * rank.
 *
 * ncclCommAbort:
 * - It sets a flag that the kernels of one communicator read, so each communicator has to be aborted.
 * - A thread other than the rank's may call it (reliably since 2.19.1, NVIDIA/nccl issue 992).
 * - In one process NCCL frees nothing before the last communicator of a group is aborted; that call frees all of them.
 *   Ranks inside a call have to leave it before that (cuda_comm_abort).
 *
 * All other calls into one communicator come from one thread at a time: NCCL does not promise thread safety. In 2.28 a
 * query of a call's state also joins the thread that runs the call. Therefore a rank polls its own calls under the
 * communicator's lock, and other threads poll only while the rank is outside of NCCL. */
#include "gpu/cuda/comm/cuda_comm.h"

#include <assert.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <nccl.h>

#include "common/base/mem.h"

enum {
    VERSION_MIN = NCCL_VERSION(2, 19, 1),
    EAGER_POLLS = 50, /* polls before the first pause */
    PAUSE_NS = 20000,
    POLLS_A_SECOND = 1000000000 / PAUSE_NS,
    OUT_POLLS = POLLS_A_SECOND / 10,
    LEAVE_POLLS = 5 * POLLS_A_SECOND
};

/* The NCCL functions in use, under their names without the prefix "nccl". */
struct nccl {
    ncclResult_t (*GetVersion)(int *version);
    ncclResult_t (*GetUniqueId)(ncclUniqueId *id);
    ncclResult_t (*CommInitRankConfig)(ncclComm_t *comm, int n, ncclUniqueId id, int rank, ncclConfig_t *config);
    ncclResult_t (*CommGetAsyncError)(ncclComm_t comm, ncclResult_t *error);
    ncclResult_t (*CommDestroy)(ncclComm_t comm);
    ncclResult_t (*CommAbort)(ncclComm_t comm);
    ncclResult_t (*GroupStart)(void);
    ncclResult_t (*GroupEnd)(void);
    ncclResult_t (*ReduceScatter)(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                                  ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*AllGather)(const void *from, void *to, size_t n, ncclDataType_t type, ncclComm_t comm,
                              cudaStream_t stream);
    ncclResult_t (*AllReduce)(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*Reduce)(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op, int root,
                           ncclComm_t comm, cudaStream_t stream);
    ncclResult_t (*Broadcast)(const void *from, void *to, size_t n, ncclDataType_t type, int root, ncclComm_t comm,
                              cudaStream_t stream);
    const char *(*GetErrorString)(ncclResult_t result);
    const char *(*GetLastError)(ncclComm_t comm);
};

static struct {
    pthread_mutex_t lock;
    bool loaded;
    struct nccl f;
} library = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct cuda_comm {
    struct cuda_rt *rt;
    ncclComm_t comm; /* NULL: not initialized, or aborted */
    int rank;
    pthread_mutex_t lock;
    bool inside;   /* the rank is inside an NCCL call */
    bool ended;    /* aborted: no more calls */
    bool broken;   /* a call failed: no further calls, which other ranks would match with it */
    char why[300]; /* if broken: the error */
};

static enum status load_functions(void *handle, struct nccl *f, struct err *err)
{
    static const char *const names[] = {
        "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommDestroy",
        "ncclCommAbort",  "ncclGroupStart",  "ncclGroupEnd",           "ncclReduceScatter",     "ncclAllGather",
        "ncclAllReduce",  "ncclReduce",      "ncclBroadcast",          "ncclGetErrorString",    "ncclGetLastError",
    };
    void **slots = (void **)f;
    _Static_assert(sizeof names / sizeof *names == sizeof *f / sizeof *slots, "a name for every function");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(slots[i] = dlsym(handle, names[i])))
            return err_set(err, STATUS_UNSUPPORTED,
                           "NCCL: libnccl.so.2 lacks %s: install NCCL 2.19 or newer, or start one worker per GPU",
                           names[i]);
    return STATUS_OK;
}

/* ATOLL_NCCL_LIBRARY overrides the file name of the library. */
static enum status load(struct nccl *f, struct err *err)
{
    const char *path = getenv("ATOLL_NCCL_LIBRARY");
    int version = 0;
    void *handle = dlopen(path && *path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        return err_set(err, STATUS_UNSUPPORTED,
                       "NCCL: cannot load libnccl.so.2 (%.200s): install NCCL, check LD_LIBRARY_PATH, or start one "
                       "worker per GPU",
                       why ? why : "unknown");
    }
    TRY(load_functions(handle, f, err));
    if (f->GetVersion(&version) != ncclSuccess || version < VERSION_MIN)
        return err_set(err, STATUS_UNSUPPORTED,
                       "NCCL: libnccl.so.2 is version %d.%d, but several GPUs in one worker need 2.19 or newer: update "
                       "it, or start one worker per GPU",
                       version / 10000, version % 10000 / 100);
    return STATUS_OK;
}

static enum status load_once(struct err *err)
{
    pthread_mutex_lock(&library.lock);
    enum status status = library.loaded ? STATUS_OK : load(&library.f, err);
    library.loaded = library.loaded || status == STATUS_OK;
    pthread_mutex_unlock(&library.lock);
    return status;
}

/* The caller holds c->lock. NCCL must not be queried while the communicator is aborted. */
static void set_broken(struct cuda_comm *c, ncclResult_t result)
{
    assert(result != ncclSuccess && result != ncclInProgress);
    const char *detail = c->ended ? NULL : library.f.GetLastError(c->comm);
    snprintf(c->why, sizeof c->why, "NCCL: %s%s%.200s", library.f.GetErrorString(result), detail && *detail ? ": " : "",
             detail ? detail : "");
    c->broken = true;
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* Polls the pending call. NCCL must not be queried while the communicator is aborted. */
static ncclResult_t poll_call(struct cuda_comm *c)
{
    ncclResult_t result = ncclRemoteError;
    pthread_mutex_lock(&c->lock);
    if (!c->ended && library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) result = ncclInternalError;
    pthread_mutex_unlock(&c->lock);
    return result;
}

/* Waits until a call is done and returns its result. Most calls finish at once. The first calls connect to the other
 * ranks; if a rank is missing, the watchdog ends the wait (gpu/cuda/comm/cuda_watchdog.h). */
static ncclResult_t wait_for_call(struct cuda_comm *c, ncclResult_t result)
{
    for (int n = 0; result == ncclInProgress && (result = poll_call(c)) == ncclInProgress; n += n < EAGER_POLLS) {
        if (cuda_rt_stopped(c->rt)) return ncclRemoteError;
        if (n < EAGER_POLLS)
            sched_yield();
        else
            pause_briefly();
    }
    return result;
}

static void set_inside(struct cuda_comm *c, bool inside)
{
    pthread_mutex_lock(&c->lock);
    c->inside = inside;
    pthread_mutex_unlock(&c->lock);
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static ncclResult_t start_all(struct cuda_rt *const *ranks, int n, struct cuda_comm **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId id;
    config.blocking = 0;
    ncclResult_t result = library.f.GetUniqueId(&id);
    if (result != ncclSuccess || (result = library.f.GroupStart()) != ncclSuccess) return result;
    for (int r = 0; r < n; r++) {
        (void)cuda_rt_stream(ranks[r], CUDA_COMM); /* selects the rank's device */
        ncclResult_t call_result = library.f.CommInitRankConfig(&out[r]->comm, n, id, r, &config);
        if (result == ncclSuccess && call_result != ncclInProgress) result = call_result;
    }
    ncclResult_t end = library.f.GroupEnd();
    return result == ncclSuccess && end != ncclInProgress ? end : result;
}

static enum status open_all(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    for (int r = 0; r < n; r++) set_inside(out[r], true); /* an abort has to wait for this thread, too */
    ncclResult_t result = start_all(ranks, n, out);
    for (int r = 0; r < n && result == ncclSuccess; r++) result = wait_for_call(out[r], ncclInProgress);
    for (int r = n; r-- > 0;) set_inside(out[r], false); /* last rank first: an abort frees it last */
    if (result == ncclSuccess) return STATUS_OK;
    return err_set(err, STATUS_IO,
                   "NCCL: cannot connect the %d GPUs of this worker: %s: set NCCL_DEBUG=INFO for details, or start one "
                   "worker per GPU",
                   n, library.f.GetErrorString(result));
}

enum status cuda_comm_check(struct err *err)
{
    return load_once(err);
}

enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    assert(n >= 1 && n <= COLLECTIVE_RANKS_MAX);
    TRY(load_once(err));
    for (int r = 0; r < n; r++) {
        out[r] = mem_alloc(1, sizeof *out[r]);
        if (!out[r]) return err_set(err, STATUS_NOMEM, "NCCL: out of memory");
        out[r]->rt = ranks[r];
        out[r]->rank = r;
        pthread_mutex_init(&out[r]->lock, NULL);
    }
    return open_all(ranks, n, out, err);
}

void cuda_comm_close(struct cuda_comm *c)
{
    if (!c) return;
    (void)cuda_rt_stream(c->rt, CUDA_COMM);
    if (c->comm) (void)library.f.CommDestroy(c->comm); /* all ranks have finished their calls */
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* True if the rank may call NCCL; then the caller has to call `done`. */
static bool begin(struct cuda_comm *c)
{
    pthread_mutex_lock(&c->lock);
    bool allowed = !c->ended && !c->broken && c->comm;
    assert(!c->inside);
    c->inside = allowed;
    pthread_mutex_unlock(&c->lock);
    return allowed;
}

static bool is_inside(struct cuda_comm *c)
{
    pthread_mutex_lock(&c->lock);
    bool inside = c->inside;
    pthread_mutex_unlock(&c->lock);
    return inside;
}

bool cuda_comm_failed(struct cuda_comm *c, struct err *why)
{
    ncclResult_t result = ncclSuccess;
    pthread_mutex_lock(&c->lock);
    bool idle = c->comm && !c->ended && !c->inside && !c->broken; /* a rank inside a call gets the error there */
    if (idle && library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) result = ncclInternalError;
    bool failed = result != ncclSuccess && result != ncclInProgress;
    if (failed) set_broken(c, result);
    failed = c->broken && !c->ended; /* the rank may otherwise notice only after it waited for ranks that wait for it */
    if (failed) err_set(why, STATUS_IO, "%s: %s", cuda_rt_name(c->rt), c->why);
    pthread_mutex_unlock(&c->lock);
    return failed;
}

static void abort_one(struct cuda_comm *c)
{
    if (c->comm) (void)library.f.CommAbort(c->comm);
}

/* A rank that is outside of NCCL. Ranks that only poll leave soon because all communicators are marked ended. After the
 * timeout it returns the last rank, n - 1. */
static int rank_outside(struct cuda_comm *const *comms, int n)
{
    for (long polls = OUT_POLLS; polls; polls--) {
        for (int r = 0; r < n; r++)
            if (!is_inside(comms[r])) return r;
        pause_briefly();
    }
    return n - 1;
}

/* The last abort frees all communicators, so the other ranks get time to leave NCCL before it. */
void cuda_comm_abort(struct cuda_comm *const *comms, int n)
{
    assert(n > 0);
    for (int r = 0; r < n; r++) {
        pthread_mutex_lock(&comms[r]->lock);
        comms[r]->ended = true;
        pthread_mutex_unlock(&comms[r]->lock);
    }
    int last = rank_outside(comms, n), inside = 0;
    for (int r = 0; r < n; r++)
        if (r != last) abort_one(comms[r]);
    for (long polls = LEAVE_POLLS; polls; polls--) {
        inside = 0;
        for (int r = 0; r < n; r++) inside += r != last && is_inside(comms[r]);
        if (!inside) break;
        pause_briefly();
    }
    abort_one(comms[last]);
    for (int r = 0; r < n; r++) comms[r]->comm = NULL;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* Ends a call that `begin` allowed. Enqueueing may take a while: the wait for a missing rank happens here or on the
 * device. */
static void done(struct cuda_comm *c, ncclResult_t result)
{
    char what[sizeof c->why];
    result = wait_for_call(c, result);
    pthread_mutex_lock(&c->lock);
    if (result != ncclSuccess) set_broken(c, result);
    snprintf(what, sizeof what, "%s", c->why);
    c->inside = false;
    pthread_mutex_unlock(&c->lock);
    if (result != ncclSuccess) cuda_rt_fail(c->rt, STATUS_IO, what);
}

void cuda_comm_run(struct cuda_comm *c, enum collective_op op, float *buf, size_t n)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    size_t own = (size_t)c->rank * n; /* this rank's share */
    if (!n || !begin(c)) return;
    if (op == COLLECTIVE_REDUCE_SCATTER)
        done(c, library.f.ReduceScatter(buf, buf + own, n, ncclFloat, ncclSum, c->comm, stream));
    else if (op == COLLECTIVE_ALL_GATHER)
        done(c, library.f.AllGather(buf + own, buf, n, ncclFloat, c->comm, stream));
    else
        done(c, library.f.AllReduce(buf, buf, n, ncclFloat, ncclSum, c->comm, stream));
}

/* All parts in one NCCL group: one or few launches that run concurrently. NCCL reports the result of grouped calls at
 * the end of the group. */
void cuda_comm_parts(struct cuda_comm *c, enum collective_op op, float *buf, const struct collective_part *parts,
                     size_t n_parts)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!n_parts || !begin(c)) return;
    ncclResult_t result = library.f.GroupStart();
    if (result != ncclSuccess) {
        done(c, result);
        return;
    }
    for (size_t i = 0; i < n_parts; i++) {
        const struct collective_part *p = &parts[i];
        float *at = buf + p->offset;
        if (!p->n) continue;
        ncclResult_t call_result = op == COLLECTIVE_REDUCE
                                       ? library.f.Reduce(at, at, p->n, ncclFloat, ncclSum, p->root, c->comm, stream)
                                       : library.f.Broadcast(at, at, p->n, ncclFloat, p->root, c->comm, stream);
        if (result == ncclSuccess && call_result != ncclInProgress) result = call_result;
    }
    ncclResult_t end = library.f.GroupEnd();
    done(c, result == ncclSuccess ? end : result);
}
