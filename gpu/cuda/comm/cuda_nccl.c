/* gpu/cuda/comm/cuda_comm.h with NCCL, opened when several GPUs are asked for: programs start without it. Communicators
 * do not block (blocking = 0), so a call can be given up while it waits for a rank that is gone.
 *
 * About ncclCommAbort: it sets a flag that the kernels of one communicator read, so every communicator needs one.
 * Another thread than the rank's may call it (well since 2.19.1, NVIDIA/nccl issue 992). In one process nothing is
 * freed before the last communicator of a group is aborted, which then frees them all: ranks that are inside of a call
 * come out of it before that (cuda_comm_abort).
 *
 * Everything else is one thread's at a time: NCCL promises nothing to two in one communicator, and in 2.28 whoever asks
 * how a call stands also joins the thread that does it. So a rank asks about its own calls, under the communicator's
 * lock, and others ask when it is in none. */
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
    EAGER_POLLS = 50, /* without a pause */
    PAUSE_NS = 20000,
    POLLS_A_SECOND = 1000000000 / PAUSE_NS,
    OUT_POLLS = POLLS_A_SECOND / 10,
    LEAVE_POLLS = 5 * POLLS_A_SECOND
};

/* The functions that are used, by the name that they have in the library. */
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
    ncclComm_t comm; /* NULL: not joined, or aborted */
    int rank;
    pthread_mutex_t lock;
    bool inside, ended; /* its rank is in a call with it; no more calls */
    bool broken;        /* a call failed: the rank makes no more, which others would meet in the place of that one */
    char why[300];      /* it did */
};

static enum status load_functions(void *object, struct nccl *f, struct err *err)
{
    static const char *const names[] = {
        "ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommDestroy",
        "ncclCommAbort",  "ncclGroupStart",  "ncclGroupEnd",           "ncclReduceScatter",     "ncclAllGather",
        "ncclAllReduce",  "ncclReduce",      "ncclBroadcast",          "ncclGetErrorString",    "ncclGetLastError",
    };
    void **slots = (void **)f;
    _Static_assert(sizeof names / sizeof *names == sizeof *f / sizeof *slots, "a name for every function");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!(slots[i] = dlsym(object, names[i])))
            return err_set(err, STATUS_UNSUPPORTED,
                           "NCCL: libnccl.so.2 has no %s: install NCCL 2.19 or newer, or "
                           "start a worker for each GPU",
                           names[i]);
    return STATUS_OK;
}

