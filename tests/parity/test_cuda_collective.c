/* Tests collectives of emulated GPUs, one thread per rank:
 * - Sums have the bits of the rank order for every order of the queues, also with other work in flight.
 * - The emulator reports a missing wait.
 * - A rank that fails or aborts ends the waits of the others.
 * The tests run no kernels, so that ThreadSanitizer can follow them. ctest: labels=threads */
#include <pthread.h>

#include "common/base/mem.h"
#include "gpu/collective.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/test.h"

enum { RANKS = 4, SHARE = 37, SEEDS = 6 };

struct rank {
    struct collective *coll;
    struct device *dev;
    float *x, *y; /* [n_ranks * SHARE] */
    float host[RANKS * SHARE], back[RANKS * SHARE];
    enum status status;
    struct err err;
    pthread_t thread;
};

static struct rig {
    int n;
    struct device *devices[RANKS];
    struct collective colls[RANKS];
    struct rank ranks[RANKS];
} rig;

static float value(int rank, int i)
{
    return 1.0f / (float)(1 + rank * 131 + i * 7); /* the sums depend on the order */
}

static void open_rig(int n, unsigned seed, const char *fails)
{
    struct err err = {0};
    setenv("ATOLL_EMULATED_GPUS", "4", 1);
    setenv("ATOLL_EMULATED_FAIL", fails, 1);
    memset(&rig, 0, sizeof rig);
    rig.n = n;
    for (int r = 0; r < n; r++) {
        emulate_queue_order(seed ? seed + (unsigned)r : 0);
        if (atoll_cuda_plugin.open(r, &rig.devices[r], &err) != STATUS_OK) fail_msg("%s", err.msg);
    }
    if (collective_open(rig.devices, n, NULL, rig.colls, &err) != STATUS_OK) fail_msg("%s", err.msg);
    for (int r = 0; r < n; r++) {
        struct rank *k = &rig.ranks[r];
        k->dev = rig.devices[r];
        k->coll = &rig.colls[r];
        k->x = k->dev->ops->alloc(k->dev, sizeof k->host);
        k->y = k->dev->ops->alloc(k->dev, sizeof k->host);
        emulate_name(k->dev, k->x, "x");
        for (int i = 0; i < n * SHARE; i++) k->host[i] = value(r, i);
    }
}

static void close_rig(void)
{
    collective_close(rig.colls);
    for (int r = 0; r < rig.n; r++) device_close(rig.devices[r]);
    assert_int_equal(mem_live_bytes(), 0);
}

static void each(void *(*body)(void *rank))
{
    for (int r = 0; r < rig.n; r++)
        assert_int_equal(pthread_create(&rig.ranks[r].thread, NULL, body, &rig.ranks[r]), 0);
    for (int r = 0; r < rig.n; r++) pthread_join(rig.ranks[r].thread, NULL);
}

static float total(int i)
{
    float sum = value(0, i);
    for (int r = 1; r < rig.n; r++) sum += value(r, i);
    return sum;
}

/* Send odd parts of y to their owners during an upload to x, then back to all ranks; one part has no owner. */
static enum status owners(struct rank *k)
{
    const struct collective_ops *ops = k->coll->ops;
    size_t n = (size_t)rig.n * SHARE, bytes = n * sizeof(float);
    const struct collective_part parts[] = {{.offset = 0, .n = 5, .root = rig.n - 1},
                                            {.offset = 5, .n = SHARE, .root = 0},
                                            {.offset = 6 + SHARE, .n = n - 6 - SHARE, .root = rig.n - 1}};
    k->dev->ops->upload(k->dev, k->y, k->host, bytes);
    TRY(ops->start_parts(k->coll, COLLECTIVE_REDUCE, k->y, parts, 3, 5));
    k->dev->ops->upload(k->dev, k->x, k->host, bytes);
    collective_wait(k->coll, 5);
    TRY(ops->start_parts(k->coll, COLLECTIVE_BROADCAST, k->y, parts, 3, 5));
    collective_wait(k->coll, 5);
    float out[RANKS * SHARE];
    k->dev->ops->download(k->dev, out, k->y, bytes);
    TRY(k->dev->ops->sync(k->dev, &k->err));
    for (int i = 0; i < (int)n; i++)
        if (out[i] != (i == 5 + SHARE ? k->host[i] : total(i))) return STATUS_MISMATCH;
    return STATUS_OK;
}

