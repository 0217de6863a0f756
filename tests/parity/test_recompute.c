/* Tests that train.recompute does not change a bit of losses and gradients, on every instruction-set level, and that
 * each level keeps the bytes per layer of the table in worker/model/decoder_impl.h. */
#include "common/base/mem.h"
#include "tests/lib/device/device_case.h"
#include "tests/lib/device/recompute_case.h"
#include "tests/lib/test.h"
#include "worker/model/decoder.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

static const struct model_config small = {.n_layer = 3, .n_head = 3, .n_embd = 15, .block_size = 9, .vocab_size = 37};
static const struct model_config deep = {.n_layer = 5, .n_head = 2, .n_embd = 32, .block_size = 40, .vocab_size = 70};
static const struct model_config one = {.n_layer = 1, .n_head = 1, .n_embd = 8, .block_size = 5, .vocab_size = 11};
static const struct model_config rope = {.n_layer = 3,
                                         .n_head = 4,
                                         .n_embd = 24,
                                         .block_size = 9,
                                         .vocab_size = 37,
                                         .n_kv_head = 2,
                                         .ffn = 40,
                                         .rope_theta = 100,
                                         .norm_eps = 1e-5};

static void each_device(struct device *dev)
{
    recompute_case(dev, &gpt2_family, &small, 3, 7);
    recompute_case(dev, &gpt2_family, &deep, 2, 40);
    recompute_case(dev, &gpt2_family, &one, 1, 5);
    recompute_case(dev, &llama_family, &rope, 3, 7);
}

TEST(test_same_bits)
{
    device_case_each(each_device);
    assert_int_equal(mem_live_bytes(), 0);
}

/* Memory of one more layer without its statistics: elements per token, in units of C. */
TEST(test_bytes_of_a_layer)
{
    static const size_t kept[] = {16, 12, 10, 1};
    struct model_config config = deep;
    for (size_t act = 2; act <= 4; act += 2)
        for (enum model_recompute level = MODEL_KEEP_ALL; level <= MODEL_RECOMPUTE_BLOCK; level++) {
            unsigned uses = model_uses(MODEL_TRAIN, level);
            size_t n = 4 * 32, statistics = level < MODEL_RECOMPUTE_BLOCK ? n * (4 + config.n_head) * sizeof(float) : 0;
            config.n_layer = 4;
            size_t four = decoder_memory(&gpt2_family, &config, act, 4, 32, uses);
            config.n_layer = 5;
            size_t five = decoder_memory(&gpt2_family, &config, act, 4, 32, uses);
            assert_int_equal(five - four, kept[level] * n * config.n_embd * act + statistics);
        }
}

static size_t llama_bytes(struct model_config config, uint32_t layers, size_t act, unsigned uses)
{
    config.n_layer = layers;
    return decoder_memory(&llama_family, &config, act, 4, 32, uses);
}

TEST(test_bytes_of_a_llama_layer)
{
    struct model_config config = {
        .n_head = 4, .n_embd = 32, .block_size = 40, .vocab_size = 70, .n_kv_head = 2, .ffn = 96};
    size_t c = 32, k = 16, f = 96, kept[] = {6 * c + 2 * k + 3 * f, 6 * c + 2 * k + 2 * f, 4 * c + 2 * k + 2 * f, c};
    for (size_t act = 2; act <= 4; act += 2)
        for (enum model_recompute level = MODEL_KEEP_ALL; level <= MODEL_RECOMPUTE_BLOCK; level++) {
            unsigned uses = model_uses(MODEL_TRAIN, level);
            size_t n = 4 * 32, statistics = level < MODEL_RECOMPUTE_BLOCK ? n * (2 + config.n_head) * sizeof(float) : 0;
            size_t grown = llama_bytes(config, 5, act, uses) - llama_bytes(config, 4, act, uses);
            assert_int_equal(grown, kept[level] * n * act + statistics);
        }
}

TEST_MAIN(NULL, NULL)
