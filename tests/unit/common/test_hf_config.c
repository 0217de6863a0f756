/* The files beside a model's tensors in the format of Hugging Face.
 * config.json is read and written, token ids are named, and the tokenizer's files are copied. */
#include <unistd.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/model/llama.h"

TEST(test_unsupported_configs_are_refused)
{
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"model_type\":\"llama\"}",
        "{\"model_type\":\"gpt2\"}",
        "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":8,\"n_positions\":4,\"vocab_size\":9}",
        "{\"model_type\":\"gpt2\",\"n_layer\":-2,\"n_head\":2,\"n_embd\":8,\"n_positions\":4,\"vocab_size\":9}",
        "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8,\"n_positions\":4,\"vocab_size\":9,"
        "\"activation_function\":\"relu\"}",
        "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8,\"n_positions\":4,\"vocab_size\":9,"
        "\"tie_word_embeddings\":false}",
    };
    struct model_config hf;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {0};
        assert_true(hf_config_parse(&hf, texts[i], strlen(texts[i]), "config.json", &err) < 0);
        assert_true(strlen(err.msg) > 10);
    }
    static const struct { /* keys that change the mathematics, and keys that do not */
        const char *more;
        enum status want;
    } keys[] = {
        {"\"scale_attn_weights\":true,\"scale_attn_by_inverse_layer_idx\":false,\"add_cross_attention\":false,"
         "\"reorder_and_upcast_attn\":true",
         STATUS_OK},
        {"\"scale_attn_weights\":false", STATUS_UNSUPPORTED},
        {"\"scale_attn_by_inverse_layer_idx\":true", STATUS_UNSUPPORTED},
        {"\"add_cross_attention\":true", STATUS_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char text[512];
        struct err err = {0};
        snprintf(text, sizeof text,
                 "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":8,"
                 "\"n_positions\":4,\"vocab_size\":9,%s}",
                 keys[i].more);
        assert_int_equal(hf_config_parse(&hf, text, strlen(text), "config.json", &err), keys[i].want);
        if (!keys[i].want) continue;
        assert_memory_equal(err.msg, "config.json: ", strlen("config.json: "));
        assert_non_null(strstr(err.msg, "attention"));
    }
}

static const char llama_sizes[] =
    "\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":4,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"max_position_embeddings\":64,\"vocab_size\":99";

static enum status parse_llama(struct model_config *hf, const char *more, struct err *err)
{
    char text[1024];
    snprintf(text, sizeof text, "{%s%s%s}", llama_sizes, more[0] ? "," : "", more);
    return hf_config_parse(hf, text, strlen(text), "config.json", err);
}

/* The config.json that Atoll writes, and missing or moved keys in files of other programs. */
TEST(test_llama_config_is_read_and_written)
{
    struct model_config config = {.n_layer = 2,
                                  .n_head = 4,
                                  .n_embd = 32,
                                  .block_size = 64,
                                  .vocab_size = 99,
                                  .n_kv_head = 2,
                                  .ffn = 48,
                                  .rope_theta = 500000,
                                  .norm_eps = 1e-5,
                                  .tied = true};
    struct model_config hf;
    struct err err = {0};
    char json[4096];
    for (int untied = 0; untied < 2; untied++) {
        config.tied = !untied;
        if (untied) config.rope_scaling = (struct rope_scaling){32, 1, 4, 8192};
        assert_int_equal(llama_config_json(&config, json, sizeof json), STATUS_OK);
        if (hf_config_parse(&hf, json, strlen(json), "config.json", &err) != STATUS_OK) fail_msg("%s", err.msg);
        const struct model_config back = hf;
        assert_true(back.n_layer == 2 && back.n_head == 4 && back.n_embd == 32 && back.block_size == 64);
        assert_true(back.vocab_size == 99 && back.n_kv_head == 2 && back.ffn == 48 && back.tied == config.tied);
        assert_true(back.rope_theta == 500000 && back.norm_eps == 1e-5);
        assert_memory_equal(&back.rope_scaling, &config.rope_scaling, sizeof back.rope_scaling);
    }
    assert_non_null(strstr(json, "\"rope_theta\": 5e+05,"));
    for (size_t cap = 0, n = strlen(json); cap <= n; cap += 7)
        assert_int_equal(llama_config_json(&config, json, cap), STATUS_LIMIT);
    assert_int_equal(parse_llama(&hf, "", &err), STATUS_OK); /* the defaults of transformers */
    assert_true(hf.n_kv_head == 4 && hf.rope_theta == 10000 && hf.norm_eps == 1e-6 && !hf.tied);
    assert_int_equal(parse_llama(&hf, "\"rope_theta\":7.5,\"rope_scaling\":null,\"head_dim\":8", &err), STATUS_OK);
    assert_true(hf.rope_theta == 7.5);
    assert_int_equal(parse_llama(&hf, "\"rope_parameters\":{\"rope_theta\":9,\"rope_type\":\"default\"}", &err),
                     STATUS_OK);
    assert_true(hf.rope_theta == 9);
    static const char *const bad[] = {
        "\"num_key_value_heads\":3",
        "\"num_key_value_heads\":0",
        "\"head_dim\":16",
        "\"hidden_act\":\"gelu\"",
        "\"attention_bias\":true",
        "\"mlp_bias\":true",
        "\"rms_norm_eps\":-1",
        "\"rope_theta\":\"many\"",
        "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32.0}",
        "\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":32,\"low_freq_factor\":4,\"high_freq_factor\":4,"
        "\"original_max_position_embeddings\":8192}",
        "\"rope_scaling\":{\"factor\":2.0}",
        "\"rope_parameters\":{\"rope_theta\":9,\"rope_type\":\"yarn\"}",
        "\"rope_scaling\":{\"type\":\"linear\"}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (struct err){0};
        assert_true(parse_llama(&hf, bad[i], &err) < 0);
        assert_true(strlen(err.msg) > 10);
    }
}