/* Reduce-scatter x during an upload to y, all-gather x, all-reduce y. */
static enum status shards(struct rank *k)
{
    const struct collective_ops *ops = k->coll->ops;
    size_t bytes = (size_t)rig.n * SHARE * sizeof(float);
    k->dev->ops->upload(k->dev, k->x, k->host, bytes);
    TRY(ops->start(k->coll, COLLECTIVE_REDUCE_SCATTER, k->x, SHARE, 3));
    k->dev->ops->upload(k->dev, k->y, k->host, bytes);
    collective_wait(k->coll, 3);
    TRY(ops->start(k->coll, COLLECTIVE_ALL_GATHER, k->x, SHARE, 3));
    TRY(ops->start(k->coll, COLLECTIVE_ALL_REDUCE, k->y, (size_t)rig.n * SHARE, 4));
    collective_wait(k->coll, 3);
    k->dev->ops->download(k->dev, k->back, k->x, bytes);
    TRY(k->dev->ops->sync(k->dev, &k->err));
    for (int i = 0; i < rig.n * SHARE; i++)
        if (k->back[i] != total(i)) return STATUS_MISMATCH;
    collective_wait(k->coll, 4);
    k->dev->ops->download(k->dev, k->back, k->y, bytes);
    TRY(owners(k));
    TRY(k->dev->ops->sync(k->dev, &k->err));
    for (int i = 0; i < rig.n * SHARE; i++)
        if (k->back[i] != total(i)) return STATUS_MISMATCH;
    return STATUS_OK;
}

static void *shards_main(void *arg)
{
    struct rank *k = arg;
    k->status = shards(k);
    if (k->status != STATUS_OK) k->coll->ops->abort(k->coll, &k->err);
    return NULL;
}

TEST(test_sums)
{
    for (int n = 2; n <= RANKS; n++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            open_rig(n, seed, "");
            each(shards_main);
            for (int r = 0; r < n; r++)
                if (rig.ranks[r].status != STATUS_OK)
                    fail_msg("rank %d of %d: %s %s", r, n, status_text(rig.ranks[r].status), rig.ranks[r].err.msg);
            close_rig();
        }
}

/* Two missing waits: x changes during its reduction, or is read before the reduction ends. */
static void *forgetful_main(void *arg)
{
    struct rank *k = arg;
    const struct collective_ops *ops = k->coll->ops;
    k->dev->ops->upload(k->dev, k->x, k->host, sizeof k->host);
    k->status = ops->start(k->coll, COLLECTIVE_REDUCE_SCATTER, k->x, SHARE, 0);
    k->dev->ops->download(k->dev, k->back, k->x, sizeof k->back);
    if (k->status == STATUS_OK) k->status = k->dev->ops->sync(k->dev, &k->err);
    return NULL;
}

TEST(test_missing_wait)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_rig(2, seed, "");
        each(forgetful_main);
        for (int r = 0; r < 2; r++) {
            const struct err *err = &rig.ranks[r].err;
            assert_int_equal(rig.ranks[r].status, STATUS_CORRUPT);
            if (!strstr(err->msg, "COMM") || !strstr(err->msg, "without an event")) fail_msg("%s", err->msg);
        }
        close_rig();
    }
}

/* The device of rank 1 fails; the others return STATUS_CLOSED. */
TEST(test_failure)
{
    for (unsigned at = 1; at < 7; at++) {
        char fails[16];
        snprintf(fails, sizeof fails, "1:%u", at);
        open_rig(3, at, fails);
        each(shards_main);
        assert_int_equal(rig.ranks[1].status, STATUS_IO);
        assert_non_null(strstr(rig.ranks[1].err.msg, "device cuda:1 emulated"));
        if (rig.ranks[0].status != STATUS_CLOSED) fail_msg("%s", rig.ranks[0].err.msg);
        assert_int_equal(rig.ranks[2].status, STATUS_CLOSED);
        assert_int_equal(rig.colls[0].ops->start(&rig.colls[0], COLLECTIVE_ALL_GATHER, rig.ranks[0].x, SHARE, 1),
                         STATUS_CLOSED);
        close_rig();
    }
}

/* A rank aborts without submitting a collective. */
static void *absent_main(void *arg)
{
    struct rank *k = arg;
    if (k->coll->rank == 1) {
        k->coll->ops->abort(k->coll, NULL);
        return NULL;
    }
    return shards_main(arg);
}

TEST(test_absent)
{
    open_rig(3, 2, "");
    each(absent_main);
    assert_int_equal(rig.ranks[0].status, STATUS_CLOSED);
    assert_int_equal(rig.ranks[2].status, STATUS_CLOSED);
    close_rig();
}

TEST_MAIN(NULL, NULL)
