/* safetensors: what we write is what we read, other writers' types are converted, and every broken rule is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "common/tensor/safetensors.h"
#include "tests/lib/store/tmpdir.h"
#include "worker/model/gpt2.h"
#include "worker/model/llama.h"

/* A file of header text and `tail` bytes of tensors. */
static size_t make_file(uint8_t *out, size_t cap, const char *header, size_t tail)
{
    struct writer w = writer_of(out, cap);
    put_u64(&w, strlen(header));
    put_bytes(&w, header, strlen(header));
    for (size_t i = 0; i < tail; i++) put_u8(&w, (uint8_t)i);
    assert_false(w.bad);
    return w.pos;
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t tail;
        bool ok;
    } cases[] = {
        {"{}", 0, true},
        {"{}   ", 0, true},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, true},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, true},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[0,5],\"data_offsets\":[0,0]}}", 0, true},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", 1, true},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3,
         true},
        {"{\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         3, true},
        {" {}", 0, false},
        {"[]", 0, false},
        {"{", 0, false},
        {"{} x", 0, false},
        {"{\"__metadata__\":{\"format\":1}}", 0, false},
        {"{\"__metadata__\":[]}", 0, false},
        {"{\"a\":3}", 0, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8, false},
        {"{\"a\":{\"dtype\":\"F33\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,7]}}", 7, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 9, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}", 9, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1152921504606846976],\"data_offsets\":[0,0]}}", 0, false},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, false},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, false},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}," /* an overlap and a hole that cancel */
         "\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
         "\"c\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[4,5]}}",
         5, false},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, false},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t file[512];
        struct safetensors st;
        struct err err = {0};
        size_t size = make_file(file, sizeof file, cases[i].header, cases[i].tail);
        uint8_t *exact = malloc(size); /* so that reading one byte past the end shows under ASan */
        memcpy(exact, file, size);
        enum status status = safetensors_parse(&st, exact, size, "x", &err);
        if ((status == STATUS_OK) != cases[i].ok) fail_msg("case %zu: %s: %s", i, cases[i].header, err.msg);
        if (status != STATUS_OK) assert_true(strlen(err.msg) > 10);
        safetensors_close(&st);
        free(exact);
    }
}

static void test_header_length(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {0, 1, 3, 100000001, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t file[10];
        struct safetensors st;
        struct writer w = writer_of(file, sizeof file);
        put_u64(&w, lengths[i]);
        put_bytes(&w, "{}", 2);
        assert_int_equal(safetensors_parse(&st, file, sizeof file, "x", NULL), STATUS_CORRUPT);
    }
    struct safetensors st;
    assert_int_equal(safetensors_parse(&st, "1234567", 7, "x", NULL), STATUS_CORRUPT);
}

static void test_conversions(void **state)
{
    (void)state;
    static const char header[] = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]},"
                                 "\"h\":{\"dtype\":\"F16\",\"shape\":[6],\"data_offsets\":[4,16]},"
                                 "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[16,24]}}";
    static const uint16_t words[] = {0x3f80, 0xc020, 0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x8000};
    static const float half[] = {1.0f, -2.0f, 0x1p-24f, 65504.0f, INFINITY, -0.0f};
    uint8_t file[512];
    struct safetensors st;
    float out[6];
    struct writer w = writer_of(file, sizeof file);
    put_u64(&w, strlen(header));
    put_bytes(&w, header, strlen(header));
    for (size_t i = 0; i < 8; i++) put_u16(&w, words[i]);
    put_u64(&w, 5);
    assert_int_equal(safetensors_parse(&st, file, w.pos, "x", NULL), STATUS_OK);
    assert_int_equal(safetensors_read_f32(safetensors_find(&st, "b"), out, NULL), STATUS_OK);
    assert_true(out[0] == 1.0f && out[1] == -2.5f);
    assert_int_equal(safetensors_read_f32(safetensors_find(&st, "h"), out, NULL), STATUS_OK);
    for (int i = 0; i < 6; i++) assert_true(out[i] == half[i] && signbit(out[i]) == signbit(half[i]));
    assert_int_equal(safetensors_read_f32(safetensors_find(&st, "i"), out, NULL), STATUS_UNSUPPORTED);
    assert_null(safetensors_find(&st, "x"));
    safetensors_close(&st);
}

