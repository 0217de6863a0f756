/* FLOP per token, compared with the matrices of a real layout; and the speed in a step line. */
#include <math.h>

#include "common/config/config.h"
#include "common/config/config_keys.h"
#include "common/config/model_flops.h"
#include "tests/lib/test.h"
#include "worker/model/model.h"
#include "worker/train_impl.h"

/* 6 per element of each matrix except lookup tables, plus 6 L C T for attention. */
static void check(const char *const *flags)
{
    struct config config;
    struct config_sources sources;
    struct layout layout;
    struct err err;
    config_defaults(&config, &sources);
    for (; *flags; flags++) assert_int_equal(config_set(&config, &sources, *flags, CONFIG_FLAG, &err), STATUS_OK);
    assert_int_equal(config_resolve(&config, &sources, &err), STATUS_OK);
    const struct model_family *family = model_family_find(config.model.family);
    const struct model_config model = model_config_of(&config);
    layout_init(&layout);
    assert_int_equal(family->layout(&model, &layout, &err), STATUS_OK);
    uint64_t weights = 0;
    for (uint32_t i = 0; i < layout.n_tensors; i++) {
        const struct tensor *t = &layout.tensors[i];
        bool words = !strcmp(t->name, "wte.weight") || !strcmp(t->name, "model.embed_tokens.weight");
        if (t->ndim < 2 || !strcmp(t->name, "wpe.weight")) continue;
        if (words && layout_find(&layout, "lm_head.weight") >= 0) continue;
        weights += t->count;
    }
    uint64_t attention = (uint64_t)config.model.n_layer * config.model.n_embd * config.model.block_size;
    assert_true(model_flops_per_token(&config) == 6.0 * (double)(weights + attention));
    layout_finish(&layout);
}
#define CHECK(...) check((const char *const[]){__VA_ARGS__, NULL})

TEST(test_flops_match_layout_of_each_family)
{
    CHECK("model.preset=gpt2");
    CHECK("model.preset=d4", "model.vocab_size=300", "model.block_size=17");
    CHECK("model.preset=llama-1b");
    CHECK("model.preset=llama-8b");
    CHECK("model.family=llama", "model.n_head=6", "model.n_embd=48", "model.n_kv_head=2");
}

TEST(test_speed_text_names_flops_and_share)
{
    char text[SPEED_MAX];
    train_speed_text(text, 468000, 803e6, 989.4e12); /* llm.c on an H100: 376 TFLOP/s, 38 % */
    assert_string_equal(text, " 468 k tokens/s  375.8 TFLOP/s  MFU 38.0 %");
    train_speed_text(text, 468000, 803e6, 0);
    assert_string_equal(text, " 468 k tokens/s  375.8 TFLOP/s");
    train_speed_text(text, 5000, 1.5e6, 0);
    assert_string_equal(text, "   5 k tokens/s  7.5 GFLOP/s");
    train_speed_text(text, 0, 1.5e6, 0);
    assert_string_equal(text, "     0 tokens/s  0 GFLOP/s");
    train_speed_text(text, 1e300, 1e300, 1e-300); /* extreme values must not overflow the line */
    assert_true(strlen(text) < SPEED_MAX);
}

TEST_MAIN(NULL, NULL)
