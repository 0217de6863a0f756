#include "tests/lib/device/muon_case.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdbool.h>

#include "common/base/bytes.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/device_case.h"

enum { MAGIC = 0x4E4F554D, MATRICES_MAX = 16, STEPS_MAX = 4, SIDE_MAX = 64 };

/* theta, gradient, momentum and scale in the memory of a device. */
struct state {
    struct device *dev;
    size_t n;
    float *theta, *grad, *momentum, *scale;
    struct muon_plan *plan;
};

static struct state state_open(struct device *dev, const struct muon_matrix *matrices, size_t n_matrices, size_t n,
                               const float *theta, float scale)
{
    struct state s = {.dev = dev, .n = n};
    assert_int_equal(dev->ops->muon_plan(dev, matrices, n_matrices, &s.plan), STATUS_OK);
    s.theta = case_put(dev, theta, n * sizeof(float));
    s.grad = case_put(dev, NULL, n * sizeof(float));
    s.momentum = case_put(dev, NULL, n * sizeof(float));
    s.scale = case_put(dev, &scale, sizeof(float));
    assert_int_equal(dev->ops->sync(dev, NULL), STATUS_OK);
    return s;
}

static void state_step(struct state *s, const float *grad, const struct muon_hyper *hyper)
{
    s->dev->ops->upload(s->dev, s->grad, grad, s->n * sizeof *grad);
    s->dev->ops->muon(s->dev, s->plan, s->theta, s->grad, s->momentum, hyper, s->scale);
    struct err err = {0};
    if (s->dev->ops->sync(s->dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static float *on_host(const struct state *s, const float *p)
{
    float *host = mem_alloc(s->n, sizeof *host);
    assert_non_null(host);
    case_get(s->dev, host, p, s->n * sizeof *host);
    return host;
}

static void state_close(struct state *s)
{
    s->dev->ops->plan_free(s->dev, s->plan);
    s->dev->ops->release(s->dev, s->theta);
    s->dev->ops->release(s->dev, s->grad);
    s->dev->ops->release(s->dev, s->momentum);
    s->dev->ops->release(s->dev, s->scale);
}

/* --- PyTorch ------------------------------------------------------------------------------------------------------ */

struct golden {
    struct muon_matrix matrices[MATRICES_MAX];
    struct muon_hyper hyper[STEPS_MAX];
    size_t n_matrices, n_steps, n;
    float *theta, *grad[STEPS_MAX], *end, *momentum;
};

static float *get_floats(struct reader *r, size_t n, float times)
{
    float *out = mem_alloc(n, sizeof *out);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++) out[i] = get_f32(r) * times;
    return out;
}

static void golden_matrices(struct golden *g, struct reader *r)
{
    size_t at = 0, column = 0;
    for (size_t i = 0; i < g->n_matrices; i++) {
        struct muon_matrix *m = &g->matrices[i];
        m->rows = get_u32(r);
        m->cols = get_u32(r);
        m->ld = get_u32(r);
        m->decay = get_u32(r);
        m->offset = at + column;
        column += m->cols;
        if (column < m->ld) continue;
        at += m->rows * m->ld;
        column = 0;
    }
    assert_int_equal(at, g->n);
}

static void golden_load(struct golden *g)
{
    void *bytes;
    size_t size;
    struct err err = {0};
    memset(g, 0, sizeof *g);
    if (file_read("tests/golden/muon_steps.bin", 1 << 20, &bytes, &size, &err) != STATUS_OK) fail_msg("%s", err.msg);
    struct reader r = reader_of(bytes, size);
    assert_int_equal(get_u32(&r), MAGIC);
    g->n_matrices = get_u32(&r);
    g->n_steps = get_u32(&r);
    g->n = get_u32(&r);
    assert_in_range(g->n_matrices, 1, MATRICES_MAX);
    assert_in_range(g->n_steps, 1, STEPS_MAX);
    golden_matrices(g, &r);
    for (size_t i = 0; i < g->n_steps; i++) {
        struct muon_hyper *h = &g->hyper[i];
        h->lr = get_f32(&r);
        h->momentum = get_f32(&r);
        h->weight_decay = get_f32(&r);
        h->steps = (uint32_t)get_f32(&r);
    }
    g->theta = get_floats(&r, g->n, 1);
    for (size_t i = 0; i < g->n_steps; i++) g->grad[i] = get_floats(&r, g->n, 4);
    g->end = get_floats(&r, g->n, 1);
    g->momentum = get_floats(&r, g->n, 1);
    assert_true(reader_done(&r));
    mem_free(bytes);
}

static void golden_free(struct golden *g)
{
    mem_free(g->theta);
    for (size_t i = 0; i < g->n_steps; i++) mem_free(g->grad[i]);
    mem_free(g->end);
    mem_free(g->momentum);
}

/* Returns the distance from `got` to `want`, relative to the distance from `start` to `want`. */
static double off_by(const struct muon_matrix *m, const float *got, const float *want, const float *start)
{
    double off = 0, way = 0;
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->cols; c++) {
            size_t at = m->offset + r * m->ld + c;
            off += pow((double)got[at] - want[at], 2);
            way += pow((double)want[at] - (start ? start[at] : 0), 2);
        }
    return sqrt(off / way);
}

void muon_case_golden(struct device *dev, double tol)
{
    struct golden g;
    golden_load(&g);
    struct state s = state_open(dev, g.matrices, g.n_matrices, g.n, g.theta, 0.25f);
    for (size_t i = 0; i < g.n_steps; i++) state_step(&s, g.grad[i], &g.hyper[i]);
    float *theta = on_host(&s, s.theta), *momentum = on_host(&s, s.momentum);
    for (size_t i = 0; i < g.n_matrices; i++) {
        const struct muon_matrix *m = &g.matrices[i];
        double way = off_by(m, theta, g.end, g.theta), memory = off_by(m, momentum, g.momentum, NULL);
        if (!(way < tol))
            fail_msg("%zu x %zu: relative error of the step %.2e, allowed %.1e", m->rows, m->cols, way, tol);
        if (!(memory < 1e-6)) fail_msg("%zu x %zu: error of the momentum %.2e", m->rows, m->cols, memory);
    }
    mem_free(theta);
    mem_free(momentum);
    state_close(&s);
    golden_free(&g);
}

/* --- directions --------------------------------------------------------------------------------------------------- */

/* Eigenvalues of the symmetric a[n,n] (destroyed) by Jacobi rotations. */
static void eigenvalues(double *a, size_t n, double *out)
{
    for (int sweep = 0; sweep < 30; sweep++)
        for (size_t p = 0; p < n; p++)
            for (size_t q = p + 1; q < n; q++) {
                double theta = 0.5 * atan2(2 * a[p * n + q], a[q * n + q] - a[p * n + p]);
                double c = cos(theta), s = sin(theta);
                for (size_t k = 0; k < n; k++) {
                    double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y;
                    a[k * n + q] = s * x + c * y;
                }
                for (size_t k = 0; k < n; k++) {
                    double x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y;
                    a[q * n + k] = s * x + c * y;
                }
            }
    for (size_t i = 0; i < n; i++) out[i] = a[i * n + i];
}

/* Products on the short side: out = x y^T (wide) or x^T y (tall), each with its own leading dimension. */
static void short_product(size_t rows, size_t cols, const double *x, size_t ldx, const double *y, size_t ldy,
                          double *out)
{
    bool tall = rows > cols;
    size_t side = tall ? cols : rows, length = tall ? rows : cols;
    for (size_t i = 0; i < side; i++)
        for (size_t j = 0; j < side; j++) {
            double sum = 0;
            for (size_t k = 0; k < length; k++)
                sum += tall ? x[k * ldx + i] * y[k * ldy + j] : x[i * ldx + k] * y[j * ldy + k];
            out[i * side + j] = sum;
        }
}

static void check_directions(const struct muon_matrix *m, const double *step, const double *grad, double turned)
{
    static double square[SIDE_MAX * SIDE_MAX];
    double values[SIDE_MAX], skew = 0, norm = 0;
    size_t side = m->rows < m->cols ? m->rows : m->cols;
    const double *o = step + m->offset, *g = grad + m->offset;
    short_product(m->rows, m->cols, o, m->ld, o, m->ld, square);
    eigenvalues(square, side, values);
    for (size_t i = 0; i < side; i++)
        if (!(values[i] > 0.67 * 0.67 && values[i] < 1.21 * 1.21))
            fail_msg("%zu x %zu: a singular value of %g", m->rows, m->cols, sqrt(values[i]));
    short_product(m->rows, m->cols, o, m->ld, g, m->ld, square);
    for (size_t i = 0; i < side; i++)
        for (size_t j = 0; j < side; j++) {
            skew += pow(square[i * side + j] - square[j * side + i], 2);
            norm += pow(square[i * side + j], 2);
        }
    if (!(sqrt(skew / norm) < turned))
        fail_msg("%zu x %zu: product of gradient and step is asymmetric by %g", m->rows, m->cols, sqrt(skew / norm));
    eigenvalues(square, side, values);
    for (size_t i = 0; i < side; i++)
        if (!(values[i] > 0)) fail_msg("%zu x %zu: a step in the direction of the gradient", m->rows, m->cols);
}

static const struct muon_matrix shapes[] = {
    {.offset = 0, .rows = 20, .cols = 61, .ld = 61, .decay = true},
    {.offset = 1220, .rows = 61, .cols = 20, .ld = 20},
    {.offset = 2440, .rows = 33, .cols = 70, .ld = 151},
    {.offset = 2511, .rows = 33, .cols = 80, .ld = 151},
    {.offset = 7423, .rows = 64, .cols = 128, .ld = 128},
    {.offset = 15615, .rows = 61, .cols = 20, .ld = 20},
};
enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    SHAPES_N = 16835,
    GAP = 2510 /* a column outside the matrices, 33
                * rows */
};

