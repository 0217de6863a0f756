/* Tests identities of Llama for arbitrary parameters:
 * - Any number of threads gives the same bits.
 * - Grouped key/value heads equal separate heads with equal weights.
 * - A tied output layer equals an untied one that holds the embedding.
 * - Scores depend on distances only: a shifted sequence gives the same result. */
#include <math.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "gpu/cpu/cpu_kernels.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/llama.h"

enum { BATCH = 2, SEQ = 21, ROWS = BATCH * SEQ, VOCAB = 41, HEADS = 4, HD = 6, C = HEADS * HD };

static const struct model_config shared = {.n_layer = 2,
                                           .n_head = HEADS,
                                           .n_embd = C,
                                           .block_size = SEQ,
                                           .vocab_size = VOCAB,
                                           .n_kv_head = 2,
                                           .ffn = 37,
                                           .rope_theta = 30,
                                           .norm_eps = 1e-5};

static float *theta_of(const struct model_config *config, uint64_t *n)
{
    struct layout layout;
    layout_init(&layout);
    assert_int_equal(llama_layout(config, &layout, NULL), STATUS_OK);
    *n = layout.n_params;
    layout_finish(&layout);
    return case_normal(*n, 1, 0.3f);
}

/* Compute losses[ROWS], gradients[n] and logits[ROWS * VOCAB] of model `config` at theta, in host memory. Any output
 * may be NULL. */
static void run(int threads, const struct model_config *config, const float *theta, uint64_t n, float *loss,
                float *grad, float *logits)
{
    struct device *dev;
    struct model *model;
    struct err err = {0};
    int32_t tokens[ROWS], targets[ROWS];
    float *own_loss = mem_alloc(ROWS, sizeof *own_loss), *own_grad = mem_alloc(n, sizeof *own_grad);
    for (uint64_t i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(rng_u64(4, RNG_TEST, i) % VOCAB);
        targets[i] = (int32_t)(rng_u64(5, RNG_TEST, i) % VOCAB);
    }
    if (device_open("cpu", threads, &dev, &err) != STATUS_OK) fail_msg("%s", err.msg);
    unsigned uses = MODEL_TRAIN | MODEL_LOGITS;
    if (decoder_create(&llama_family, config, dev, BATCH, SEQ, uses, &model, &err) != STATUS_OK)
        fail_msg("%s", err.msg);
    decoder_run(model, theta, tokens, targets, 1, own_loss, own_grad, false, NULL);
    if (logits) assert_int_equal(decoder_logits(model, theta, tokens, 0, ROWS, logits, &err), STATUS_OK);
    assert_int_equal(dev->ops->sync(dev, &err), STATUS_OK);
    if (loss) memcpy(loss, own_loss, ROWS * sizeof *loss);
    if (grad) memcpy(grad, own_grad, n * sizeof *grad);
    decoder_destroy(model);
    device_close(dev);
    mem_free(own_loss);
    mem_free(own_grad);
}

TEST(test_threads)
{
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    uint64_t n;
    float *theta = theta_of(&shared, &n), *one = mem_alloc(n, sizeof *one), *many = mem_alloc(n, sizeof *many);
    float loss[ROWS], same[ROWS];
    for (size_t i = 0; i < 3; i++) {
        if (!cpu_kernels_select(levels[i])) continue;
        setenv("ATOLL_CPU", levels[i], 1);
        run(1, &shared, theta, n, loss, one, NULL);
        for (int threads = 2; threads <= 5; threads++) {
            run(threads, &shared, theta, n, same, many, NULL);
            case_equal("losses", same, loss, ROWS);
            case_equal("gradient", many, one, n);
        }
    }
    unsetenv("ATOLL_CPU");
    mem_free(theta);
    mem_free(one);
    mem_free(many);
}

static void assert_near(const float *got, const float *want, size_t n)
{
    double *wide = case_widen(want, n);
    case_close("logits", got, wide, n, 2e-6);
    mem_free(wide);
}

/* Expand theta to a model without grouped heads: repeat each shared key/value head. */
TEST(test_shared_heads)
{
    struct model_config full = shared;
    uint64_t n, n_full;
    full.n_kv_head = HEADS;
    float *theta = theta_of(&shared, &n), *wide = theta_of(&full, &n_full);
    struct llama_offsets at = llama_offsets_of(&shared), to = llama_offsets_of(&full);
    memcpy(wide, theta, at.block0 * sizeof *wide);
    for (size_t l = 0; l < shared.n_layer; l++) {
        const float *from = theta + at.block0 + l * at.block_stride;
        float *out = wide + to.block0 + l * to.block_stride;
        memcpy(out, from, at.block[LLAMA_K] * sizeof *out);
        for (size_t h = 0; h < HEADS; h++)
            for (int j = LLAMA_K; j <= LLAMA_V; j++)
                memcpy(out + to.block[j] + h * HD * C, from + at.block[j] + h / 2 * HD * C, HD * C * sizeof *out);
        memcpy(out + to.block[LLAMA_O], from + at.block[LLAMA_O], (at.block_stride - at.block[LLAMA_O]) * sizeof *out);
    }
    memcpy(wide + to.norm, theta + at.norm, (at.n_params - at.norm) * sizeof *wide);
    float *a = mem_alloc(ROWS * VOCAB, sizeof *a), *b = mem_alloc(ROWS * VOCAB, sizeof *b);
    run(1, &shared, theta, n, NULL, NULL, a);
    run(1, &full, wide, n_full, NULL, NULL, b);
    assert_near(a, b, ROWS * VOCAB);
    void *rest[] = {theta, wide, a, b};
    for (size_t i = 0; i < 4; i++) mem_free(rest[i]);
}

