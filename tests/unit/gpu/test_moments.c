/* Moments in bf16.
 * - The rounding is unbiased and independent of other elements, steps, workers and moments.
 * - Exact values stay exact.
 * - AdamW's bits match a plain loop at every instruction-set level, for any threads and any shards. */
#include <math.h>

#include "common/base/mem.h"
#include "gpu/cpu/cpu_kernels.h"
#include "gpu/device.h"
#include "gpu/moment_rules.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"

enum { DRAWS = 1 << 16 };

/* Allows five standard deviations of a count of DRAWS events of probability p each, plus one for p near 0. */
static void expect_share(const char *what, unsigned count, double p)
{
    double off = fabs(count - p * DRAWS), allowed = 5 * sqrt(DRAWS * p * (1 - p)) + 1;
    if (off > allowed) fail_msg("%s: %u of %d, expected %.0f +- %.0f", what, count, DRAWS, p * DRAWS, allowed);
}

static uint32_t word_of(uint64_t seed, uint64_t step, uint64_t index)
{
    uint32_t noise[2];
    moment_noise(seed, step, noise);
    return moment_word(noise[0], noise[1], index);
}

/* Returns draw number i along one of four sequences: elements, elements behind 2^32, steps, seeds. */
static uint32_t draw(int way, uint32_t i)
{
    if (way < 2) return word_of(7, 3, i + ((uint64_t)way << 32) * 5);
    return way == 2 ? word_of(7, i, 11) : word_of(i, 3, 11);
}

/* Compares the repeated products with powl, rounded to float. */
TEST(test_bias_correction_matches_power)
{
    static const float betas[] = {0, 0.5f, 0.9f, 0.95f, 0.999f, 0.99999f};
    for (size_t b = 0; b < sizeof betas / sizeof *betas; b++)
        for (uint64_t step = 1; step < (uint64_t)1 << 40; step += step < 1000 ? 1 : step / 3) {
            long double want = 1 / (1 - powl((long double)betas[b], (long double)step));
            float got = moment_correct(betas[b], step);
            if (!(fabsl((long double)got - want) <= 0x1p-24L * 1.001L * want))
                fail_msg("beta %g, step %llu: %.9g, want %.9Lg", (double)betas[b], (unsigned long long)step,
                         (double)got, want);
        }
}

TEST(test_rounding_is_unbiased)
{
    static const uint32_t cut[] = {1, 64, 1000, 0x4000, 0x8000, 0xc000, 0xff00, 0xffff}; /* of 0x10000 */
    for (int way = 0; way < 4; way++)
        for (size_t c = 0; c < sizeof cut / sizeof *cut; c++)
            for (int moment = 0; moment < 2; moment++) {
                float x = rule_float((moment ? 0x3a510000u : 0xc1230000u) + cut[c]);
                unsigned up = 0;
                for (uint32_t i = 0; i < DRAWS; i++) {
                    uint32_t word = draw(way, i);
                    uint16_t half = moment_round(x, moment ? word >> 16 : word & 0xffff);
                    up += half - (rule_bits(x) >> 16);
                    assert_true(half - (rule_bits(x) >> 16) <= 1); /* one of its two neighbours */
                }
                expect_share("rounded away from 0", up, cut[c] / 65536.0);
            }
}

/* The rounding of a half is independent of the next element, step and worker, and of the other moment. */
TEST(test_roundings_are_independent)
{
    unsigned moments = 0, next[4] = {0}, far[4] = {0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        uint32_t word = draw(0, i);
        moments += (word >> 15 & 1) & word >> 31;
        for (int way = 0; way < 4; way++) {
            uint32_t a = draw(way, i), b = draw(way, i + 1), c = draw(way, i + 4096);
            next[way] += (a & b) >> 31;
            far[way] += (a & c) >> 15 & 1;
        }
    }
    expect_share("both moments up", moments, 0.25);
    for (int way = 0; way < 4; way++) {
        expect_share("two neighbours up", next[way], 0.25);
        expect_share("two at a distance up", far[way], 0.25);
    }
}

