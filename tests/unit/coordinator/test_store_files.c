/* The files that a run keeps for its checkpoints beside their models, such as the tokenizer's: they outlive their
 * source. */
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/frozen.h"
#include "common/tensor/layout.h"
#include "common/tensor/safetensors.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static char source[96], other[96];
static struct store *store;
static struct err err;

/* The snapshot's file must have this text; NULL: must not exist. */
static void holds(const char *name, const char *text)
{
    char path[256];
    void *data;
    size_t size;
    snprintf(path, sizeof path, "%s/checkpoints/round_000003/%s", tmpdir, name);
    if (!text) {
        assert_false(file_exists(path));
        return;
    }
    assert_int_equal(file_read(path, 100, &data, &size, &err), STATUS_OK);
    assert_string_equal(data, text);
    mem_free(data);
}

static void snapshot(void)
{
    struct layout layout;
    uint64_t two = 2;
    float theta[2] = {1, 2};
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "x", 1, &two, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    struct store_part part = {"state", 5};
    struct store_checkpoint in = {
        .round = 3, .layout = &layout, .theta = theta, .config_json = "{}", .state = &part, .n_state = 1};
    assert_int_equal(store->ops->checkpoint_write(store, &in, &err), STATUS_OK);
    layout_finish(&layout);
}

static int set_up(void **state)
{
    if (tmpdir_make(state) != 0) return -1;
    snprintf(source, sizeof source, "%s/source", tmpdir);
    snprintf(other, sizeof other, "%s/other.json", tmpdir);
    tmpdir_put("source/config.json", "{}");
    tmpdir_put("source/tokenizer.json", "{\"model\": {}}");
    tmpdir_put("source/tokenizer_config.json", "{}");
    tmpdir_put("source/generation_config.json", "{\"eos_token_id\": [1, 2]}");
    tmpdir_put("source/README.md", "a model");
    tmpdir_put("other.json", "{\"model\": {\"type\": \"BPE\"}}");
    return store_disk_open(&store, tmpdir, &err) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    store->ops->close(store);
    return tmpdir_remove(state);
}

TEST_WITH(test_files_of_folder_are_kept, set_up, tear_down)
{
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, NULL, true, &err), STATUS_OK);
    assert_int_equal(dir_remove_flat(source, &err), STATUS_OK);
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, NULL, false, &err),
                     STATUS_OK); /* the run continues */
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    holds("tokenizer_config.json", "{}");
    holds("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    holds("README.md", NULL);
    assert_int_equal(store->ops->files_keep(store, NULL, NULL, false, NULL, true, &err),
                     STATUS_OK); /* now from scratch */
    snapshot();
    holds("tokenizer.json", NULL);
}

/* Another tokenizer replaces the folder's tokenizer and its files, but not the model's own file. */
TEST_WITH(test_file_replaces_tokenizer_of_folder, set_up, tear_down)
{
    assert_int_equal(store->ops->files_keep(store, source, other, false, NULL, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}");
    holds("tokenizer_config.json", NULL);
    holds("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    assert_int_equal(
        store->ops->files_keep(store, source, tmpdir_path("source/tokenizer.json"), false, NULL, true, &err),
        STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    holds("tokenizer_config.json", "{}");
    tmpdir_put("other.json", "no tokenizer"); /* the kept files stay */
    assert_int_equal(store->ops->files_keep(store, source, other, false, NULL, true, &err), STATUS_CORRUPT);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(store->ops->files_keep(store, NULL, other, false, NULL, false, &err), STATUS_OK);
}

/* Files of other programs stay. A missing source is reported. */
TEST_WITH(test_foreign_files_stay, set_up, tear_down)
{
    char kept[64];
    tmpdir_put("tokenizer/notes/train.txt", "kept");
    assert_int_equal(store->ops->files_keep(store, tmpdir_path("gone"), NULL, false, NULL, true, &err),
                     STATUS_NOTFOUND);
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, NULL, true, &err), STATUS_OK);
    snprintf(kept, sizeof kept, "tokenizer.kept-%ld/notes/train.txt", (long)getpid());
    assert_true(file_exists(tmpdir_path(kept)));
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(dir_remove_flat(tmpdir_path("tokenizer"), &err), STATUS_OK);
    assert_int_equal(symlink("source", tmpdir_path("tokenizer")), 0);
    assert_int_equal(store->ops->files_keep(store, NULL, other, false, NULL, true, &err), STATUS_OK);
    assert_true(file_exists(tmpdir_path("source/README.md")));
    assert_int_equal(dir_remove_flat(tmpdir_path("tokenizer"), &err), STATUS_OK);
    assert_int_equal(store->ops->files_keep(store, tmpdir_path("gone"), NULL, false, NULL, false, &err),
                     STATUS_NOTFOUND);
    assert_false(file_exists(tmpdir_path("tokenizer")));
}

