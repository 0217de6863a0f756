/* Stores a worker's state in a folder:
 *   state.bin        the newest save
 *   state.old.bin    the previous one
 *   state.spare.bin  overwritten by the next save, then renamed to state.bin
 * From the third save on, a save needs no additional disk space: a full disk loses no state. Each save runs in a thread
 * of its own, and writes past the page cache if the file system can. Beside them are the files of the ranks
 * (worker/outer/rank_file.h). */
#ifndef WORKER_STATE_DIR_H
#define WORKER_STATE_DIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/config/config.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"

struct state_dir {
    char folder[CONFIG_PATH_MAX];
    char current[CONFIG_PATH_MAX + 32], previous[CONFIG_PATH_MAX + 32];
    char spare[CONFIG_PATH_MAX + 32], passing[CONFIG_PATH_MAX + 32];

    /* The running save: what it borrows, and its result. */
    bool begun, threaded; /* threaded: `thread` runs it */
    pthread_t thread;
    atomic_bool over;
    const struct saved_state *state;
    const struct outer_part *body;
    size_t n_body;
    enum status status;
    struct err err;
    uint8_t head[SAVED_HEAD_MAX];
};

/* Sets the file names below `folder`. */
void state_dir_init(struct state_dir *d, const char *folder);
/* Fills the storage members of setup. *d outlives every loop with this setup and does not move. */
void state_dir_attach(struct state_dir *d, struct outer_setup *setup);

#endif
