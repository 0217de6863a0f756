#include "worker/outer/state_dir.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/thread.h"
#include "common/os/fileio.h"
#include "worker/outer/rank_board.h"
#include "worker/outer/rank_file.h"

enum { WRITE_BYTES = 1 << 20 }; /* checksummed in cache, then written */

void state_dir_init(struct state_dir *d, const char *folder)
{
    memset(d, 0, sizeof *d);
    snprintf(d->folder, sizeof d->folder, "%s", folder);
    snprintf(d->current, sizeof d->current, "%s/state.bin", folder);
    snprintf(d->previous, sizeof d->previous, "%s/state.old.bin", folder);
    snprintf(d->spare, sizeof d->spare, "%s/state.spare.bin", folder);
    snprintf(d->passing, sizeof d->passing, "%s/state.passing.bin", folder);
}

/* --- one file ----------------------------------------------------------------------------------------------------- */

static bool same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Renames previous to passing and links current as previous; after the commit, passing becomes the spare file.
 *   - At every instant a complete state exists under `current` or `previous`.
 *   - A save killed at any point leaves no second name for the file that the next save overwrites.
 *   - On a file system without links, current is renamed to previous, and for a moment only that one exists. */
static enum status rotate_files(const struct state_dir *d, struct err *err)
{
    if (!file_exists(d->current) || same_file(d->current, d->previous)) return STATUS_OK;
    if ((rename(d->previous, d->passing) && errno != ENOENT) ||
        (link(d->current, d->previous) && rename(d->current, d->previous)))
        return err_set(err, STATUS_IO, "cannot keep %s as %s: %s", d->current, d->previous, strerror(errno));
    return STATUS_OK;
}

/* Writes the head last: it holds the checksum of the body. */
static enum status write_parts(struct state_dir *d, struct file_out *out, struct err *err)
{
    uint64_t size = 0;
    uint32_t crc = 0;
    size_t head = saved_state_head(d->state, 0, 0, d->head);
    TRY(file_out_put(out, d->head, head, err));
    for (size_t i = 0; i < d->n_body; i++) {
        const uint8_t *data = d->body[i].data;
        for (size_t left = d->body[i].size, n; left; left -= n, data += n) {
            n = left < WRITE_BYTES ? left : WRITE_BYTES;
            crc = crc32c(crc, data, n);
            TRY(file_out_put(out, data, n, err));
        }
        size += d->body[i].size;
    }
    saved_state_head(d->state, size, crc, d->head);
    return file_out_put_head(out, d->head, head, err);
}

static enum status write_state(struct state_dir *d, struct err *err)
{
    struct file_out out;
    enum status status;
    if (!file_exists(d->spare)) rename(d->passing, d->spare); /* left by a killed save, if any */
    TRY(file_out_open_spare(&out, d->current, d->spare, err));
    (void)file_out_direct(&out);
    TRY_GOTO(write_parts(d, &out, err), err_abort);
    TRY_GOTO(file_out_sync(&out, err), err_abort);
    if (d->state->n_ranks) TRY_GOTO(rank_board_wait(d->folder, d->state->tag, d->state->n_ranks, err), err_abort);
    TRY_GOTO(rotate_files(d, err), err_abort);
    TRY_GOTO(file_out_commit(&out, err), err_abort);
    rename(d->passing, d->spare);
    rank_files_sweep(d->folder, d->state->n_ranks);
    return STATUS_OK;
err_abort:
    file_out_abort(&out);
    return status;
}

/* --- background save ---------------------------------------------------------------------------------------------- */

static void *save_thread(void *arg)
{
    struct state_dir *d = arg;
    d->status = write_state(d, &d->err);
    atomic_store(&d->over, true);
    return NULL;
}

static void save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n)
{
    struct state_dir *d = ctx;
    assert(!d->begun);
    d->state = state;
    d->body = body;
    d->n_body = n;
    d->err = (struct err){0};
    atomic_store(&d->over, false);
    d->begun = true;
    d->threaded = thread_start(&d->thread, save_thread, d) == 0;
    if (!d->threaded) save_thread(d); /* no thread available: save in this one */
}

static enum status save_poll(void *ctx, bool wait, struct err *err)
{
    struct state_dir *d = ctx;
    if (!d->begun) return STATUS_OK;
    if (!wait && !atomic_load(&d->over)) return STATUS_AGAIN;
    if (d->threaded) pthread_join(d->thread, NULL);
    assert(atomic_load(&d->over));
    d->begun = false;
    if (d->status != STATUS_OK && err) *err = d->err;
    return d->status;
}

/* --- loading ------------------------------------------------------------------------------------------------------ */

static enum status state_dir_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err)
{
    struct state_dir *d = ctx;
    struct file_map map;
    const char *path = age == 0 ? d->current : d->previous;
    if (!file_exists(path)) return STATUS_NOTFOUND;
    TRY(file_map_open(&map, path, err));
    *data_p = map.data;
    *size_p = map.size;
    return STATUS_OK;
}

static enum status state_dir_has_files(void *ctx, uint64_t tag, uint32_t n_ranks, struct err *err)
{
    const struct state_dir *d = ctx;
    return rank_files_check(d->folder, tag, n_ranks, err);
}

static void state_dir_release(void *ctx, const uint8_t *data, size_t size)
{
    (void)ctx;
    struct file_map map = {.data = data, .size = size};
    file_map_close(&map);
}

void state_dir_attach(struct state_dir *d, struct outer_setup *setup)
{
    setup->storage_ctx = d;
    setup->save_begin = save_begin;
    setup->save_poll = save_poll;
    setup->load = state_dir_load;
    setup->release = state_dir_release;
    setup->has_files = state_dir_has_files;
}
