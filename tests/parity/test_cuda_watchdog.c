/* Tests the watchdog of a worker's emulated GPUs: one fails, hangs or never submits while the others are in blocking
 * calls that check nothing. All calls return, and the error names the GPU; the same for a single GPU. Without the
 * watchdog each test would hang until an alarm ends it. ctest: labels=threads timeout=60 waits=1 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "gpu/collective.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/test.h"

enum { RANKS = 3, FLOATS = 60 };

static unsigned hangs_after = 30; /* seconds */

static struct rank {
    struct collective *coll;
    struct device *dev;
    float *x;
    float host[FLOATS]; /* pageable */
    enum status status;
    struct err err;
    pthread_t thread;
} ranks[RANKS];
static struct device *devices[RANKS];
static struct collective colls[RANKS];

static const char *const switches[] = {"ATOLL_EMULATED_FAIL",     "ATOLL_EMULATED_HANG",  "ATOLL_EMULATED_QUEUE",
                                       "ATOLL_EMULATED_PAGEABLE", "ATOLL_EMULATED_ABORT", "ATOLL_EMULATED_CLOSE",
                                       "ATOLL_GPU_TIMEOUT",       "ATOLL_GPU_GRACE"};

static char last_line[700];
static atomic_bool last_called;

static void last_resort(const char *line)
{
    snprintf(last_line, sizeof last_line, "%s", line);
    atomic_store(&last_called, true);
}

