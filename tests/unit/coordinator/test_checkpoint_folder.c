/* The check of a checkpoint's folder, as `atoll export` and `atoll generate` use it: every changed bit and every
 * missing byte is found, without the settings of the run. */
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "coordinator/ledger/checkpoint_folder.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static struct rig rig;
static struct err err;

/* The second vector, the residuals and the number of fragments change what a state holds. */
static const char *const nesterov[] = {"checkpoint.every=1", NULL};
static const char *const sgd[] = {"checkpoint.every=1", "outer.optimizer=sgd", NULL};
static const char *const ddp[] = {"checkpoint.every=1", "train.method=ddp", NULL};
static const char *const residual[] = {"checkpoint.every=1", "codec.up=int8:16", "codec.down=int8:16", NULL};
static const char *const wide[] = {"checkpoint.every=1", "codec.down=int8:16", "outer.state=fp32", NULL};
static const char *const *const runs[] = {nesterov, sgd, ddp, residual, wide};

static void make_run(const char *const *settings)
{
    struct store *store;
    if (store_disk_open(&store, tmpdir, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (rig_open_on(&rig, settings, store, &err) != STATUS_OK) fail_msg("%s", err.msg);
    rig_join(&rig, 0);
    rig_play(&rig, NULL);
    rig_close_on(&rig);
    store->ops->close(store);
}

static enum status check(void)
{
    char folder[FILEIO_PATH_MAX];
    bool recorded = false;
    snprintf(folder, sizeof folder, "%s/checkpoints/latest", tmpdir);
    err = (struct err){0};
    enum status status = checkpoint_folder_check(folder, &recorded, &err);
    assert_true(recorded);
    return status;
}

static void put(const char *path, const uint8_t *data, size_t size)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

/* `from`: first byte of the checked content. The JSON header of a model is parsed, not hashed: an export writes a new
 * one. */
static void every_damage_of(const char *name, size_t from)
{
    char path[FILEIO_PATH_MAX];
    void *data;
    size_t size;
    snprintf(path, sizeof path, "%s/checkpoints/latest/%s", tmpdir, name);
    assert_int_equal(file_read(path, 1 << 20, &data, &size, &err), STATUS_OK);
    uint8_t *bytes = data;
    if (from) from += (size_t)(bytes[0] | bytes[1] << 8);
    for (size_t at = from; at < size; at += at < from + 300 || at + 300 > size ? 1 : 7) {
        bytes[at] ^= 8;
        put(path, bytes, size);
        if (check() == STATUS_OK) fail_msg("byte %zu of %s changed unnoticed", at, name);
        assert_true(err.msg[0]);
        bytes[at] ^= 8;
    }
    for (size_t n = 0; n < size; n += 101) {
        put(path, bytes, n);
        if (check() == STATUS_OK) fail_msg("%s was cut at byte %zu unnoticed", name, n);
    }
    put(path, bytes, size - 1);
    assert_int_not_equal(check(), STATUS_OK);
    put(path, bytes, size);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    fputs("more", f);
    fclose(f);
    assert_int_not_equal(check(), STATUS_OK);
    put(path, bytes, size);
    assert_int_equal(check(), STATUS_OK);
    mem_free(data);
}

TEST_WITH(test_every_damage_is_found, tmpdir_make, tmpdir_remove)
{
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        make_run(runs[i]);
        if (check() != STATUS_OK) fail_msg("an undamaged checkpoint of run %zu: %s", i, err.msg);
        every_damage_of("coordinator_state.bin", 0);
        every_damage_of("model.safetensors", 8);
        tmpdir_clear(tmpdir);
        assert_int_equal(dir_make(tmpdir, &err), STATUS_OK);
    }
}

/* The model of another round has the right shapes. */
TEST_WITH(test_model_of_another_checkpoint_is_found, tmpdir_make, tmpdir_remove)
{
    make_run(nesterov);
    assert_int_equal(rename(tmpdir_path("checkpoints/round_000002/model.safetensors"),
                            tmpdir_path("checkpoints/round_000003/model.safetensors")),
                     0);
    assert_int_equal(check(), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "checkpoints/latest: model.safetensors was changed after it was written"));
}

/* A folder from elsewhere has no record, and says so. */
TEST_WITH(test_folder_without_state_has_no_record, tmpdir_make, tmpdir_remove)
{
    bool recorded = true;
    assert_int_equal(checkpoint_folder_check(tmpdir, &recorded, &err), STATUS_OK);
    assert_false(recorded);
}

/* The model of an older run starts a new one, and can be exported. */
TEST_WITH(test_state_of_another_release_is_left_out, tmpdir_make, tmpdir_remove)
{
    char folder[FILEIO_PATH_MAX], path[FILEIO_PATH_MAX + 32];
    void *data;
    size_t size;
    bool recorded = true;
    make_run(nesterov);
    snprintf(folder, sizeof folder, "%s/checkpoints/latest", tmpdir);
    snprintf(path, sizeof path, "%s/coordinator_state.bin", folder);
    assert_int_equal(file_read(path, 1 << 20, &data, &size, &err), STATUS_OK);
    ((uint8_t *)data)[6] = '3';
    put(path, data, size);
    mem_free(data);
    assert_int_equal(checkpoint_folder_check(folder, &recorded, &err), STATUS_OK);
    assert_false(recorded);
}

TEST_MAIN(NULL, NULL)