/* A checkpoint of a run that deletes it at that moment: its tokenizer may have been there. */
TEST_WITH(test_removed_source_is_reported, set_up, tear_down)
{
    assert_int_equal(unlink(tmpdir_path("source/config.json")), 0);
    assert_int_equal(unlink(tmpdir_path("source/tokenizer.json")), 0);
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, NULL, true, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, "source was removed while it was read"));
    assert_false(file_exists(tmpdir_path("tokenizer")));
}

/* A model without config.json: its absence does not mean a deleted folder. */
TEST_WITH(test_source_without_config_is_kept, set_up, tear_down)
{
    assert_int_equal(unlink(tmpdir_path("source/config.json")), 0);
    tmpdir_put("source/model.safetensors", "a model");
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, NULL, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
}

/* --- tensors that are not exchanged ------------------------------------------------------------------------------- */

static struct frozen_tensor base[] = {{.name = "base", .dtype = "U8", .ndim = 1, .shape = {3}, .bytes = 3},
                                      {.name = "count", .dtype = "I64", .ndim = 0, .bytes = 8}};
static const struct frozen frozen = {base, 2};

static void put_tensors(const char *name)
{
    static const uint8_t three[] = {7, 8, 9}, eight[] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct safetensors_tensor tensors[2];
    frozen_entries(&frozen, tensors);
    tensors[0].data = three;
    tensors[1].data = eight;
    assert_int_equal(safetensors_write(tmpdir_path(name), tensors, 2, &err), STATUS_OK);
}

/* The snapshot's model holds theta, and with `whole` the frozen tensors. */
static void expect_model(bool whole)
{
    struct safetensors st;
    char path[256];
    snapshot();
    snprintf(path, sizeof path, "%s/checkpoints/round_000003/model.safetensors", tmpdir);
    if (safetensors_open(&st, path, &err) != STATUS_OK) fail_msg("%s", err.msg);
    assert_int_equal(st.n, whole ? 3 : 1);
    const struct safetensors_entry *x = safetensors_find(&st, "x"), *b = safetensors_find(&st, "base");
    assert_true(x && x->bytes == 8 && (!whole || (b && !memcmp(b->data, "\7\10\11", 3))));
    safetensors_close(&st);
    struct layout layout;
    uint64_t two = 2;
    float back[2];
    layout_init(&layout);
    assert_int_equal(layout_add(&layout, "x", 1, &two, LAYOUT_INIT_ZEROS, 0, false), STATUS_OK);
    assert_int_equal(store->ops->checkpoint_theta_read(store, 3, &layout, 0, back, 2, &err), STATUS_OK);
    assert_true(back[0] == 1 && back[1] == 2);
    layout_finish(&layout);
}

static enum status keep(const struct frozen *list, bool anew)
{
    return store->ops->files_keep(store, source, NULL, true, list, anew, &err);
}

/* The file that a worker uploaded, also after a restart without it. */
TEST_WITH(test_uploaded_tensors_are_in_checkpoints, set_up, tear_down)
{
    put_tensors("source/frozen.safetensors");
    assert_int_equal(keep(NULL, true), STATUS_OK);
    expect_model(false); /* the run has none */
    assert_int_equal(keep(&frozen, true), STATUS_OK);
    assert_int_equal(dir_remove_flat(source, &err), STATUS_OK);
    expect_model(true);
    holds("frozen.safetensors", NULL);
    assert_int_equal(keep(&frozen, false), STATUS_OK);
    expect_model(true);
}

/* model.init_from names a folder that holds them beside other tensors, or not all of them. */
TEST_WITH(test_tensors_of_folder_are_in_checkpoints, set_up, tear_down)
{
    put_tensors("source/model.safetensors");
    assert_int_equal(keep(&frozen, true), STATUS_OK);
    expect_model(true);
    base[0].shape[0] = 4;
    assert_int_equal(keep(&frozen, true), STATUS_OK); /* a line of the log */
    expect_model(false);
    assert_int_equal(keep(&frozen, false), STATUS_OK);
    expect_model(false);
    base[0].shape[0] = 3;
    tmpdir_put("source/model.safetensors", "damaged");
    assert_int_equal(keep(&frozen, true), STATUS_CORRUPT);
}

TEST_MAIN(NULL, NULL)
