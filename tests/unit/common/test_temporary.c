/* Temporary files of killed or stopped programs: the sweep removes these and no others. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "common/os/temporary.h"
#include "tests/lib/store/tmpdir.h"

static struct err err;

static const char *in_dir(const char *name, long pid)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], pid ? "%s/%s.tmp-%ld" : "%s/%s", tmpdir, name, pid);
    return path[turn];
}

static long dead_pid(void)
{
    pid_t pid = fork();
    if (!pid) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void put(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void test_sweep_removes_only_files_of_dead_programs(void **state)
{
    (void)state;
    long dead = dead_pid(), living = getppid();
    char inside[300];
    put(in_dir("a", dead));
    put(in_dir("ab", dead)); /* another program's file */
    put(in_dir("a", living));
    put(in_dir("a.tmp-", 0));
    put(in_dir("a.tmp-0", 0));
    put(in_dir("a.tmp-7x", 0));
    assert_int_equal(file_write(in_dir("a", 0), "new", 3, &err), STATUS_OK);
    assert_false(file_exists(in_dir("a", dead)));
    assert_true(file_exists(in_dir("a", 0)) && file_exists(in_dir("ab", dead)) && file_exists(in_dir("a", living)));
    assert_true(file_exists(in_dir("a.tmp-", 0)) && file_exists(in_dir("a.tmp-0", 0)));
    assert_true(file_exists(in_dir("a.tmp-7x", 0)));
    assert_int_equal(dir_make(in_dir("folder", dead), &err), STATUS_OK);
    snprintf(inside, sizeof inside, "%s/model.safetensors", in_dir("folder", dead));
    put(inside);
    temporary_sweep(in_dir("folder", 0));
    assert_false(file_exists(in_dir("folder", dead)));
    char name[64];
    assert_int_equal(temporary_name("b", name, sizeof name, &err), STATUS_OK); /* in the current folder */
    assert_int_equal(temporary_name(in_dir("a", 0), name, strlen(in_dir("a", 0)) + 6, &err), STATUS_LIMIT);
}

static void test_second_lock_is_refused(void **state)
{
    (void)state;
    int one, other;
    assert_int_equal(dir_lock(tmpdir, &one, &err), STATUS_OK);
    assert_int_equal(dir_lock(tmpdir, &other, &err), STATUS_EXISTS);
    assert_non_null(strstr(err.msg, tmpdir));
    close(one);
    assert_int_equal(dir_lock(tmpdir, &other, &err), STATUS_OK);
    close(other);
    assert_int_equal(dir_lock(in_dir("nowhere", 0), &other, &err), STATUS_NOTFOUND);
}

/* Runs last: the program counts as stopped from here on. */
static void test_interrupted_program_writes_no_file(void **state)
{
    (void)state;
    signal(SIGHUP, SIG_IGN);
    assert_int_equal(interrupt_check(&err), STATUS_OK);
    interrupt_catch();
    raise(SIGHUP); /* nohup */
    assert_int_equal(file_write(in_dir("c", 0), "one", 3, &err), STATUS_OK);
    raise(SIGTERM);
    raise(SIGTERM); /* timeout(1) signals a process and its group */
    assert_int_equal(file_write(in_dir("d", 0), "two", 3, &err), STATUS_INTERRUPTED);
    assert_non_null(strstr(err.msg, "stopped by a signal"));
    assert_false(file_exists(in_dir("d", 0)) || file_exists(in_dir("d", getpid())));
    pid_t pid = fork();
    if (!pid) {
        usleep(INTERRUPT_SAME_US);
        raise(SIGTERM); /* a second request kills */
        _exit(0);
    }
    int end;
    assert_int_equal(waitpid(pid, &end, 0), pid);
    assert_true(WIFSIGNALED(end) && WTERMSIG(end) == SIGTERM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sweep_removes_only_files_of_dead_programs),
        cmocka_unit_test(test_second_lock_is_refused),
        cmocka_unit_test(test_interrupted_program_writes_no_file),
    };
    return cmocka_run_group_tests(tests, tmpdir_make, tmpdir_remove);
}
