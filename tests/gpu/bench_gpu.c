/* Benchmarks of one device for tests/gpu/run. Each command prints JSON objects, one per line.
 *   bench_gpu info  DEVICE PRECISION
 *   bench_gpu gemm  DEVICE PRECISION SECONDS N K M        y[N,M] = x[N,K] w[K,M] and both gradients
 *   bench_gpu head  DEVICE PRECISION SECONDS N C V        losses of N rows and their gradients
 *   bench_gpu attn  DEVICE PRECISION SECONDS B T H G HD   H query heads, G key/value heads of HD columns
 *   bench_gpu copy  DEVICE SECONDS MB
 *   bench_gpu delta DEVICE SECONDS SPEC N                 outer path of N parameters; the host makes deltas in fp32,
 *       bf16 and fp16
 *   bench_gpu train DEVICE PRECISION FAMILY LAYERS HEADS KV WIDTH FFN SEQ BATCH VOCAB [RECOMPUTE | PARTS]
 *       A step has PARTS batches (default 1). The command prints planned and allocated memory. It reads step counts
 *       from standard input, one per line, and answers each with tokens per second and the losses of these steps.
 *       DEVICE may be a list: cuda:0,1 runs one rank per GPU, which share BATCH.
 * PRECISION: fp32 or bf16. Operands are normal noise, because a GPU that multiplies zeros takes less power and runs
 * faster than with any model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cuda/kernels/cuda_act.h"
#include "gpu/plugin.h"
#include "tests/gpu/bench_gpu.h"

enum { PATTERN = 1 << 18, BATCH_MAX = 4096, BATCH_US = 20000 };
#define WARM_SECONDS 0.2

enum status bench_device(const char *name, const char *precision, struct device **out, struct err *err)
{
    bool bf16 = !strcmp(precision, "bf16");
    if (!bf16 && strcmp(precision, "fp32") != 0)
        return err_set(err, STATUS_INVALID, "precision %s: fp32 or bf16", precision);
    TRY(device_open(name, 1, out, err));
    return bf16 ? device_use_bf16(*out, err) : STATUS_OK;
}

void *bench_random(struct device *dev, size_t n, bool activation, float sigma)
{
    bool half = activation && dev->act_bytes == sizeof(uint16_t);
    size_t size = half ? sizeof(uint16_t) : sizeof(float);
    float *wide = mem_alloc(PATTERN, sizeof *wide);
    uint16_t *narrow = mem_alloc(PATTERN, sizeof *narrow);
    unsigned char *p = wide && narrow ? dev->ops->alloc(dev, n * size) : NULL;
    if (p) {
        rng_normal_fill(1, RNG_TEST, n, sigma, wide, PATTERN);
        for (size_t i = 0; i < PATTERN; i++) narrow[i] = bf16_of(wide[i]);
        for (size_t at = 0; at < n; at += PATTERN) {
            size_t some = n - at < PATTERN ? n - at : PATTERN;
            dev->ops->upload(dev, p + at * size, half ? (void *)narrow : (void *)wide, some * size);
        }
        if (dev->ops->sync(dev, NULL) != STATUS_OK) p = NULL; /* the copies read the pattern until here */
    }
    mem_free(wide);
    mem_free(narrow);
    return p;
}

/* Run `once` untimed: the first call loads code, and an idle GPU needs time to raise its clock. */
static enum status warm_up(struct device *dev, void (*once)(struct device *dev, void *ctx), void *ctx, double seconds,
                           struct err *err)
{
    static bool warm;
    double until = warm ? 0 : seconds < WARM_SECONDS ? seconds : WARM_SECONDS;
    uint64_t start = clock_monotonic_us();
    do {
        once(dev, ctx);
        TRY(dev->ops->sync(dev, err));
    } while ((double)(clock_monotonic_us() - start) < until * 1e6);
    warm = true;
    return STATUS_OK;
}

enum status bench_time(struct device *dev, void (*once)(struct device *dev, void *ctx), void *ctx, double seconds,
                       double *each, struct err *err)
{
    TRY(warm_up(dev, once, ctx, seconds, err));
    size_t done = 0, batch = 1;
    uint64_t start = clock_monotonic_us(), spent = 0, before;
    while (!done || (double)spent < seconds * 1e6) {
        before = spent;
        for (size_t i = 0; i < batch; i++) once(dev, ctx);
        TRY(dev->ops->sync(dev, err));
        done += batch;
        spent = clock_monotonic_us() - start;
        if (batch < BATCH_MAX && spent - before < BATCH_US)
            batch *= 2; /* few syncs, but at most about BATCH_US past the end */
    }
    *each = (double)spent * 1e-6 / (double)done;
    return STATUS_OK;
}