void muon_case_directions(struct device *dev)
{
    float *theta = case_normal(SHAPES_N, 1, 0.1f), *grad = case_normal(SHAPES_N, 2, 1e-3f);
    struct state s = state_open(dev, shapes, SHAPES, SHAPES_N, theta, 1);
    state_step(&s, grad, &(struct muon_hyper){.lr = 1, .momentum = 0.95f, .steps = 5});
    float *after = on_host(&s, s.theta);
    double *step = mem_alloc(SHAPES_N, sizeof *step), *wide = case_widen(grad, SHAPES_N);
    assert_non_null(step);
    for (size_t i = 0; i < SHAPES; i++) {
        const struct muon_matrix *m = &shapes[i];
        double length = 0.2 * sqrt((double)(m->rows > m->cols ? m->rows : m->cols));
        for (size_t r = 0; r < m->rows; r++)
            for (size_t c = 0; c < m->cols; c++) {
                size_t at = m->offset + r * m->ld + c;
                step[at] = ((double)theta[at] - after[at]) / length;
            }
        check_directions(m, step, wide, dev->act_bytes < sizeof(float) ? 2e-2 : 1e-3);
    }
    for (size_t r = 0; r < 33; r++) assert_true(after[GAP + r * 151] == theta[GAP + r * 151]);
    mem_free(step);
    mem_free(wide);
    mem_free(after);
    mem_free(theta);
    mem_free(grad);
    state_close(&s);
}

