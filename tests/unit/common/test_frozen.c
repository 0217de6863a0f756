/* Tensors that are not exchanged: their list as bytes, its comparison, and files that hold them beside theta. */

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/frozen.h"
#include "common/tensor/hf_folder.h"
#include "tests/lib/rigs/golden.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct frozen_tensor three[] = {
    {.name = "a", .dtype = "U8", .ndim = 1, .shape = {5}, .bytes = 5, .hash = 7},
    {.name = "b.weight", .dtype = "BF16", .ndim = 2, .shape = {2, 3}, .bytes = 12, .hash = UINT64_MAX},
    {.name = "c", .dtype = "I64", .ndim = 0, .bytes = 8, .hash = 1}};
static const struct frozen list = {three, 3};
static const uint8_t bytes_a[] = {1, 2, 3, 4, 5}, bytes_c[] = {9, 0, 0, 0, 0, 0, 0, 128};
static const uint8_t bytes_b[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static size_t encode(const struct frozen *from, uint8_t *out, size_t cap)
{
    struct writer w = writer_of(out, cap);
    frozen_encode(from, &w);
    assert_false(w.bad);
    assert_int_equal(w.pos, frozen_encoded_size(from));
    return w.pos;
}

static enum status decode(const uint8_t *data, size_t size, struct frozen *out)
{
    uint8_t *exact = malloc(size + 1); /* ends at the end of the allocation */
    *out = (struct frozen){0};
    memcpy(exact + 1, data, size);
    enum status status = frozen_decode(out, exact + 1, size);
    free(exact);
    return status;
}

TEST(test_decode_restores_list)
{
    static const struct frozen none = {0};
    uint8_t data[256];
    struct frozen got;
    size_t n = encode(&list, data, sizeof data);
    assert_int_equal(decode(data, n, &got), STATUS_OK);
    assert_int_equal(got.n, 3);
    assert_memory_equal(got.tensors, three, sizeof three);
    frozen_finish(&got);
    assert_int_equal(encode(&none, data, sizeof data), 0);
    assert_int_equal(decode(data, 0, &got), STATUS_OK);
    assert_int_equal(got.n, 0);
}

TEST(test_list_matches_golden_file)
{
    uint8_t data[256];
    golden_check("protocol_v3/frozen_list", data, encode(&list, data, sizeof data));
}

/* frozen_encode takes only what frozen_tensor_ok accepts. */
static void expect_corrupt(const struct frozen_tensor *tensors, uint32_t n)
{
    uint8_t data[4096];
    struct frozen got;
    struct writer w = writer_of(data, sizeof data);
    put_u32(&w, n);
    for (uint32_t i = 0; i < n; i++) {
        put_str(&w, tensors[i].name);
        put_str(&w, tensors[i].dtype);
        put_u8(&w, (uint8_t)tensors[i].ndim);
        for (uint32_t d = 0; d < tensors[i].ndim; d++) put_u64(&w, tensors[i].shape[d]);
        put_u64(&w, tensors[i].bytes);
        put_u64(&w, tensors[i].hash);
    }
    assert_int_equal(decode(data, w.pos, &got), STATUS_CORRUPT);
    frozen_finish(&got);
}

TEST(test_malformed_lists_are_refused)
{
    uint8_t data[256];
    struct frozen got;
    size_t n = encode(&list, data, sizeof data - 1);
    for (size_t cut = 1; cut < n; cut++) {
        assert_int_equal(decode(data, cut, &got), STATUS_CORRUPT);
        frozen_finish(&got);
    }
    data[n] = 0;
    assert_int_equal(decode(data, n + 1, &got), STATUS_CORRUPT);
    frozen_finish(&got);
    static const uint8_t counts[][4] = {{0}, {1, 64, 0, 0}, {255, 255, 255, 255}};
    for (size_t i = 0; i < 3; i++) { /* none, one too many, and far more than there are bytes */
        memcpy(data, counts[i], 4);
        assert_int_equal(decode(data, n, &got), STATUS_CORRUPT);
        frozen_finish(&got);
    }
    expect_corrupt((struct frozen_tensor[]){three[1], three[0]}, 2);
    expect_corrupt((struct frozen_tensor[]){three[0], three[0]}, 2);
    static const char *const names[] = {"", "__a", "a\n", "\xc3\xa9"}, *const dtypes[] = {"", "F\t"};
    for (size_t i = 0; i < 4; i++) {
        struct frozen_tensor t = three[0];
        snprintf(t.name, sizeof t.name, "%s", names[i]);
        expect_corrupt(&t, 1);
    }
    for (size_t i = 0; i < 2; i++) {
        struct frozen_tensor t = three[0];
        snprintf(t.dtype, sizeof t.dtype, "%s", dtypes[i]);
        expect_corrupt(&t, 1);
    }
}

static void expect_difference(const struct frozen *other, const char *want)
{
    char text[FROZEN_DIFFERENCE_MAX];
    const char *got = frozen_difference(other, &list, text);
    assert_non_null(got);
    assert_string_equal(got, want);
}

TEST(test_first_difference_is_named)
{
    char text[FROZEN_DIFFERENCE_MAX];
    struct frozen_tensor t[4];
    struct frozen other = {t, 3};
    memcpy(t, three, sizeof three);
    assert_null(frozen_difference(&other, &list, text));
    t[1].hash = 3;
    t[2].hash = 3;
    expect_difference(&other, "frozen tensor 'b.weight' has other values");
    t[1].bytes = 13;
    expect_difference(&other, "frozen tensor 'b.weight' has 13 bytes instead of 12");
    t[1].shape[1] = 4;
    expect_difference(&other, "frozen tensor 'b.weight' has shape [2, 4] instead of [2, 3]");
    snprintf(t[1].dtype, sizeof t[1].dtype, "U8");
    expect_difference(&other, "frozen tensor 'b.weight' has dtype U8 instead of BF16");
    snprintf(t[1].name, sizeof t[1].name, "b.scale");
    expect_difference(&other, "frozen tensor 'b.scale' is missing in the run");
    other.n = 1;
    expect_difference(&other, "frozen tensor 'b.weight' of the run is missing here");
    other.n = 0;
    expect_difference(&other, "frozen tensor 'a' of the run is missing here");
    memcpy(t, three, sizeof three);
    t[3] = (struct frozen_tensor){.name = "d", .dtype = "U8"};
    other.n = 4;
    expect_difference(&other, "frozen tensor 'd' is missing in the run");
}

TEST(test_sizes_must_fit_dtypes)
{
    struct err err = {0};
    for (size_t i = 0; i < 3; i++) assert_int_equal(frozen_storable(&three[i], &err), STATUS_OK);
    struct frozen_tensor t = three[1];
    t.bytes = 11;
    assert_int_equal(frozen_storable(&t, &err), STATUS_INVALID);
    t.shape[0] = UINT64_MAX / 3;
    assert_int_equal(frozen_storable(&t, &err), STATUS_INVALID);
    t = (struct frozen_tensor){.name = "f", .dtype = "F4", .ndim = 1, .shape = {3}, .bytes = 1};
    assert_int_equal(frozen_storable(&t, &err), STATUS_INVALID);
    snprintf(t.dtype, sizeof t.dtype, "NF4");
    assert_int_equal(frozen_storable(&t, &err), STATUS_INVALID);
    struct frozen_tensor large[2] = {{.bytes = UINT64_MAX / 2}, {.bytes = UINT64_MAX / 2 + 2}};
    assert_true(frozen_file_most(&(struct frozen){large, 2}) == UINT64_MAX);
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static struct layout layout;
static const float theta[] = {1, 2, 3};

static void make_layout(void)
{
    static const uint64_t two = 2, one = 1;
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "z", 1, &two, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(layout_add(&layout, "b.bias", 1, &one, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
}

/* Writes the tensors of `from` to FOLDER/NAME. */
static void write_frozen(const char *path, const struct frozen *from)
{
    struct safetensors_tensor tensors[3];
    struct err err = {0};
    frozen_entries(from, tensors);
    for (uint32_t i = 0; i < from->n; i++)
        tensors[i].data = tensors[i].name[0] == 'a' ? bytes_a : tensors[i].name[0] == 'b' ? bytes_b : bytes_c;
    assert_int_equal(safetensors_write(path, tensors, from->n, &err), STATUS_OK);
}

static void expect_bytes(const struct safetensors *st, const char *name, const void *bytes, size_t size)
{
    const struct safetensors_entry *e = safetensors_find(st, name);
    assert_non_null(e);
    assert_int_equal(e->bytes, size);
    assert_memory_equal(e->data, bytes, size);
}

static void expect_whole(const char *folder)
{
    char path[256];
    struct safetensors st;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (safetensors_open(&st, path, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(st.n, 5);
    static const char *const order[] = {"c", "b.bias", "z", "b.weight", "a"}; /* aligned, theta by name */
    for (int i = 0; i < 5; i++) assert_string_equal(st.entries[i].name, order[i]);
    expect_bytes(&st, "a", bytes_a, sizeof bytes_a);
    expect_bytes(&st, "b.weight", bytes_b, sizeof bytes_b);
    expect_bytes(&st, "c", bytes_c, sizeof bytes_c);
    expect_bytes(&st, "z", theta, 8);
    expect_bytes(&st, "b.bias", theta + 2, 4);
    static const char head[] = "{\"__metadata__\":{\"format\":\"pt\",\"theta\":\"8 20\"}";
    assert_memory_equal((const char *)st.map.data + 8, head, sizeof head - 1);
    safetensors_close(&st);
}

/* A folder with frozen.safetensors gives its tensors to the folder that is written; reading skips them. */
TEST(test_written_folder_holds_frozen_tensors)
{
    struct err err = {0};
    float back[3] = {0};
    char model[128], copy[128];
    make_layout();
    snprintf(model, sizeof model, "%s/model", tmpdir);
    snprintf(copy, sizeof copy, "%s/copy", tmpdir);
    assert_int_equal(dir_make(tmpdir_path("kept"), &err), STATUS_OK);
    write_frozen(tmpdir_path("kept/" FROZEN_FILE), &list);
    assert_int_equal(hf_folder_write(model, &layout, theta, "{}", tmpdir_path("kept"), &err), STATUS_OK);
    expect_whole(model);
    assert_false(file_exists(tmpdir_path("model/" FROZEN_FILE)));
    assert_int_equal(hf_folder_load(model, &layout, back, &err), STATUS_MISMATCH);
    for (int all = 0; all < 2; all++) {
        memset(back, 0, sizeof back);
        assert_int_equal(hf_folder_load_part(model, &layout, all ? NULL : &list, back, &err), STATUS_OK);
        assert_memory_equal(back, theta, sizeof theta);
    }
    struct frozen less = {three, 2};
    assert_int_equal(hf_folder_load_part(model, &layout, &less, back, &err), STATUS_MISMATCH);
    assert_non_null(strstr(err.msg, "the model has no tensor 'c'"));
    assert_int_equal(hf_folder_copy(copy, model, &err), STATUS_OK);
    expect_whole(copy);
    assert_true(file_exists(tmpdir_path("copy/config.json")));
    assert_int_equal(dir_remove_flat(copy, &err), STATUS_OK);
    assert_int_equal(dir_remove_flat(model, &err), STATUS_OK);
    assert_int_equal(dir_remove_flat(tmpdir_path("kept"), &err), STATUS_OK);
    layout_finish(&layout);
}

/* A folder of transformers may repeat a tied embedding as lm_head. It is frozen if the embedding is. */
TEST(test_head_of_frozen_embedding_is_skipped)
{
    static const uint64_t one = 1;
    struct err err = {0};
    float back[4];
    make_layout();
    struct safetensors_tensor tensors[3];
    safetensors_of_theta(tensors, &layout, theta);
    tensors[2] = (struct safetensors_tensor){.name = "lm_head.weight", .ndim = 1, .shape = {1}, .data = theta};
    assert_int_equal(dir_make(tmpdir_path("tied"), &err), STATUS_OK);
    assert_int_equal(safetensors_write(tmpdir_path("tied/model.safetensors"), tensors, 3, &err), STATUS_OK);
    assert_int_equal(hf_folder_load_part(tmpdir_path("tied"), &layout, &list, back, &err), STATUS_OK);
    assert_int_equal(hf_folder_load(tmpdir_path("tied"), &layout, back, &err), STATUS_MISMATCH);
    assert_int_equal(layout_add(&layout, "wte.weight", 1, &one, LAYOUT_INIT_ZEROS, 0, 0), STATUS_OK);
    assert_int_equal(hf_folder_load_part(tmpdir_path("tied"), &layout, &list, back, &err), STATUS_MISMATCH);
    assert_int_equal(dir_remove_flat(tmpdir_path("tied"), &err), STATUS_OK);
    layout_finish(&layout);
}

/* Frozen tensors come out of a folder as they are, from one file or from shards; or all stay where they are. */
TEST(test_frozen_tensors_are_taken_from_folder)
{
    static const char index[] = "{\"weight_map\":{\"a\":\"1.safetensors\",\"b.weight\":\"1.safetensors\","
                                "\"c\":\"2.safetensors\"}}";
    struct frozen first = {three, 2}, last = {three + 2, 1};
    struct safetensors st;
    struct err err = {0};
    char folder[128], path[128];
    snprintf(folder, sizeof folder, "%s/source", tmpdir);
    snprintf(path, sizeof path, "%s/taken.safetensors", tmpdir);
    assert_int_equal(dir_make(folder, &err), STATUS_OK);
    for (int sharded = 0; sharded < 2; sharded++) {
        if (sharded) {
            write_frozen(tmpdir_path("source/1.safetensors"), &first);
            write_frozen(tmpdir_path("source/2.safetensors"), &last);
            tmpdir_put("source/model.safetensors.index.json", index);
        } else {
            write_frozen(tmpdir_path("source/model.safetensors"), &list);
        }
        if (hf_folder_take(folder, &list, path, &err) != STATUS_OK) fail_msg("%s", err.msg);
        assert_int_equal(safetensors_open(&st, path, &err), STATUS_OK);
        assert_int_equal(frozen_check_file(&list, &st, &err), STATUS_OK);
        assert_int_equal(frozen_check_file(&first, &st, &err), STATUS_MISMATCH);
        expect_bytes(&st, "b.weight", bytes_b, sizeof bytes_b);
        safetensors_close(&st);
        assert_int_equal(remove(path), 0);
        snprintf(three[2].dtype, sizeof three[2].dtype, "U64"); /* the folder has another one */
        assert_int_equal(hf_folder_take(folder, &list, path, &err), STATUS_NOTFOUND);
        assert_non_null(strstr(err.msg, "lacks the frozen tensor 'c' with dtype U64 and its shape"));
        assert_false(file_exists(path));
        snprintf(three[2].dtype, sizeof three[2].dtype, "I64");
        if (!sharded) assert_int_equal(remove(tmpdir_path("source/model.safetensors")), 0);
    }
    assert_int_equal(dir_remove_flat(folder, &err), STATUS_OK);
}

TEST_MAIN(tmpdir_make, tmpdir_remove)
