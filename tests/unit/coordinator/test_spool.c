/* The store's spool on a real disk: bytes are read back, freed ranges return to the disk, no file stays. */
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger/spool.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

static int files_in(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

TEST(test_bytes_are_read_back)
{
    struct spool spool = {.fd = -1};
    uint8_t a[10000], b[5000], back[10000];
    memset(a, 1, sizeof a);
    memset(b, 2, sizeof b);
    struct err err = {0};
    assert_int_equal(spool_read(&spool, 0, back, 1, &err), STATUS_CORRUPT); /* before any write */
    assert_int_equal(spool_write(&spool, tmpdir, 3 * SPOOL_ALIGN, a, sizeof a, &err), STATUS_OK);
    assert_int_equal(spool_write(&spool, tmpdir, SPOOL_ALIGN, b, 4000, &err), STATUS_OK); /* pieces, at the front */
    assert_int_equal(spool_write(&spool, tmpdir, SPOOL_ALIGN + 4000, b, 1000, &err), STATUS_OK);
    assert_int_equal(files_in(tmpdir), 0);
    assert_int_equal(spool_read(&spool, 3 * SPOOL_ALIGN, back, sizeof a, &err), STATUS_OK);
    assert_memory_equal(back, a, sizeof a);
    assert_int_equal(spool_read(&spool, SPOOL_ALIGN, back, sizeof b, &err), STATUS_OK);
    assert_memory_equal(back, b, sizeof b);
    assert_int_equal(spool_read(&spool, 3 * SPOOL_ALIGN + 1, back, sizeof a, &err), STATUS_CORRUPT);
    spool_close(&spool);
    assert_int_equal(spool.fd, -1);
}

TEST(test_forgotten_range_returns_to_disk)
{
    enum { BYTES = 64 * SPOOL_ALIGN };
    struct spool spool = {.fd = -1};
    struct err err = {0};
    struct stat full, half;
    uint8_t *data = calloc(1, BYTES), *back = malloc(BYTES);
    assert_true(data && back);
    memset(data, 7, BYTES);
    spool_forget(&spool, 0, BYTES); /* past the end: no effect */
    assert_int_equal(spool_write(&spool, tmpdir, 0, data, BYTES, &err), STATUS_OK);
    assert_int_equal(fstat(spool.fd, &full), 0);
    spool_forget(&spool, 0, BYTES / 2);
    assert_int_equal(fstat(spool.fd, &half), 0);
    assert_true(half.st_blocks < full.st_blocks); /* ext4, xfs, btrfs and tmpfs all support it */
    assert_int_equal(spool_read(&spool, BYTES / 2, back, BYTES / 2, &err), STATUS_OK);
    assert_memory_equal(back, data, BYTES / 2); /* the neighbour is unchanged */
    spool_close(&spool);
    free(data);
    free(back);
}

TEST(test_missing_folder_is_reported)
{
    struct spool spool = {.fd = -1};
    struct err err = {0};
    assert_int_equal(spool_write(&spool, "/nowhere/at/all", 0, "x", 1, &err), STATUS_NOTFOUND);
    assert_non_null(strstr(err.msg, "/nowhere/at/all/spool"));
}

TEST_MAIN(tmpdir_make, tmpdir_remove_empty)