const char *bench_text(const char *text, char out[BENCH_TEXT])
{
    size_t n = 0;
    for (; *text && n + 2 < BENCH_TEXT; text++) {
        if (*text == '"' || *text == '\\') out[n++] = '\\';
        out[n++] = (unsigned char)*text < ' ' ? ' ' : *text;
    }
    out[n] = '\0';
    return out;
}

/* --- matrix products ---------------------------------------------------------------------------------------------- */

struct gemm {
    struct lin_plan *plan;
    void *x, *y;
    float *w, *dw;
};

static void gemm_fwd(struct device *dev, void *ctx)
{
    struct gemm *g = ctx;
    dev->ops->lin_fwd(dev, g->plan, g->x, g->w, NULL, NULL, g->y, NULL);
}

static void gemm_bwd_x(struct device *dev, void *ctx)
{
    struct gemm *g = ctx;
    dev->ops->lin_bwd_x(dev, g->plan, g->y, g->w, NULL, g->x, false);
}

static void gemm_bwd_w(struct device *dev, void *ctx)
{
    struct gemm *g = ctx;
    dev->ops->lin_bwd_w(dev, g->plan, g->x, g->y, g->dw, NULL, true);
}

static enum status gemm(struct device *dev, double seconds, char **v, struct err *err)
{
    struct lin_shape s = {.n = strtoul(v[0], NULL, 10), .k = strtoul(v[1], NULL, 10), .m = strtoul(v[2], NULL, 10)};
    struct gemm g = {.x = bench_random(dev, s.n * s.k, true, 1),
                     .y = bench_random(dev, s.n * s.m, true, 1),
                     .w = bench_random(dev, s.k * s.m, false, 0.02f),
                     .dw = bench_random(dev, s.k * s.m, false, 1)};
    double each[3], flops = 2.0 * (double)s.n * (double)s.k * (double)s.m * 1e-12;
    if (!g.x || !g.y || !g.w || !g.dw) return err_set(err, STATUS_NOMEM, "no memory for the matrices");
    TRY(device_params_plan(dev, s.k * s.m));
    device_params(dev, g.w, s.k * s.m, 0, s.k * s.m);
    TRY(dev->ops->lin_plan(dev, &s, &g.plan));
    TRY(bench_time(dev, gemm_fwd, &g, seconds, &each[0], err));
    TRY(bench_time(dev, gemm_bwd_w, &g, seconds, &each[1], err));
    TRY(bench_time(dev, gemm_bwd_x, &g, seconds, &each[2], err));
    printf("{\"n\": %zu, \"k\": %zu, \"m\": %zu, \"fwd_tflops\": %.6g, \"bwd_w_tflops\": %.6g, \"bwd_x_tflops\": %.6g, "
           "\"tflops\": %.6g}\n",
           s.n, s.k, s.m, flops / each[0], flops / each[1], flops / each[2], 3 * flops / (each[0] + each[1] + each[2]));
    return STATUS_OK;
}

/* --- output layer
 * ----------------------------------------------------------------------------------------------------- */

struct head {
    struct head_plan *plan;
    void *x, *dx;
    float *wte, *dwte, *loss;
    int32_t *targets;
};

static void head_once(struct device *dev, void *ctx)
{
    struct head *h = ctx;
    dev->ops->head(dev, h->plan, h->x, h->wte, h->targets, 1, h->loss, h->dx, h->dwte, true);
}

