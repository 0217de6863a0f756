/* Profiler of a training step: wraps the operations of a device and sums the wall time of each. */
#ifndef TESTS_BENCH_OP_TIMER_H
#define TESTS_BENCH_OP_TIMER_H

#include <stdio.h>

#include "common/base/clock.h"
#include "gpu/device.h"

/* X(name, parameters with types, arguments) */
#define OP_TIMER_MAP(X)                                                                                                \
    X(embed_fwd,                                                                                                       \
      (struct device * d, size_t n, size_t s, size_t c, const int32_t *t, const float *e, const float *p, void *o),    \
      (d, n, s, c, t, e, p, o))                                                                                        \
    X(embed_bwd,                                                                                                       \
      (struct device * d, size_t n, size_t s, size_t c, const int32_t *t, const void *o, float *e, float *p, bool a),  \
      (d, n, s, c, t, o, e, p, a))                                                                                     \
    X(norm_fwd,                                                                                                        \
      (struct device * d, size_t n, size_t c, const void *x, const float *w, const float *b, void *y, float *m,        \
       float *r),                                                                                                      \
      (d, n, c, x, w, b, y, m, r))                                                                                     \
    X(norm_bwd,                                                                                                        \
      (struct device * d, size_t n, size_t c, const void *dy, const void *x, const float *w, const float *m,           \
       const float *r, const void *dr, void *dx, float *dw, float *db, bool a),                                        \
      (d, n, c, dy, x, w, m, r, dr, dx, dw, db, a))                                                                    \
    X(lin_fwd,                                                                                                         \
      (struct device * d, const struct lin_plan *p, const void *x, const float *w, const float *b, const void *r,      \
       void *y, void *a),                                                                                              \
      (d, p, x, w, b, r, y, a))                                                                                        \
    X(lin_bwd_x,                                                                                                       \
      (struct device * d, const struct lin_plan *p, const void *dy, const float *w, const void *x, void *dx, bool a),  \
      (d, p, dy, w, x, dx, a))                                                                                         \
    X(lin_bwd_w,                                                                                                       \
      (struct device * d, const struct lin_plan *p, const void *x, const void *dy, float *dw, float *db, bool a),      \
      (d, p, x, dy, dw, db, a))                                                                                        \
    X(attn_fwd, (struct device * d, const struct attn_plan *p, const void *q, void *o, float *l), (d, p, q, o, l))     \
    X(attn_bwd,                                                                                                        \
      (struct device * d, const struct attn_plan *p, const void *q, const void *o, const float *l, const void *g,      \
       void *dq),                                                                                                      \
      (d, p, q, o, l, g, dq))                                                                                          \
    X(head,                                                                                                            \
      (struct device * d, const struct head_plan *p, const void *x, const float *w, const int32_t *t, float s,         \
       float *l, void *dx, float *dw, bool a),                                                                         \
      (d, p, x, w, t, s, l, dx, dw, a))                                                                                \
    X(sumsq, (struct device * d, size_t n, const float *x, float *o), (d, n, x, o))                                    \
    X(adamw,                                                                                                           \
      (struct device * d, const struct adamw_span *s, size_t n, float *t, const float *g, void *m, void *v,            \
       const struct adamw_hyper *h, const float *c),                                                                   \
      (d, s, n, t, g, m, v, h, c))                                                                                     \
    X(muon,                                                                                                            \
      (struct device * d, const struct muon_plan *p, float *t, const float *g, void *m, const struct muon_hyper *h,    \
       const float *c),                                                                                                \
      (d, p, t, g, m, h, c))

static struct {
    const struct device_ops *real;
    struct device_ops ops;
#define X(name, types, args) uint64_t name##_us;
    OP_TIMER_MAP(X)
#undef X
    uint64_t start;
} op_timer;

#define X(name, types, args)                                                                                           \
    static void timed_##name types                                                                                     \
    {                                                                                                                  \
        uint64_t start = clock_monotonic_us();                                                                         \
        op_timer.real->name args;                                                                                      \
        op_timer.name##_us += clock_monotonic_us() - start;                                                            \
    }
OP_TIMER_MAP(X)
#undef X

static inline void op_timer_install(struct device *dev)
{
    op_timer.real = dev->ops;
    op_timer.ops = *dev->ops;
#define X(name, types, args) op_timer.ops.name = timed_##name;
    OP_TIMER_MAP(X)
#undef X
    dev->ops = &op_timer.ops;
    op_timer.start = clock_monotonic_us();
}

static inline void op_timer_print(FILE *out)
{
    double all = (double)(clock_monotonic_us() - op_timer.start);
#define X(name, types, args) fprintf(out, "%-10s %5.1f %%\n", #name, 100 * (double)op_timer.name##_us / all);
    OP_TIMER_MAP(X)
#undef X
}

#endif
