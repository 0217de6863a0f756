#include "tests/lib/store/tmpdir.h"
#include "tests/lib/test.h"

#include <ftw.h>
#include <stdbool.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/os/fileio.h"

char tmpdir[32];

/* Free bytes that the file system must have. */
#define ROOM ((uint64_t)1 << 30)

static bool made_in(const char *parent)
{
    snprintf(tmpdir, sizeof tmpdir, "%s/atoll-test-XXXXXX", parent);
    return mkdtemp(tmpdir);
}

int tmpdir_make(void **state)
{
    struct statvfs memory;
    (void)state;
    bool fits = !statvfs("/dev/shm", &memory) && (uint64_t)memory.f_bavail * memory.f_frsize > ROOM;
    return (fits && made_in("/dev/shm")) || made_in("/tmp") ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st, (void)type, (void)place;
    return remove(path);
}

int tmpdir_remove(void **state)
{
    (void)state;
    return nftw(tmpdir, remove_one, 8, FTW_DEPTH | FTW_PHYS) || mem_live_bytes() ? -1 : 0;
}

void tmpdir_clear(const char *path)
{
    assert_int_equal(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

int tmpdir_remove_empty(void **state)
{
    (void)state;
    return rmdir(tmpdir) || mem_live_bytes() ? -1 : 0;
}

const char *tmpdir_path(const char *name)
{
    static char paths[4][FILEIO_PATH_MAX];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, FILEIO_PATH_MAX, "%s/%s", tmpdir, name);
    return path;
}

void tmpdir_put(const char *name, const char *text)
{
    char folder[FILEIO_PATH_MAX];
    struct err err = {0};
    snprintf(folder, sizeof folder, "%s", tmpdir_path(name));
    *strrchr(folder, '/') = '\0';
    if (dir_make(folder, &err) != STATUS_OK || file_write(tmpdir_path(name), text, strlen(text), &err) != STATUS_OK)
        fail_msg("%s", err.msg);
}

void tmpdir_take(const char *name)
{
    assert_int_equal(unlink(tmpdir_path(name)), 0);
}