/* --- edges -------------------------------------------------------------------------------------------------------- */

static void check_size(struct device *dev, float size)
{
    float *theta = case_normal(SHAPES_N, 1, 0.1f), *grad = case_normal(SHAPES_N, 2, size);
    struct state s = state_open(dev, shapes, SHAPES, SHAPES_N, theta, 1);
    for (int i = 0; i < 2; i++) state_step(&s, grad, &(struct muon_hyper){.lr = 0.1f, .momentum = 0.9f, .steps = 5});
    float *after = on_host(&s, s.theta);
    double way = 0;
    for (size_t i = 0; i < SHAPES_N; i++) {
        if (!isfinite(after[i])) fail_msg("gradients of %g: theta[%zu] is %g", (double)size, i, (double)after[i]);
        way += pow((double)after[i] - theta[i], 2);
    }
    if ((size < 1e-9f) != (sqrt(way / SHAPES_N) < 1e-3)) fail_msg("gradients of %g: moved %g", (double)size, sqrt(way));
    mem_free(after);
    mem_free(theta);
    mem_free(grad);
    state_close(&s);
}

void muon_case_edges(struct device *dev)
{
    static const struct muon_matrix empty = {.rows = 0, .cols = 3, .ld = 3}, narrow = {.rows = 2, .cols = 3, .ld = 2};
    struct muon_plan *plan;
    assert_int_equal(dev->ops->muon_plan(dev, shapes, 0, &plan), STATUS_INVALID);
    assert_int_equal(dev->ops->muon_plan(dev, &empty, 1, &plan), STATUS_INVALID);
    assert_int_equal(dev->ops->muon_plan(dev, &narrow, 1, &plan), STATUS_INVALID);
    float *theta = case_normal(SHAPES_N, 1, 0.1f), *grad = case_normal(SHAPES_N, 2, 1);
    struct muon_hyper hyper = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.5f, .steps = 5};
    struct state s = state_open(dev, shapes, SHAPES, SHAPES_N, theta, 1);
    state_step(&s, grad, &hyper);
    float *before = on_host(&s, s.theta), *momentum = on_host(&s, s.momentum);
    for (size_t i = 0; i < SHAPES_N; i++) grad[i] = i % 7 ? INFINITY : NAN;
    s.dev->ops->fill(s.dev, s.scale, 1, 0);
    state_step(&s, grad, &hyper);
    float *after = on_host(&s, s.theta), *momentum_after = on_host(&s, s.momentum);
    case_equal("theta after a refused step", after, before, SHAPES_N);
    case_equal("momentum after a refused step", momentum_after, momentum, SHAPES_N);
    mem_free(before);
    mem_free(after);
    mem_free(momentum);
    mem_free(momentum_after);
    state_close(&s);
    mem_free(theta);
    mem_free(grad);
    check_size(dev, 1e-14f);
    check_size(dev, 1e-4f);
    check_size(dev, 1e10f);
}

