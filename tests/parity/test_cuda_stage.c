/* Tests copies between pageable host memory and the device through pinned buffers and a queue of their own, for every
 * order of the queues: send copies the host's values at the time of the call, fetch the device's, and a call waits at
 * most for a free buffer. ctest: labels=asan timeout=240 */
#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { N = 900, CALLS = 40, SEEDS = 6 };

static const size_t stages[] = {0, 20, 400, 1000, N * sizeof(float), 1 << 20}; /* bytes per buffer; 0: no buffers */

struct rig {
    struct device *dev;
    float *x, *y; /* [N] on the device */
    float want_x[N], want_y[N], host[N];
    uint64_t seed, draw;
};

static struct rig rig;

static void open_rig(unsigned seed, size_t stage)
{
    struct err err = {0};
    emulate_queue_order(seed);
    if (atoll_cuda_plugin.open(0, &rig.dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(device_stage_plan(rig.dev, stage, NULL), STATUS_OK);
    rig.x = rig.dev->ops->alloc(rig.dev, sizeof rig.want_x);
    rig.y = rig.dev->ops->alloc(rig.dev, sizeof rig.want_y);
    assert_true(rig.x && rig.y);
    memset(rig.want_x, 0, sizeof rig.want_x);
    memset(rig.want_y, 0, sizeof rig.want_y);
    rig.seed = seed;
    rig.draw = 0;
}

static void close_rig(void)
{
    rig.dev->ops->release(rig.dev, rig.x);
    rig.dev->ops->release(rig.dev, rig.y);
    device_close(rig.dev);
    assert_int_equal(mem_live_bytes(), 0);
}

static uint64_t draw(uint64_t below)
{
    return rng_u64(rig.seed, RNG_TEST, rig.draw++) % below;
}

/* The caller may change its buffer right after the call. */
static void send_range(float *device, float *want, size_t from, size_t n)
{
    for (size_t i = 0; i < n; i++) want[from + i] = rig.host[i] = (float)draw(1000);
    device_send(rig.dev, device + from, rig.host, n * sizeof *device);
    memset(rig.host, 0xff, sizeof rig.host);
}

static void fetch_range(const float *device, const float *want, size_t from, size_t n)
{
    struct err err = {0};
    memset(rig.host, 0xff, sizeof rig.host);
    if (device_fetch(rig.dev, rig.host, device + from, n * sizeof *device, &err) != STATUS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < n; i++)
        if (rig.host[i] != want[from + i])
            fail_msg("element %zu is %g, expected %g", from + i, (double)rig.host[i], (double)want[from + i]);
}

/* Multiply on the device with a step of SGD that only decays. */
static void multiply(float *device, size_t n, float by)
{
    rig.dev->ops->sgd(rig.dev, n, device, device, 0, by, NULL);
}

static void one_call(void)
{
    size_t from = draw(N), n = draw(3) ? 1 + draw(N - from) : N - from;
    bool first = draw(2);
    float *device = first ? rig.x : rig.y, *want = first ? rig.want_x : rig.want_y;
    switch (draw(5)) {
    case 0:
    case 1: send_range(device, want, from, n); break;
    case 2: fetch_range(device, want, from, n); break;
    case 3:
        multiply(device + from, n, 0.5f);
        for (size_t i = 0; i < n; i++) want[from + i] *= 0.5f;
        break;
    default:
        rig.dev->ops->copy(rig.dev, rig.y + from, rig.x + from, n * sizeof *rig.x);
        memcpy(rig.want_y + from, rig.want_x + from, n * sizeof *rig.x);
        break;
    }
}

TEST(test_calls)
{
    for (size_t s = 0; s < COUNT(stages); s++)
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            open_rig(seed, stages[s]);
            for (int i = 0; i < CALLS; i++) one_call();
            fetch_range(rig.x, rig.want_x, 0, N);
            fetch_range(rig.y, rig.want_y, 0, N);
            close_rig();
        }
}

/* The host never waits for an idle device: at least one copy stays in flight. */
TEST(test_emulated_beside)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_rig(seed, 400);
        unsigned long before = emulate_idle_waits();
        send_range(rig.x, rig.want_x, 0, N);
        multiply(rig.x, N, 2);
        send_range(rig.y, rig.want_y, 0, N);
        send_range(rig.x, rig.want_x, 100, 5);
        assert_int_equal(emulate_idle_waits() - before, 0);
        for (int i = 0; i < N; i++) rig.want_x[i] *= i < 100 || i >= 105 ? 2 : 1;
        fetch_range(rig.x, rig.want_x, 0, N);
        fetch_range(rig.y, rig.want_y, 0, N);
        close_rig();
    }
}