/* Returns the lines of a config.json that name tokens. */
static const char *ids_of(uint32_t vocab_size, bool bytes, char out[96])
{
    struct model_config config = {.vocab_size = vocab_size, .bytes = bytes};
    return hf_config_ids_text(&config, out);
}

/* The ids are known for three vocabularies and for bytes; the writer never guesses. */
TEST(test_known_token_ids_are_written)
{
    static const char bytes[] = "  \"bos_token_id\": 0,\n  \"eos_token_id\": 0,\n",
                      none[] = "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n",
                      gpt2[] = "  \"bos_token_id\": 50256,\n  \"eos_token_id\": 50256,\n",
                      llama3[] = "  \"bos_token_id\": 128000,\n  \"eos_token_id\": 128001,\n";
    char out[96];
    assert_string_equal(ids_of(256, true, out), bytes);
    assert_string_equal(ids_of(320, true, out), bytes);
    assert_string_equal(ids_of(256, false, out), none);
    assert_string_equal(ids_of(32000, true, out), none);
    assert_string_equal(ids_of(60000, false, out), none);
    assert_string_equal(ids_of(50257, false, out), gpt2);
    assert_string_equal(ids_of(50304, true, out), gpt2);
    assert_string_equal(ids_of(128256, false, out), llama3);
    struct model_config hf;
    struct err err = {0};
    assert_int_equal(parse_llama(&hf, "\"eos_token_id\":0", &err), STATUS_OK);
    assert_true(hf.bytes);
    assert_int_equal(parse_llama(&hf, "\"eos_token_id\":null", &err), STATUS_OK);
    assert_false(hf.bytes);
}

/* A number, a list, null and an absent key are copied unchanged. */
TEST(test_token_ids_are_copied)
{
    static const struct {
        const char *from, *want; /* NULL: CORRUPT */
    } cases[] = {
        {"{\"bos_token_id\": 7, \"eos_token_id\": [8, 9], \"pad_token_id\": 0, \"n_layer\": 3}",
         "{\"n_layer\": 1, \"bos_token_id\": 7, \"eos_token_id\": [8, 9], \"eps\": 1.5, \"pad_token_id\": 0}"},
        {"{\"bos_token_id\": null}", "{\"n_layer\": 1, \"bos_token_id\": null, \"eps\": 1.5}"},
        {"{\"eos_token_id\": \"</s>\"}", NULL},
        {"{\"eos_token_id\": [1, -1]}", NULL},
    };
    static const char ours[] = "{\"n_layer\": 1, \"bos_token_id\": null, \"eos_token_id\": null, \"eps\": 1.5}";
    char path[128], *text = NULL;
    struct err err = {0};
    assert_int_equal(hf_config_with_ids(ours, tmpdir, &text, &err), STATUS_OK); /* no config.json */
    assert_null(text);
    snprintf(path, sizeof path, "%s/config.json", tmpdir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(file_write(path, cases[i].from, strlen(cases[i].from), &err), STATUS_OK);
        enum status status = hf_config_with_ids(ours, tmpdir, &text, &err);
        assert_int_equal(status, cases[i].want ? STATUS_OK : STATUS_CORRUPT);
        if (!cases[i].want) continue;
        json_t *got = json_loads(text, 0, NULL), *want = json_loads(cases[i].want, 0, NULL);
        assert_true(got && json_equal(got, want));
        json_decref(got);
        json_decref(want);
        mem_free(text);
    }
    assert_int_equal(hf_config_with_ids("no JSON", tmpdir, &text, &err), STATUS_OK);
    assert_null(text);
    assert_int_equal(unlink(path), 0);
    static const char half[] = "{\"dtype\": \"bfloat16\", \"n_layer\": 1}";
    assert_int_equal(hf_config_with_dtype(half, strlen(half), "float32", &text, &err), STATUS_OK);
    assert_string_equal(text, "{\n  \"dtype\": \"float32\",\n  \"n_layer\": 1\n}\n");
    mem_free(text);
}