static enum status head(struct device *dev, double seconds, char **v, struct err *err)
{
    struct head_shape s = {.n = strtoul(v[0], NULL, 10), .c = strtoul(v[1], NULL, 10), .v = strtoul(v[2], NULL, 10)};
    struct head h = {.x = bench_random(dev, s.n * s.c, true, 1),
                     .dx = bench_random(dev, s.n * s.c, true, 1),
                     .wte = bench_random(dev, s.v * s.c, false, 0.02f),
                     .dwte = bench_random(dev, s.v * s.c, false, 1),
                     .loss = bench_random(dev, s.n, false, 1),
                     .targets = dev->ops->alloc(dev, s.n * sizeof *h.targets)}; /* zeros */
    double each, flops = 6.0 * (double)s.n * (double)s.c * (double)s.v * 1e-12;
    if (!h.x || !h.dx || !h.wte || !h.dwte || !h.loss || !h.targets)
        return err_set(err, STATUS_NOMEM, "no memory for the head");
    TRY(device_params_plan(dev, s.v * s.c));
    device_params(dev, h.wte, s.v * s.c, 0, s.v * s.c);
    TRY(dev->ops->head_plan(dev, &s, &h.plan));
    TRY(bench_time(dev, head_once, &h, seconds, &each, err));
    printf("{\"n\": %zu, \"c\": %zu, \"v\": %zu, \"ms\": %.6g, \"tflops\": %.6g}\n", s.n, s.c, s.v, each * 1e3,
           flops / each);
    return STATUS_OK;
}

/* --- attention ---------------------------------------------------------------------------------------------------- */

struct attn {
    struct attn_plan *plan;
    void *qkv, *o, *d_o, *dqkv;
    float *lse;
};

static void attn_fwd(struct device *dev, void *ctx)
{
    struct attn *a = ctx;
    dev->ops->attn_fwd(dev, a->plan, a->qkv, a->o, a->lse);
}

static void attn_bwd(struct device *dev, void *ctx)
{
    struct attn *a = ctx;
    dev->ops->attn_bwd(dev, a->plan, a->qkv, a->o, a->lse, a->d_o, a->dqkv);
}