/* The gradient of a tied weight is the sum of the gradients of the untied embedding and output layer. */
TEST(test_tied_head)
{
    struct model_config tied = shared;
    uint64_t n, n_tied;
    tied.tied = true;
    float *theta = theta_of(&shared, &n);
    struct llama_offsets at = llama_offsets_of(&shared);
    memcpy(theta + at.head, theta + at.embed, (size_t)VOCAB * C * sizeof *theta);
    n_tied = llama_offsets_of(&tied).n_params;
    float *apart = mem_alloc(n, sizeof *apart), *together = mem_alloc(n_tied, sizeof *together);
    float loss[ROWS], same[ROWS];
    run(1, &shared, theta, n, loss, apart, NULL);
    run(1, &tied, theta, n_tied, same, together, NULL);
    case_equal("losses", same, loss, ROWS);
    for (size_t i = 0; i < (size_t)VOCAB * C; i++) apart[i] += apart[at.head + i];
    assert_near(together, apart, n_tied);
    mem_free(theta);
    mem_free(apart);
    mem_free(together);
}

/* The score of rotated queries and keys at distance d does not depend on their positions. */
TEST(test_distances)
{
    enum { T = 60, HALF = HD / 2 };
    struct device *dev;
    struct rope_shape shape = {.n = T, .seq = T, .heads = 2, .head_dim = HD, .ld = 2 * HD};
    float *x = mem_alloc(T * 2 * HD, sizeof *x), *row = case_normal(2 * HD, 3, 1), table[T * HD];
    assert_int_equal(device_open("cpu", 1, &dev, NULL), STATUS_OK);
    for (int t = 0; t < T; t++) {
        memcpy(x + t * 2 * HD, row, 2 * HD * sizeof *x);
        for (int i = 0; i < HALF; i++) {
            table[t * HD + i] = (float)cos(t * pow(30, -i / (double)HALF));
            table[t * HD + HALF + i] = (float)sin(t * pow(30, -i / (double)HALF));
        }
    }
    dev->ops->rope(dev, &shape, table, x, false);
    for (int d = 0; d < 5; d++)
        for (int t = d; t < T; t++) {
            double score = 0, first = 0; /* query: head 0 at t; key: head 1, d earlier */
            for (int i = 0; i < HD; i++) {
                score += x[t * 2 * HD + i] * x[(t - d) * 2 * HD + HD + i];
                first += x[d * 2 * HD + i] * x[HD + i];
            }
            assert_true(fabs(score - first) < 1e-5);
        }
    device_close(dev);
    mem_free(x);
    mem_free(row);
}

/* Scaling by the pair's number of turns over the original context of 8192 tokens: fast pairs stay, slow pairs rotate 32
 * times slower, and the rates between are continuous. */
TEST(test_scaled_positions)
{
    const struct rope_scaling none = {0}, scaling = {.factor = 32, .low = 1, .high = 4, .original = 8192};
    const double turn = 2 * 3.141592653589793 / 8192;
    double before = 0;
    for (double turns = 0.01; turns < 10; turns *= 1.05) {
        double step = turns * turn, scaled = rope_scaling_step(&scaling, step), ratio = scaled / step;
        assert_true(rope_scaling_step(&none, step) == step);
        if (turns < 1) assert_true(fabs(ratio - 1.0 / 32) < 1e-12);
        if (turns > 4) assert_true(ratio == 1);
        assert_true(scaled > before && ratio <= 1);
        before = scaled;
    }
    /* halfway in turns means halfway between the two rates */
    assert_true(fabs(rope_scaling_step(&scaling, 2.5 * turn) / (2.5 * turn) - (1 + 1.0 / 32) / 2) < 1e-12);
    assert_true(fabs(rope_scaling_step(&scaling, 1.0001 * turn) / turn - 1.0 / 32) < 1e-3);
    assert_true(fabs(rope_scaling_step(&scaling, 3.9999 * turn) / turn - 4) < 1e-2);
}

TEST_MAIN(NULL, NULL)
