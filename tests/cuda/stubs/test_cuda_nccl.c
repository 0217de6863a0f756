/* Tests gpu/cuda/comm/cuda_nccl.c on stubs of NCCL and the CUDA runtime (nccl_stub.c, cudart_stub.h): accepted
 * versions, results of the collectives, and the end of all waits if a rank is refused, breaks, never joins or hangs in
 * a call. ctest: timeout=60 */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <nccl.h>

#include "common/base/mem.h"
#include "gpu/cuda/comm/cuda_comm.h"
#include "gpu/cuda/rt/cuda_rt_impl.h"
#include "tests/cuda/stubs/cudart_stub.h"
#include "tests/lib/device/emulated_plugin.h"

enum { RANKS = 3, N = 60 };

struct rank {
    int index;
    struct cuda_rt *rt;
    struct cuda_comm *comm;
    float *buf;     /* [N] */
    float own[N];   /* initial content of buf */
    struct err err; /* error of the rank */
};

static struct rank ranks[RANKS];
static const char *stub_path;
static atomic_uint aborted; /* ends the waits of the host */
static atomic_int n_done;   /* ranks that finished their work */
static struct err why;

static int set_up(void **state)
{
    (void)state;
    stub_path = beside_program("libnccl_stub.so");
    alarm(20); /* turns a hang into a failure */
    (void)setenv("ATOLL_ALGO_CACHE", "/dev/null", 1);
    cudart_stub.gpus = RANKS;
    err_set(&why, STATUS_CLOSED, "another GPU failed");
    return 0;
}

static const struct err *stopped(void *ctx)
{
    (void)ctx;
    return atomic_load(&aborted) ? &why : NULL;
}

static float number(int rank, size_t i)
{
    return (float)((rank + 1) * 100) + (float)i;
}

/* ---- a worker with several GPUs ---------------------------------------------------------------------------------- */

static enum status join(struct err *err)
{
    struct cuda_rt *rt[RANKS];
    struct cuda_comm *comm[RANKS] = {0};
    char name[64];
    atomic_store(&aborted, 0);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){.index = r};
        for (size_t i = 0; i < N; i++) ranks[r].own[i] = number(r, i); /* kept, because copies may read it late */
        if (cuda_rt_open(r, &ranks[r].rt, name, sizeof name, err) != STATUS_OK) fail_msg("%s", err->msg);
        rt[r] = ranks[r].rt;
        cuda_rt_watch(rt[r], stopped, NULL);
        ranks[r].buf = cuda_rt_alloc(rt[r], N * sizeof(float));
        if (cuda_rt_sync(rt[r], err) != STATUS_OK) fail_msg("%s", err->msg);
    }
    enum status status = cuda_comm_open(rt, RANKS, comm, err);
    for (int r = 0; r < RANKS; r++) ranks[r].comm = comm[r];
    return status;
}

static void join_well(void)
{
    struct err err = {.code = STATUS_OK};
    (void)setenv("ATOLL_NCCL_LIBRARY", stub_path, 1);
    if (join(&err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void abort_all(void)
{
    struct cuda_comm *comm[RANKS];
    for (int r = 0; r < RANKS; r++) comm[r] = ranks[r].comm;
    atomic_store(&aborted, 1);
    cuda_comm_abort(comm, RANKS);
}

static void leave(void)
{
    for (int r = 0; r < RANKS; r++) cuda_comm_close(ranks[r].comm);
    for (int r = 0; r < RANKS; r++) {
        cuda_rt_release(ranks[r].rt, ranks[r].buf);
        cuda_rt_close(ranks[r].rt);
    }
    cuda_comm_close(NULL);
    assert_int_equal(mem_live_bytes(), 0);
    assert_int_equal(cudart_faults.left, 0);
}

/* Work of each rank, in a thread per rank as in a worker. */
static void (*work)(struct rank *rank);

static void *thread_main(void *arg)
{
    struct rank *rank = arg;
    work(rank);
    if (cuda_rt_sync(rank->rt, &rank->err) == STATUS_OK) rank->err.code = STATUS_OK;
    atomic_fetch_add(&n_done, 1);
    return NULL;
}

static void begin(pthread_t threads[RANKS], void (*run)(struct rank *rank))
{
    work = run;
    atomic_store(&n_done, 0);
    for (int r = 0; r < RANKS; r++)
        if (pthread_create(&threads[r], NULL, thread_main, &ranks[r])) fail_msg("cannot start a thread");
}

static void end(pthread_t threads[RANKS])
{
    for (int r = 0; r < RANKS; r++) (void)pthread_join(threads[r], NULL);
}

static void all(void (*run)(struct rank *rank))
{
    pthread_t threads[RANKS];
    begin(threads, run);
    end(threads);
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].err.code != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].err.msg);
}