/* ...: pairs of a switch and its value, then NULL */
static void open_ranks(int n, void (*end)(const char *line), ...)
{
    struct err err = {0};
    va_list args;
    alarm(hangs_after);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) unsetenv(switches[i]);
    setenv("ATOLL_EMULATED_GPUS", "3", 1);
    va_start(args, end);
    for (const char *name; (name = va_arg(args, const char *));) setenv(name, va_arg(args, const char *), 1);
    va_end(args);
    atomic_store(&last_called, false);
    memset(ranks, 0, sizeof ranks);
    for (int r = 0; r < n; r++)
        if (atoll_cuda_plugin.open(r, &devices[r], &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (collective_open(devices, n, end, colls, &err) != STATUS_OK) fail_msg("%s", err.msg);
    for (int r = 0; r < n; r++) {
        struct rank *k = &ranks[r];
        k->dev = devices[r];
        k->coll = &colls[r];
        k->x = k->dev->ops->alloc(k->dev, sizeof k->host);
        for (int i = 0; i < FLOATS; i++) k->host[i] = (float)(r + 1);
    }
}

static void close_ranks(int n)
{
    collective_close(colls);
    for (int r = 0; r < n; r++) device_close(devices[r]);
    alarm(0);
}

static void close_group(void)
{
    close_ranks(RANKS);
}

static void each(void *(*body)(void *rank))
{
    for (int r = 0; r < RANKS; r++) assert_int_equal(pthread_create(&ranks[r].thread, NULL, body, &ranks[r]), 0);
    for (int r = 0; r < RANKS; r++) pthread_join(ranks[r].thread, NULL);
}

static void pass(unsigned ms)
{
    usleep(ms * 1000);
}

static void upload(struct rank *k)
{
    k->dev->ops->upload(k->dev, k->x, k->host, sizeof k->host);
}

/* Submit two collectives and many operations after them. */
static enum status step(struct rank *k)
{
    const struct collective_ops *ops = k->coll->ops;
    upload(k);
    for (unsigned ticket = 0; ticket < 2; ticket++) {
        TRY(ops->start(k->coll, COLLECTIVE_ALL_REDUCE, k->x, FLOATS, ticket));
        collective_wait(k->coll, ticket);
        for (int i = 0; i < 5; i++) upload(k);
    }
    return k->dev->ops->sync(k->dev, &k->err);
}

/* Run the body and report its status as worker/replica/replica_ranks.c does. */
static void work(struct rank *k, enum status (*body)(struct rank *k))
{
    const struct collective_ops *ops = k->coll->ops;
    collective_at_work(k->coll, true);
    k->status = body(k);
    collective_at_work(k->coll, false);
    if (k->status != STATUS_OK) ops->abort(k->coll, &k->err);
}

static void *step_main(void *arg)
{
    work(arg, step);
    return NULL;
}

static void assert_contains(const char *line, const char *what)
{
    if (!strstr(line, what)) fail_msg("\"%s\" does not contain \"%s\"", line, what);
}

/* All other ranks returned, and the reported error is the first failure. */
static void assert_first_failure(int failed, const char *what)
{
    for (int r = 0; r < RANKS; r++)
        if (r != failed && ranks[r].status != STATUS_CLOSED)
            fail_msg("rank %d: %s: %s", r, status_text(ranks[r].status), ranks[r].err.msg);
    const struct err *why = colls[0].ops->failure(&colls[0]);
    assert_non_null(why);
    assert_contains(why->msg, "device cuda:1 emulated");
    assert_contains(why->msg, what);
    assert_ptr_equal(colls[2].ops->failure(&colls[2]), why);
}

TEST(test_failed_beside_full_queues)
{
    for (int at = 1; at <= 8; at++) { /* 8 is the second collective */
        char fails[16];
        snprintf(fails, sizeof fails, "1:%d", at);
        open_ranks(RANKS, NULL, "ATOLL_EMULATED_FAIL", fails, "ATOLL_EMULATED_QUEUE", "3", NULL);
        each(step_main);
        assert_first_failure(1, "a kernel failed");
        close_group();
    }
}

TEST(test_failed_beside_copies_that_block)
{
    open_ranks(RANKS, NULL, "ATOLL_EMULATED_FAIL", "1:2", "ATOLL_EMULATED_PAGEABLE", "1", NULL);
    each(step_main);
    assert_first_failure(1, "a kernel failed");
    close_group();
}

/* A rank whose thread does not submit the collective that the others wait for. */
static enum status nothing(struct rank *k)
{
    while (!k->coll->ops->failure(k->coll)) pass(10);
    return STATUS_CLOSED;
}

static void *away_main(void *arg)
{
    struct rank *k = arg;
    work(k, k->coll->rank == 1 ? nothing : step);
    return NULL;
}

TEST(test_stays_away)
{
    static const char *const queues[] = {"0", "3"};
    for (int i = 0; i < 2; i++) {
        open_ranks(RANKS, NULL, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_EMULATED_QUEUE", queues[i], NULL);
        each(away_main);
        assert_first_failure(-1, "did not reach collective 0");
        close_group();
    }
}

/* All ranks submitted the same; one GPU does not reach the second collective. */
TEST(test_hung_gpu)
{
    open_ranks(RANKS, NULL, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_EMULATED_HANG", "1:3", NULL);
    each(step_main);
    assert_first_failure(-1, "did not reach collective 1");
    emulate_hangs_end(); /* with a real GPU, closing the device would hang */
    close_group();
}

/* A hang between collectives, after the others finished. */
static enum status alone(struct rank *k)
{
    upload(k);
    return k->dev->ops->sync(k->dev, &k->err);
}

static void *alone_main(void *arg)
{
    work(arg, alone);
    return NULL;
}

TEST(test_hung_alone)
{
    open_ranks(RANKS, NULL, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_EMULATED_HANG", "1:1", NULL);
    each(alone_main);
    assert_contains(colls[0].ops->failure(&colls[0])->msg, "device cuda:1 emulated");
    assert_contains(colls[0].ops->failure(&colls[0])->msg, "did not finish work that the other GPUs have finished");
    assert_int_equal(ranks[1].status, STATUS_CLOSED);
    emulate_hangs_end();
    close_group();
}

/* A slow rank: it submits operations for longer than the limit, and pauses for longer than the limit. */
static enum status slow(struct rank *k)
{
    for (int i = 0; i < 6; i++) {
        pass(400);
        upload(k);
    }
    return step(k);
}

static void *slow_main(void *arg)
{
    struct rank *k = arg;
    work(k, k->coll->rank == 1 ? slow : step);
    if (k->coll->rank == 1) pass(1500);
    if (k->status == STATUS_OK) work(k, alone);
    return NULL;
}

TEST(test_slow)
{
    open_ranks(RANKS, last_resort, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_GPU_GRACE", "1", NULL);
    each(slow_main);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].status, STATUS_OK);
    assert_null(colls[0].ops->failure(&colls[0]));
    close_group();
    pass(1200);
    assert_false(atomic_load(&last_called));
}

static void *unhang_main(void *arg)
{
    (void)arg;
    while (!atomic_load(&last_called)) pass(10);
    emulate_hangs_end();
    return NULL;
}

/* The abort or the GPU hangs while a rank is in a blocking call: the watchdog ends the process. */
static void check_last_resort(const char *name, const char *value, const char *what)
{
    pthread_t unhang;
    open_ranks(RANKS, last_resort, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_GPU_GRACE", "1", "ATOLL_EMULATED_QUEUE", "3", name,
               value, "ATOLL_EMULATED_FAIL", !strcmp(name, "ATOLL_EMULATED_ABORT") ? "1:2" : "", NULL);
    pthread_create(&unhang, NULL, unhang_main, NULL);
    each(step_main);
    pthread_join(unhang, NULL);
    close_group();
    assert_contains(last_line, "device cuda:1 emulated");
    assert_contains(last_line, what);
    assert_contains(last_line, "the worker did not exit within 1 s");
}

TEST(test_last_resort)
{
    check_last_resort("ATOLL_EMULATED_ABORT", "hangs", "a kernel failed");
    check_last_resort("ATOLL_EMULATED_HANG", "1:1", "did not reach collective 0");
}

/* The run succeeds, but closing one GPU hangs. */
TEST(test_close_hangs)
{
    pthread_t unhang;
    open_ranks(RANKS, last_resort, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_GPU_GRACE", "1", "ATOLL_EMULATED_CLOSE", "1", NULL);
    each(step_main);
    for (int r = 0; r < RANKS; r++) assert_int_equal(ranks[r].status, STATUS_OK);
    pthread_create(&unhang, NULL, unhang_main, NULL);
    close_group();
    pthread_join(unhang, NULL);
    assert_contains(last_line, "device cuda:1 emulated");
    assert_contains(last_line, "did not close within 1 s");
    assert_contains(last_line, "the worker did not exit within 1 s");
}

/* A single GPU hangs: its thread is in a blocking wait, or submits now and then. */
TEST(test_only_gpu_hangs)
{
    pthread_t unhang;
    open_ranks(1, last_resort, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_GPU_GRACE", "1", "ATOLL_EMULATED_HANG", "0:1", NULL);
    pthread_create(&unhang, NULL, unhang_main, NULL);
    work(&ranks[0], alone);
    pthread_join(unhang, NULL);
    assert_contains(colls[0].ops->failure(&colls[0])->msg, "device cuda:0 emulated on the CPU: no progress for 1 s");
    assert_contains(last_line, "device cuda:0 emulated on the CPU: no progress for 1 s (ATOLL_GPU_TIMEOUT)");
    assert_contains(last_line, "the worker did not exit within 1 s");
    assert_int_equal(colls[0].ops->start(&colls[0], COLLECTIVE_ALL_REDUCE, ranks[0].x, FLOATS, 0), STATUS_CLOSED);
    close_ranks(1);
}

TEST(test_only_gpu_is_slow)
{
    open_ranks(1, last_resort, "ATOLL_GPU_TIMEOUT", "1", "ATOLL_GPU_GRACE", "1", NULL);
    work(&ranks[0], slow);
    assert_int_equal(ranks[0].status, STATUS_OK);
    pass(1500);
    assert_null(colls[0].ops->failure(&colls[0]));
    close_ranks(1);
    assert_false(atomic_load(&last_called));
}

/* The group closes in time, but the process does not exit: the watchdog still ends it. */
TEST(test_resort_stays)
{
    open_ranks(RANKS, last_resort, "ATOLL_EMULATED_FAIL", "1:1", "ATOLL_GPU_GRACE", "1", NULL);
    each(step_main);
    assert_first_failure(1, "a kernel failed");
    close_group();
    assert_false(atomic_load(&last_called));
    while (!atomic_load(&last_called)) pass(10);
    pass(100);
}

TEST(test_settings)
{
    struct err err = {0};
    open_ranks(RANKS, NULL, NULL);
    close_group();
    for (int r = 0; r < RANKS; r++) assert_int_equal(atoll_cuda_plugin.open(r, &devices[r], NULL), STATUS_OK);
    setenv("ATOLL_GPU_TIMEOUT", "soon", 1);
    assert_int_equal(collective_open(devices, RANKS, NULL, colls, &err), STATUS_INVALID);
    assert_contains(err.msg, "ATOLL_GPU_TIMEOUT=soon");
    for (int r = 0; r < RANKS; r++) device_close(devices[r]);
}

static int tear_down(void **state)
{
    (void)state;
    return mem_live_bytes() ? -1 : 0;
}

int main(int argc, char **argv)
{
    if (argc > 1) hangs_after = 6; /* one test */
    return test_run(argc, argv, NULL, tear_down);
}
