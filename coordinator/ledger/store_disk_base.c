/* What all parts of the store on disk use. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/os/descriptors.h"
#include "coordinator/ledger/store_disk.h"

enum { READ_MAX = 1 << 30, KEPT_MAX = 100 };

enum status store_disk_fail(struct err *err, const char *what, const char *path)
{
    enum status code = status_of_errno(errno);
    return err_set(err, code == STATUS_NOTFOUND ? STATUS_IO : code, "cannot %s %.300s: %s", what, path,
                   strerror(errno));
}

enum status store_disk_fail_read(struct err *err, const char *what, const char *path)
{
    if (status_of_read(errno) != STATUS_CORRUPT) return store_disk_fail(err, what, path);
    return err_set(err, STATUS_CORRUPT, "cannot %s %.300s: %s", what, path, strerror(errno));
}

void store_disk_segment_path(const struct store_disk *d, uint64_t segment, char out[FILEIO_PATH_MAX])
{
    snprintf(out, FILEIO_PATH_MAX, "%s/journal%s/%08llu.log", d->dir, d->next, (unsigned long long)segment);
}

enum status store_disk_read_exact(int fd, uint64_t offset, void *dst, size_t size, const char *path, struct err *err)
{
    for (size_t got = 0; got < size;) {
        size_t want = size - got < READ_MAX ? size - got : READ_MAX;
        ssize_t n = pread(fd, (char *)dst + got, want, (off_t)(offset + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return store_disk_fail_read(err, "read", path);
        if (n == 0) return err_set(err, STATUS_CORRUPT, "%.300s is shorter than it should be", path);
        assert((size_t)n <= want);
        got += (size_t)n;
    }
    return STATUS_OK;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum status store_disk_list_numbers(const char *path, const char *prefix, const char *suffix, uint64_t *out, size_t cap,
                                    size_t *n_p, struct err *err)
{
    DIR *dir = descriptors_opendir(path);
    if (!dir) return store_disk_fail(err, "list", path);
    enum status status = STATUS_OK;
    size_t n = 0;
    for (struct dirent *e; errno = 0, (e = readdir(dir));) {
        size_t skip = strlen(prefix), digits;
        if (strncmp(e->d_name, prefix, skip) != 0) continue;
        digits = strspn(e->d_name + skip, "0123456789");
        if (!digits || digits > 18 || strcmp(e->d_name + skip + digits, suffix) != 0) continue;
        if (n == cap) {
            status = err_set(err, STATUS_LIMIT, "too many files in %.300s", path);
            break;
        }
        out[n++] = strtoull(e->d_name + skip, NULL, 10);
    }
    if (status == STATUS_OK && errno) status = store_disk_fail(err, "list", path);
    closedir(dir);
    qsort(out, n, sizeof *out, by_value);
    *n_p = n;
    return status;
}

enum status store_disk_make_way(const char *path, struct err *err)
{
    char aside[FILEIO_PATH_MAX];
    struct stat st;
    if (lstat(path, &st)) return STATUS_OK;
    for (unsigned n = 0; n < KEPT_MAX; n++) {
        if (snprintf(aside, sizeof aside, n ? "%s.kept-%ld-%u" : "%s.kept-%ld", path, (long)getpid(), n) >=
            (int)sizeof aside)
            break;
        if (!lstat(aside, &st)) continue;
        if (rename(path, aside)) break;
        log_warn("renamed %.300s to %.300s: the run needs the old name", path, aside);
        return STATUS_OK;
    }
    return store_disk_fail(err, "rename", path);
}

void store_disk_unmap(struct store_disk *d)
{
    if (d->mapped) safetensors_close(&d->map);
    d->mapped = false;
}
