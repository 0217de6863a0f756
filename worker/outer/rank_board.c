#include "worker/outer/rank_board.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/os/descriptors.h"
#include "common/os/fileio.h"
#include "common/os/fork_close.h"

enum {
    TEXT_MAX = 480,
    POLL_US = 1000,
    POLL_MAX_US = 20000,
    READ_AGAIN = 100, /* looks at a slot that is being written */
    LOCK_TRIES = 100, /* a killed process may still be ending */
    LOCK_AGAIN_US = 50000,
};

/* Of one machine, and of one moment: in memory order. */
struct slot {
    uint64_t tag;
    uint32_t news; /* enum rank_news */
    uint32_t crc;  /* of the slot with zero in its place */
    char text[TEXT_MAX];
};

static enum status board_path(char out[FILEIO_PATH_MAX], const char *folder, struct err *err)
{
    int n = snprintf(out, FILEIO_PATH_MAX, "%s/state.ranks", folder);
    if (n < 0 || n >= FILEIO_PATH_MAX) return err_set(err, STATUS_LIMIT, "path too long: %s", folder);
    return STATUS_OK;
}

static enum status failed(struct err *err, const char *what, const char *path)
{
    return err_set(err, STATUS_IO, "cannot %s %s: %s", what, path, strerror(errno));
}

static struct flock lock_of(uint32_t rank, short type)
{
    return (struct flock){.l_type = type,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)(rank * sizeof(struct slot)),
                          .l_len = (off_t)sizeof(struct slot)};
}

enum status rank_board_open(struct rank_board *b, const char *folder, uint32_t rank, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    struct flock lock = lock_of(rank, F_WRLCK);
    *b = (struct rank_board){.fd = -1, .rank = rank};
    TRY(board_path(path, folder, err));
    b->fd = descriptors_open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, FILE_PRIVATE);
    if (b->fd < 0) return failed(err, "create", path);
    fork_close_add(b->fd); /* a child would keep the lock */
    int locked = fcntl(b->fd, F_OFD_SETLK, &lock);
    for (int i = 0; locked != 0 && i < LOCK_TRIES && (errno == EAGAIN || errno == EACCES); i++) {
        usleep(LOCK_AGAIN_US);
        locked = fcntl(b->fd, F_OFD_SETLK, &lock);
    }
    if (locked != 0) {
        enum status status = errno == EAGAIN || errno == EACCES
                                 ? err_set(err, STATUS_IO, "%s: another process is rank %u of this worker", path, rank)
                                 : failed(err, "lock", path);
        rank_board_close(b);
        return status;
    }
    enum status status = rank_board_set(b, 0, RANK_DURABLE, "", err); /* its room: a full disk fails here */
    if (status != STATUS_OK) rank_board_close(b);
    return status;
}

void rank_board_close(struct rank_board *b)
{
    if (b->fd >= 0) {
        fork_close_remove(b->fd);
        close(b->fd);
    }
    b->fd = -1;
}

enum status rank_board_set(struct rank_board *b, uint64_t tag, enum rank_news news, const char *text, struct err *err)
{
    struct slot slot = {.tag = tag, .news = news};
    snprintf(slot.text, sizeof slot.text, "%s", text);
    slot.crc = crc32c(0, &slot, sizeof slot);
    ssize_t n = pwrite(b->fd, &slot, sizeof slot, (off_t)(b->rank * sizeof slot));
    if (n == (ssize_t)sizeof slot) return STATUS_OK;
    return err_set(err, STATUS_IO, "cannot write state.ranks: %s", n < 0 ? strerror(errno) : "the disk is full");
}

/* False: the rank has written none, or is writing it. */
static bool read_slot(int fd, uint32_t rank, struct slot *slot)
{
    for (int i = 0; i < READ_AGAIN; i++) {
        if (pread(fd, slot, sizeof *slot, (off_t)(rank * sizeof *slot)) != (ssize_t)sizeof *slot) return false;
        uint32_t crc = slot->crc;
        slot->crc = 0;
        slot->text[TEXT_MAX - 1] = 0;
        if (crc == crc32c(0, slot, sizeof *slot)) return true;
    }
    return false;
}

static bool has_ended(int fd, uint32_t rank)
{
    struct flock lock = lock_of(rank, F_WRLCK);
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* AGAIN: it still writes. */
static enum status look(int fd, uint64_t tag, uint32_t rank, struct err *err)
{
    struct slot slot;
    bool ended = has_ended(fd, rank); /* first: its last news are then in the slot */
    bool known = read_slot(fd, rank, &slot) && slot.tag == tag;
    if (known && slot.news == RANK_DURABLE) return STATUS_OK;
    if (known && slot.news == RANK_FAILED) return err_set(err, STATUS_IO, "rank %u: %s", rank, slot.text);
    if (ended) return err_set(err, STATUS_IO, "the process of rank %u ended during the save", rank);
    return STATUS_AGAIN;
}

enum status rank_board_wait(const char *folder, uint64_t tag, uint32_t n_ranks, struct err *err)
{
    char path[FILEIO_PATH_MAX];
    TRY(board_path(path, folder, err));
    int fd = descriptors_open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0) return failed(err, "open", path);
    fork_close_add(fd);
    enum status status = STATUS_OK;
    useconds_t pause = POLL_US;
    for (uint32_t rank = 0; rank < n_ranks && status == STATUS_OK;) {
        status = look(fd, tag, rank, err);
        if (status == STATUS_OK) rank++;
        if (status != STATUS_AGAIN) continue;
        usleep(pause);
        pause = pause < POLL_MAX_US / 2 ? 2 * pause : POLL_MAX_US;
        status = STATUS_OK;
    }
    fork_close_remove(fd);
    close(fd);
    return status;
}
