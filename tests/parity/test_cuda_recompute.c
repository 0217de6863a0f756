/* Tests that the levels of train.recompute on the emulated CUDA device give the same bits of losses and gradients, in
 * fp32 and bf16. */
#include "tests/cuda/emulator/emulate.h"
#include "tests/lib/device/device_pair.h"
#include "tests/lib/device/recompute_case.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

static const struct model_config small = {.n_layer = 3, .n_head = 3, .n_embd = 24, .block_size = 9, .vocab_size = 37};
static const struct model_config rope = {.n_layer = 3,
                                         .n_head = 4,
                                         .n_embd = 32,
                                         .block_size = 9,
                                         .vocab_size = 37,
                                         .n_kv_head = 2,
                                         .ffn = 24,
                                         .rope_theta = 100,
                                         .norm_eps = 1e-5};

TEST(test_same_bits)
{
    for (unsigned order = 0; order < 2; order++) { /* fp32, bf16 */
        emulate_order(order);
        struct device *dev = cuda_begin(order);
        recompute_case(dev, &gpt2_family, &small, 2, 9);
        recompute_case(dev, &llama_family, &rope, 2, 9);
        cuda_end(dev);
    }
}

TEST_MAIN(NULL, NULL)