static enum status attn(struct device *dev, double seconds, char **v, struct err *err)
{
    struct attn_shape s = {.batch = strtoul(v[0], NULL, 10),
                           .seq = strtoul(v[1], NULL, 10),
                           .heads = strtoul(v[2], NULL, 10),
                           .kv_heads = strtoul(v[3], NULL, 10),
                           .head_dim = strtoul(v[4], NULL, 10)};
    size_t n = s.batch * s.seq, c = s.heads * s.head_dim, row = (s.heads + 2 * s.kv_heads) * s.head_dim;
    struct attn a = {.qkv = bench_random(dev, n * row, true, 1),
                     .o = bench_random(dev, n * c, true, 1),
                     .d_o = bench_random(dev, n * c, true, 1),
                     .dqkv = bench_random(dev, n * row, true, 1),
                     .lse = bench_random(dev, n * s.heads, false, 1)};
    char note[BENCH_TEXT];
    double fwd, bwd;
    double flops = 2.0 * (double)n * (double)s.seq * (double)c * 1e-12; /* causal: half of 4 B H T T hd */
    if (!a.qkv || !a.o || !a.d_o || !a.dqkv || !a.lse) return err_set(err, STATUS_NOMEM, "no memory for attention");
    enum status status = dev->ops->attn_plan(dev, &s, &a.plan);
    if (status != STATUS_OK) return err_set(err, status, "no plan: %s", dev->note);
    TRY(bench_time(dev, attn_fwd, &a, seconds, &fwd, err));
    TRY(bench_time(dev, attn_bwd, &a, seconds, &bwd, err));
    printf("{\"batch\": %zu, \"seq\": %zu, \"heads\": %zu, \"kv_heads\": %zu, \"head_dim\": %zu, \"fwd_tflops\": %.6g, "
           "\"bwd_tflops\": %.6g, \"us_per_token\": %.6g, \"note\": \"%s\"}\n",
           s.batch, s.seq, s.heads, s.kv_heads, s.head_dim, flops / fwd, 2.5 * flops / bwd,
           (fwd + bwd) / (double)n * 1e6, bench_text(dev->note, note));
    return STATUS_OK;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

struct copies {
    float *host, *a, *b;
    size_t n;
};

static void copy_in(struct device *dev, void *ctx)
{
    struct copies *c = ctx;
    dev->ops->upload(dev, c->a, c->host, c->n * sizeof *c->a);
}

static void copy_out(struct device *dev, void *ctx)
{
    struct copies *c = ctx;
    dev->ops->download(dev, c->host, c->a, c->n * sizeof *c->a);
}

static void copy_inside(struct device *dev, void *ctx)
{
    struct copies *c = ctx;
    dev->ops->copy(dev, c->b, c->a, c->n * sizeof *c->a);
}

static void add(struct device *dev, void *ctx)
{
    struct copies *c = ctx;
    dev->ops->axpy(dev, c->n, 0.5f, c->a, c->b);
}

static enum status copies(struct device *dev, double seconds, char **v, struct err *err)
{
    struct copies c = {.n = strtoul(v[0], NULL, 10) * 1000000 / sizeof(float)};
    double in, out, inside, adding, bytes = (double)c.n * sizeof(float) * 1e-9;
    c.host = device_host_alloc(dev, c.n * sizeof *c.host); /* pinned: measures the bus, not a thread's copy */
    c.a = bench_random(dev, c.n, false, 1);
    c.b = bench_random(dev, c.n, false, 1);
    if (!c.host || !c.a || !c.b) return err_set(err, STATUS_NOMEM, "no memory to copy");
    TRY(bench_time(dev, copy_in, &c, seconds, &in, err));
    TRY(bench_time(dev, copy_out, &c, seconds, &out, err));
    TRY(bench_time(dev, copy_inside, &c, seconds, &inside, err));
    TRY(bench_time(dev, add, &c, seconds, &adding, err));
    printf("{\"mb\": %s, \"upload_gb_s\": %.6g, \"download_gb_s\": %.6g, \"inside_gb_s\": %.6g, \"axpy_gb_s\": %.6g}\n",
           v[0], bytes / in, bytes / out, 2 * bytes / inside, 3 * bytes / adding);
    device_host_release(dev, c.host);
    return STATUS_OK;
}

/* --- command line ------------------------------------------------------------------------------------------------- */

static enum status info(struct device *dev)
{
    uint64_t left = 0, total = 0;
    char name[BENCH_TEXT], note[BENCH_TEXT];
    dev->ops->memory(dev, &left, &total);
    printf("{\"device\": \"%s\", \"note\": \"%s\", \"act_bytes\": %zu, \"memory_gb\": %.6g, \"free_gb\": %.6g, "
           "\"peak_tflops\": %.6g, \"gpus\": %d}\n",
           bench_text(dev->name, name), bench_text(dev->note, note), dev->act_bytes, (double)total * 1e-9,
           (double)left * 1e-9, dev->peak_flops * 1e-12, plugin_cuda_count());
    return STATUS_OK;
}

static enum status run(int argc, char **argv, struct device **dev, struct err *err)
{
    const char *what = argc > 3 ? argv[1] : "";
    if (!strcmp(what, "info")) {
        TRY(bench_device(argv[2], argv[3], dev, err));
        return info(*dev);
    }
    if (!strcmp(what, "gemm") && argc == 8) {
        TRY(bench_device(argv[2], argv[3], dev, err));
        return gemm(*dev, strtod(argv[4], NULL), argv + 5, err);
    }
    if (!strcmp(what, "head") && argc == 8) {
        TRY(bench_device(argv[2], argv[3], dev, err));
        return head(*dev, strtod(argv[4], NULL), argv + 5, err);
    }
    if (!strcmp(what, "attn") && argc == 10) {
        TRY(bench_device(argv[2], argv[3], dev, err));
        return attn(*dev, strtod(argv[4], NULL), argv + 5, err);
    }
    if (!strcmp(what, "copy") && argc == 5) {
        TRY(bench_device(argv[2], "fp32", dev, err));
        return copies(*dev, strtod(argv[3], NULL), argv + 4, err);
    }
    if (!strcmp(what, "delta") && argc == 6) {
        TRY(bench_device(argv[2], "fp32", dev, err));
        return bench_delta(*dev, strtod(argv[3], NULL), argv[4], strtoul(argv[5], NULL, 10), err);
    }
    if (!strcmp(what, "train") && (argc == 13 || argc == 14)) {
        char first[DEVICE_NAME_BYTES];
        /* The replica has its own, in that precision. */
        TRY(bench_device(device_of_rank(argv[2], 0, 1, first), "fp32", dev, err));
        return bench_train_steps(*dev, argv[2], argv[3], argc - 4, argv + 4, err);
    }
    return err_set(err, STATUS_INVALID, "usage: see the head of tests/gpu/bench_gpu.c");
}

int main(int argc, char **argv)
{
    struct device *dev = NULL;
    struct err err = {0};
    enum status status = run(argc, argv, &dev, &err);
    if (status == STATUS_OK && dev) status = dev->ops->sync(dev, &err);
    if (status != STATUS_OK) fprintf(stderr, "bench_gpu: %s\n", *err.msg ? err.msg : status_text(status));
    device_close(dev);
    return status == STATUS_OK ? 0 : status == STATUS_INVALID ? 2 : 1;
}
