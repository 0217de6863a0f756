/* What a run keeps for its checkpoints beside their models: whose files they are; they outlive their source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/tensor/layout.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/store/tmpdir.h"

static char source[96], other[96];
static struct store *store;
static struct err err;

/* The file in the snapshot has this text; NULL: it is not there. */
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
    struct store_snapshot in = {
        .round = 3, .layout = &layout, .theta = theta, .config_json = "{}", .state = &part, .n_state = 1};
    assert_int_equal(store->ops->snapshot_write(store, &in, &err), STATUS_OK);
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

static void test_of_a_folder(void **state)
{
    (void)state;
    assert_int_equal(store->ops->files_keep(store, source, NULL, true, &err), STATUS_OK);
    assert_int_equal(dir_remove_flat(source, &err), STATUS_OK);
    assert_int_equal(store->ops->files_keep(store, source, NULL, false, &err), STATUS_OK); /* the run goes on */
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    holds("tokenizer_config.json", "{}");
    holds("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    holds("README.md", NULL);
    assert_int_equal(store->ops->files_keep(store, NULL, NULL, true, &err), STATUS_OK); /* now from scratch */
    snapshot();
    holds("tokenizer.json", NULL);
}

/* Another tokenizer takes the place of the folder's, and of all that belongs to that; its own file does not. */
static void test_of_a_file(void **state)
{
    (void)state;
    assert_int_equal(store->ops->files_keep(store, source, other, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}");
    holds("tokenizer_config.json", NULL);
    holds("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    assert_int_equal(store->ops->files_keep(store, source, tmpdir_path("source/tokenizer.json"), true, &err),
                     STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    holds("tokenizer_config.json", "{}");
    tmpdir_put("other.json", "no tokenizer"); /* what was kept stays */
    assert_int_equal(store->ops->files_keep(store, source, other, true, &err), STATUS_CORRUPT);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(store->ops->files_keep(store, NULL, other, false, &err), STATUS_OK);
}

/* What somebody else has there is kept, whatever it is; a source that is away for a start is asked for at the next. */
static void test_of_others(void **state)
{
    (void)state;
    char kept[64];
    tmpdir_put("tokenizer/notes/train.txt", "kept");
    assert_int_equal(store->ops->files_keep(store, tmpdir_path("gone"), NULL, true, &err), STATUS_NOTFOUND);
    assert_int_equal(store->ops->files_keep(store, source, NULL, true, &err), STATUS_OK);
    snprintf(kept, sizeof kept, "tokenizer.kept-%ld/notes/train.txt", (long)getpid());
    assert_true(file_exists(tmpdir_path(kept)));
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(dir_remove_flat(tmpdir_path("tokenizer"), &err), STATUS_OK);
    assert_int_equal(symlink("source", tmpdir_path("tokenizer")), 0);
    assert_int_equal(store->ops->files_keep(store, NULL, other, true, &err), STATUS_OK);
    assert_true(file_exists(tmpdir_path("source/README.md")));
    assert_int_equal(dir_remove_flat(tmpdir_path("tokenizer"), &err), STATUS_OK);
    assert_int_equal(store->ops->files_keep(store, tmpdir_path("gone"), NULL, false, &err), STATUS_NOTFOUND);
    assert_false(file_exists(tmpdir_path("tokenizer")));
}

/* A checkpoint of a run that goes on, which removes it just then: its tokenizer may have been there. */
static void test_of_one_removed_meanwhile(void **state)
{
    (void)state;
    assert_int_equal(unlink(tmpdir_path("source/config.json")), 0);
    assert_int_equal(unlink(tmpdir_path("source/tokenizer.json")), 0);
    assert_int_equal(store->ops->files_keep(store, source, NULL, true, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, "source was removed while it was read"));
    assert_false(file_exists(tmpdir_path("tokenizer")));
}

/* Whoever made it wrote no config.json, which says nothing then. */
static void test_of_a_bare_model(void **state)
{
    (void)state;
    assert_int_equal(unlink(tmpdir_path("source/config.json")), 0);
    tmpdir_put("source/model.safetensors", "a model");
    assert_int_equal(store->ops->files_keep(store, source, NULL, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_a_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_others, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_one_removed_meanwhile, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_a_bare_model, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
