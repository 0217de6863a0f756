/* The run folder of atoll launch: that it is free or holds this run, and what a new run there starts from. */
#ifndef CLI_LAUNCH_FOLDER_H
#define CLI_LAUNCH_FOLDER_H

#include <stdbool.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/os/fileio.h"

struct launch_folder {
    const char *dir, *resume;       /* --dir and --resume; borrowed */
    char init_dir[FILEIO_PATH_MAX]; /* the checkpoint --resume means; empty: auto or never */
    bool begun;                     /* the run in `dir` started from it, so this goes on */
    int lock_fd;                    /* -1: not taken */
};

/* Where a new run would start from is looked at here (`from` is model.init_from): the coordinator opens it when the
 * first worker has joined. INVALID when there is no such folder, or no model in it. */
enum status launch_folder_find_init(struct launch_folder *l, const char *from, struct err *err) MUST_CHECK;
/* Make the folder and lock it until `release`. INVALID, STATE or EXISTS when it holds something else, is in use, or
 * holds a run that --resume does not mean. */
enum status launch_folder_take(struct launch_folder *l, struct err *err) MUST_CHECK;
void launch_folder_release(struct launch_folder *l);

/* What the run in the folder was started with; false: there is none. */
bool launch_folder_config(const struct launch_folder *l, struct config *then);

#endif
