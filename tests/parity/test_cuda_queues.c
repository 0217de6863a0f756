/* Tests queues and events of the emulated runtime: operations run when the host waits, in any order that the events
 * allow, and a missing event is reported by name. */
#include "common/base/mem.h"
#include "gpu/cuda/cuda_impl.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/test.h"

enum { N = 1024, SEEDS = 12 };

struct rig {
    struct device *dev;
    struct cuda_rt *rt;
    struct cuda_event *event, *other;
    float *x, *y;
    float host[N], back[N];
};

static struct rig rig;

static void open_rig(unsigned seed)
{
    struct err err = {0};
    emulate_queue_order(seed);
    if (atoll_cuda_plugin.open(0, &rig.dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    rig.rt = cuda_of(rig.dev)->rt;
    assert_int_equal(cuda_rt_event_create(rig.rt, &rig.event), STATUS_OK);
    assert_int_equal(cuda_rt_event_create(rig.rt, &rig.other), STATUS_OK);
    rig.x = cuda_rt_alloc(rig.rt, sizeof rig.host);
    rig.y = cuda_rt_alloc(rig.rt, sizeof rig.host);
    emulate_name(rig.dev, rig.x, "grad");
    assert_int_equal(cuda_rt_sync(rig.rt, &err), STATUS_OK);
    for (int i = 0; i < N; i++) rig.host[i] = (float)i;
    memset(rig.back, 0, sizeof rig.back);
}

static void close_rig(void)
{
    cuda_rt_event_free(rig.rt, rig.event);
    cuda_rt_event_free(rig.rt, rig.other);
    device_close(rig.dev);
    assert_int_equal(mem_live_bytes(), 0);
}

static void copy(enum cuda_queue queue, void *dst, const void *src, enum cuda_direction direction)
{
    cuda_rt_copy_on(rig.rt, queue, dst, src, sizeof rig.host, direction);
}

static void want_ok(void)
{
    struct err err = {0};
    if (cuda_rt_sync(rig.rt, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void want_clash(const char *text)
{
    struct err err = {0};
    assert_int_equal(cuda_rt_sync(rig.rt, &err), STATUS_CORRUPT);
    if (!strstr(err.msg, text)) fail_msg("\"%s\" does not contain \"%s\"", err.msg, text);
}

/* An upload reads host memory as late as the wait of the host, and a download writes no earlier. */
TEST(test_late)
{
    open_rig(0);
    copy(CUDA_MAIN, rig.x, rig.host, CUDA_UPLOAD);
    copy(CUDA_MAIN, rig.back, rig.x, CUDA_DOWNLOAD);
    rig.host[3] = 77;
    assert_true(rig.back[1] == 0);
    want_ok();
    assert_true(rig.back[1] == 1 && rig.back[3] == 77);
    close_rig();
}

/* x = host on one queue, y = x on another, back = y on the first. */
static void chain(bool first_event, bool second_event)
{
    copy(CUDA_MAIN, rig.x, rig.host, CUDA_UPLOAD);
    cuda_rt_event_record(rig.rt, CUDA_MAIN, rig.event);
    if (first_event) cuda_rt_queue_wait(rig.rt, CUDA_COPY, rig.event);
    copy(CUDA_COPY, rig.y, rig.x, CUDA_INSIDE);
    cuda_rt_event_record(rig.rt, CUDA_COPY, rig.other);
    if (second_event) cuda_rt_queue_wait(rig.rt, CUDA_MAIN, rig.other);
    copy(CUDA_MAIN, rig.back, rig.y, CUDA_DOWNLOAD);
}

TEST(test_events)
{
    for (unsigned seed = 0; seed < SEEDS; seed++) {
        open_rig(seed);
        for (int i = 0; i < 5; i++) chain(true, true); /* events are reused */
        want_ok();
        assert_memory_equal(rig.host, rig.back, sizeof rig.host);
        close_rig();
        open_rig(seed);
        chain(false, true);
        struct err err = {0};
        assert_int_equal(cuda_rt_sync(rig.rt, &err), STATUS_CORRUPT);
        bool reads = strstr(err.msg, "copy on COPY reads grad+0..4096, which MAIN writes") != NULL;
        bool writes = strstr(err.msg, "upload on MAIN writes grad+0..4096, which COPY reads") != NULL;
        if (!reads && !writes) fail_msg("%s", err.msg);
        close_rig();
        open_rig(seed);
        chain(true, false);
        assert_int_equal(cuda_rt_sync(rig.rt, NULL), STATUS_CORRUPT);
        close_rig();
    }
}

/* Memory is cleared on MAIN, and other queues need an event after it. Disjoint ranges do not clash. */
TEST(test_touching)
{
    open_rig(0);
    cuda_rt_copy_on(rig.rt, CUDA_MAIN, rig.x, rig.host, 400, CUDA_UPLOAD);
    cuda_rt_copy_on(rig.rt, CUDA_COMM, rig.x + 100, rig.host, 400, CUDA_UPLOAD);
    cuda_rt_copy_on(rig.rt, CUDA_COPY, rig.x + 200, rig.host, 400, CUDA_UPLOAD);
    want_ok();
    cuda_rt_copy_on(rig.rt, CUDA_MAIN, rig.x, rig.host, 404, CUDA_UPLOAD);
    cuda_rt_copy_on(rig.rt, CUDA_COMM, rig.x + 100, rig.host, 400, CUDA_UPLOAD);
    want_clash("upload on COMM writes grad+400..404, which MAIN writes");
    close_rig();
    open_rig(0);
    float *fresh = cuda_rt_alloc(rig.rt, 64);
    cuda_rt_copy_on(rig.rt, CUDA_COPY, fresh, rig.host, 64, CUDA_UPLOAD);
    want_clash("which MAIN writes");
    close_rig();
}

TEST_MAIN(NULL, NULL)