TEST(test_exact_values_stay)
{
    for (uint32_t half = 0; half < 0x7f80; half++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            float x = rule_float((half | sign << 15) << 16);
            assert_int_equal(moment_round(x, 0), half | sign << 15);
            assert_int_equal(moment_round(x, 0xffff), half | sign << 15);
        }
    assert_int_equal(moment_round(3.4e38f, 0xffff), 0x7f7f); /* the next value is infinity */
    assert_int_equal(moment_round(-3.4e38f, 0xffff), 0xff7f);
    assert_int_equal(moment_round(INFINITY, 0), 0x7f7f);
    assert_true(moment_drop(MOMENT_LEAST) == MOMENT_LEAST && moment_drop(-MOMENT_LEAST) == -MOMENT_LEAST);
    assert_true(moment_drop(0x1.fp-111f) == 0 && moment_drop(-1e-40f) == 0);
    assert_int_equal(moment_round(MOMENT_LEAST, 0), rule_bits(MOMENT_LEAST) >> 16); /* not truncated to less */
}

/* --- AdamW -------------------------------------------------------------------------------------------------------- */

enum { N = 4099, STEPS = 4 };

struct state {
    float *theta, *grad;
    uint16_t *m, *v;
};

static struct state state_make(void)
{
    struct state s = {.theta = case_normal(N, 1, 1),
                      .grad = mem_alloc(N, sizeof(float)),
                      .m = mem_alloc(N, sizeof *s.m),
                      .v = mem_alloc(N, sizeof *s.v)};
    assert_true(s.grad && s.m && s.v);
    return s;
}

static void state_free(struct state *s)
{
    mem_free(s->theta);
    mem_free(s->grad);
    mem_free(s->m);
    mem_free(s->v);
}

/* All magnitudes: subnormal squares and squares beyond 1e18; 0 now and then, and always in one element. */
static void fill_grad(float *grad, uint64_t step)
{
    float *values = case_normal(N, 10 + step, 1);
    for (uint32_t i = 0; i < N; i++) {
        bool none = i % 13 == step || i == 5;
        grad[i] = none ? 0 : ldexpf(values[i], i % 17 ? -(int)(i % 140) : 62);
    }
    mem_free(values);
}

static const struct adamw_hyper hyper = {
    .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .bf16_moments = true};
static const float scale = 0.5f;

static struct step_count count_of(uint64_t steps)
{
    struct step_count count = {.steps = steps, .seed = 99};
    for (int i = 0; i < 2; i++) count.correct[i] = moment_correct(i ? hyper.beta2 : hyper.beta1, steps);
    moment_noise(count.seed, steps, count.noise);
    return count;
}

/* The expected result, bit for bit; index: of element 0. */
static void plain_step(struct state *s, size_t from, size_t to, uint64_t index, float decay,
                       const struct step_count *count)
{
    float keep = 1 - decay, lr = -hyper.lr * count->correct[0];
    for (size_t i = from; i < to; i++) {
        float g = s->grad[i] * scale, take = (1 - hyper.beta1) * g, square = (1 - hyper.beta2) * (g * g);
        float m = moment_drop(hyper.beta1 * rule_bf16_value(s->m[i]) + moment_drop(take));
        float v = moment_drop(hyper.beta2 * rule_bf16_value(s->v[i]) + moment_drop(square));
        float way = m / (sqrtf(v * count->correct[1]) + hyper.eps);
        s->theta[i] = s->theta[i] * keep + moment_drop(lr * way);
        uint32_t word = moment_word(count->noise[0], count->noise[1], index + i);
        s->m[i] = moment_round(m, word & 0xffff);
        s->v[i] = moment_round(v, word >> 16);
    }
}

static void same(const char *what, const struct state *got, const struct state *want)
{
    for (size_t i = 0; i < N; i++) {
        if (rule_bits(got->theta[i]) != rule_bits(want->theta[i])) fail_msg("%s: theta %zu differs", what, i);
        if (got->m[i] != want->m[i] || got->v[i] != want->v[i])
            fail_msg("%s: moments %zu are %04x %04x, not %04x %04x", what, i, got->m[i], got->v[i], want->m[i],
                     want->v[i]);
    }
}

