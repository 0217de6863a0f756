/* Benchmark of fused epilogues in the backward of a linear layer (gpu/cuda/cuda_lin.c): separate kernels, fused
 * epilogue, and the device's choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/gpu/bench_gpu.h"

enum { LOOK = 1 << 16 }; /* compared values of a result, at most */

enum { SLOPE, SUMS, OPS };
enum { SEPARATE, FUSED, TIMED, FORMS };
static const char *const forms[FORMS] = {"separate", "fused", "timed"};

struct layer {
    struct device *dev;
    struct lin_shape shape;
    struct lin_plan *plan;
    void *x, *dx, *dy, *aux;
    float *w, *dw, *db;
};

struct form {
    double ms[OPS];
    bool repeats[OPS]; /* two runs give the same bits */
    unsigned char bits[OPS][LOOK * sizeof(float)];
};

static void go_back(struct device *dev, void *ctx)
{
    struct layer *l = ctx;
    dev->ops->lin_bwd_x(dev, l->plan, l->dy, l->w, l->aux, l->dx, false);
}

static void add_weights(struct device *dev, void *ctx)
{
    struct layer *l = ctx;
    dev->ops->lin_bwd_w(dev, l->plan, l->x, l->dy, l->dw, l->db, true);
}

static enum status prepare(struct layer *l, struct err *err)
{
    struct device *dev = l->dev;
    size_t n = l->shape.n, k = l->shape.k, m = l->shape.m;
    l->x = bench_random(dev, n * k, true, 1);
    l->dx = bench_random(dev, n * k, true, 1);
    l->dy = bench_random(dev, n * m, true, 1);
    l->aux = bench_random(dev, n * k, true, 1);
    l->w = bench_random(dev, k * m, false, 0.02f);
    l->dw = bench_random(dev, k * m, false, 1);
    l->db = bench_random(dev, m, false, 1);
    if (!l->x || !l->dx || !l->dy || !l->aux || !l->w || !l->dw || !l->db)
        return err_set(err, STATUS_NOMEM, "no memory for the layer");
    TRY(device_params_plan(dev, k * m));
    device_params(dev, l->w, k * m, 0, k * m);
    return dev->ops->lin_plan(dev, &l->shape, &l->plan);
}

/* Download the first LOOK values of each result. */
static enum status look(struct layer *l, unsigned char bits[OPS][LOOK * sizeof(float)], struct err *err)
{
    struct device *dev = l->dev;
    size_t some = l->shape.n * l->shape.k < LOOK ? l->shape.n * l->shape.k : LOOK;
    size_t sums = l->shape.m < LOOK ? l->shape.m : LOOK;
    go_back(dev, l);
    dev->ops->lin_bwd_w(dev, l->plan, l->x, l->dy, l->dw, l->db, false);
    dev->ops->download(dev, bits[SLOPE], l->dx, some * dev->act_bytes);
    dev->ops->download(dev, bits[SUMS], l->db, sums * sizeof *l->db);
    return dev->ops->sync(dev, err);
}

static enum status measure_layer(struct layer *l, double seconds, struct form *f,
                                 unsigned char (*again)[sizeof *f->bits], struct err *err)
{
    TRY(prepare(l, err));
    TRY(look(l, f->bits, err));
    TRY(bench_time(l->dev, go_back, l, seconds, &f->ms[SLOPE], err));
    TRY(bench_time(l->dev, add_weights, l, seconds, &f->ms[SUMS], err));
    TRY(look(l, again, err));
    for (int op = 0; op < OPS; op++) {
        f->repeats[op] = !memcmp(again[op], f->bits[op], sizeof *again);
        f->ms[op] *= 1e3;
    }
    return STATUS_OK;
}

static enum status measure(const char *device, const struct lin_shape *shape, double seconds, struct form all[FORMS],
                           struct err *err)
{
    unsigned char(*again)[sizeof *all->bits] = mem_alloc(OPS, sizeof *again);
    enum status status = again ? STATUS_OK : err_set(err, STATUS_NOMEM, "no memory for results");
    for (int i = 0; i < FORMS && status == STATUS_OK; i++) {
        struct layer l = {.shape = *shape};
        (void)setenv("ATOLL_EPILOGUE", forms[i], 1); /* use_bf16 reads it */
        status = bench_device(device, "bf16", &l.dev, err);
        if (status == STATUS_OK) status = measure_layer(&l, seconds, &all[i], again, err);
        device_close(l.dev);
    }
    mem_free(again);
    return status;
}

/* The bits show the device's choice. "either": the library lacks the epilogue or rounds like the separate kernels. */
static const char *chosen(const struct form all[FORMS], int op)
{
    bool separate = !memcmp(all[TIMED].bits[op], all[SEPARATE].bits[op], sizeof all->bits[op]);
    bool fused = !memcmp(all[TIMED].bits[op], all[FUSED].bits[op], sizeof all->bits[op]);
    return separate && fused ? "either" : separate ? "separate" : fused ? "fused" : "unknown";
}

enum status bench_ends(const char *device, double seconds, char **v, struct err *err)
{
    static const char *const names[OPS] = {"dgelu", "bias_grad"};
    struct lin_shape s = {.n = strtoul(v[0], NULL, 10),
                          .k = strtoul(v[1], NULL, 10),
                          .m = strtoul(v[2], NULL, 10),
                          .bias = true,
                          .after_act = true};
    struct form *all = mem_alloc(FORMS, sizeof *all);
    if (!all) return err_set(err, STATUS_NOMEM, "no memory for results");
    enum status status = measure(device, &s, seconds, all, err);
    if (status == STATUS_OK) {
        printf("{\"n\": %zu, \"k\": %zu, \"m\": %zu", s.n, s.k, s.m);
        for (int op = 0; op < OPS; op++)
            printf(", \"%s\": {\"separate_ms\": %.6g, \"fused_ms\": %.6g, \"timed_ms\": %.6g, \"chosen\": \"%s\", "
                   "\"repeats\": %s}",
                   names[op], all[SEPARATE].ms[op], all[FUSED].ms[op], all[TIMED].ms[op], chosen(all, op),
                   all[SEPARATE].repeats[op] && all[FUSED].repeats[op] ? "true" : "false");
        printf("}\n");
    }
    mem_free(all);
    return status;
}
