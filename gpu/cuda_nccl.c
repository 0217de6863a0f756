/* gpu/cuda_comm.h with NCCL, opened when several GPUs are asked for: programs start without it. Communicators do not
 * block (blocking = 0), so a call can be given up while it waits for a rank that is gone. */
#include "gpu/cuda_comm.h"

#ifdef ATOLL_NCCL

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <nccl.h>

#include "common/mem.h"

enum { VERSION_MIN = NCCL_VERSION(2, 18, 1), OPEN_SECONDS = 120, PAUSE_NS = 20000 };

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
    ncclComm_t comm; /* NULL after an abort */
    int rank;
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
            return err_set(err, STATUS_UNSUPPORTED, "NCCL: libnccl.so.2 has no %s: install NCCL 2.18 or newer, or "
                           "start a worker for each GPU", names[i]);
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
        return err_set(err, STATUS_UNSUPPORTED, "NCCL: several GPUs in one worker need libnccl.so.2, which cannot be "
                       "loaded (%.200s): install NCCL, see LD_LIBRARY_PATH, or start a worker for each GPU",
                       why ? why : "unknown");
    }
    TRY(load_functions(object, f, err));
    if (f->GetVersion(&version) != ncclSuccess || version < VERSION_MIN)
        return err_set(err, STATUS_UNSUPPORTED, "NCCL: libnccl.so.2 is version %d.%d, several GPUs in one worker need "
                       "2.18 or newer: update it, or start a worker for each GPU", version / 10000,
                       version % 10000 / 100);
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

static void fail(struct cuda_comm *c, ncclResult_t result)
{
    char what[300];
    const char *more = c->comm ? library.f.GetLastError(c->comm) : NULL;
    snprintf(what, sizeof what, "NCCL: %s%s%.200s", library.f.GetErrorString(result), more && *more ? ": " : "",
             more ? more : "");
    cuda_rt_fail(c->rt, STATUS_IO, what);
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

/* What became of a call: not ncclInProgress, unless `polls` (0: no limit) run out. The first calls connect to the other
 * ranks, which may never come: then the communicator is gone. */
static ncclResult_t settle(struct cuda_comm *c, ncclResult_t result, long polls)
{
    while (result == ncclInProgress) {
        if (library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) return ncclInternalError;
        if (result != ncclInProgress) break;
        if (polls && --polls == 0) break;
        if (cuda_rt_stopped(c->rt)) return ncclRemoteError;
        pause_briefly();
    }
    return result;
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
    ncclResult_t result = start_all(ranks, n, out);
    for (int r = 0; r < n && result == ncclSuccess; r++)
        result = settle(out[r], ncclInProgress, OPEN_SECONDS * (1000000000L / PAUSE_NS));
    if (result == ncclSuccess) return STATUS_OK;
    return err_set(err, STATUS_IO, "NCCL: the %d GPUs of this worker cannot be joined: %s; see NCCL_DEBUG=INFO, or "
                   "start a worker for each", n,
                   result == ncclInProgress ? "no answer" : library.f.GetErrorString(result));
}

enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    TRY(load_once(err));
    enum status status = STATUS_OK;
    for (int r = 0; r < n; r++) {
        out[r] = mem_alloc(1, sizeof *out[r]);
        if (!out[r])
            status = STATUS_NOMEM;
        else
            *out[r] = (struct cuda_comm){.rt = ranks[r], .rank = r};
    }
    status = status == STATUS_OK ? open_all(ranks, n, out, err) : err_set(err, status, "NCCL: out of memory");
    for (int r = 0; r < n && status != STATUS_OK; r++) {
        if (out[r]) cuda_comm_abort(out[r]);
        mem_free(out[r]);
    }
    return status;
}

void cuda_comm_close(struct cuda_comm *c)
{
    if (!c) return;
    (void)cuda_rt_stream(c->rt, CUDA_COMM);
    if (c->comm) (void)library.f.CommDestroy(c->comm); /* all ranks have done all they were asked to */
    mem_free(c);
}

bool cuda_comm_failed(struct cuda_comm *c)
{
    ncclResult_t result = ncclSuccess;
    if (!c->comm) return false;
    if (library.f.CommGetAsyncError(c->comm, &result) != ncclSuccess) result = ncclInternalError;
    if (result == ncclSuccess || result == ncclInProgress) return false;
    fail(c, result);
    return true;
}

void cuda_comm_abort(struct cuda_comm *c)
{
    if (!c->comm) return;
    (void)cuda_rt_stream(c->rt, CUDA_COMM);
    (void)library.f.CommAbort(c->comm);
    c->comm = NULL;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

/* Enqueueing may be in progress for a while; a rank that does not come is waited for here, or on the device. */
static void done(struct cuda_comm *c, ncclResult_t result)
{
    result = settle(c, result, 0);
    if (result != ncclSuccess) fail(c, result);
}

void cuda_comm_reduce_scatter(struct cuda_comm *c, float *buf, size_t share)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!c->comm || !share) return;
    done(c, library.f.ReduceScatter(buf, buf + (size_t)c->rank * share, share, ncclFloat, ncclSum, c->comm, stream));
}

void cuda_comm_all_gather(struct cuda_comm *c, float *buf, size_t share)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!c->comm || !share) return;
    done(c, library.f.AllGather(buf + (size_t)c->rank * share, buf, share, ncclFloat, c->comm, stream));
}

void cuda_comm_all_reduce(struct cuda_comm *c, float *buf, size_t n)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!c->comm || !n) return;
    done(c, library.f.AllReduce(buf, buf, n, ncclFloat, ncclSum, c->comm, stream));
}

/* All parts in one group: one launch, or few, with all of them under way at a time. What a call in a group comes to is
 * known at the group's end. */
static void group(struct cuda_comm *c, float *buf, const struct collective_part *parts, size_t n_parts, bool sum)
{
    cudaStream_t stream = cuda_rt_stream(c->rt, CUDA_COMM);
    if (!c->comm || !n_parts) return;
    ncclResult_t result = library.f.GroupStart();
    if (result != ncclSuccess) {
        fail(c, result);
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

#else /* built without nccl.h */

enum status cuda_comm_open(struct cuda_rt *const *ranks, int n, struct cuda_comm **out, struct err *err)
{
    (void)ranks;
    (void)n;
    (void)out;
    return err_set(err, STATUS_UNSUPPORTED, "NCCL: this build has none (nccl.h was not found): install NCCL and build "
                   "again, or start a worker for each GPU");
}

void cuda_comm_close(struct cuda_comm *comm)
{
    (void)comm;
}

bool cuda_comm_failed(struct cuda_comm *comm)
{
    (void)comm;
    return false;
}

void cuda_comm_abort(struct cuda_comm *comm)
{
    (void)comm;
}

void cuda_comm_reduce_scatter(struct cuda_comm *comm, float *buf, size_t share)
{
    (void)comm;
    (void)buf;
    (void)share;
}

void cuda_comm_all_gather(struct cuda_comm *comm, float *buf, size_t share)
{
    (void)comm;
    (void)buf;
    (void)share;
}

void cuda_comm_all_reduce(struct cuda_comm *comm, float *buf, size_t n)
{
    (void)comm;
    (void)buf;
    (void)n;
}

void cuda_comm_reduce(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts)
{
    (void)comm;
    (void)buf;
    (void)parts;
    (void)n_parts;
}

void cuda_comm_broadcast(struct cuda_comm *comm, float *buf, const struct collective_part *parts, size_t n_parts)
{
    (void)comm;
    (void)buf;
    (void)parts;
    (void)n_parts;
}

#endif
