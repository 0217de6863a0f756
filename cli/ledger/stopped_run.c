#include "cli/ledger/stopped_run.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "coordinator/ledger/store_disk.h"
#include "coordinator/run_dir.h"
#include "coordinator/run_folder.h"

static enum status check(struct stopped_run *r, const char *path, const char *to_do, struct err *err)
{
    *r = (struct stopped_run){.lock = -1};
    TRY(run_folder_name(r->dir, sizeof r->dir, path, err));
    if (!run_folder_has(r->dir, "journal") && !run_folder_has(r->dir, STORE_SWITCH))
        return err_set(err, STATUS_NOTFOUND, "%s is not a run folder: it has no journal", r->dir);
    if (run_folder_locked(r->dir, "launch.lock"))
        return err_set(err, STATUS_EXISTS, "atoll launch runs in %s: stop it, %s", r->dir, to_do);
    if (run_folder_has(r->dir, "upstream"))
        return err_set(
            err, STATUS_INVALID,
            "%.300s is the folder of a region: the run upstream has all that it holds; start the region with "
            "another --dir",
            r->dir);
    return STATUS_OK;
}

enum status stopped_run_open(struct stopped_run *r, const char *path, const char *to_do, struct err *err)
{
    TRY(check(r, path, to_do, err));
    return run_dir_lock(r->dir, &r->lock, err);
}

enum status stopped_run_open_read(struct stopped_run *r, const char *path, const char *to_do, struct err *err)
{
    char lock[FILEIO_PATH_MAX];
    TRY(check(r, path, to_do, err));
    if (run_folder_has(r->dir, STORE_SWITCH))
        return err_set(err, STATUS_STATE,
                       "%.300s was being taken back when the command was killed: the next start of its coordinator, or "
                       "the same command again, finishes that",
                       r->dir);
    TRY(run_folder_path(lock, sizeof lock, r->dir, "lock", err));
    if (!file_exists(lock)) return STATUS_OK; /* a copy without it */
    TRY(file_open_plain(lock, O_RDONLY, 0, &r->lock, err));
    if (file_lock(r->lock, true)) return STATUS_OK;
    return err_set(err, STATUS_EXISTS, "a coordinator serves %.300s: stop it, %s", r->dir, to_do);
}

void stopped_run_close(struct stopped_run *r)
{
    if (r->lock >= 0) close(r->lock);
    r->lock = -1;
}