TEST(test_emulated_memory)
{
    struct err err = {0};
    open_rig(0, 0);
    enum status status = STATUS_NOMEM;
    long nth = 0;
    while (status == STATUS_NOMEM &&
           nth < 20) { /* every allocation fails once; then the device works without buffers */
        mem_fail_after(++nth);
        status = device_stage_plan(rig.dev, 400, NULL);
        mem_fail_after(0);
        send_range(rig.x, rig.want_x, 0, N);
        fetch_range(rig.x, rig.want_x, 0, N);
    }
    assert_int_equal(status, STATUS_OK);
    assert_true(nth > 6);
    assert_int_equal(device_stage_plan(rig.dev, 1 << 20, NULL), STATUS_OK); /* no effect */
    assert_int_equal(device_fetch(rig.dev, rig.host, rig.x, 0, &err), STATUS_OK);
    device_send(rig.dev, rig.x, rig.host, 0);
    fetch_range(rig.x, rig.want_x, 0, N);
    close_rig();
}

/* Pieces long enough for several threads: the device gets every byte, although the host changes its memory at once. */
TEST(test_emulated_threads)
{
    enum { LONG = 5 * POOL_COPY_BYTES / 4 + 3, THREADS = 3 };
    struct err err = {0};
    struct pool *pool;
    float *host = mem_alloc(LONG + 1, sizeof *host);
    assert_non_null(host);
    assert_int_equal(pool_create(THREADS, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        emulate_queue_order(seed);
        if (atoll_cuda_plugin.open(0, &rig.dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
        size_t stage = 2 * POOL_COPY_BYTES + 20 * (seed % 2);
        assert_int_equal(device_stage_plan(rig.dev, stage, seed < SEEDS / 2 ? pool : NULL), STATUS_OK);
        float *device = rig.dev->ops->alloc(rig.dev, LONG * sizeof *device);
        assert_non_null(device);
        for (size_t i = 0; i < LONG; i++) host[i] = (float)(i % 65521) + (float)seed;
        device_send(rig.dev, device, host, LONG * sizeof *host);
        memset(host, 0xff, LONG * sizeof *host);
        multiply(device, LONG, 2);
        host[LONG] = -1;
        if (device_fetch(rig.dev, host, device, LONG * sizeof *host, &err) != STATUS_OK) fail_msg("%s", err.msg);
        for (size_t i = 0; i < LONG; i++)
            if (host[i] != 2 * ((float)(i % 65521) + (float)seed))
                fail_msg("seed %u, element %zu of %d: %g", seed, i, LONG, (double)host[i]);
        assert_true(host[LONG] == -1);
        rig.dev->ops->release(rig.dev, device);
        device_close(rig.dev);
    }
    pool_destroy(pool);
    mem_free(host);
    assert_int_equal(mem_live_bytes(), 0);
}

/* A device that fails at any operation: all waits end, and the error is returned. */
TEST(test_emulated_failure)
{
    char at[32];
    for (int nth = 1; nth < 24; nth++) {
        struct err err = {0};
        snprintf(at, sizeof at, "0:%d", nth);
        setenv("ATOLL_EMULATED_FAIL", at, 1);
        open_rig((unsigned)nth, 400);
        unsetenv("ATOLL_EMULATED_FAIL");
        send_range(rig.x, rig.want_x, 0, N);
        send_range(rig.y, rig.want_y, 0, N);
        enum status fetched = device_fetch(rig.dev, rig.host, rig.x, sizeof rig.want_x, &err);
        assert_true(fetched == STATUS_IO || nth > 18);
        if (fetched == STATUS_IO) assert_non_null(strstr(err.msg, "as the test wanted"));
        close_rig();
    }
}

TEST_MAIN(NULL, NULL)
