/* The inner optimizer's state on a device whose memory the host cannot access: read and written through the device's
 * operations. */

#include "common/base/mem.h"
#include "tests/lib/test.h"
#include "worker/inner/inner_opt.h"

enum { N = 1001 };

static int syncs, downloads, waiting; /* waiting: operations since the last sync */
static bool lost;                     /* the device fails from now on */

/* Far addresses differ from near ones in bits that make them invalid: an access by the host faults. */
static void *far(void *near)
{
    return near ? (void *)((uintptr_t)near ^ (uintptr_t)3 << 60) : NULL;
}

static void *far_alloc(struct device *dev, size_t bytes)
{
    (void)dev;
    return far(mem_alloc(1, bytes));
}

static void far_release(struct device *dev, void *p)
{
    (void)dev;
    mem_free(far(p));
}

static void far_upload(struct device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    waiting++;
    memcpy(far(dst), src, bytes);
}

static void far_download(struct device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    waiting++;
    downloads++;
    memcpy(dst, far((void *)(uintptr_t)src), bytes);
}

/* When these return, the host's side is free or filled, by contract. */
static void far_send(struct device *dev, void *dst, const void *src, size_t bytes)
{
    (void)dev;
    waiting++;
    memcpy(far(dst), src, bytes);
}

static enum status far_fetch(struct device *dev, void *dst, const void *src, size_t bytes, struct err *err)
{
    (void)dev;
    downloads++;
    memcpy(dst, far((void *)(uintptr_t)src), bytes);
    return lost ? err_set(err, STATUS_IO, "the device is gone") : STATUS_OK;
}

static void far_fill(struct device *dev, float *p, size_t n, float value)
{
    (void)dev;
    waiting++;
    for (size_t i = 0; i < n; i++) ((float *)far(p))[i] = value;
}

static enum status far_sync(struct device *dev, struct err *err)
{
    (void)dev;
    syncs++;
    waiting = 0;
    return lost ? err_set(err, STATUS_IO, "the device is gone") : STATUS_OK;
}

static const struct device_ops far_ops = {
    .alloc = far_alloc,
    .release = far_release,
    .upload = far_upload,
    .download = far_download,
    .send = far_send,
    .fetch = far_fetch,
    .fill = far_fill,
    .sync = far_sync,
};

static struct device far_device = {.ops = &far_ops}, *const devices[] = {&far_device};
static struct tensor tensor = {.count = N};
static const struct layout layout = {.n_tensors = 1, .tensors = &tensor, .n_params = N};

TEST(test_state_is_read_and_written_by_device)
{
    const struct inner_opt_config config = {.kind = OPTIMIZER_ADAMW};
    struct inner_opt *opt;
    float m[N], v[N];
    const void *m_back = NULL, *v_back = NULL;
    for (int i = 0; i < N; i++) {
        m[i] = (float)i;
        v[i] = (float)-i;
    }
    assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, 1, NULL), STATUS_OK);
    assert_int_equal(inner_opt_write(opt, m, v, NULL), STATUS_OK);
    assert_int_equal(waiting, 0);
    assert_int_equal(inner_opt_read(opt, &m_back, &v_back, NULL), STATUS_OK);
    assert_int_equal(waiting, 0); /* the returned values have arrived */
    assert_memory_equal(m_back, m, sizeof m);
    assert_memory_equal(v_back, v, sizeof v);
    assert_int_equal(inner_opt_write(opt, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(inner_opt_read(opt, &m_back, &v_back, NULL), STATUS_OK);
    static const float zeros[N];
    assert_memory_equal(m_back, zeros, sizeof zeros);
    assert_memory_equal(v_back, zeros, sizeof zeros);
    m_back = NULL;
    lost = true;
    struct err err = {0};
    assert_int_equal(inner_opt_read(opt, &m_back, &v_back, &err), STATUS_IO);
    assert_string_equal(err.msg, "the device is gone");
    assert_null(m_back);
    assert_int_equal(inner_opt_write(opt, m, v, &err), STATUS_IO);
    lost = false;
    inner_opt_destroy(opt);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_sgd_has_no_moments)
{
    const struct inner_opt_config config = {.kind = OPTIMIZER_SGD};
    struct inner_opt *opt;
    const void *m, *v;
    assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, 1, NULL), STATUS_OK);
    int before = downloads;
    assert_int_equal(inner_opt_read(opt, &m, &v, NULL), STATUS_OK);
    assert_null(m);
    assert_null(v);
    assert_int_equal(downloads, before);
    assert_int_equal(inner_opt_write(opt, NULL, NULL, NULL), STATUS_OK);
    inner_opt_destroy(opt);
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_bf16_moments_are_read_and_written)
{
    struct inner_opt_config config = {.kind = OPTIMIZER_ADAMW, .bf16 = true};
    struct inner_opt *opt;
    struct err err = {0};
    uint16_t m[N], v[N];
    const void *m_back = NULL, *v_back = NULL;
    static const uint16_t zeros[N];
    for (int i = 0; i < N; i++) {
        m[i] = (uint16_t)i;
        v[i] = (uint16_t)-i;
    }
    assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, 1, NULL), STATUS_OK);
    assert_int_equal(inner_opt_moment_bytes(&config, N), 2 * (2 * N + 2)); /* whole floats */
    assert_int_equal(inner_opt_write(opt, m, v, NULL), STATUS_OK);
    assert_int_equal(inner_opt_read(opt, &m_back, &v_back, NULL), STATUS_OK);
    assert_memory_equal(m_back, m, sizeof m);
    assert_memory_equal(v_back, v, sizeof v);
    assert_int_equal(inner_opt_write(opt, NULL, NULL, NULL), STATUS_OK);
    assert_int_equal(inner_opt_read(opt, &m_back, &v_back, NULL), STATUS_OK);
    assert_memory_equal(m_back, zeros, sizeof zeros);
    assert_memory_equal(v_back, zeros, sizeof zeros);
    inner_opt_destroy(opt);
    config.kind = OPTIMIZER_SGD;
    assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, 1, &err), STATUS_INVALID);
    assert_string_equal(err.msg, "inner.moments=bf16 needs moments, and inner.optimizer sgd has none: use fp32");
    assert_int_equal(mem_live_bytes(), 0);
}

TEST(test_out_of_memory_is_reported)
{
    const struct inner_opt_config config = {.kind = OPTIMIZER_ADAMW};
    struct inner_opt *opt;
    for (int n = 1; n <= 7; n++) {
        mem_fail_after(n);
        assert_int_equal(inner_opt_create(&opt, &config, &layout, devices, 1, NULL), STATUS_NOMEM);
        assert_int_equal(mem_live_bytes(), 0);
    }
    mem_fail_after(0);
}

TEST_MAIN(NULL, NULL)