/* ---- the library ------------------------------------------------------------------------------------------------- */

static void refuses(const char *library, const char *version, const char *line)
{
    struct err err = {.code = STATUS_OK};
    (void)setenv("ATOLL_NCCL_LIBRARY", library, 1);
    (void)setenv("ATOLL_STUB_NCCL_VERSION", version, 1);
    assert_int_equal(cuda_comm_check(&err), STATUS_UNSUPPORTED);
    if (!strstr(err.msg, line)) fail_msg("%s", err.msg);
    (void)unsetenv("ATOLL_STUB_NCCL_VERSION");
}

/* Runs first, because a loaded library stays. */
static void test_libraries(void **state)
{
    (void)state;
    struct err err = {.code = STATUS_OK};
    refuses("/nowhere/libnccl.so.2", "", "NCCL: cannot load libnccl.so.2 (/nowhere/libnccl.so.2: ");
    refuses("libm.so.6", "",
            "NCCL: libnccl.so.2 lacks ncclGetVersion: install NCCL 2.19 or newer, or start one worker "
            "per GPU");
    refuses(stub_path, "21805",
            "NCCL: libnccl.so.2 is version 2.18, but several GPUs in one worker need 2.19 or newer: "
            "update it, or start one worker per GPU");
    refuses(stub_path, "21900", "NCCL: libnccl.so.2 is version 2.19");
    (void)setenv("ATOLL_STUB_NCCL_VERSION", "21901", 1);
    assert_int_equal(cuda_comm_check(&err), STATUS_OK);
    (void)unsetenv("ATOLL_STUB_NCCL_VERSION");
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static float sum(size_t i)
{
    float all = 0;
    for (int r = 0; r < RANKS; r++) all += number(r, i);
    return all;
}

static void fill(struct rank *rank)
{
    cuda_rt_copy_on(rank->rt, CUDA_COMM, rank->buf, rank->own, sizeof rank->own, CUDA_UPLOAD);
}

/* Check that every rank's buffer holds want(rank, i). */
static void check(float (*want)(int rank, size_t i))
{
    for (int r = 0; r < RANKS; r++)
        for (size_t i = 0; i < N; i++)
            if (ranks[r].buf[i] != want(r, i))
                fail_msg("rank %d, %zu: %g, expected %g", r, i, (double)ranks[r].buf[i], (double)want(r, i));
}

static void reduce_scatter(struct rank *rank)
{
    fill(rank);
    cuda_comm_run(rank->comm, COLLECTIVE_REDUCE_SCATTER, rank->buf, 0);
    cuda_comm_run(rank->comm, COLLECTIVE_REDUCE_SCATTER, rank->buf, N / RANKS);
}

static float scattered(int rank, size_t i)
{
    return i / (N / RANKS) == (size_t)rank ? sum(i) : number(rank, i);
}

static void all_gather(struct rank *rank)
{
    fill(rank);
    cuda_comm_run(rank->comm, COLLECTIVE_ALL_GATHER, rank->buf, 0);
    cuda_comm_run(rank->comm, COLLECTIVE_ALL_GATHER, rank->buf, N / RANKS - 1); /* shorter than the buffer */
}

static float gathered(int rank, size_t i)
{
    return i < N - RANKS ? number((int)(i / (N / RANKS - 1)), i) : number(rank, i);
}

static void all_reduce(struct rank *rank)
{
    fill(rank);
    cuda_comm_run(rank->comm, COLLECTIVE_ALL_REDUCE, rank->buf, 0);
    cuda_comm_run(rank->comm, COLLECTIVE_ALL_REDUCE, rank->buf, N - 7);
}

static float reduced(int rank, size_t i)
{
    return i < N - 7 ? sum(i) : number(rank, i);
}

static const struct collective_part parts[] = {{.offset = 0, .n = 11, .root = 2},
                                               {.offset = 11, .n = 0, .root = 1},
                                               {.offset = 11, .n = 20, .root = 0},
                                               {.offset = 40, .n = 1, .root = 2},
                                               {.offset = 41, .n = 9, .root = 1}};
enum { PARTS = sizeof parts / sizeof *parts };

static const struct collective_part *part_of(size_t i)
{
    for (size_t p = 0; p < PARTS; p++)
        if (i >= parts[p].offset && i - parts[p].offset < parts[p].n) return &parts[p];
    return NULL;
}

static void reduce(struct rank *rank)
{
    fill(rank);
    cuda_comm_parts(rank->comm, COLLECTIVE_REDUCE, rank->buf, NULL, 0);
    cuda_comm_parts(rank->comm, COLLECTIVE_REDUCE, rank->buf, parts, PARTS);
}

static float reduced_to_root(int rank, size_t i)
{
    const struct collective_part *part = part_of(i);
    return part && part->root == rank ? sum(i) : number(rank, i);
}

static void broadcast(struct rank *rank)
{
    fill(rank);
    cuda_comm_parts(rank->comm, COLLECTIVE_BROADCAST, rank->buf, parts, PARTS);
}

static float from_root(int rank, size_t i)
{
    const struct collective_part *part = part_of(i);
    return number(part ? part->root : rank, i);
}

static void test_collectives(void **state)
{
    (void)state;
    join_well();
    for (int again = 0; again < 2; again++) {
        all(reduce_scatter);
        check(scattered);
        all(all_gather);
        check(gathered);
        all(all_reduce);
        check(reduced);
        all(reduce);
        check(reduced_to_root);
        all(broadcast);
        check(from_root);
    }
    struct err err = {.code = STATUS_OK};
    for (int r = 0; r < RANKS; r++) assert_false(cuda_comm_failed(ranks[r].comm, &err));
    leave();
}

/* ---- failures ---------------------------------------------------------------------------------------------------- */

/* Wait until the rank probably waits on its device. */
static void until_it_waits(const struct rank *rank)
{
    while (!atomic_load(&cuda_rt_progress(rank->rt)->waits)) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void goes_wrong(const char *name, const char *how)
{
    (void)setenv(name, how, 1);
}

static void test_cannot_join(void **state)
{
    (void)state;
    struct err err = {.code = STATUS_OK};
    goes_wrong("ATOLL_STUB_NCCL_JOIN", "refused");
    assert_int_equal(join(&err), STATUS_IO);
    assert_string_equal(err.msg, "NCCL: cannot connect the 3 GPUs of this worker: unhandled system error: set "
                                 "NCCL_DEBUG=INFO for details, or start one worker per GPU");
    (void)unsetenv("ATOLL_STUB_NCCL_JOIN");
    abort_all();
    leave();
}

/* A rank that is stopped, here at its first poll, does not wait for the others to join. */
static const struct err *at_once(void *ctx)
{
    (void)ctx;
    return &why;
}

static void test_never_joins(void **state)
{
    (void)state;
    struct cuda_rt *rt[RANKS];
    struct cuda_comm *comm[RANKS];
    struct err err = {.code = STATUS_OK};
    join_well();
    for (int r = 0; r < RANKS; r++) cuda_comm_close(ranks[r].comm);
    goes_wrong("ATOLL_STUB_NCCL_JOIN", "never");
    for (int r = 0; r < RANKS; r++) {
        rt[r] = ranks[r].rt;
        cuda_rt_watch(rt[r], at_once, NULL);
    }
    assert_int_equal(cuda_comm_open(rt, RANKS, comm, &err), STATUS_IO);
    assert_non_null(strstr(err.msg, "cannot connect the 3 GPUs of this worker: remote process exited"));
    for (int r = 0; r < RANKS; r++) ranks[r].comm = comm[r];
    (void)unsetenv("ATOLL_STUB_NCCL_JOIN");
    abort_all();
    leave();
}

/* One rank's call is refused: its error has the reason; the others wait on their devices until their abort. */
static void test_refused(void **state)
{
    (void)state;
    pthread_t threads[RANKS];
    join_well();
    goes_wrong("ATOLL_STUB_NCCL_REFUSE", "1:2");
    all(all_reduce);
    begin(threads, all_reduce);
    (void)pthread_join(threads[1], NULL);
    assert_int_equal(ranks[1].err.code, STATUS_IO);
    assert_string_equal(ranks[1].err.msg, "device cuda:1 Stub 1: NCCL: unhandled system error: as the test wanted");
    until_it_waits(&ranks[0]);
    until_it_waits(&ranks[2]);
    abort_all();
    (void)pthread_join(threads[0], NULL);
    (void)pthread_join(threads[2], NULL);
    assert_int_equal(ranks[0].err.code, STATUS_CLOSED);
    assert_string_equal(ranks[2].err.msg, "device cuda:2 Stub 2: stopped: another GPU failed");
    all_reduce(&ranks[0]); /* no effect after the abort */
    (void)unsetenv("ATOLL_STUB_NCCL_REFUSE");
    leave();
}

static void reduce_and_scatter(struct rank *rank)
{
    all_reduce(rank);
    reduce_scatter(rank);
}

static struct stub_faults *faults_of_stub(void)
{
    void *stub = dlopen(stub_path, RTLD_NOW), *found = stub ? dlsym(stub, "nccl_faults") : NULL;
    assert_non_null(found);
    return found;
}

/* NCCL may not report a failed call. A later call of that rank would then match the pending call of the others. */
static void test_nothing_behind_a_failure(void **state)
{
    (void)state;
    struct stub_faults *f = faults_of_stub();
    pthread_t threads[RANKS];
    int refused = 0, closed = 0;
    alarm(20);
    join_well();
    f->call = "ncclAllReduce";
    f->status = ncclSystemError;
    f->after = 1;
    begin(threads, reduce_and_scatter);
    while (atomic_load(&n_done) == 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].err.code == STATUS_OK) until_it_waits(&ranks[r]);
    abort_all();
    end(threads);
    for (int r = 0; r < RANKS; r++) {
        refused += ranks[r].err.code == STATUS_IO;
        closed += ranks[r].err.code == STATUS_CLOSED;
    }
    assert_int_equal(refused, 1);
    assert_int_equal(closed, RANKS - 1);
    leave();
    alarm(0);
}

/* The same as part of a group. */
static void test_refused_in_a_group(void **state)
{
    (void)state;
    pthread_t threads[RANKS];
    join_well();
    goes_wrong("ATOLL_STUB_NCCL_REFUSE", "2:3");
    begin(threads, reduce);
    (void)pthread_join(threads[2], NULL);
    assert_int_equal(ranks[2].err.code, STATUS_IO);
    assert_non_null(strstr(ranks[2].err.msg, "unhandled system error"));
    abort_all();
    (void)pthread_join(threads[0], NULL);
    (void)pthread_join(threads[1], NULL);
    (void)unsetenv("ATOLL_STUB_NCCL_REFUSE");
    leave();
}

/* Communication breaks asynchronously: any thread that polls gets the error with the name of the device. */
static void test_breaks(void **state)
{
    (void)state;
    pthread_t threads[RANKS];
    struct err err = {.code = STATUS_OK};
    join_well();
    goes_wrong("ATOLL_STUB_NCCL_BREAK", "2:1");
    begin(threads, all_reduce);
    for (int look = 0; !cuda_comm_failed(ranks[2].comm, &err); look++) {
        if (look == 2000) fail_msg("the poll does not report the failure");
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    assert_string_equal(err.msg, "device cuda:2 Stub 2: NCCL: remote process exited or there was a network error: as "
                                 "the test wanted");
    assert_false(cuda_comm_failed(ranks[0].comm, &err));
    abort_all();
    end(threads);
    for (int r = 0; r < RANKS; r++) assert_int_not_equal(ranks[r].err.code, STATUS_OK);
    assert_false(cuda_comm_failed(ranks[2].comm, &err)); /* aborted */
    (void)unsetenv("ATOLL_STUB_NCCL_BREAK");
    leave();
}

static const struct err *never(void *ctx)
{
    (void)ctx;
    return NULL;
}

/* A rank hangs in its call. Only an abort by another thread ends the call, and it frees nothing before. No stop reaches
 * the rank. */
static void stalls(const char *name, const char *which)
{
    pthread_t threads[RANKS];
    struct err err = {.code = STATUS_OK};
    int (*stuck)(void);
    join_well();
    void *stub = dlopen(stub_path, RTLD_NOW | RTLD_NOLOAD), *found = stub ? dlsym(stub, "nccl_stub_stuck") : NULL;
    assert_non_null(found);
    memcpy(&stuck, &found, sizeof found);
    int before = stuck();
    goes_wrong(name, which);
    cuda_rt_watch(ranks[which[0] - '0'].rt, never, NULL);
    begin(threads, all_reduce);
    while (stuck() == before) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (int r = 0; r < RANKS; r++) assert_false(cuda_comm_failed(ranks[r].comm, &err));
    abort_all();
    end(threads);
    for (int r = 0; r < RANKS; r++) assert_int_not_equal(ranks[r].err.code, STATUS_OK);
    (void)unsetenv(name);
    leave();
}

static void test_stalls(void **state)
{
    (void)state;
    stalls("ATOLL_STUB_NCCL_STALL", "0:1");
    stalls("ATOLL_STUB_NCCL_BLOCK", "2:1");
}

static void everything(struct rank *rank)
{
    reduce_scatter(rank);
    all_gather(rank);
    all_reduce(rank);
    reduce(rank);
    broadcast(rank);
}

/* Run all collectives; the watching thread aborts all ranks after a failure. Returns whether one failed. */
static bool live(void)
{
    pthread_t threads[RANKS];
    struct err err = {.code = STATUS_OK};
    alarm(20);
    bool failed = join(&err) != STATUS_OK;
    if (failed && strncmp(err.msg, "NCCL: cannot connect the 3 GPUs of this worker: ", 48) != 0)
        fail_msg("%s", err.msg);
    if (failed) {
        abort_all();
        leave();
        return true;
    }
    begin(threads, everything);
    while (atomic_load(&n_done) < RANKS) {
        bool fails = false;
        for (int r = 0; r < RANKS && !failed; r++) fails = fails || cuda_comm_failed(ranks[r].comm, &err);
        if (fails && !strstr(err.msg, "Stub")) fail_msg("%s", err.msg);
        if (fails) abort_all();
        failed = failed || fails;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    end(threads);
    for (int r = 0; r < RANKS && !failed; r++)
        if (ranks[r].err.code != STATUS_OK) fail_msg("rank %d: %s", r, ranks[r].err.msg);
    if (!failed) check(from_root);
    leave();
    return failed;
}

/* Ranks wait for a failed rank, so the watching thread must notice the failure. NCCL may not report it later. */
static void each_fails(struct stub_faults *f, ncclResult_t status, const char *call)
{
    unsigned lives = 0, ended = 0;
    bool reached = true;
    for (unsigned long nth = 1; reached; nth++, lives++) {
        f->call = call;
        f->status = (int)status;
        f->after = nth;
        bool failed = live();
        reached = !f->after;
        if (failed && !reached) fail_msg("ended with an error without a failed call");
        if (f->left) fail_msg("call %lu (%s): %zu communicators left", nth, f->failed_in, f->left);
        ended += failed;
    }
    f->after = 0;
    assert_true(lives > 20 && ended > 20);
}

static void test_each_fails(void **state)
{
    (void)state;
    struct stub_faults *f = faults_of_stub();
    (void)setenv("ATOLL_NCCL_LIBRARY", stub_path, 1);
    each_fails(f, ncclSystemError, NULL);
    each_fails(f, ncclInProgress, "ncclCommGetAsyncError");
}

int main(int argc, char **argv)
{
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_libraries),
                                       cmocka_unit_test(test_collectives),
                                       cmocka_unit_test(test_cannot_join),
                                       cmocka_unit_test(test_never_joins),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_refused_in_a_group),
                                       cmocka_unit_test(test_breaks),
                                       cmocka_unit_test(test_stalls),
                                       cmocka_unit_test(test_nothing_behind_a_failure),
                                       cmocka_unit_test(test_each_fails)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
