/* The saved state of a worker in a folder: DIR/state.bin and, one save older, DIR/state.old.bin. A third file, the
 * spare one, is what the next save writes over before it takes its place: from the third save on, saving needs no room
 * that is not taken already, so a disk that fills up costs no state. Each save is written by a thread of its own,
 * beside whatever its owner does meanwhile. */
#ifndef WORKER_STATE_DIR_H
#define WORKER_STATE_DIR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "common/config/config.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/worker_state.h"

struct state_dir {
    char current[CONFIG_PATH_MAX + 32], previous[CONFIG_PATH_MAX + 32];
    char spare[CONFIG_PATH_MAX + 32], passing[CONFIG_PATH_MAX + 32];

    /* The save under way: what is borrowed for it, and how it ended. */
    bool begun, threaded; /* threaded: by a thread */
    pthread_t thread;
    atomic_bool over;
    const struct saved_state *state;
    const struct outer_part *body;
    size_t n_body;
    enum status status;
    struct err err;
    uint8_t head[SAVED_HEAD_MAX];
};

void state_dir_init(struct state_dir *d, const char *folder);
/* Fill the storage members of setup. d stays where it is as long as a loop with this setup. */
void state_dir_attach(struct state_dir *d, struct outer_setup *setup);

#endif