/* --- other devices ------------------------------------------------------------------------------------------------ */

void muon_case_same(struct device *dev, struct device *reference, double tol)
{
    static const struct muon_matrix matrices[] = {{.offset = 0, .rows = 260, .cols = 262, .ld = 262, .decay = true},
                                                  {.offset = 68120, .rows = 40, .cols = 50, .ld = 50},
                                                  {.offset = 70120, .rows = 40, .cols = 50, .ld = 50}};
    enum { N = 72120 };
    struct device *devs[2] = {dev, reference};
    float *theta = case_normal(N, 1, 0.1f), *grad = case_normal(N, 2, 1), *after[2];
    for (size_t i = 70120; i < N; i++) grad[i] *= 10;
    for (int d = 0; d < 2; d++) {
        struct state s = state_open(devs[d], matrices, 3, N, theta, 1);
        state_step(&s, grad, &(struct muon_hyper){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .steps = 1});
        after[d] = on_host(&s, s.theta);
        state_close(&s);
    }
    for (size_t i = 0; i < 3; i++) {
        double off = off_by(&matrices[i], after[0], after[1], theta);
        if (!(off < tol)) fail_msg("matrix %zu: relative error of the step %.2e, allowed %.1e", i, off, tol);
    }
    for (int d = 0; d < 2; d++) mem_free(after[d]);
    mem_free(theta);
    mem_free(grad);
}

