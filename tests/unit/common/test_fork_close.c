/* What the child of a fork closes: listed descriptors, and never another file under their number. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/os/fork_close.h"
#include "tests/lib/test.h"

/* Whether fd is open in a child. */
static bool child_has(int fd)
{
    int ended = 0;
    pid_t child = fork();
    if (!child) _exit(fcntl(fd, F_GETFD) != -1);
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    return WEXITSTATUS(ended) == 1;
}

TEST(test_child_closes_listed_descriptors)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_true(child_has(pair[0]));
    fork_close_add(pair[0]);
    assert_true(!child_has(pair[0]) && child_has(pair[1]));
    assert_int_not_equal(fcntl(pair[0], F_GETFD), -1); /* the parent keeps it */
    fork_close_remove(pair[0]);
    assert_true(child_has(pair[0]));
    close(pair[0]);
    close(pair[1]);
}

/* A listed socket is closed by another thread, and the program opens a file under its number. */
TEST(test_other_files_stay_open)
{
    int pair[2], again[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    fork_close_add(pair[0]);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, again), 0);
    assert_int_equal(again[0], pair[0]);
    assert_true(child_has(again[0]));
    close(again[0]);
    close(again[1]);
    fork_close_add(again[0]); /* not open: nothing happens */
    assert_int_equal(open("/dev/null", O_RDONLY | O_CLOEXEC), again[0]);
    assert_true(child_has(again[0]));
    close(again[0]);
}

/* Closed sockets leave their places, and a full list refuses more. */
TEST(test_places_are_free_again)
{
    int fds[FORK_CLOSE_MAX + 1];
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i <= FORK_CLOSE_MAX; i++) {
            fds[i] = socket(AF_UNIX, SOCK_STREAM, 0);
            fork_close_add(fds[i]);
        }
        assert_false(child_has(fds[0]));
        assert_false(child_has(fds[FORK_CLOSE_MAX - 1]));
        assert_true(child_has(fds[FORK_CLOSE_MAX]));
        for (int i = 0; i <= FORK_CLOSE_MAX; i++) close(fds[i]);
    }
}

TEST_MAIN(NULL, NULL)
