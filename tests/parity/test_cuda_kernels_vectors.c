/* Tests vector operations, clipping and AdamW of the CUDA device against the CPU (tests/lib/device/device_pair.h): odd
 * sizes around every block size, outputs filled with NaN before. ctest: labels=asan timeout=240 */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/test.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void check_vectors(void)
{
    static const size_t lengths[] = {1, 31, 255, 256, 257, 1000, 70001};
    for (size_t i = 0; i < COUNT(lengths); i++) {
        size_t n = lengths[i];
        float half = 0.5f, none = 0;
        struct vec x = vec_normal(n, 1, 1), y = vec_poisoned(n), sum = vec_poisoned(1), sumsq = vec_poisoned(1);
        struct vec scale = vec_of(1, &half, false), zero = vec_of(1, &none, false), later = vec_poisoned(1);
        for (int d = 0; d < 2; d++) {
            ON(d, fill, y.at[d], n, 2);
            ON(d, axpy, n, 3, x.at[d], y.at[d]);
            ON(d, sgd, n, y.at[d], x.at[d], 0.1f, 0.75f, scale.at[d]);
            ON(d, sgd, n, y.at[d], x.at[d], 0.1f, 0.5f, zero.at[d]); /* the scale is 0, as for a refused step */
            ON(d, sgd, n, y.at[d], x.at[d], 0.3f, 1, NULL);
            ON(d, sum, n, y.at[d], sum.at[d]);
            ON(d, sumsq, n, x.at[d], sumsq.at[d]);
            ON(d, sumsq, n - 1, x.at[d] + 1, later.at[d]); /* not aligned to 16 bytes */
            ON(d, fill, y.at[d], 0, 1);
        }
        vec_same("sum", &sum, 1e-5);
        vec_same("sumsq", &sumsq, 1e-6);
        vec_same("sumsq", &later, 1e-6);
        vec_same("fill, axpy, sgd", &y, 1e-7);
    }
}

static void check_clip(void)
{
    static const float squares[] = {25, 0, NAN, INFINITY, 3e38f}, limits[] = {0, 1, 10, 1e-38f};
    for (size_t i = 0; i < COUNT(squares); i++)
        for (size_t j = 0; j < COUNT(limits); j++) {
            struct vec sumsq = vec_of(1, &squares[i], false), scale = vec_poisoned(1), norm = vec_poisoned(1);
            for (int d = 0; d < 2; d++) ON(d, clip_scale, sumsq.at[d], limits[j], scale.at[d], norm.at[d]);
            float *n0 = vec_host(&norm, 0), *n1 = vec_host(&norm, 1);
            float *s0 = vec_host(&scale, 0), *s1 = vec_host(&scale, 1);
            assert_true(*s0 == *s1 && (*n0 == *n1 || (isnan(*n0) && isnan(*n1))) && (*s1 != 0) == !!isfinite(*n1));
            void *host[] = {n0, n1, s0, s1};
            for (size_t k = 0; k < 4; k++) mem_free(host[k]);
        }
}

/* A vector of `bytes` zero bytes; bytes is a multiple of 4. */
static struct vec vec_zeros(size_t bytes)
{
    float *zeros = mem_alloc(1, bytes);
    struct vec v = vec_of(bytes / sizeof *zeros, zeros, false);
    mem_free(zeros);
    return v;
}

/* Compare the step counts of both devices and free them. Another pow may round the corrections differently. */
static void same_counts(struct vec *count, uint64_t steps)
{
    struct step_count *counts[2] = {(void *)vec_host(count, 0), (void *)vec_host(count, 1)};
    assert_int_equal(counts[0]->steps, steps);
    assert_int_equal(counts[1]->steps, steps);
    assert_memory_equal(counts[0]->noise, counts[1]->noise, sizeof counts[0]->noise);
    for (int i = 0; i < 2; i++)
        assert_true(fabsf(counts[0]->correct[i] - counts[1]->correct[i]) <= 1e-7f * counts[0]->correct[i]);
    for (int d = 0; d < 2; d++) mem_free(counts[d]);
}

