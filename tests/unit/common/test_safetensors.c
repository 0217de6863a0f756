/* safetensors: reading returns the written tensors, other writers' types are converted, every broken rule is
 * refused. */
#include <math.h>
#include <unistd.h>

#include "common/base/bytes.h"
#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "common/tensor/hf_folder.h"
#include "common/tensor/safetensors.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/model/gpt2.h"

/* Makes a file of header text and `tail` bytes of tensors. */
static size_t make_file(uint8_t *out, size_t cap, const char *header, size_t tail)
{
    struct writer w = writer_of(out, cap);
    put_u64(&w, strlen(header));
    put_bytes(&w, header, strlen(header));
    for (size_t i = 0; i < tail; i++) put_u8(&w, (uint8_t)i);
    assert_false(w.bad);
    return w.pos;
}

TEST(test_invalid_files_are_refused)
{
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
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}," /* an overlap and a hole of the same size */
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
        uint8_t *exact = malloc(size); /* exact size, so that ASan detects a read past the end */
        memcpy(exact, file, size);
        enum status status = safetensors_parse(&st, exact, size, "x", &err);
        if ((status == STATUS_OK) != cases[i].ok) fail_msg("case %zu: %s: %s", i, cases[i].header, err.msg);
        if (status != STATUS_OK) assert_true(strlen(err.msg) > 10);
        safetensors_close(&st);
        free(exact);
    }
}

TEST(test_invalid_header_length_is_refused)
{
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

TEST(test_types_are_converted_to_fp32)
{
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

TEST(test_folder_restores_written_theta)
{
    struct layout layout;
    struct model_config hf;
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
    assert_non_null(strstr(err.msg, "tensor 'wte.weight' has shape 11 x 8, the model has 12 x 8"));
    layout_finish(&other_layout);
    mem_free(larger);
    mem_free(theta);
    mem_free(back);
    layout_finish(&layout);
    assert_int_equal(dir_remove_flat(folder, &err), STATUS_OK);
}

/* A checkpoint in the form of save_pretrained: prefixed names, a mask buffer, a tied head, two shards and an index. */
TEST(test_sharded_folder_with_prefix_is_read)
{
    struct layout layout;
    struct err err = {0};
    char folder[128], path[192], (*names)[LAYOUT_NAME_MAX + 16];
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
    head[words->count - 1] += 1; /* a separate head is refused */
    char second[192];
    snprintf(second, sizeof second, "%s/b.safetensors", folder);
    assert_int_equal(safetensors_write(second, tensors + half, n - half + 2, &err), STATUS_OK);
    char config[192];
    snprintf(config, sizeof config, "%s/config.json", folder);
    for (int claimed = 0; claimed < 2; claimed++) { /* config.json may claim a tied head, but the file has its own */
        if (claimed) assert_int_equal(file_write(config, "{\"tie_word_embeddings\": true}", 29, &err), STATUS_OK);
        assert_int_equal(hf_folder_load(folder, &layout, back, &err), STATUS_MISMATCH);
        assert_non_null(strstr(err.msg, "b.safetensors: lm_head.weight differs from the embedding"));
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

/* A failed write keeps the old file and leaves no other. */
TEST(test_failed_write_keeps_old_file)
{
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

TEST_MAIN(tmpdir_make, tmpdir_remove)
