/* The worker's own folder: its lock, and the wait for it. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/fileio.h"
#include "common/os/fork_close.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"
#include "worker/session/worker_dir.h"

static int held = -1; /* the lock as an earlier process holds it */

static void release(int unused)
{
    (void)unused;
    close(held);
}

static void wake(int unused)
{
    (void)unused;
}

TEST_WITH(test_lock_waits_for_exiting_worker, tmpdir_make, tmpdir_remove)
{
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

/* --- the next start of a worker ----------------------------------------------------------------------------------- */

static char lines[4096];
static pid_t ends_when_awaited; /* 0: none */

static void note_line(void *ctx, enum log_level level, const char *line)
{
    (void)ctx, (void)level;
    size_t n = strlen(lines);
    snprintf(lines + n, sizeof lines - n, "%s\n", line);
    if (ends_when_awaited && strstr(line, "waiting up to")) kill(ends_when_awaited, SIGKILL);
}

static int choose_setup(void **state)
{
    lines[0] = '\0';
    ends_when_awaited = 0;
    log_set_sink(note_line, NULL);
    return tmpdir_make(state) || chdir(tmpdir);
}

static int choose_teardown(void **state)
{
    log_set_sink(NULL, NULL);
    return chdir("/") || tmpdir_remove(state);
}

/* A worker is killed, and a process that it forked still holds its lock. `name` is the worker's. Returns the
 * other process. */
static pid_t killed_worker(char name[WIRE_NAME_MAX])
{
    struct worker_dir d;
    int ready[2], ended;
    assert_int_equal(pipe(ready), 0);
    pid_t worker = fork();
    if (!worker) {
        name[0] = '\0';
        if (worker_dir_choose(&d, name, NULL) != STATUS_OK) _exit(1);
        fork_close_remove(d.lock_fd); /* as by another library's copy of the descriptor */
        pid_t child = fork();
        if (!child) {
            pause();
            _exit(0);
        }
        if (write(ready[1], name, WIRE_NAME_MAX) < 0 || write(ready[1], &child, sizeof child) < 0) _exit(1);
        pause();
    }
    pid_t child;
    assert_int_equal(read(ready[0], name, WIRE_NAME_MAX), WIRE_NAME_MAX);
    assert_int_equal(read(ready[0], &child, sizeof child), sizeof child);
    kill(worker, SIGKILL);
    assert_int_equal(waitpid(worker, &ended, 0), worker);
    close(ready[0]);
    close(ready[1]);
    return child;
}

TEST_WITH(test_killed_worker_keeps_its_name, choose_setup, choose_teardown)
{
    struct worker_dir d;
    struct err err = {0};
    char first[WIRE_NAME_MAX], name[WIRE_NAME_MAX] = "";
    ends_when_awaited = killed_worker(first);
    assert_int_equal(worker_dir_choose(&d, name, &err), STATUS_OK);
    assert_string_equal(name, first);
    assert_false(d.key_is_new);
    assert_non_null(strstr(lines, "has ended, but its lock is not free yet"));
    worker_dir_close(&d);
}

/* Its descriptor stays with another process: the next name after all. The timer shortens each pause between two tries.
 */
TEST_WITH(test_wait_for_a_lock_ends, choose_setup, choose_teardown)
{
    const struct itimerval often = {.it_interval.tv_usec = 1000, .it_value.tv_usec = 1000}, never = {0};
    struct worker_dir d;
    struct err err = {0};
    char first[WIRE_NAME_MAX], name[WIRE_NAME_MAX] = "", text[2 * WIRE_NAME_MAX + 64];
    pid_t holder = killed_worker(first);
    assert_true(signal(SIGALRM, wake) != SIG_ERR && setitimer(ITIMER_REAL, &often, NULL) == 0);
    assert_int_equal(worker_dir_choose(&d, name, &err), STATUS_OK);
    assert_int_equal(setitimer(ITIMER_REAL, &never, NULL), 0);
    snprintf(text, sizeof text, "./atoll-worker-%s is in use: this worker is %s-2\n", first, first);
    assert_non_null(strstr(lines, text));
    assert_non_null(strstr(lines, "is still locked"));
    assert_int_equal(strncmp(name + strlen(first), "-2", 3), 0);
    worker_dir_close(&d);
    kill(holder, SIGKILL);
}

/* Two workers that are started together: the second one does not wait. */
TEST_WITH(test_running_worker_is_passed, choose_setup, choose_teardown)
{
    struct worker_dir d, other;
    struct err err = {0};
    char first[WIRE_NAME_MAX] = "", name[WIRE_NAME_MAX] = "", holder[64];
    assert_int_equal(worker_dir_choose(&d, first, &err), STATUS_OK);
    assert_int_equal(worker_dir_choose(&other, name, &err), STATUS_OK);
    assert_int_equal(strncmp(name + strlen(first), "-2", 3), 0);
    assert_null(strstr(lines, "waiting"));
    worker_dir_close(&other);
    assert_int_equal(worker_dir_open(&other, d.path, &err), STATUS_EXISTS);
    snprintf(holder, sizeof holder, "(process %ld)", (long)getpid());
    assert_non_null(strstr(err.msg, holder));
    worker_dir_close(&d);
}

/* The run has another worker of this name: the next name and a new key, also for the next start. */
TEST_WITH(test_next_name_is_kept, tmpdir_make, tmpdir_remove)
{
    struct worker_dir d;
    struct err err = {0};
    char name[WIRE_NAME_MAX] = "", given[WIRE_NAME_MAX] = "given";
    tmpdir_put("box/x", "");
    assert_int_equal(worker_dir_open_named(&d, tmpdir_path("box"), name, &err), STATUS_OK);
    struct transport_key first = d.key;
    assert_string_equal(name, "box");
    assert_int_equal(worker_dir_rename(&d, name, &err), STATUS_OK);
    assert_string_equal(name, "box-2");
    assert_int_equal(worker_dir_rename(&d, name, &err), STATUS_OK);
    assert_string_equal(name, "box-3");
    assert_memory_not_equal(&d.key, &first, sizeof first);
    struct transport_key last = d.key;
    worker_dir_close(&d);

    name[0] = '\0';
    assert_int_equal(worker_dir_open_named(&d, tmpdir_path("box"), name, &err), STATUS_OK);
    assert_string_equal(name, "box-3");
    assert_memory_equal(&d.key, &last, sizeof last);
    snprintf(name, sizeof name, "box-64");
    assert_int_equal(worker_dir_rename(&d, name, &err), STATUS_EXISTS);
    worker_dir_close(&d);
    assert_int_equal(worker_dir_open_named(&d, tmpdir_path("box"), given, &err), STATUS_OK);
    assert_string_equal(given, "given");
    assert_string_equal(d.base, "");
    worker_dir_close(&d);
    tmpdir_put("box/name", "\n");
    name[0] = '\0';
    assert_int_equal(worker_dir_open_named(&d, tmpdir_path("box"), name, &err), STATUS_CORRUPT);
}

/* The key of a worker is a secret: its owner alone may read it. A damaged key is kept. */
TEST_WITH(test_key_is_private, tmpdir_make, tmpdir_remove)
{
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

TEST_MAIN(NULL, NULL)