/* Runs whole, and as three shards that keep only the moments of their part. */
static void check_adamw(struct device *dev)
{
    const struct adamw_span spans[] = {{.count = 1237, .decay = true}, {.offset = 1237, .count = N - 1237}};
    const size_t cuts[] = {0, 64, 2051, N};
    struct state whole = state_make(), want = state_make(), cut = state_make();
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct step_count count = count_of(step), counted = {.steps = step - 1, .seed = count.seed};
        dev->ops->count_step(dev, &scale, hyper.beta1, hyper.beta2, &counted);
        assert_memory_equal(&counted, &count, sizeof count);
        struct adamw_hyper h = hyper;
        h.count = &count;
        struct state *all[] = {&want, &whole, &cut};
        for (size_t i = 0; i < 3; i++) fill_grad(all[i]->grad, step);
        for (size_t i = 0; i < 2; i++)
            plain_step(&want, spans[i].offset, spans[i].offset + spans[i].count, 0,
                       spans[i].decay ? h.lr * h.weight_decay : 0, &count);
        dev->ops->adamw(dev, spans, 2, whole.theta, whole.grad, whole.m, whole.v, &h, &scale);
        for (size_t c = 0; c < 3; c++) {
            struct adamw_span part[2];
            size_t n = 0;
            for (size_t i = 0; i < 2; i++) {
                size_t from = spans[i].offset > cuts[c] ? spans[i].offset : cuts[c];
                size_t end = spans[i].offset + spans[i].count;
                if (end > cuts[c + 1]) end = cuts[c + 1];
                if (from < end)
                    part[n++] = (struct adamw_span){
                        .offset = from, .count = end - from, .decay = spans[i].decay, .skipped = cuts[c]};
            }
            dev->ops->adamw(dev, part, n, cut.theta, cut.grad, cut.m + cuts[c], cut.v + cuts[c], &h, &scale);
        }
        same("whole", &whole, &want);
        same("in shards", &cut, &want);
    }
    for (size_t i = 0; i < N; i++) assert_true(whole.v[i] <= 0x7f7f); /* neither negative, nor infinite, nor NaN */
    assert_true(whole.v[5] == 0 && whole.m[5] == 0);
    const float none = 0;
    struct adamw_hyper h = hyper;
    struct step_count count = count_of(STEPS + 1);
    h.count = &count;
    dev->ops->adamw(dev, spans, 2, whole.theta, whole.grad, whole.m, whole.v, &h, &none); /* refused */
    same("refused", &whole, &want);
    state_free(&whole);
    state_free(&want);
    state_free(&cut);
}

TEST(test_adamw_matches_plain_loop)
{
    device_case_each(check_adamw);
}

/* More elements than 32 bits can count. */
TEST(test_noise_reaches_elements_behind_32_bits)
{
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    const uint64_t index = ((uint64_t)3 << 32) - 1029;
    struct step_count count = count_of(2);
    for (size_t l = 0; l < 3; l++) {
        const struct cpu_kernels *kernels = cpu_kernels_select(levels[l]);
        if (!kernels) continue;
        struct state got = state_make(), want = state_make();
        struct adamw_step step = {.lr = hyper.lr,
                                  .beta1 = hyper.beta1,
                                  .beta2 = hyper.beta2,
                                  .eps = hyper.eps,
                                  .correct1 = count.correct[0],
                                  .correct2 = count.correct[1],
                                  .scale = scale,
                                  .noise = {count.noise[0], count.noise[1]}};
        fill_grad(got.grad, 1);
        fill_grad(want.grad, 1);
        plain_step(&want, 0, N, index, 0, &count);
        kernels->adamw_bf16(N, index, got.theta, got.grad, got.m, got.v, &step);
        same(levels[l], &got, &want);
        state_free(&got);
        state_free(&want);
    }
}

/* A second moment that grows by less than half of its last bit per step still reaches its limit. Rounded to nearest,
 * it would stay at about a quarter. */
TEST(test_small_increments_accumulate)
{
    enum { FEW = 256, LONG = 6000 };
    struct device *dev;
    float theta[FEW] = {0}, grad[FEW];
    uint16_t m[FEW] = {0}, v[FEW] = {0};
    double mean_m = 0, mean_v = 0;
    const struct adamw_span span = {.count = FEW};
    for (size_t i = 0; i < FEW; i++) grad[i] = 1;
    assert_int_equal(device_open("cpu", 1, &dev, NULL), STATUS_OK);
    for (uint64_t step = 1; step <= LONG; step++) {
        struct step_count count = count_of(step);
        struct adamw_hyper h = hyper;
        h.count = &count;
        dev->ops->adamw(dev, &span, 1, theta, grad, m, v, &h, NULL);
    }
    for (size_t i = 0; i < FEW; i++) {
        mean_m += rule_bf16_value(m[i]) / FEW;
        mean_v += rule_bf16_value(v[i]) / FEW;
    }
    device_close(dev);
    if (!(fabs(mean_m - 1) < 0.01)) fail_msg("the first moment is %g, expected 1", mean_m);
    if (!(fabs(mean_v - (1 - pow(0.999, LONG))) < 0.02)) fail_msg("the second moment is %g, expected 1", mean_v);
}

TEST_MAIN(NULL, NULL)
