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

#include "common/fileio.h"
#include "common/layout.h"
#include "common/mem.h"
#include "coordinator/store.h"

static char dir[64], source[96], other[96];
static struct store *store;
static struct err err;

static void put(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(file_write(path, text, strlen(text), &err), STATUS_OK);
}

/* The file in the snapshot has this text; NULL: it is not there. */
static void holds(const char *name, const char *text)
{
    char path[256];
    void *data;
    size_t size;
    snprintf(path, sizeof path, "%s/checkpoints/round_000003/%s", dir, name);
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
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/atoll-test-files-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(source, sizeof source, "%s/source", dir);
    snprintf(other, sizeof other, "%s/other.json", dir);
    if (dir_make(source, &err) != STATUS_OK) return -1;
    put(source, "tokenizer.json", "{\"model\": {}}");
    put(source, "tokenizer_config.json", "{}");
    put(source, "generation_config.json", "{\"eos_token_id\": [1, 2]}");
    put(source, "README.md", "a model");
    put(dir, "other.json", "{\"model\": {\"type\": \"BPE\"}}");
    return store_disk_open(&store, dir, &err) == STATUS_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char path[256];
    static const char *const folders[] = {"source", "tokenizer", "journal", "checkpoints/round_000003", "checkpoints"};
    char cmd[256];
    if (store->ops->snapshot_remove(store, 3, &err) != STATUS_OK) return -1;
    store->ops->close(store);
    snprintf(cmd, sizeof cmd, "rm -rf %s/tokenizer.kept-*", dir);
    if (system(cmd) != 0) return -1;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, folders[i]);
        if (dir_remove_flat(path, &err) != STATUS_OK) return -1;
    }
    return dir_remove_flat(dir, &err) == STATUS_OK && mem_live_bytes() == 0 ? 0 : -1;
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
    char own[128];
    assert_int_equal(store->ops->files_keep(store, source, other, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {\"type\": \"BPE\"}}");
    holds("tokenizer_config.json", NULL);
    holds("generation_config.json", "{\"eos_token_id\": [1, 2]}");
    snprintf(own, sizeof own, "%s/tokenizer.json", source);
    assert_int_equal(store->ops->files_keep(store, source, own, true, &err), STATUS_OK);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    holds("tokenizer_config.json", "{}");
    put(dir, "other.json", "no tokenizer"); /* what was kept stays */
    assert_int_equal(store->ops->files_keep(store, source, other, true, &err), STATUS_CORRUPT);
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(store->ops->files_keep(store, NULL, other, false, &err), STATUS_OK);
}

/* What somebody else has there is kept, whatever it is; a source that is away for a start is asked for at the next. */
static void test_of_others(void **state)
{
    (void)state;
    char path[300], kept[300];
    snprintf(path, sizeof path, "%s/tokenizer/notes", dir);
    assert_int_equal(dir_make(path, &err), STATUS_OK);
    put(path, "train.txt", "kept");
    snprintf(kept, sizeof kept, "%s/gone", dir);
    snprintf(path, sizeof path, "%s/tokenizer", dir);
    assert_int_equal(store->ops->files_keep(store, kept, NULL, true, &err), STATUS_NOTFOUND);
    assert_int_equal(store->ops->files_keep(store, source, NULL, true, &err), STATUS_OK);
    snprintf(kept, sizeof kept, "%s/tokenizer.kept-%ld/notes/train.txt", dir, (long)getpid());
    assert_true(file_exists(kept));
    snapshot();
    holds("tokenizer.json", "{\"model\": {}}");
    assert_int_equal(dir_remove_flat(path, &err), STATUS_OK);
    assert_int_equal(symlink("source", path), 0);
    assert_int_equal(store->ops->files_keep(store, NULL, other, true, &err), STATUS_OK);
    snprintf(kept, sizeof kept, "%s/source/README.md", dir);
    assert_true(file_exists(kept));
    assert_int_equal(dir_remove_flat(path, &err), STATUS_OK);
    snprintf(kept, sizeof kept, "%s/gone", dir);
    assert_int_equal(store->ops->files_keep(store, kept, NULL, false, &err), STATUS_NOTFOUND);
    assert_false(file_exists(path));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_of_a_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_a_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_of_others, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