static void check_adamw(void)
{
    enum { N = 3000 };
    const struct adamw_span spans[] = {{.offset = 0, .count = 1237, .decay = true},
                                       {.offset = 1240, .count = 3, .decay = false},
                                       {.offset = 1250, .count = N - 1250, .decay = true}};
    const float half = 0.5f, none = 0;
    struct vec theta = vec_normal(N, 1, 1), grad = vec_normal(N, 2, 1), m = vec_normal(N, 3, 0);
    struct vec v = vec_normal(N, 3, 0), scale = vec_of(1, &half, false), zero = vec_of(1, &none, false);
    const struct step_count seeded = {.seed = 77};
    struct vec count = vec_of(sizeof seeded / sizeof(float), (const float *)(const void *)&seeded, false);
    for (uint64_t step = 1; step <= 4; step++)
        for (int d = 0; d < 2; d++) {
            struct adamw_hyper h = {.lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .step = step,
                                    .count = step % 2 ? NULL : (void *)count.at[d]};
            ON(d, count_step, scale.at[d], 0.9f, 0.95f, (void *)count.at[d]);
            ON(d, count_step, zero.at[d], 0.9f, 0.95f, (void *)count.at[d]);
            ON(d, adamw, spans, 3, theta.at[d], grad.at[d], m.at[d], v.at[d], &h, step == 3 ? NULL : scale.at[d]);
            ON(d, adamw, spans, 3, theta.at[d], grad.at[d], m.at[d], v.at[d], &h, zero.at[d]);
        }
    same_counts(&count, 4);
    vec_same("adamw theta", &theta, 1e-7);
    vec_same("adamw m", &m, 1e-7);
    vec_same("adamw v", &v, 1e-7);
}

static void same_bits(const char *what, struct vec *v)
{
    float *host[2] = {vec_host(v, 0), vec_host(v, 1)};
    const uint32_t *bits[2] = {(const void *)host[0], (const void *)host[1]};
    for (size_t i = 0; i < v->n; i++)
        if (bits[0][i] != bits[1][i])
            fail_msg("%s: element %zu is %08x, expected %08x", what, i, bits[1][i], bits[0][i]);
    for (int d = 0; d < 2; d++) mem_free(host[d]);
}

/* AdamW with bf16 moments, bit for bit: gradients of all sizes, down to those whose square is subnormal or 0, some of
 * them 0 in some steps; the moments cover a part only, as in a shard. */
static void check_adamw_bf16(void)
{
    enum { N = 3000, LEFT_OUT = 100 };
    const struct adamw_span spans[] = {{.offset = LEFT_OUT, .count = 1137, .decay = true, .skipped = LEFT_OUT},
                                       {.offset = 1240, .count = 3, .decay = false, .skipped = LEFT_OUT},
                                       {.offset = 1250, .count = N - 1250, .decay = true, .skipped = 70}};
    struct step_count host = {.seed = 12345};
    struct vec theta = vec_normal(N, 1, 1), m = vec_zeros(N * sizeof(uint16_t)), v = vec_zeros(N * sizeof(uint16_t));
    for (uint64_t step = 1; step <= 5; step++) {
        float *values = case_normal(N, step, 1), half = 0.5f;
        for (size_t i = 0; i < N; i++) values[i] = i % 11 > step ? ldexpf(values[i], -(int)(i % 140)) : 0;
        host.steps = step;
        host.correct[0] = (float)(1 / (1 - pow(0.9, (double)step)));
        host.correct[1] = (float)(1 / (1 - pow(0.999, (double)step)));
        moment_noise(host.seed, step, host.noise);
        struct vec grad = vec_of(N, values, false), scale = vec_of(1, &half, false);
        struct vec count = vec_of(sizeof host / sizeof(float), (const float *)(const void *)&host, false);
        for (int d = 0; d < 2; d++) {
            struct adamw_hyper h = {.lr = 0.01f,
                                    .beta1 = 0.9f,
                                    .beta2 = 0.999f,
                                    .eps = 1e-8f,
                                    .weight_decay = 0.1f,
                                    .count = (void *)count.at[d],
                                    .bf16_moments = true};
            ON(d, adamw, spans, 3, theta.at[d], grad.at[d], m.at[d], v.at[d], &h, scale.at[d]);
            assert_int_equal(ON(d, sync, NULL), STATUS_OK);
        }
        mem_free(values);
    }
    same_bits("theta", &theta);
    same_bits("m", &m);
    same_bits("v", &v);
}

PAIR_TEST(vectors)
PAIR_TEST(clip)
PAIR_TEST(adamw)
PAIR_TEST(adamw_bf16)

TEST_MAIN(NULL, NULL)
