/* The run folder of atoll launch: detects another launch in it. */
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli/launch/launch_folder.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

/* Another launch holds the lock, with and without its name written. */
TEST_WITH(test_folder_in_use_is_refused, tmpdir_make, tmpdir_remove)
{
    static const char *const texts[][2] = {{"", "in use by process ?:"}, {"123", "in use by process 123:"}};
    for (int i = 0; i < 2; i++) {
        struct launch_folder l = {.dir = tmpdir, .resume = {.how = "auto", .dir = tmpdir}, .lock_fd = -1};
        struct err err = {0};
        tmpdir_put("launch.lock", texts[i][0]);
        int other = open(tmpdir_path("launch.lock"), O_RDONLY | O_CLOEXEC);
        assert_true(other >= 0 && flock(other, LOCK_EX | LOCK_NB) == 0);
        assert_int_equal(launch_folder_take(&l, 2, &err), STATUS_STATE);
        if (!strstr(err.msg, texts[i][1])) fail_msg("%s", err.msg);
        launch_folder_release(&l);
        close(other);
    }
}

TEST_MAIN(NULL, NULL)
