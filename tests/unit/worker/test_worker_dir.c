/* The worker's own folder: its lock, and the wait for it. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/os/fileio.h"
#include "tests/lib/store/tmpdir.h"
#include "worker/session/worker_dir.h"

static int held = -1; /* the lock as an earlier process holds it */

static void release(int unused)
{
    (void)unused;
    close(held);
}

static void test_lock_waits_for_exiting_worker(void **state)
{
    (void)state;
    struct err err = {0};
    struct worker_dir d, other;
    assert_int_equal(worker_dir_open(&d, tmpdir, &err), STATUS_OK);
    assert_int_equal(worker_dir_open(&other, tmpdir, &err), STATUS_EXISTS);
    assert_non_null(strstr(err.msg, "another worker runs in"));
    worker_dir_close(&d);

    /* Killed a moment ago, and still exiting. */
    const struct itimerval later = {.it_value.tv_usec = 500000};
    held = open(tmpdir_path("lock"), O_RDONLY | O_CLOEXEC);
    assert_true(held >= 0 && flock(held, LOCK_EX | LOCK_NB) == 0);
    assert_true(signal(SIGALRM, release) != SIG_ERR && setitimer(ITIMER_REAL, &later, NULL) == 0);
    assert_int_equal(worker_dir_open(&other, tmpdir, &err), STATUS_OK);
    assert_memory_equal(&other.key, &d.key, sizeof d.key);
    assert_true(d.key_is_new && !other.key_is_new);
    worker_dir_close(&other);
}

/* The key of a worker is a secret: its owner alone may read it. A damaged key is kept. */
static void test_key_is_private(void **state)
{
    (void)state;
    struct err err = {0};
    struct worker_dir d;
    struct stat st;
    mode_t before = umask(0);
    assert_int_equal(worker_dir_open(&d, tmpdir, &err), STATUS_OK);
    worker_dir_close(&d);
    umask(before);
    assert_int_equal(stat(tmpdir_path("key"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_not_equal(access(tmpdir_path("uuid"), F_OK), 0);
    tmpdir_put("key", "0011\n");
    assert_int_equal(worker_dir_open(&d, tmpdir, &err), STATUS_CORRUPT);
    assert_non_null(strstr(err.msg, "/key is not a worker's key"));
    tmpdir_take("key");
}

static void test_run_folder_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    struct worker_dir d;
    assert_int_equal(dir_make(tmpdir_path("journal"), &err), STATUS_OK);
    assert_int_equal(worker_dir_open(&d, tmpdir, &err), STATUS_INVALID);
    assert_non_null(strstr(err.msg, "is the folder of a run"));
    assert_int_not_equal(access(tmpdir_path("lock"), F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lock_waits_for_exiting_worker, tmpdir_make, tmpdir_remove),
        cmocka_unit_test_setup_teardown(test_key_is_private, tmpdir_make, tmpdir_remove),
        cmocka_unit_test_setup_teardown(test_run_folder_is_refused, tmpdir_make, tmpdir_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