static const struct model_config small = {.n_layer = 2, .n_head = 2, .n_embd = 8, .block_size = 4, .vocab_size = 11};

static float *some_theta(struct layout *layout)
{
    layout_init(layout);
    assert_int_equal(gpt2_layout(&small, layout, NULL), STATUS_OK);
    float *theta = mem_alloc(layout->n_params, sizeof *theta);
    for (uint64_t i = 0; i < layout->n_params; i++) theta[i] = (float)i * 0.25f - 3;
    return theta;
}

static void test_folder_round_trip(void **state)
{
    (void)state;
    struct layout layout;
    struct hf_config hf;
    struct err err = {0};
    char json[2048], folder[128], path[192];
    float *theta = some_theta(&layout), *back = mem_alloc(layout.n_params, sizeof *back);
    assert_int_equal(gpt2_config_json(&small, json, sizeof json), STATUS_OK);
    snprintf(folder, sizeof folder, "%s/model", tmpdir);
    snprintf(path, sizeof path, "%s/tokenizer.json", tmpdir);
    assert_int_equal(file_write(path, "{}", 2, &err), STATUS_OK);
    for (int again = 0; again < 2; again++) { /* the second write replaces the first */
        assert_int_equal(hf_folder_write(folder, &layout, theta, json, again ? NULL : tmpdir, &err), STATUS_OK);
        assert_true(hf_files_has_tokenizer(folder) == !again);
    }
    assert_int_equal(unlink(path), 0);
    if (hf_config_load(&hf, folder, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_true(hf.n_layer == 2 && hf.n_head == 2 && hf.n_embd == 8 && hf.block_size == 4 && hf.vocab_size == 11);
    if (hf_folder_load(folder, &layout, back, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_memory_equal(theta, back, layout.n_params * sizeof *theta);

    void *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(file_read(path, 1 << 20, &bytes, &size, &err), STATUS_OK);
    struct reader r = reader_of(bytes, size);
    uint64_t header = get_u64(&r);
    assert_int_equal(header % 8, 0);
    assert_int_equal(size, 8 + header + layout.n_params * 4);
    static const char start[] = "{\"__metadata__\":{\"format\":\"pt\"},\"h.0.attn.c_attn.bias\":{\"dtype\":\"F32\"";
    assert_memory_equal((const char *)bytes + 8, start, sizeof start - 1);
    mem_free(bytes);

    theta[layout.n_params - 1] = NAN;
    assert_int_equal(hf_folder_write(folder, &layout, theta, json, NULL, &err), STATUS_OK);
    assert_int_equal(hf_folder_load(folder, &layout, back, &err), STATUS_NONFINITE);
    assert_non_null(strstr(err.msg, "ln_f.bias"));
    theta[layout.n_params - 1] = 0;
    assert_int_equal(hf_folder_write(folder, &layout, theta, json, NULL, &err), STATUS_OK);

    struct model_config other = small;
    struct layout other_layout;
    other.n_layer = 3;
    layout_init(&other_layout);
    assert_int_equal(gpt2_layout(&other, &other_layout, NULL), STATUS_OK);
    float *larger = mem_alloc(other_layout.n_params, sizeof *larger);
    assert_int_equal(hf_folder_load(folder, &other_layout, larger, &err), STATUS_MISMATCH);
    assert_non_null(strstr(err.msg, "h.2.ln_1.weight"));
    layout_finish(&other_layout);
    other = small;
    other.vocab_size = 12;
    assert_int_equal(gpt2_layout(&other, &other_layout, NULL), STATUS_OK);
    assert_int_equal(hf_folder_load(folder, &other_layout, larger, &err), STATUS_MISMATCH);
    assert_non_null(strstr(err.msg, "tensor 'wte.weight' is 11 x 8, and this model's is 12 x 8"));
    layout_finish(&other_layout);
    mem_free(larger);
    mem_free(theta);
    mem_free(back);
    layout_finish(&layout);
    assert_int_equal(dir_remove_flat(folder, &err), STATUS_OK);
}

/* As save_pretrained writes it: prefixed names, a mask buffer, a tied head, two shards and an index. */
static void test_sharded_with_prefix(void **state)
{
    (void)state;
    struct layout layout;
    struct err err = {0};
    char folder[128], path[192], (*names)[128];
    float *theta = some_theta(&layout), *back = mem_alloc(layout.n_params, sizeof *back);
    uint32_t n = layout.n_tensors, half = n / 2;
    struct safetensors_tensor *tensors = mem_alloc(n + 2, sizeof *tensors);
    names = mem_alloc(n, sizeof *names);
    for (uint32_t i = 0; i < n; i++) {
        const struct tensor *t = &layout.tensors[i];
        snprintf(names[i], sizeof names[i], "transformer.%s", t->name);
        tensors[i] = (struct safetensors_tensor){.name = names[i], .ndim = t->ndim, .data = theta + t->offset};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    const struct tensor *words = &layout.tensors[layout_find(&layout, "wte.weight")];
    float *head = mem_alloc(words->count, sizeof *head);
    memcpy(head, theta + words->offset, words->count * sizeof *head);
    tensors[n] = (struct safetensors_tensor){.name = "lm_head.weight", .ndim = 2, .data = head};
    memcpy(tensors[n].shape, words->shape, sizeof words->shape);
    tensors[n + 1] = (struct safetensors_tensor){.name = "h.0.attn.bias", .ndim = 1, .shape = {4}, .data = theta};
    snprintf(folder, sizeof folder, "%s/sharded", tmpdir);
    assert_int_equal(dir_make(folder, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/a.safetensors", folder);
    assert_int_equal(safetensors_write(path, tensors, half, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/b.safetensors", folder);
    assert_int_equal(safetensors_write(path, tensors + half, n - half + 2, &err), STATUS_OK);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    static const char index[] = "{\"metadata\":{},\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\","
                                "\"z\":\"a.safetensors\"}}";
    assert_int_equal(file_write(path, index, strlen(index), &err), STATUS_OK);
    if (hf_folder_load(folder, &layout, back, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_memory_equal(theta, back, layout.n_params * sizeof *theta);
    head[words->count - 1] += 1; /* a head of its own has no place here */
    char second[192];
    snprintf(second, sizeof second, "%s/b.safetensors", folder);
    assert_int_equal(safetensors_write(second, tensors + half, n - half + 2, &err), STATUS_OK);
    char config[192];
    snprintf(config, sizeof config, "%s/config.json", folder);
    for (int said = 0; said < 2; said++) { /* config.json may say that it is tied: it is not */
        if (said) assert_int_equal(file_write(config, "{\"tie_word_embeddings\": true}", 29, &err), STATUS_OK);
        assert_int_equal(hf_folder_load(folder, &layout, back, &err), STATUS_MISMATCH);
        assert_non_null(strstr(err.msg, "b.safetensors: lm_head.weight is not the embedding"));
    }
    mem_free(head);
    static const char escape[] = "{\"weight_map\":{\"x\":\"../b.safetensors\"}}";
    assert_int_equal(file_write(path, escape, strlen(escape), &err), STATUS_OK);
    assert_int_equal(hf_folder_load(folder, &layout, back, &err), STATUS_CORRUPT);
    mem_free(names);
    mem_free(tensors);
    mem_free(theta);
    mem_free(back);
    layout_finish(&layout);
    assert_int_equal(dir_remove_flat(folder, &err), STATUS_OK);
}

static void test_bad_configs(void **state)
{
    (void)state;
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
    struct hf_config hf;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct err err = {0};
        assert_true(hf_config_parse(&hf, texts[i], strlen(texts[i]), "config.json", &err) < 0);
        assert_true(strlen(err.msg) > 10);
    }
    static const struct { /* what changes the mathematics, and what does not */
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
        if (keys[i].want) assert_non_null(strstr(err.msg, "config.json: attention"));
    }
}

static const char llama_sizes[] =
    "\"model_type\":\"llama\",\"num_hidden_layers\":2,\"num_attention_heads\":4,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"max_position_embeddings\":64,\"vocab_size\":99";

static enum status parse_llama(struct hf_config *hf, const char *more, struct err *err)
{
    char text[1024];
    snprintf(text, sizeof text, "{%s%s%s}", llama_sizes, more[0] ? "," : "", more);
    return hf_config_parse(hf, text, strlen(text), "config.json", err);
}

/* What we write, and what is missing or elsewhere in the files of others. */
static void test_llama_config(void **state)
{
    (void)state;
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
    struct hf_config hf;
    struct err err = {0};
    char json[4096];
    for (int untied = 0; untied < 2; untied++) {
        config.tied = !untied;
        if (untied) config.rope_scaling = (struct rope_scaling){32, 1, 4, 8192};
        assert_int_equal(llama_config_json(&config, json, sizeof json), STATUS_OK);
        if (hf_config_parse(&hf, json, strlen(json), "config.json", &err) != STATUS_OK) fail_msg("%s", err.msg);
        struct model_config back = model_config_of_folder(&hf);
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

/* The lines of a config.json that name tokens. */
static const char *ids_of(uint32_t vocab_size, bool bytes, char out[96])
{
    struct model_config config = {.vocab_size = vocab_size, .bytes = bytes};
    return model_ids_json(&config, out);
}

/* Known of three vocabularies and of bytes; nobody is told a guess. */
static void test_ids_written(void **state)
{
    (void)state;
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
    struct hf_config hf;
    struct err err = {0};
    assert_int_equal(parse_llama(&hf, "\"eos_token_id\":0", &err), STATUS_OK);
    assert_true(hf.bytes);
    assert_int_equal(parse_llama(&hf, "\"eos_token_id\":null", &err), STATUS_OK);
    assert_false(hf.bytes);
}

/* A number, a list, null and nothing come over as they are. */
static void test_ids_taken(void **state)
{
    (void)state;
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
    assert_int_equal(hf_config_with_ids(ours, tmpdir, &text, &err), STATUS_OK); /* no config.json there */
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
    assert_int_equal(hf_config_in_float32(half, strlen(half), &text, &err), STATUS_OK);
    assert_string_equal(text, "{\n  \"dtype\": \"float32\",\n  \"n_layer\": 1\n}\n");
    mem_free(text);
}

/* What is a tokenizer's file, and which files go along. */
static void test_files(void **state)
{
    (void)state;
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
    /* The run that it belongs to removed it meanwhile: what is not there may have been there. */
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

/* The sizes of the published models: the layout has their number of parameters. */
static void test_llama_sizes(void **state)
{
    (void)state;
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

/* A write that cannot finish leaves the old file and nothing else. */
static void test_failed_write(void **state)
{
    (void)state;
    struct err err = {0};
    char path[128];
    float one = 1;
    struct safetensors_tensor twice[] = {{.name = "a", .ndim = 1, .shape = {1}, .data = &one},
                                         {.name = "a", .ndim = 1, .shape = {1}, .data = &one}};
    snprintf(path, sizeof path, "%s/twice.safetensors", tmpdir);
    assert_int_equal(safetensors_write(path, twice, 2, &err), STATUS_INVALID);
    assert_false(file_exists(path));
    snprintf(path, sizeof path, "%s/no/such/folder/a.safetensors", tmpdir);
    assert_int_equal(safetensors_write(path, twice, 1, &err), STATUS_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_header_length),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_folder_round_trip),
        cmocka_unit_test(test_sharded_with_prefix),
        cmocka_unit_test(test_bad_configs),
        cmocka_unit_test(test_ids_written),
        cmocka_unit_test(test_ids_taken),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_llama_config),
        cmocka_unit_test(test_llama_sizes),
        cmocka_unit_test(test_failed_write),
    };
    return cmocka_run_group_tests(tests, tmpdir_make, tmpdir_remove);
}
