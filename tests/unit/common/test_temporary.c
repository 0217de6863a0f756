/* Temporary files: the sweep removes those of killed or stopped programs and no others; links, modes and pipes. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"
#include "common/os/interrupt.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

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

TEST(test_sweep_removes_only_files_of_dead_programs)
{
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

TEST(test_second_lock_is_refused)
{
    int one, other;
    assert_int_equal(dir_lock(tmpdir, &one, &err), STATUS_OK);
    assert_int_equal(dir_lock(tmpdir, &other, &err), STATUS_EXISTS);
    assert_non_null(strstr(err.msg, tmpdir));
    close(one);
    assert_int_equal(dir_lock(tmpdir, &other, &err), STATUS_OK);
    close(other);
    assert_int_equal(dir_lock(in_dir("nowhere", 0), &other, &err), STATUS_NOTFOUND);
}

static unsigned mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    return st.st_mode & 0777;
}

static void holds(const char *path, const char *want)
{
    void *text;
    size_t size;
    assert_int_equal(file_read(path, 64, &text, &size, &err), STATUS_OK);
    assert_string_equal(text, want);
    mem_free(text);
}

/* A stranger who may write into the folder, or an earlier process with the same id, left a file of the temporary name.
 */
TEST(test_temporary_follows_no_link_and_keeps_no_mode)
{
    mode_t old = umask(022);
    char tmp[256], target[256];
    snprintf(tmp, sizeof tmp, "%s", in_dir("m", getpid()));
    snprintf(target, sizeof target, "%s", in_dir("target", 0));
    assert_int_equal(file_write(target, "mine", 4, &err), STATUS_OK);
    assert_int_equal(symlink(target, tmp), 0);
    assert_int_equal(file_write(in_dir("m", 0), "new", 3, &err), STATUS_OK);
    holds(target, "mine");
    assert_int_equal(mode_of(in_dir("m", 0)), 0644);

    put(tmp);
    assert_int_equal(chmod(tmp, 0777), 0);
    assert_int_equal(file_write_private(in_dir("m", 0), "key", 3, &err), STATUS_OK);
    assert_int_equal(mode_of(in_dir("m", 0)), 0600);
    assert_int_equal(chmod(in_dir("m", 0), 0666), 0); /* the new file takes over no mode either */
    assert_int_equal(file_write_private(in_dir("m", 0), "key", 3, &err), STATUS_OK);
    assert_int_equal(mode_of(in_dir("m", 0)), 0600);

    assert_int_equal(mkfifo(tmp, 0666), 0);
    assert_int_equal(file_write(in_dir("m", 0), "again", 5, &err), STATUS_OK);
    holds(in_dir("m", 0), "again");
    umask(old);
}

TEST(test_spare_follows_no_link_and_gets_a_private_mode)
{
    struct file_out out;
    char spare[256], target[256];
    snprintf(spare, sizeof spare, "%s", in_dir("spare", 0));
    snprintf(target, sizeof target, "%s", in_dir("spare_target", 0));
    assert_int_equal(file_write(target, "mine", 4, &err), STATUS_OK);
    assert_int_equal(symlink(target, spare), 0);
    assert_int_equal(file_out_open_spare(&out, in_dir("s", 0), spare, &err), STATUS_IO);
    assert_non_null(strstr(err.msg, "is not a plain file: remove it or use another path"));
    holds(target, "mine");
    unlink(spare);
    put(spare);
    assert_int_equal(chmod(spare, 0666), 0);
    assert_int_equal(file_out_open_spare(&out, in_dir("s", 0), spare, &err), STATUS_OK);
    assert_int_equal(file_out_put(&out, "state", 5, &err), STATUS_OK);
    assert_int_equal(file_out_commit(&out, &err), STATUS_OK);
    assert_int_equal(mode_of(in_dir("s", 0)), 0600);
}

/* open(2) would wait for the other end; the test would then run into its time limit. */
TEST(test_pipe_is_refused_at_once)
{
    char pipe[256];
    void *data;
    size_t size;
    int fd;
    snprintf(pipe, sizeof pipe, "%s", in_dir("pipe", 0));
    assert_int_equal(mkfifo(pipe, 0666), 0);
    alarm(20);
    const int flags[] = {O_RDONLY, O_WRONLY | O_CREAT | O_APPEND, O_RDWR | O_CREAT};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        assert_int_equal(file_open_plain(pipe, flags[i], FILE_PUBLIC, &fd, &err), STATUS_IO);
        assert_non_null(strstr(err.msg, "pipe is not a plain file"));
    }
    assert_int_equal(file_read(pipe, 64, &data, &size, &err), STATUS_IO);
    assert_false(file_is_locked(pipe));
    assert_int_equal(file_open_plain(tmpdir, O_RDWR, 0, &fd, &err), STATUS_IO);
    assert_int_equal(file_open_plain("/dev/null", O_RDWR, 0, &fd, &err), STATUS_IO);
    alarm(0);
}

TEST(test_removing_a_linked_folder_removes_the_link)
{
    char folder[256], link[256], inside[300];
    snprintf(folder, sizeof folder, "%s", in_dir("linked", 0));
    snprintf(link, sizeof link, "%s", in_dir("link", 0));
    snprintf(inside, sizeof inside, "%s/file", folder);
    assert_int_equal(dir_make(folder, &err), STATUS_OK);
    put(inside);
    assert_int_equal(symlink(folder, link), 0);
    assert_int_equal(dir_remove_flat(link, &err), STATUS_OK);
    assert_true(file_exists(inside) && !file_exists(link));
    assert_int_equal(dir_remove_flat(inside, &err), STATUS_IO);
    assert_true(file_exists(inside));
}

/* Runs last: the program counts as stopped from here on. */
TEST(test_interrupted_program_writes_no_file)
{
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

TEST_MAIN(tmpdir_make, tmpdir_remove)
