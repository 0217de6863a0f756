/* checkpoints/ on a real file system: the store creates and deletes its own files and no others. Segments are in
 * test_journal, the spool in test_spool. */
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/fileio.h"
#include "common/tensor/hf_files.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct layout layout;
static int warnings;

static bool there(const char *name)
{
    struct stat st;
    return !lstat(tmpdir_path(name), &st);
}

static struct store *open_store(void)
{
    struct store *s;
    struct err err = {0};
    if (store_disk_open(&s, tmpdir, &err) != STATUS_OK) fail_msg("%s", err.msg);
    return s;
}

static void reopen(void)
{
    struct store *s = open_store();
    s->ops->close(s);
}

static void save(struct store *s, uint64_t round)
{
    const float theta[8] = {1, 2, 3};
    const struct store_part state = {"state", 5};
    struct store_checkpoint snapshot = {
        .round = round, .layout = &layout, .theta = theta, .config_json = "{}", .state = &state, .n_state = 1};
    struct err err = {0};
    if (s->ops->checkpoint_write(s, &snapshot, &err) != STATUS_OK) fail_msg("%s", err.msg);
}

static void lists(struct store *s, size_t want)
{
    uint64_t rounds[8];
    size_t n;
    assert_int_equal(s->ops->checkpoint_list(s, rounds, 8, &n, NULL), STATUS_OK);
    assert_int_equal(n, want);
}

static int setup(void **state);
static int teardown(void **state);

/* The next start deletes an incomplete checkpoint, and no other file, whatever its name. */
TEST_WITH(test_start_deletes_incomplete_checkpoints, setup, teardown)
{
    static const char *const ours[] = {"checkpoints/round_000004/model.safetensors",
                                       "checkpoints/round_000005.tmp-77/model.safetensors",
                                       "checkpoints/round_000005.tmp-77/generation_config.json",
                                       "checkpoints/round_000006/coordinator_state.bin.tmp-77"};
    static const char *const others[] = {"checkpoints/round_notes.txt",
                                         "checkpoints/round_1/model.safetensors",
                                         "checkpoints/round_000007",
                                         "checkpoints/round_000020_hf/model.safetensors",
                                         "checkpoints/round_000021/notes.txt",
                                         "checkpoints/round_000022.tmp-/model.safetensors",
                                         "checkpoints/round_000023/.cache/model",
                                         "checkpoints/round_000024.kept-77/model.safetensors"};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) tmpdir_put(ours[i], "x");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) tmpdir_put(others[i], "x");
    /* Files behind a link are not the store's either. */
    assert_int_equal(symlink("round_1", tmpdir_path("checkpoints/round_000008")), 0);
    reopen();
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) assert_true(there(ours[i])); /* no run here */
    tmpdir_put("journal/00000000.log", "x");
    reopen();
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_true(there(others[i]));
    assert_true(there("checkpoints/round_000008"));
    assert_false(there("checkpoints/round_000004"));
    assert_false(there("checkpoints/round_000005.tmp-77"));
    assert_false(there("checkpoints/round_000006"));
}

/* Returns the names that disappear from a folder while a checkpoint is deleted, each after a space. */
static void removed_names(struct store *s, uint64_t round, const char *folder, char *out, size_t cap)
{
    struct err err = {0};
    char events[4096] __attribute__((aligned(8)));
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    assert_true(fd >= 0 && inotify_add_watch(fd, tmpdir_path(folder), IN_DELETE) >= 0);
    assert_int_equal(s->ops->checkpoint_remove(s, round, &err), STATUS_OK);
    ssize_t n = read(fd, events, sizeof events);
    close(fd);
    size_t length = 0;
    for (ssize_t at = 0; at < n;) {
        struct inotify_event e;
        memcpy(&e, events + at, sizeof e);
        length += (size_t)snprintf(out + length, cap - length, " %s", e.len ? events + at + sizeof e : "");
        at += (ssize_t)(sizeof e + e.len);
    }
}

/* A copy of a checkpoint checks config.json last (hf_files_check_config), so the store deletes config.json first. */
TEST_WITH(test_config_is_deleted_first, setup, teardown)
{
    char names[1024];
    tmpdir_put("journal/00000000.log", "x");
    struct store *s = open_store();
    save(s, 30);
    for (int i = 0; hf_files_name(i); i++) {
        char file[100];
        snprintf(file, sizeof file, "checkpoints/round_000030/%s", hf_files_name(i));
        tmpdir_put(file, "{}");
    }
    removed_names(s, 30, "checkpoints/round_000030", names, sizeof names);
    static const char first[] = " coordinator_state.bin config.json ";
    assert_memory_equal(names, first, sizeof first - 1);
    assert_non_null(strstr(names, " tokenizer.json"));
    assert_false(there("checkpoints/round_000030"));
    s->ops->close(s);
}

