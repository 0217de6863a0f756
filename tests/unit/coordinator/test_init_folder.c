/* RUN/init: complete or absent after a power cut at any instant; failing calls; an earlier folder is replaced. */
#include <sys/stat.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "coordinator/ledger/init_folder.h"
#include "tests/lib/store/powercut.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static const char model[] = "model.safetensors", config[] = "config.json";
static char root[64], image[64];
static uint8_t bytes[20000];

/* Writes the model in two parts, then config.json. */
static enum status write_folder(struct init_folder *f, struct err *err)
{
    TRY(init_folder_begin(f, err));
    TRY(init_folder_write(f, model, bytes, 12000, err));
    TRY(init_folder_write(f, model, bytes + 12000, sizeof bytes - 12000, err));
    return init_folder_write(f, config, "{}", 2, err);
}

static bool holds(const char *run, const char *name, const void *data, size_t size)
{
    char path[128];
    void *got;
    size_t n;
    snprintf(path, sizeof path, "%s/init/%s", run, name);
    if (file_read(path, sizeof bytes, &got, &n, NULL) != STATUS_OK) return false;
    bool same = n == size && !memcmp(got, data, n);
    mem_free(got);
    return same;
}

static bool is_complete(const char *run)
{
    return holds(run, model, bytes, sizeof bytes) && holds(run, config, "{}", 2);
}

static void begin(struct init_folder *f)
{
    snprintf(root, sizeof root, "%s", tmpdir_path("run"));
    snprintf(image, sizeof image, "%s", tmpdir_path("image"));
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7 >> 3);
    assert_int_equal(mkdir(root, 0777), 0);
    assert_int_equal(init_folder_open(f, root, NULL), STATUS_OK);
    assert_null(init_folder_path(f));
}

static void end(struct init_folder *f)
{
    init_folder_close(f);
    tmpdir_clear(root);
}

TEST(test_power_cut_leaves_whole_folder_or_none)
{
    struct init_folder f;
    struct err err = {0};
    int whole = 0, none = 0;
    begin(&f);
    powercut_begin(root);
    assert_int_equal(write_folder(&f, &err), STATUS_OK);
    assert_int_equal(init_folder_commit(&f, &err), STATUS_OK);
    powercut_end();
    for (size_t instant = 0; instant <= powercut_changes(); instant++)
        for (uint64_t draw = 0; draw < POWERCUT_RANDOM + 3; draw++) {
            struct init_folder after;
            powercut_image(instant, draw, image);
            assert_int_equal(init_folder_open(&after, image, &err), STATUS_OK);
            bool there = init_folder_path(&after) != NULL;
            assert_true(!there || is_complete(image));
            if (instant == powercut_changes()) assert_true(there);
            whole += there;
            none += !there;
            init_folder_close(&after);
            tmpdir_clear(image);
        }
    powercut_free();
    assert_true(whole > 0 && none > 0);
    end(&f);
}

TEST(test_failing_call_is_reported)
{
    struct init_folder f;
    bool failed = true;
    for (size_t call = 0; failed; call++) {
        struct err err = {0};
        begin(&f);
        powercut_begin(root);
        powercut_fail(call);
        enum status status = write_folder(&f, &err);
        if (status == STATUS_OK) status = init_folder_commit(&f, &err);
        failed = powercut_failed();
        powercut_end();
        powercut_free();
        if (!failed) assert_int_equal(status, STATUS_OK);
        if (status == STATUS_OK) assert_true(is_complete(root));
        if (status != STATUS_OK) assert_true(err.msg[0]);
        end(&f);
    }
}

TEST(test_earlier_folder_is_replaced)
{
    struct init_folder f;
    struct err err = {0};
    begin(&f);
    assert_int_equal(init_folder_begin(&f, &err), STATUS_OK);
    assert_int_equal(init_folder_write(&f, model, "old", 3, &err), STATUS_OK);
    assert_int_equal(init_folder_write(&f, "tokenizer.json", "old", 3, &err), STATUS_OK);
    assert_int_equal(init_folder_commit(&f, &err), STATUS_OK);
    assert_true(holds(root, model, "old", 3));
    assert_int_equal(write_folder(&f, &err), STATUS_OK);
    assert_true(holds(root, model, "old", 3)); /* until the new one is complete */
    assert_int_equal(init_folder_commit(&f, &err), STATUS_OK);
    assert_true(is_complete(root) && !holds(root, "tokenizer.json", "old", 3));
    assert_string_equal(init_folder_path(&f), tmpdir_path("run/init"));
    assert_int_equal(init_folder_begin(&f, &err), STATUS_OK); /* an unfinished one goes with the process */
    init_folder_close(&f);
    assert_false(file_exists(tmpdir_path("run/init.tmp")));
    assert_int_equal(init_folder_remove(&f, &err), STATUS_OK);
    assert_null(init_folder_path(&f));
    end(&f);
}

int main(int argc, char **argv)
{
    log_set_level(LOG_ERROR - 1);
    return test_run(argc, argv, tmpdir_make, tmpdir_remove);
}
