#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

#include "common/base/mem.h"
#include "gpu/cuda/kernels/cuda_act.h"
#include "gpu/cuda_plugin.h"
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/device_case.h"

enum { VECS_MAX = 128 };

struct device_pair pair;

static float *vecs[VECS_MAX][2];
static size_t n_vecs;

struct vec vec_of(size_t n, const float *values, bool act)
{
    struct vec v = {.n = n, .act = act && pair.bf16};
    uint16_t *half = mem_alloc(n, sizeof *half);
    float *wide = mem_alloc(n, sizeof *wide);
    assert_true(half && wide);
    for (size_t i = 0; i < n; i++) half[i] = bf16_of(values[i]);
    for (size_t i = 0; i < n; i++) wide[i] = v.act ? bf16_value(half[i]) : values[i];
    for (int d = 0; d < 2; d++) {
        bool narrow = v.act && d == 1;
        v.at[d] = ON(d, alloc, n * (narrow ? sizeof *half : sizeof *wide));
        assert_non_null(v.at[d]);
        ON(d, upload, v.at[d], narrow ? (void *)half : wide, n * (narrow ? sizeof *half : sizeof *wide));
        assert_int_equal(ON(d, sync, NULL), STATUS_OK);
    }
    mem_free(half);
    mem_free(wide);
    assert_true(n_vecs < VECS_MAX);
    memcpy(vecs[n_vecs++], v.at, sizeof v.at);
    return v;
}

struct vec vec_random(size_t n, uint64_t stream, float sigma, bool act)
{
    float *values = case_normal(n, stream, sigma);
    struct vec v = vec_of(n, values, act);
    mem_free(values);
    return v;
}

struct vec vec_nan(size_t n, bool act)
{
    float *values = case_poisoned(n);
    struct vec v = vec_of(n, values, act);
    mem_free(values);
    return v;
}

struct vec vec_params(size_t n, uint64_t stream, float sigma)
{
    float *values = case_normal(n, stream, sigma);
    for (size_t i = 0; i < n && pair.bf16; i++) values[i] = bf16_value(bf16_of(values[i]));
    struct vec v = vec_of(n, values, false);
    mem_free(values);
    for (int d = 0; d < 2; d++) {
        assert_int_equal(device_params_plan(pair.devs[d], n), STATUS_OK);
        device_params(pair.devs[d], v.at[d], n, 0, n);
    }
    return v;
}

void vecs_free(void)
{
    for (size_t i = 0; i < n_vecs; i++)
        for (int d = 0; d < 2; d++) ON(d, release, vecs[i][d]);
    n_vecs = 0;
}

float *vec_host(const struct vec *v, int which)
{
    bool narrow = v->act && which == 1;
    float *host = mem_alloc(v->n, sizeof *host);
    assert_non_null(host);
    ON(which, download, host, v->at[which], v->n * (narrow ? sizeof(uint16_t) : sizeof *host));
    struct err err = {0};
    if (ON(which, sync, &err) != STATUS_OK) fail_msg("%s", err.msg);
    const uint16_t *half = (const uint16_t *)(const void *)host;
    for (size_t i = v->n; i-- > 0 && narrow;) host[i] = bf16_value(half[i]); /* from the end: it expands in place */
    return host;
}

void vec_same(const char *what, const struct vec *v, double allowed)
{
    float *cpu = vec_host(v, 0), *cuda = vec_host(v, 1);
    double *want = case_widen(cpu, v->n);
    case_close(what, cuda, want, v->n, allowed);
    mem_free(cpu);
    mem_free(cuda);
    mem_free(want);
}

struct device *cuda_begin(bool bf16)
{
    struct device *dev = NULL;
    struct err err = {0};
    if (atoll_cuda_plugin.open(0, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (bf16 && device_use_bf16(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return dev;
}

void cuda_end(struct device *dev)
{
    struct err err = {0};
    if (dev->ops->sync(dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    device_close(dev);
    assert_int_equal(mem_live_bytes(), 0);
}

void pair_each(void (*check)(void))
{
    struct err err = {0};
    for (unsigned order = 0; order < 4; order++) {
        if (emulate_watch && (order == 1 || order == 2)) continue;
        emulate_order(order % 3);
        pair.bf16 = order == 3;
        if (device_open("cpu", 1, &pair.devs[0], &err) != STATUS_OK) fail_msg("%s", err.msg);
        pair.devs[1] = cuda_begin(pair.bf16);
        check();
        vecs_free();
        device_close(pair.devs[0]);
        cuda_end(pair.devs[1]);
    }
}