/* A kept model is no checkpoint any more; it stays through restarts until it is let go. */
TEST_WITH(test_kept_model_is_no_checkpoint, setup, teardown)
{
    struct err err = {0};
    tmpdir_put("journal/00000000.log", "x");
    struct store *s = open_store();
    save(s, 70);
    save(s, 71);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(s->ops->checkpoint_keep(s, 70, &err), STATUS_OK);
        lists(s, 1);
        assert_false(there("checkpoints/round_000070"));
        assert_true(there("checkpoints/before_jump_000070/model.safetensors"));
        assert_false(there("checkpoints/before_jump_000070/coordinator_state.bin"));
        if (!again) save(s, 70); /* the run went back and jumps again: the first one gets another name */
    }
    s->ops->close(s);
    s = open_store();
    lists(s, 1);
    assert_true(there("checkpoints/before_jump_000070/config.json"));
    assert_int_equal(s->ops->checkpoint_keep_end(s, 70, &err), STATUS_OK);
    assert_false(there("checkpoints/before_jump_000070"));
    assert_int_equal(s->ops->checkpoint_keep(s, 99, &err), STATUS_IO); /* no such checkpoint */
    s->ops->close(s);
}

/* Tools that work in a model's folder leave a folder there: the checkpoint is deleted, that folder stays, and one
 * line reports it. */
TEST_WITH(test_foreign_folder_survives_checkpoint, setup, teardown)
{
    struct err err = {0};
    tmpdir_put("journal/00000000.log", "x");
    tmpdir_put("tokenizer/tokenizer_config.json", "x"); /* beside every model */
    struct store *s = open_store();
    save(s, 57);
    save(s, 58);
    lists(s, 2);
    assert_true(there("checkpoints/round_000057/tokenizer_config.json"));
    tmpdir_put("checkpoints/round_000057/.cache/x", "x");
    tmpdir_put("checkpoints/round_000058/.cache/x", "x");
    for (uint64_t round = 57; round <= 58; round++)
        assert_int_equal(s->ops->checkpoint_remove(s, round, &err), STATUS_OK);
    assert_int_equal(warnings, 1);
    lists(s, 0);
    assert_false(there("checkpoints/round_000057/model.safetensors"));
    assert_true(there("checkpoints/round_000057/.cache/x"));
    s->ops->close(s);
    s = open_store();
    lists(s, 0);

    /* A run that goes back and reaches this round again needs the name. */
    char aside[64];
    snprintf(aside, sizeof aside, "checkpoints/round_000057.kept-%ld/.cache/x", (long)getpid());
    warnings = 0;
    save(s, 57);
    assert_int_equal(warnings, 0); /* except for the line with its new place */
    lists(s, 1);
    assert_true(there(aside));
    assert_int_equal(s->ops->checkpoint_remove(s, 57, &err), STATUS_OK);
    assert_false(there("checkpoints/round_000057"));
    s->ops->close(s);
}

static void links_to(const char *want)
{
    char target[64] = "";
    assert_true(readlink(tmpdir_path("checkpoints/latest"), target, sizeof target - 1) > 0);
    assert_string_equal(target, want);
}

/* Tools load .../checkpoints/latest as a folder. A text file with the name is replaced, and so is a link to a removed
 * checkpoint. A folder of the user keeps its content. */
TEST_WITH(test_latest_is_a_link_to_the_newest_checkpoint, setup, teardown)
{
    struct err err = {0};
    tmpdir_put("journal/00000000.log", "x");
    tmpdir_put("checkpoints/latest", "round_000002\n");
    struct store *s = open_store();
    save(s, 2);
    links_to("round_000002");
    assert_true(file_exists(tmpdir_path("checkpoints/latest/model.safetensors")));
    save(s, 3);
    links_to("round_000003");
    assert_int_equal(s->ops->checkpoint_remove(s, 3, &err), STATUS_OK);
    s->ops->close(s);
    reopen();
    links_to("round_000002");
    tmpdir_take("checkpoints/latest");
    tmpdir_put("checkpoints/latest/notes", "mine");
    reopen();
    links_to("round_000002");
    char aside[64];
    snprintf(aside, sizeof aside, "checkpoints/latest.kept-%ld/notes", (long)getpid());
    assert_true(there(aside));
}

/* A stranger who may write into the folder puts a link at the name of the spool. */
TEST_WITH(test_spool_follows_no_link, setup, teardown)
{
    struct err err = {0};
    struct stat st;
    tmpdir_put("mine", "mine");
    struct store *s = open_store();
    assert_int_equal(symlink("../mine", tmpdir_path("journal/spool")), 0);
    assert_int_equal(s->ops->spool_write(s, 0, "delta", 5, &err), STATUS_OK);
    assert_int_equal(stat(tmpdir_path("mine"), &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_false(there("journal/spool"));
    s->ops->close(s);
}

static void count(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)line;
    warnings += level == LOG_WARN && !strstr(line, ".kept-");
}

static int setup(void **state)
{
    const uint64_t shape[1] = {8};
    layout_init(&layout);
    warnings = 0;
    return tmpdir_make(state) || layout_add(&layout, "w", 1, shape, LAYOUT_INIT_NORMAL, 0.5f, true) != STATUS_OK ||
           layout_split(&layout, 1) != STATUS_OK;
}

static int teardown(void **state)
{
    layout_finish(&layout);
    return tmpdir_remove(state);
}

int main(int argc, char **argv)
{
    log_set_sink(count, NULL);
    return test_run(argc, argv, NULL, NULL);
}
