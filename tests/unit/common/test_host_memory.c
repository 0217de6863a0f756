/* common/host_memory: the smallest memory limit of the control groups around a process. The test writes the files. */

#include "common/os/fileio.h"
#include "common/os/host_memory.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static const uint64_t GIB = 1 << 30;
/* Writes a group's limit, its use, and the part of the use that is file cache, in GiB; limit 0: none. */
static void group(const char *folder, bool second, unsigned limit, unsigned used, unsigned files)
{
    char path[256], text[128];
    snprintf(path, sizeof path, "%s/%s", folder, second ? "memory.max" : "memory.limit_in_bytes");
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)(limit * GIB));
    tmpdir_put(path, limit ? text : second ? "max\n" : "9223372036854771712\n");
    snprintf(path, sizeof path, "%s/%s", folder, second ? "memory.current" : "memory.usage_in_bytes");
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)(used * GIB));
    tmpdir_put(path, text);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(text, sizeof text, "anon 5\ninactive_file %llu\nactive_file 0\n", (unsigned long long)(files * GIB));
    tmpdir_put(path, text);
}

static void expect(unsigned free_gib, unsigned total_gib)
{
    uint64_t left, all;
    host_memory_in(tmpdir, &left, &all);
    assert_int_equal(left, free_gib * GIB);
    assert_int_equal(all, total_gib * GIB);
}

static int machine(void **state)
{
    if (tmpdir_make(state) != 0) return -1;
    tmpdir_put("proc/meminfo",
               "MemTotal:       67108864 kB\nMemFree: 1 kB\nMemAvailable:   52428800 kB\n"); /* 64, 50 GiB */
    return 0;
}

TEST_WITH(test_version_2_limits_of_all_groups_count, machine, tmpdir_remove)
{
    expect(50, 64);
    tmpdir_put("proc/self/cgroup", "0::/user.slice/box/run\n");
    expect(50, 64);
    group("sys/fs/cgroup/user.slice", true, 0, 60, 0);
    group("sys/fs/cgroup/user.slice/box", true, 20, 18, 3);
    group("sys/fs/cgroup/user.slice/box/run", true, 0, 2, 0);
    expect(5, 20); /* limit of the outer group; file cache can be dropped */
    group("sys/fs/cgroup/user.slice/box/run", true, 8, 2, 0);
    expect(5, 8); /* the group leaves 6, the outer group 5 */
    group("sys/fs/cgroup/user.slice/box", true, 20, 10, 0);
    expect(6, 8);
    group("sys/fs/cgroup/user.slice", true, 100, 1, 0); /* more than the machine has */
    expect(6, 8);
    group("sys/fs/cgroup/user.slice", true, 40, 41, 0); /* the limit shrank below the use */
    expect(0, 8);
}

/* In a container: the path is the host's or "/", the group's files lie at the root. */
TEST_WITH(test_container_reads_group_at_root, machine, tmpdir_remove)
{
    group("sys/fs/cgroup", true, 16, 4, 1);
    expect(13, 16);
    tmpdir_put("proc/self/cgroup", "0::/docker/0123456789\n");
    expect(13, 16);
    tmpdir_put("proc/self/cgroup", "0::/\n");
    expect(13, 16);
}

TEST_WITH(test_version_1_limits_of_all_groups_count, machine, tmpdir_remove)
{
    tmpdir_put("proc/self/cgroup", "9:name=systemd:/a\n5:cpu,memory:/job/step\n3:cpuset:/b\n0::/c\n");
    group("sys/fs/cgroup/memory", false, 0, 60, 0);
    group("sys/fs/cgroup/memory/job", false, 12, 7, 2);
    group("sys/fs/cgroup/memory/job/step", false, 0, 1, 0);
    group("sys/fs/cgroup/unified/c", true, 30, 1, 0); /* both versions at a time: a limit of either counts */
    expect(7, 12);
}

/* The user sets the limit: the memory in use is subtracted all the same. */
TEST_WITH(test_user_limit_less_memory_in_use, machine, tmpdir_remove)
{
    setenv(HOST_MEMORY_ENV, "107374182400", 1);
    expect(86, 100);
    setenv(HOST_MEMORY_ENV, "17179869184", 1);
    expect(2, 16);
    setenv(HOST_MEMORY_ENV, "1", 1);
    uint64_t left, all;
    host_memory_in(tmpdir, &left, &all);
    assert_true(left == 1 && all == 1);
    setenv(HOST_MEMORY_ENV, "100G", 1);
    expect(50, 64);
    setenv(HOST_MEMORY_ENV, "", 1);
    expect(50, 64);
    unsetenv(HOST_MEMORY_ENV);
}

TEST_MAIN(NULL, NULL)
