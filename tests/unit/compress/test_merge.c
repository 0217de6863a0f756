/* The merge rules against plain loops, with any number of threads and any grouping; exact for a single worker.
 * ctest: labels=threads */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/base/rng.h"
#include "common/tensor/layout.h"
#include "compress/merge.h"
#include "tests/lib/test.h"

enum { N = 300000, R = 5, TENSORS = 4 }; /* three parts, and tensors that end inside them */

/* The optimized build tests all combinations of rules. Sanitizers are slow: they run a subset, with one number of
 * threads. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { EACH = 5, MANY = 1 };
#else
enum { EACH = 1, MANY = 3 };
#endif

static const uint64_t shapes[TENSORS] = {70000, 100, 169900, 60000};

struct world {
    struct layout layout;
    struct codec *codec;
    struct merge_delta deltas[R];
    uint64_t tokens[R];
    float *x[R]; /* decoded; -0: not sent */
    float *theta, *acc, *expect;
    bool async;
};

static float *floats(void)
{
    float *x = mem_alloc(N, sizeof *x);
    assert_non_null(x);
    return x;
}

static void world_open(struct world *w, const char *spec)
{
    static const uint64_t tokens[R] = {100, 300, 50, 500, 50};
    struct err err = {0};
    *w = (struct world){.theta = floats(), .acc = floats(), .expect = floats()};
    layout_init(&w->layout);
    for (uint32_t t = 0; t < TENSORS; t++) {
        char name[16];
        uint64_t shape[2] = {10, shapes[t] / 10};
        snprintf(name, sizeof name, t == 1 ? "wpe.%u" : "t%u", t);
        assert_int_equal(layout_add(&w->layout, name, 2, shape, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    }
    assert_int_equal(layout_split(&w->layout, 1), STATUS_OK);
    assert_int_equal(codec_create_for_fragment(&w->codec, spec, &w->layout, 0, &err), STATUS_OK);
    rng_normal_fill(5, RNG_TEST + 1, 0, 1.0f, w->theta, N);
    for (int i = 0; i < R; i++) {
        uint8_t *payload = mem_alloc(1, codec_bound(w->codec));
        w->x[i] = floats();
        rng_normal_fill(5, RNG_TEST, (uint64_t)i << 30, 1.0f + (float)(i * 7 % 5), w->x[i], N);
        w->x[i][3] = -0.0f;
        w->tokens[i] = tokens[i];
        w->deltas[i] = (struct merge_delta){
            .payload = payload, .tokens = tokens[i], .room = mem_alloc(1, codec_open_room(w->codec))};
        assert_int_equal(codec_encode(w->codec, w->x[i], payload, codec_bound(w->codec), &w->deltas[i].size, NULL),
                         STATUS_OK);
        assert_int_equal(codec_decode(w->codec, payload, w->deltas[i].size, w->x[i]), STATUS_OK);
        assert_int_equal(merge_open(w->codec, &w->deltas[i]), STATUS_OK);
    }
}

static void world_close(struct world *w)
{
    for (int i = 0; i < R; i++) {
        mem_free((void *)(uintptr_t)w->deltas[i].payload);
        mem_free(w->deltas[i].room);
        mem_free(w->x[i]);
    }
    codec_destroy(w->codec);
    layout_finish(&w->layout);
    mem_free(w->theta);
    mem_free(w->acc);
    mem_free(w->expect);
    assert_int_equal(mem_live_bytes(), 0);
}

struct rules {
    enum merge_rule rule;
    enum merge_clip clip;
    bool parameters;
};

/* Merges the first n deltas into w->acc, `group` at a time. */
static void merge_all(struct world *w, const struct rules *rules, int threads, uint32_t n, uint32_t group)
{
    static struct config config;
    struct pool *pool = NULL;
    struct merger m;
    struct merge merge;
    config.train.method = w->async ? METHOD_ASYNC : METHOD_DILOCO;
    config.train.dynamic_steps = CHOICE_OFF;
    config.merge.rule = rules->rule;
    config.merge.clip = rules->clip;
    if (threads > 1) assert_int_equal(pool_create(threads, POOL_FLOATS_EXACT, &pool), STATUS_OK);
    assert_int_equal(merger_init(&m, &config, rules->parameters, pool, merge_part_max(w->codec)), STATUS_OK);
    memset(w->acc, 0x7f, N * sizeof *w->acc); /* old contents have no effect */
    assert_int_equal(merge_start(&merge, &m, &w->layout, 0, w->codec, w->theta, w->acc, w->tokens, n), STATUS_OK);
    if (merge_needs_all(&m, w->codec)) group = n;
    for (uint32_t i = 0; merge_needs_norms(&merge) && i < n; i += group)
        merge_compute_norms(&merge, w->deltas + i, n - i < group ? n - i : group);
    for (uint32_t i = 0; i < n; i += group) merge_add(&merge, w->deltas + i, n - i < group ? n - i : group);
    merger_finish(&m);
    pool_destroy(pool);
}

static bool sent(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits != 0x80000000u;
}

static double median_of_r(const double *norms)
{
    int pick = 0; /* the lower median has (R - 1) / 2 values below it */
    for (int i = 0; i < R; i++) {
        int smaller = 0;
        for (int j = 0; j < R; j++) smaller += norms[j] < norms[i];
        if (smaller == (R - 1) / 2) pick = i;
    }
    return norms[pick];
}

static double norm_in(const struct world *w, const struct rules *rules, int worker, uint64_t from, uint64_t to)
{
    double sum = 0;
    for (uint64_t k = from; k < to; k++) {
        double d = rules->parameters ? (double)w->theta[k] - (double)w->x[worker][k] : (double)w->x[worker][k];
        sum += d * d;
    }
    return sqrt(sum);
}

/* median: each tensor above its median. auto: the whole delta above 1.2 medians; no tensor is above 4 here. */
static double factor_of(const struct world *w, const struct rules *rules, int worker, int tensor)
{
    double norms[R], limit = rules->clip == MERGE_CLIP_AUTO ? 1.2 : 1;
    uint64_t from = w->layout.tensors[tensor].offset, to = from + w->layout.tensors[tensor].count;
    bool whole = rules->clip == MERGE_CLIP_AUTO;
    for (int i = 0; i < R; i++) norms[i] = norm_in(w, rules, i, whole ? 0 : from, whole ? N : to);
    double median = median_of_r(norms);
    return rules->clip != MERGE_CLIP_OFF && norms[worker] > limit * median ? median / norms[worker] : 1;
}

static double tokens_of(const struct world *w, const struct rules *rules, int worker)
{
    double most = rules->clip == MERGE_CLIP_OFF ? 1e9 : 2 * 100; /* twice the median */
    return fmin((double)w->tokens[worker], most);
}

/* Computes the rules in double. */
static void check_rules(const struct world *w, const struct rules *rules)
{
    bool senders = rules->rule == MERGE_CONTRIBUTORS && codec_sparse(w->codec);
    double tokens[R], all = 0, largest = 0;
    for (int i = 0; i < R; i++) tokens[i] = tokens_of(w, rules, i);
    for (int i = 0; i < R; i++) all += tokens[i];
    for (int t = 0; t < TENSORS; t++) {
        double factor[R];
        for (int i = 0; i < R; i++) factor[i] = factor_of(w, rules, i, t);
        uint64_t from = w->layout.tensors[t].offset, to = from + w->layout.tensors[t].count;
        for (uint64_t k = from; k < to; k++) {
            double sum = 0, weight = 0, size = 0;
            for (int i = 0; i < R; i++) {
                double x = (double)w->x[i][k], theta = (double)w->theta[k];
                if (senders && !sent(w->x[i][k])) continue;
                double y = rules->parameters ? theta - factor[i] * (theta - x) : factor[i] * x;
                sum += tokens[i] * y;
                size += tokens[i] * fabs(y);
                weight += tokens[i];
            }
            double expect = !senders ? sum / all : weight > 0 ? sum / weight : 0;
            largest = fmax(largest, fabs(expect));
            assert_true(fabs((double)w->acc[k] - expect) <=
                        1e-6 * (senders && weight > 0 ? size / weight : size / all));
            if (codec_sparse(w->codec)) assert_true(sent(w->acc[k]) == (size > 0));
        }
    }
    assert_true(largest > 0.5);
}

TEST(test_rules_match_plain_loops)
{
    static struct world w;
    const char *const specs[] = {"fp32", "int8:128", "bf16+lz4", "topk:64/4096+sign", "topk:32/1024+int8"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        world_open(&w, specs[s]);
        float *first = floats();
        for (int mask = 0; mask < 12; mask += EACH) {
            struct rules rules = {mask & 1, mask / 4, mask >> 1 & 1};
            if (rules.parameters && !codec_lossless(w.codec)) continue;
            merge_all(&w, &rules, 1, R, R);
            memcpy(first, w.acc, N * sizeof *first);
            if (EACH == 1) check_rules(&w, &rules);
            const int threads[] = {3, 2, 7};
            for (int i = 0; i < MANY; i++) { /* the same bits with any number of threads and any grouping */
                merge_all(&w, &rules, threads[i], R, 1 + (uint32_t)i);
                assert_memory_equal(w.acc, first, N * sizeof *first);
            }
        }
        mem_free(first);
        world_close(&w);
    }
}

/* Workers that send equal parameters get the same bits back. */
TEST(test_equal_parameters_stay_equal)
{
    static struct world w;
    world_open(&w, "fp32");
    for (int i = 1; i < R; i++) {
        size_t size;
        assert_int_equal(
            codec_encode(w.codec, w.x[0], (uint8_t *)(uintptr_t)w.deltas[i].payload, codec_bound(w.codec), &size, NULL),
            STATUS_OK);
        assert_int_equal(merge_open(w.codec, &w.deltas[i]), STATUS_OK);
    }
    for (uint32_t n = 1; n <= R; n++)
        for (int clip = MERGE_CLIP_OFF; clip <= MERGE_CLIP_AUTO; clip++) {
            const struct rules rules = {MERGE_MEAN, (enum merge_clip)clip, true};
            merge_all(&w, &rules, 1, n, 2);
            assert_memory_equal(w.acc, w.x[0], N * sizeof *w.acc);
        }
    world_close(&w);
}

/* acc = w0 x0, then acc += w1 x1, ... in fp32, in this order. */
TEST(test_mean_adds_in_order)
{
    static struct world w;
    const struct rules mean = {MERGE_MEAN, MERGE_CLIP_OFF, false};
    const struct rules senders = {MERGE_CONTRIBUTORS, MERGE_CLIP_OFF, false};
    world_open(&w, "int8:128");
    for (int k = 0; k < N; k++) {
        w.expect[k] = -0.0f;
        for (int i = 0; i < R; i++) w.expect[k] += (float)((double)w.tokens[i] / 1000) * w.x[i][k];
    }
    merge_all(&w, &mean, 1, R, R);
    assert_memory_equal(w.acc, w.expect, N * sizeof *w.acc);
    merge_all(&w, &senders, 2, R, 2); /* every worker sends every coordinate */
    assert_memory_equal(w.acc, w.expect, N * sizeof *w.acc);
    /* The order changes the result; otherwise a test of the order would prove nothing. */
    struct merge_delta last = w.deltas[R - 1];
    w.deltas[R - 1] = w.deltas[2];
    w.deltas[2] = last; /* same tokens */
    merge_all(&w, &mean, 1, R, R);
    assert_memory_not_equal(w.acc, w.expect, N * sizeof *w.acc);
    world_close(&w);
}

static double value(const struct world *w, bool parameters, int i, uint64_t k)
{
    return parameters ? (double)w->theta[k] - (double)w->x[i][k] : (double)w->x[i][k];
}

/* rda in double; tensor 1 is an embedding. */
static void check_rda(const struct world *w, const struct rules *rules)
{
    double share[R], length, norm;
    for (int i = 0; i < R; i++) share[i] = (double)w->tokens[i] / 1000;
    for (int t = 0; t < TENSORS; t++) {
        double own[R] = {0};
        uint64_t from = w->layout.tensors[t].offset, to = from + w->layout.tensors[t].count;
        length = norm = 0;
        for (int i = 0; i < R; i++) {
            for (uint64_t k = from; k < to; k++) own[i] += pow(value(w, rules->parameters, i, k), 2);
            own[i] = sqrt(own[i]);
            length += share[i] * own[i];
        }
        for (int pass = 0; pass < 2; pass++)
            for (uint64_t k = from; k < to; k++) {
                double u = 0, mean = 0;
                for (int i = 0; i < R; i++) u += share[i] * value(w, rules->parameters, i, k) / own[i];
                for (int i = 0; i < R; i++) mean += share[i] * value(w, rules->parameters, i, k);
                if (!pass) norm += u * u;
                double want = t == 1 ? mean : length * u / sqrt(norm);
                double got = rules->parameters ? (double)w->theta[k] - (double)w->acc[k] : (double)w->acc[k];
                if (pass && fabs(got - want) > 2e-6) fail_msg("tensor %d: %.9g, expected %.9g", t, got, want);
            }
        assert_true(sqrt(norm) < 0.7); /* the deltas are nearly orthogonal: the mean would be much shorter */
    }
}

TEST(test_rda_matches_plain_loops)
{
    static struct world w;
    const char *const specs[] = {"fp32", "int8:128"};
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        world_open(&w, specs[s]);
        for (int mask = 0; mask < 2; mask++) {
            struct rules rules = {MERGE_RDA, MERGE_CLIP_OFF, mask};
            if (rules.parameters && !codec_lossless(w.codec)) continue;
            merge_all(&w, &rules, 1, R, R);
            memcpy(w.expect, w.acc, N * sizeof *w.acc);
            check_rda(&w, &rules);
            for (int threads = 2; threads < 5; threads++) {
                merge_all(&w, &rules, threads, R, R);
                assert_memory_equal(w.acc, w.expect, N * sizeof *w.acc);
            }
        }
        world_close(&w);
    }
}

static void weigh_equally(struct world *w)
{
    for (int i = 0; i < R; i++) w->tokens[i] = w->deltas[i].tokens = 100;
}

/* Opposite deltas have no mean direction, and zeros have none: the plain mean. */
TEST(test_rda_without_direction_is_the_mean)
{
    static struct world w;
    const struct rules rda = {MERGE_RDA, MERGE_CLIP_OFF, false};
    world_open(&w, "fp32");
    weigh_equally(&w);
    float *first = (float *)(uintptr_t)w.deltas[0].payload, *second = (float *)(uintptr_t)w.deltas[1].payload;
    for (uint64_t k = 0; k < N; k++) second[k] = -3 * first[k];
    memset(first, 0, shapes[0] * sizeof *first);
    memset(second, 0, shapes[0] * sizeof *second);
    for (int threads = 1; threads < 3; threads++) {
        merge_all(&w, &rda, threads, 2, 2);
        for (uint64_t k = 0; k < N; k++)
            assert_true(fabs((double)w.acc[k] + (double)first[k]) <= 1e-6 * fabs((double)first[k]));
    }
    world_close(&w);
}

TEST(test_single_delta_is_merged_exactly)
{
    static struct world w;
    const char *const specs[] = {"fp32", "topk:64/4096+sign"};
    for (int s = 0; s < 2; s++) {
        world_open(&w, specs[s]);
        for (int mask = 0; mask < 4; mask++) {
            struct rules rules = {mask & 1, mask >> 1 & 1, false};
            merge_all(&w, &rules, 2, 1, 1);
            assert_memory_equal(w.acc, w.x[0], N * sizeof *w.acc); /* -0 included */
            assert_true(signbit(w.acc[3]));
        }
        struct rules rda = {MERGE_RDA, MERGE_CLIP_OFF, false};
        if (!codec_sparse(w.codec)) merge_all(&w, &rda, 2, 1, 1);
        assert_memory_equal(w.acc, w.x[0], N * sizeof *w.acc);
        world_close(&w);
    }
    assert_true(merge_weight(7, 7) == 1.0f);
    assert_true(merge_weight(1, 3) == (float)(1.0 / 3.0));
}

/* A coordinate with one sender keeps its value if all weights are equal. */
TEST(test_contributors_keep_value_of_single_sender)
{
    static struct world w;
    const struct rules rules = {MERGE_CONTRIBUTORS, MERGE_CLIP_OFF, false};
    int alone = 0;
    world_open(&w, "topk:64/4096+sign");
    weigh_equally(&w);
    merge_all(&w, &rules, 1, R, R);
    for (int k = 0; k < N; k++) {
        int n = 0, who = 0;
        for (int i = 0; i < R; i++)
            if (sent(w.x[i][k])) {
                n++;
                who = i;
            }
        if (n == 1) assert_true(w.acc[k] == w.x[who][k]);
        alone += n == 1;
    }
    assert_true(alone > N / 64);
    world_close(&w);
}

TEST(test_bad_payload_is_refused)
{
    static struct world w;
    float nan_value = NAN;
    world_open(&w, "fp32");
    struct merge_delta bad = w.deltas[0];
    bad.size--;
    assert_int_equal(merge_open(w.codec, &bad), STATUS_CORRUPT);
    bad.size++;
    memcpy((uint8_t *)(uintptr_t)bad.payload + bad.size - 4, &nan_value, 4);
    assert_int_equal(merge_open(w.codec, &bad), STATUS_NONFINITE);
    world_close(&w);
}

/* A worker that sends no value of a tensor does not clip the others to zero. */
TEST(test_median_of_zero_does_not_clip)
{
    static struct world w;
    const struct rules clip = {MERGE_MEAN, MERGE_CLIP_MEDIAN, false};
    world_open(&w, "fp32");
    weigh_equally(&w);
    for (int i = 0; i < 3; i++) {
        memset((uint8_t *)(uintptr_t)w.deltas[i].payload, 0, shapes[0] * 4);
        memset(w.x[i], 0, shapes[0] * 4);
    }
    merge_all(&w, &clip, 1, R, R);
    for (uint64_t k = 0; k < shapes[0]; k++)
        assert_true(fabs((double)w.acc[k] - ((double)w.x[3][k] + (double)w.x[4][k]) / 5) < 1e-6);
    world_close(&w);
}

/* clip auto: a tensor that blew up in one delta counts like the others' tensor, and the other tensors keep their
 * values. If the others do not send it, it counts no more than a whole delta. */
TEST(test_blown_up_tensor_is_clipped)
{
    static struct world w;
    const struct rules rules = {MERGE_MEAN, MERGE_CLIP_AUTO, false};
    for (int sent_by_others = 0; sent_by_others < 2; sent_by_others++) {
        world_open(&w, "fp32");
        weigh_equally(&w);
        uint64_t from = w.layout.tensors[1].offset, to = from + shapes[1];
        for (int i = 0; i < R; i++)
            for (uint64_t k = 0; k < N; k++) { /* deltas of one length, about 550 */
                bool blown = k >= from && k < to;
                float x = w.x[i][k] / (1.0f + (float)(i * 7 % 5));
                w.x[i][k] = !blown ? x : i == 4 ? 1e12f * x : sent_by_others ? x : 0;
            }
        for (int i = 0; i < R; i++) memcpy((uint8_t *)(uintptr_t)w.deltas[i].payload, w.x[i], N * sizeof(float));
        merge_all(&w, &rules, 1, R, R);
        double sum = 0;
        for (uint64_t k = from; k < to; k++) sum += (double)w.acc[k] * (double)w.acc[k];
        double one = norm_in(&w, &rules, 0, from, to), whole = norm_in(&w, &rules, 0, 0, N);
        assert_true(sqrt(sum) < 1.1 * (sent_by_others ? one : whole / R));
        for (uint64_t k = 0; sent_by_others && k < from; k++) {
            double mean = 0;
            for (int i = 0; i < R; i++) mean += (double)w.x[i][k] / R;
            assert_true(fabs((double)w.acc[k] - mean) < 1e-5);
        }
        world_close(&w);
    }
}

/* Two workers have no majority: auto clips nothing, and no weight is bounded. */
TEST(test_two_deltas_are_not_clipped)
{
    static struct world w;
    const struct rules off = {MERGE_MEAN, MERGE_CLIP_OFF, false};
    const struct rules rules = {MERGE_MEAN, MERGE_CLIP_AUTO, false};
    world_open(&w, "int8:128");
    merge_all(&w, &off, 1, 2, 2);
    memcpy(w.expect, w.acc, N * sizeof *w.acc);
    merge_all(&w, &rules, 1, 2, 2);
    assert_memory_equal(w.acc, w.expect, N * sizeof *w.acc);
    merge_all(&w, &off, 1, 3, 3);
    memcpy(w.expect, w.acc, N * sizeof *w.acc);
    merge_all(&w, &rules, 1, 3, 3);
    assert_memory_not_equal(w.acc, w.expect, N * sizeof *w.acc); /* 100, 300, 50 tokens weigh 100, 200, 50 */
    world_close(&w);
}

/* async: a merge of one or two deltas divides their values. */
TEST(test_divisor_divides_values)
{
    static struct world w;
    const char *const specs[] = {"fp32", "topk:64/4096+sign"};
    for (int s = 0; s < 2; s++) {
        const struct rules rules = {s ? MERGE_CONTRIBUTORS : MERGE_MEAN, MERGE_CLIP_AUTO, false};
        world_open(&w, specs[s]);
        weigh_equally(&w);
        for (uint32_t n = 1; n <= 2; n++) {
            w.deltas[0].divisor = 0;
            merge_all(&w, &rules, 1, n, n);
            memcpy(w.expect, w.acc, N * sizeof *w.acc);
            w.deltas[0].divisor = 4;
            merge_all(&w, &rules, 1, n, n);
            for (uint64_t k = 0; k < N; k++) {
                double part = s && n == 2 && sent(w.x[0][k]) && sent(w.x[1][k]) ? 0.5 : n == 2 && !s ? 0.5 : 1;
                double less = sent(w.x[0][k]) ? 0.75 * part * (double)w.x[0][k] : 0;
                assert_true(fabs((double)w.acc[k] - ((double)w.expect[k] - less)) < 1e-5);
                assert_true(sent(w.acc[k]) == sent(w.expect[k]));
            }
        }
        world_close(&w);
    }
}

/* async: the plain mean, although tokens differ. */
TEST(test_async_weighs_equally)
{
    static struct world w;
    const struct rules rules = {MERGE_MEAN, MERGE_CLIP_OFF, false};
    world_open(&w, "fp32");
    w.async = true;
    merge_all(&w, &rules, 1, 3, 3);
    for (uint64_t k = 0; k < N; k++)
        assert_true(fabs((double)w.acc[k] - ((double)w.x[0][k] + (double)w.x[1][k] + (double)w.x[2][k]) / 3) < 1e-5);
    world_close(&w);
}

TEST_MAIN(NULL, NULL)