/* The valid tokenizer files, and the files that are copied with a checkpoint. */
TEST(test_tokenizer_files_are_read_and_copied)
{
    static const struct {
        const char *text;
        size_t size; /* 0: up to its end */
        enum status want;
    } cases[] = {
        {"{\"version\": \"1.0\", \"model\": {\"type\": \"BPE\", \"n\": 99999999999999999999, \"x\": \"\\u0000\"}}", 0,
         STATUS_OK},
        {"{\"model\": 3}", 12, STATUS_CORRUPT},
        {"{}", 2, STATUS_CORRUPT},
        {"[]", 2, STATUS_CORRUPT},
        {"", 0, STATUS_CORRUPT},
        {"{\"model\": {}}\0x", 15, STATUS_CORRUPT},
    };
    char path[128], to[128], copy[160], config[128];
    struct err err = {0};
    void *text;
    size_t size;
    snprintf(path, sizeof path, "%s/tokenizer.json", tmpdir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t length = cases[i].size ? cases[i].size : strlen(cases[i].text);
        assert_int_equal(file_write(path, cases[i].text, length, &err), STATUS_OK);
        enum status status = hf_tokenizer_read(path, &text, &size, &err);
        if (status != cases[i].want) fail_msg("case %zu: %s", i, err.msg);
        if (status != STATUS_OK) continue;
        assert_int_equal(size, length);
        mem_free(text);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(hf_tokenizer_read(path, &text, &size, &err), STATUS_NOTFOUND);

    snprintf(to, sizeof to, "%s/copy", tmpdir);
    assert_int_equal(dir_make(to, &err), STATUS_OK);
    /* Its run removed the folder meanwhile: a missing file counts as removed. */
    snprintf(config, sizeof config, "%s/config.json", tmpdir);
    assert_int_equal(hf_files_check_config(tmpdir, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, " was removed while it was read"));
    assert_int_equal(file_write(config, "{}", 2, &err), STATUS_OK);
    assert_int_equal(hf_files_check_config(tmpdir, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/tokenizer.model", tmpdir);
    assert_int_equal(file_write(path, "a\0b", 3, &err), STATUS_OK);
    assert_true(hf_files_has_tokenizer(tmpdir));
    assert_int_equal(hf_files_copy(tmpdir, to, HF_FILES_GENERATION, &err), STATUS_OK);
    assert_false(hf_files_has_tokenizer(to));
    assert_int_equal(hf_files_copy(tmpdir, to, HF_FILES_ALL, &err), STATUS_OK);
    snprintf(copy, sizeof copy, "%s/tokenizer.model", to);
    assert_int_equal(file_read(copy, 3, &text, &size, &err), STATUS_OK);
    assert_true(size == 3 && !memcmp(text, "a\0b", 3));
    mem_free(text);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(config), 0);
    assert_int_equal(dir_remove_flat(to, &err), STATUS_OK);
}

/* Sizes of the published models: the layout has their number of parameters. */
TEST(test_llama_layouts_have_published_sizes)
{
    static const struct {
        struct model_config config;
        uint64_t n_params;
    } known[] = {
        {{.n_layer = 16,
          .n_head = 32,
          .n_embd = 2048,
          .block_size = 2048,
          .vocab_size = 128256,
          .n_kv_head = 8,
          .ffn = 8192,
          .rope_theta = 5e5,
          .norm_eps = 1e-5,
          .tied = true},
         1235814400},
        {{.n_layer = 32,
          .n_head = 32,
          .n_embd = 4096,
          .block_size = 8192,
          .vocab_size = 128256,
          .n_kv_head = 8,
          .ffn = 14336,
          .rope_theta = 5e5,
          .norm_eps = 1e-5},
         8030261248},
    };
    for (size_t i = 0; i < 2; i++) {
        struct layout layout;
        layout_init(&layout);
        assert_int_equal(llama_layout(&known[i].config, &layout, NULL), STATUS_OK);
        assert_int_equal(layout.n_params, known[i].n_params);
        struct llama_offsets at = llama_offsets_of(&known[i].config);
        assert_int_equal(at.n_params, known[i].n_params);
        static const struct {
            const char *name;
            enum llama_block_tensor j;
        } places[] = {{"model.layers.3.self_attn.v_proj.weight", LLAMA_V},
                      {"model.layers.3.mlp.up_proj.weight", LLAMA_UP},
                      {"model.layers.3.input_layernorm.weight", LLAMA_NORM1}};
        for (size_t k = 0; k < sizeof places / sizeof *places; k++)
            assert_int_equal(layout.tensors[layout_find(&layout, places[k].name)].offset,
                             at.block0 + 3 * at.block_stride + at.block[places[k].j]);
        assert_int_equal(layout.tensors[layout_find(&layout, "model.norm.weight")].offset, at.norm);
        layout_finish(&layout);
    }
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
