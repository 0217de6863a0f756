/* With little memory, theta and the outer state are in a file of the run folder: the same bits, nothing left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "coordinator/engine/engine_impl.h"
#include "coordinator/ledger/place/state_file.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/rigs/engine_rig.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

/* Less than any system uses itself, so that nothing is free, but enough for the rig's model. */
#define LITTLE_MEMORY "64000000"

static struct rig rig;
static struct err err;
static const char *const settings[] = {"checkpoint.every=1", "codec.up=int8:16", "codec.down=int8:16",
                                       "train.max_steps=12", NULL};

static void set_memory(bool little)
{
    assert_int_equal(little ? setenv(HOST_MEMORY_ENV, LITTLE_MEMORY, 1) : unsetenv(HOST_MEMORY_ENV), 0);
}

static void start(struct store **store)
{
    if (store_disk_open(store, tmpdir, &err) != STATUS_OK) fail_msg("%s", err.msg);
    if (rig_open_on(&rig, settings, *store, &err) != STATUS_OK) fail_msg("%s", err.msg);
    rig_join(&rig, 0);
}

static void stop(struct store *store)
{
    rig_close_on(&rig);
    store->ops->close(store);
}

static bool left_behind(void)
{
    return access(tmpdir_path("outer_state"), F_OK) == 0;
}

/* Plays a run to its end and starts it again, from its last checkpoint. Returns its hash. */
static uint64_t play(bool little, bool in_file)
{
    struct engine_summary sum;
    struct store *store;
    uint64_t hash[2];
    set_memory(little);
    for (int k = 0; k < 2; k++) {
        start(&store);
        assert_int_equal(rig.engine->ledger.state_file >= 0, in_file);
        assert_false(left_behind());
        assert_int_equal(strstr(rig_status(&rig), "\"file_bytes\":null") == NULL, in_file);
        if (!k) rig_play(&rig, NULL);
        engine_summary(rig.engine, &sum);
        hash[k] = sum.theta_hash;
        stop(store);
    }
    assert_true(hash[0] == hash[1]);
    set_memory(false);
    return hash[0];
}

static void clear(void)
{
    tmpdir_clear(tmpdir);
    assert_int_equal(dir_make(tmpdir, &err), STATUS_OK);
}

TEST_WITH(test_bits_are_those_of_memory, tmpdir_make, tmpdir_remove)
{
    uint64_t hash = play(false, false);
    clear();
    assert_true(play(true, true) == hash);
    clear();
    /* a killed process left its file */
    assert_int_equal(file_write(tmpdir_path("outer_state"), "old", 3, &err), STATUS_OK);
    assert_true(play(true, true) == hash);
    clear();
    /* no file can be made: memory has to do */
    assert_int_equal(mkdir(tmpdir_path("outer_state"), 0700), 0);
    set_memory(true);
    struct store *store;
    start(&store);
    assert_true(rig.engine->ledger.state_file < 0);
    stop(store);
    set_memory(false);
}

/* A full disk has no room for the file: memory has to do, with a warning. */
TEST_WITH(test_no_room_for_the_file, tmpdir_make, tmpdir_remove)
{
    struct rlimit limit, was;
    struct store *store;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    set_memory(true);
    start(&store);
    struct ledger *l = &rig.engine->ledger;
    assert_true(l->state_file >= 0);
    limit = was;
    limit.rlim_cur = 100; /* less than the rig's model needs */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int fd = state_file_open(tmpdir, l->config, &l->layout);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_int_equal(fd, -1);
    assert_false(left_behind());
    stop(store);
    set_memory(false);
}

/* A full disk is an error when the arrays are made, not a signal later. */
TEST_WITH(test_full_disk, tmpdir_make, tmpdir_remove)
{
    struct rlimit limit, was;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    int fd = open(tmpdir_path("file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    float *a = mem_map(fd, 1000, sizeof *a), *b = mem_map(fd, 5, sizeof *b);
    assert_non_null(a);
    assert_non_null(b);
    for (int i = 0; i < 1000; i++) assert_true(a[i] == 0);
    a[999] = b[4] = 7;
    assert_true(a[999] == 7 && b[0] == 0);
    limit = was;
    limit.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    errno = 0;
    float *c = mem_map(fd, 1 << 20, sizeof *c);
    assert_null(c);
    assert_true(errno == EFBIG);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    mem_free(a);
    mem_free(b);
    assert_int_equal(mem_live_bytes(), 0);
    close(fd);
}

TEST_MAIN(NULL, NULL)
