/* The model of model.init_from: which keys it sets, and which differ. */

#include "common/config/config_init.h"
#include "common/config/config_keys.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 48, \"n_positions\": 64, "
    "\"vocab_size\": 300}";
static const char llama[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"hidden_size\": 64, "
    "\"intermediate_size\": 96, \"max_position_embeddings\": 512, \"vocab_size\": 300, \"num_key_value_heads\": 2, "
    "\"rms_norm_eps\": 1e-6, \"rope_theta\": 500000.0, \"tie_word_embeddings\": false, \"rope_scaling\": "
    "{\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
    "\"original_max_position_embeddings\": 128}}";

static struct config config;
static struct config_sources sources;
static struct err err;

/* Takes the model of this config.json, with these settings. */
static enum status takes(const char *json, const char *const *settings, bool all)
{
    struct config init;
    err = (struct err){0};
    config_defaults(&config, &sources);
    for (; *settings; settings++)
        assert_int_equal(config_set(&config, &sources, *settings, CONFIG_FLAG, NULL), STATUS_OK);
    tmpdir_put("config.json", json);
    assert_int_equal(config_init_load(&init, tmpdir, NULL), STATUS_OK);
    tmpdir_take("config.json");
    enum status status = config_init_model(&config, all ? NULL : &sources, &init, "FOLDER", &err);
    return status == STATUS_OK && !all ? config_resolve(&config, &sources, &err) : status;
}
#define TAKES(json, ...) takes(json, (const char *const[]){__VA_ARGS__, NULL}, false)

TEST(test_unset_keys_come_from_folder)
{
    assert_int_equal(TAKES(gpt2, NULL), STATUS_OK);
    assert_string_equal(config.model.family, "gpt2");
    assert_int_equal(config.model.n_layer, 3);
    assert_int_equal(config.model.n_embd, 48);
    assert_int_equal(config.model.block_size, 64);
    assert_int_equal(config.model.vocab_size, 300);
    if (TAKES(llama, NULL) != STATUS_OK) fail_msg("%s", err.msg);
    assert_string_equal(config.model.family, "llama");
    assert_int_equal(config.model.n_kv_head, 2);
    assert_int_equal(config.model.ffn, 96);
    assert_true(config.model.rope_theta == 500000 && config.model.norm_eps == 1e-6);
    assert_int_equal(config.model.tie_embeddings, CHOICE_OFF);
    assert_string_equal(config.model.rope_scaling, "llama3:32:1:4:128");
}

TEST(test_equal_keys_are_accepted)
{
    assert_int_equal(TAKES(gpt2, "model.n_layer=3", "model.family=gpt2"), STATUS_OK);
    assert_int_equal(TAKES(llama, "model.n_kv_head=0", "model.ffn=0", "model.block_size=128",
                           "model.rope_scaling=llama3:32.0:1.0:4:128"),
                     STATUS_OK);
    assert_int_equal(config.model.n_kv_head, 2);
    assert_int_equal(config.model.ffn, 96);
    assert_int_equal(config.model.block_size, 128); /* shorter than the folder's maximum */
}

TEST(test_all_differences_are_in_one_message)
{
    assert_int_equal(TAKES(gpt2, "model.n_layer=4", "model.block_size=32", "model.n_head=2"), STATUS_INVALID);
    assert_string_equal(err.msg,
                        "model.init_from: in FOLDER model.n_layer is 3, not 4, model.block_size is 64, not 32: "
                        "remove these settings, or take another folder");
    assert_int_equal(TAKES(llama, "model.family=gpt2", "model.n_layer=9", "model.n_head=9", "model.n_embd=9",
                           "model.block_size=1000", "model.vocab_size=9", "model.n_kv_head=9", "model.ffn=9",
                           "model.rope_theta=9", "model.rope_scaling=none", "model.norm_eps=0.5",
                           "model.tie_embeddings=on"),
                     STATUS_INVALID);
    assert_non_null(strstr(err.msg, "model.family is llama, not gpt2, model.n_layer is 2, not 9"));
    assert_non_null(strstr(err.msg, "model.rope_scaling is llama3:32:1:4:128, not none"));
    assert_non_null(strstr(err.msg, "model.tie_embeddings is off, not on: remove these settings"));
    static const char *const none[] = {NULL};
    assert_int_equal(takes(gpt2, none, true), STATUS_INVALID); /* without sources, defaults differ, too */
    assert_non_null(strstr(err.msg, "model.n_layer is 3, not 4"));
}

TEST(test_folder_without_config_is_told_apart)
{
    struct config init;
    assert_int_equal(config_init_load(&init, tmpdir, &err), STATUS_NOTFOUND);
    tmpdir_put("config.json", "{\"model_type\": \"bert\"}");
    assert_int_equal(config_init_load(&init, tmpdir, &err), STATUS_UNSUPPORTED);
    tmpdir_take("config.json");
}

TEST_MAIN(tmpdir_make, tmpdir_remove_empty)