/* ATOLL_NCCL_LIBRARY names another file. */
static enum status load(struct nccl *f, struct err *err)
{
    const char *path = getenv("ATOLL_NCCL_LIBRARY");
    int version = 0;
    void *object = dlopen(path && *path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!object) {
        const char *why = dlerror();
        return err_set(err, STATUS_UNSUPPORTED,
                       "NCCL: several GPUs in one worker need libnccl.so.2, which cannot be "
                       "loaded (%.200s): install NCCL, see LD_LIBRARY_PATH, or start a worker for each GPU",
                       why ? why : "unknown");
    }
    TRY(load_functions(object, f, err));
    if (f->GetVersion(&version) != ncclSuccess || version < VERSION_MIN)
        return err_set(err, STATUS_UNSUPPORTED,
                       "NCCL: libnccl.so.2 is version %d.%d, several GPUs in one worker need "
                       "2.19 or newer: update it, or start a worker for each GPU",
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

/* Under its lock: one that is being aborted is not asked. */
static void broke(struct cuda_comm *c, ncclResult_t result)
{
    assert(result != ncclSuccess && result != ncclInProgress);
    const char *more = c->ended ? NULL : library.f.GetLastError(c->comm);
    snprintf(c->why, sizeof c->why, "NCCL: %s%s%.200s", library.f.GetErrorString(result), more && *more ? ": " : "",
             more ? more : "");
    c->broken = true;
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* How its call stands. One that is being aborted is not asked. */
static ncclResult_t ask(struct cuda_comm *c)
{
    ncclResult_t result = ncclRemoteError;
    pthread_mutex_lock(&c->lock);
    if (!c->ended && library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) result = ncclInternalError;
    pthread_mutex_unlock(&c->lock);
    return result;
}

/* What became of a call. Most are over at once; the first ones connect to the other ranks, which may never come: then
 * whoever looks after the ranks ends the wait (gpu/cuda/comm/cuda_watchdog.h). */
static ncclResult_t settle(struct cuda_comm *c, ncclResult_t result)
{
    for (int n = 0; result == ncclInProgress && (result = ask(c)) == ncclInProgress; n += n < EAGER_POLLS) {
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
        (void)cuda_rt_stream(ranks[r], CUDA_COMM); /* its device is the current one now */
        ncclResult_t one = library.f.CommInitRankConfig(&out[r]->comm, n, id, r, &config);
        if (result == ncclSuccess && one != ncclInProgress) result = one;
    }
    ncclResult_t end = library.f.GroupEnd();
    return result == ncclSuccess && end != ncclInProgress ? end : result;
}

static enum status open_all(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    for (int r = 0; r < n; r++) set_inside(out[r], true); /* an abort waits for this thread, too */
    ncclResult_t result = start_all(ranks, n, out);
    for (int r = 0; r < n && result == ncclSuccess; r++) result = settle(out[r], ncclInProgress);
    for (int r = n; r-- > 0;) set_inside(out[r], false); /* the last one first: it is freed when the others are out */
    if (result == ncclSuccess) return STATUS_OK;
    return err_set(err, STATUS_IO,
                   "NCCL: the %d GPUs of this worker cannot be joined: %s; see NCCL_DEBUG=INFO, or "
                   "start a worker for each",
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
    if (c->comm) (void)library.f.CommDestroy(c->comm); /* all ranks have done all they were asked to */
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

/* The rank may call into NCCL, up to `done`. */
static bool begin(struct cuda_comm *c)
{
    pthread_mutex_lock(&c->lock);
    bool may = !c->ended && !c->broken && c->comm;
    assert(!c->inside);
    c->inside = may;
    pthread_mutex_unlock(&c->lock);
    return may;
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
    bool idle = c->comm && !c->ended && !c->inside && !c->broken; /* a rank that is inside learns it there */
    if (idle && library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) result = ncclInternalError;
    bool failed = result != ncclSuccess && result != ncclInProgress;
    if (failed) broke(c, result);
    failed = c->broken && !c->ended; /* its rank need not learn it before it waits for others, which wait for it */
    if (failed) err_set(why, STATUS_IO, "%s: %s", cuda_rt_name(c->rt), c->why);
    pthread_mutex_unlock(&c->lock);
    return failed;
}

static void abort_one(struct cuda_comm *c)
{
    if (c->comm) (void)library.f.CommAbort(c->comm);
}

/* One whose rank is not inside, if there is one soon: ranks that only ask how their calls stand come out by themselves,
 * since all are ended. */
static int one_outside(struct cuda_comm *const *comms, int n)
{
    for (long polls = OUT_POLLS; polls; polls--) {
        for (int r = 0; r < n; r++)
            if (!is_inside(comms[r])) return r;
        pause_briefly();
    }
    return n - 1;
}

/* The last one frees all, so the others get time to come out before it. */
void cuda_comm_abort(struct cuda_comm *const *comms, int n)
{
    assert(n > 0);
    for (int r = 0; r < n; r++) {
        pthread_mutex_lock(&comms[r]->lock);
        comms[r]->ended = true;
        pthread_mutex_unlock(&comms[r]->lock);
    }
    int last = one_outside(comms, n), inside = 0;
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

/* Enqueueing may be in progress for a while; a rank that does not come is waited for here, or on the device. */
static void done(struct cuda_comm *c, ncclResult_t result)
{
    char what[sizeof c->why];
    result = settle(c, result);
    pthread_mutex_lock(&c->lock);
    if (result != ncclSuccess) broke(c, result);
    snprintf(what, sizeof what, "%s", c->why);
    c->inside = false;
    pthread_mutex_unlock(&c->lock);
    if (result != ncclSuccess) cuda_rt_fail(c->rt, STATUS_IO, what);
}

void cuda_comm_reduce_scatter(struct cuda_comm *c, float *buf, size_t share)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!share || !begin(c)) return;
    done(c, library.f.ReduceScatter(buf, buf + (size_t)c->rank * share, share, ncclFloat, ncclSum, c->comm, stream));
}

void cuda_comm_all_gather(struct cuda_comm *c, float *buf, size_t share)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!share || !begin(c)) return;
    done(c, library.f.AllGather(buf + (size_t)c->rank * share, buf, share, ncclFloat, c->comm, stream));
}

void cuda_comm_all_reduce(struct cuda_comm *c, float *buf, size_t n)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!n || !begin(c)) return;
    done(c, library.f.AllReduce(buf, buf, n, ncclFloat, ncclSum, c->comm, stream));
}

/* All parts in one group: one launch, or few, with all of them under way at a time. What a call in a group comes to is
 * known at the group's end. */
static void group(struct cuda_comm *c, float *buf, const struct collective_part *parts, size_t n_parts, bool sum)
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
        ncclResult_t one = sum ? library.f.Reduce(at, at, p->n, ncclFloat, ncclSum, p->root, c->comm, stream)
                               : library.f.Broadcast(at, at, p->n, ncclFloat, p->root, c->comm, stream);
        if (result == ncclSuccess && one != ncclInProgress) result = one;
    }
    ncclResult_t end = library.f.GroupEnd();
    done(c, result == ncclSuccess ? end : result);
}

void cuda_comm_reduce(struct cuda_comm *c, float *buf, const struct collective_part *parts, size_t n_parts)
{
    group(c, buf, parts, n_parts, true);
}

void cuda_comm_broadcast(struct cuda_comm *c, float *buf, const struct collective_part *parts, size_t n_parts)
{
    group(c, buf, parts, n_parts, false);
}
