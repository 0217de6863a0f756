#include "coordinator/ledger/spool.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/os/descriptors.h"
#include "common/os/fileio.h"

static enum status spool_make(struct spool *spool, const char *folder, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    snprintf(path, sizeof path, "%s/spool", folder);
    /* A killed coordinator may have left its spool, in the moment between open and unlink. */
    if (unlink(path) != 0 && errno != ENOENT)
        return err_set(err, STATUS_IO, "cannot replace %.300s: %s", path, strerror(errno));
    spool->fd = descriptors_open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, FILE_PRIVATE);
    if (spool->fd < 0 || unlink(path))
        return err_set(err, status_of_errno(errno), "cannot create %.300s: %s", path, strerror(errno));
    return STATUS_OK;
}

enum status spool_write(struct spool *spool, const char *folder, uint64_t offset, const void *data, size_t size,
                        struct err *err)
{
    assert(offset <= INT64_MAX - size);
    if (spool->fd < 0) TRY(spool_make(spool, folder, err));
    assert(spool->fd >= 0);
    for (size_t done = 0; done < size;) {
        ssize_t n = pwrite(spool->fd, (const char *)data + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return err_set(err, status_of_errno(errno), "cannot write to the spool in %.300s: %s", folder,
                           strerror(errno));
        assert(n > 0 && (size_t)n <= size - done);
        done += (size_t)n;
    }
    return STATUS_OK;
}

enum status spool_read(struct spool *spool, uint64_t offset, void *dst, size_t size, struct err *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = spool->fd < 0 ? 0 : pread(spool->fd, (char *)dst + done, size - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_set(err, STATUS_IO, "cannot read the spool: %s", strerror(errno));
        if (n == 0) return err_set(err, STATUS_CORRUPT, "data in the spool is shorter than written");
        assert((size_t)n <= size - done);
        done += (size_t)n;
    }
    return STATUS_OK;
}

void spool_forget(struct spool *spool, uint64_t offset, uint64_t size)
{
    if (spool->fd < 0 || !size) return;
    /* After a failure the blocks stay allocated until the next delta overwrites them. */
    if (fallocate(spool->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)size)) return;
}

void spool_close(struct spool *spool)
{
    if (spool->fd >= 0) close(spool->fd);
    spool->fd = -1;
}
