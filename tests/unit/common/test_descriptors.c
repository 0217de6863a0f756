/* The reserve of descriptors: files open although the limit is reached, and the limit is low again afterwards. */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/os/descriptors.h"
#include "tests/lib/test.h"

enum { HARD = 200 };

static rlim_t soft_limit(void)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    return limit.rlim_cur;
}

/* Opens descriptors until the limit is reached, as accept does; returns the last one. */
static int use_up(void)
{
    int fd, last = -1;
    while ((fd = dup(0)) >= 0) last = fd;
    assert_int_equal(errno, EMFILE);
    return last;
}

TEST(test_files_open_at_the_limit)
{
    struct rlimit limit = {.rlim_cur = HARD / 2, .rlim_max = HARD};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    descriptors_reserve();
    rlim_t soft = soft_limit();
    assert_true(soft > HARD / 2 && soft < HARD); /* raised, less the reserve */
    assert_int_equal(use_up(), (int)soft - 1);
    assert_int_equal(open("/dev/null", O_RDONLY), -1);
    int fd = descriptors_open("/dev/null", O_RDONLY, 0);
    DIR *dir = descriptors_opendir("/");
    FILE *file = descriptors_fopen("/dev/null", "re");
    assert_true(fd >= 0 && dir && file);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_int_equal(soft_limit(), soft);
    assert_int_equal(open("/dev/null", O_RDONLY), -1);
    close(fd);
    closedir(dir);
    fclose(file);
    assert_int_equal(descriptors_open("/no/such/file", O_RDONLY, 0), -1);
    assert_int_equal(errno, ENOENT);              /* the true cause, not the limit */
    for (int k = 3; k < (int)soft; k++) close(k); /* the leak checker opens files */
}

TEST_MAIN(NULL, NULL)