/* --- momentum in bf16 --------------------------------------------------------------------------------------------- */

/* Like a shard: no momentum before the third matrix. */
enum { BEFORE = 2440, BF16_STEPS = 2 };

static void plain_momentum(const struct muon_matrix *m, const float *grad, float mu, float scale,
                           const struct step_count *count, uint16_t *momentum)
{
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->cols; c++) {
            size_t at = m->offset + r * m->ld + c;
            uint16_t *half = &momentum[at - m->skipped];
            float take = (1 - mu) * (grad[at] * scale);
            float value = moment_drop(mu * rule_bf16_value(*half) + moment_drop(take));
            *half = moment_round(value, moment_word(count->noise[0], count->noise[1], at) & 0xffff);
        }
}

void muon_case_bf16_momentum(struct device *dev, double tol)
{
    enum { FIRST = 2, LEFT = SHAPES - FIRST };
    struct muon_matrix matrices[LEFT];
    uint16_t *want = mem_alloc(SHAPES_N, sizeof *want);
    float *theta = case_normal(SHAPES_N, 1, 0.1f), *grad = case_normal(SHAPES_N, 2, 1);
    assert_non_null(want);
    for (size_t i = 0; i < LEFT; i++) {
        matrices[i] = shapes[FIRST + i];
        matrices[i].skipped = BEFORE;
    }
    struct state wide = state_open(dev, matrices, LEFT, SHAPES_N, theta, 0.5f);
    struct state s = state_open(dev, matrices, LEFT, SHAPES_N, theta, 0.5f);
    struct step_count count = {.seed = 4}, *on_dev = dev->ops->alloc(dev, sizeof count);
    for (uint64_t step = 1; step <= BF16_STEPS; step++) {
        struct muon_hyper hyper = {.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .steps = 5};
        for (size_t i = 0; i < SHAPES_N; i++) grad[i] = i % 29 == step ? 0 : ldexpf(grad[i], i % 31 ? 0 : -100);
        state_step(&wide, grad, &hyper);
        moment_noise(count.seed, step, count.noise);
        dev->ops->upload(dev, on_dev, &count, sizeof count);
        hyper.bf16_moments = true;
        hyper.count = on_dev;
        state_step(&s, grad, &hyper);
        for (size_t i = 0; i < LEFT; i++) plain_momentum(&matrices[i], grad, 0.9f, 0.5f, &count, want);
    }
    float *momentum = on_host(&s, s.momentum), *after = on_host(&s, s.theta), *near = on_host(&wide, wide.theta);
    assert_memory_equal(momentum, want, (SHAPES_N - BEFORE) * sizeof *want);
    for (size_t i = 0; i < LEFT; i++) {
        double off = off_by(&matrices[i], after, near, theta);
        if (!(off < tol)) fail_msg("matrix %zu: relative error of the step %.2e, allowed %.1e", i, off, tol);
    }
    dev->ops->release(dev, on_dev);
    state_close(&s);
    state_close(&wide);
    mem_free(momentum);
    mem_free(after);
    mem_free(near);
    mem_free(want);
    mem_free(theta);
    mem_free(grad);
}

uint64_t muon_case_bits(struct device *dev)
{
    float *theta = case_normal(SHAPES_N, 1, 0.1f), *grad = case_normal(SHAPES_N, 2, 1);
    struct state s = state_open(dev, shapes, SHAPES, SHAPES_N, theta, 0.5f);
    for (int i = 0; i < 2; i++)
        state_step(&s, grad, &(struct muon_hyper){.lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.1f, .steps = 5});
    float *after = on_host(&s, s.theta), *momentum = on_host(&s, s.momentum);
    uint64_t bits = hash64(after, SHAPES_N * sizeof *after) + 3 * hash64(momentum, SHAPES_N * sizeof *momentum);
    mem_free(after);
    mem_free(momentum);
    mem_free(theta);
    mem_free(grad);
    state_close(&s);
    return bits;
}
