/* The disk of a simulated worker. It survives the process and holds two generations of saved state.
 * A save takes time while the worker continues; the state that it reads must not change meanwhile. */
#ifndef TESTS_LIB_SIM_DISK_H
#define TESTS_LIB_SIM_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/sim/sim_check.h"
#include "tests/lib/sim/sim_net.h"
#include "worker/outer/outer_loop.h"

enum { SIM_DISK_SAVES = 2 };

struct sim_disk_file {
    uint8_t *data;
    size_t size;
    struct sim_check_mark *mark; /* the checker's knowledge of the worker at the time of this save */
};

struct sim_disk {
    /* set by the owner; stays at this address */
    struct sim_net *net;
    struct sim_check *check;
    int client;
    bool full;        /* saves fail */
    uint64_t save_us; /* duration of a save */

    struct sim_disk_file files[SIM_DISK_SAVES]; /* newest first */
    struct {
        uint64_t number; /* of the save in progress; 0: none */
        uint64_t count;
        bool over; /* on disk, or failed */
        struct sim_disk_file file;
        const struct outer_part *body;
        size_t parts;
    } save;
};

/* Callbacks of struct outer_setup; ctx is the disk. */
void sim_disk_save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n);
/* The checker learns of the deltas of the newest save after it began. */
void sim_disk_mark_again(struct sim_disk *d);
enum status sim_disk_save_poll(void *ctx, bool wait, struct err *err);
enum status sim_disk_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err);
void sim_disk_release(void *ctx, const uint8_t *data, size_t size);

/* Return whether a save is in progress. */
bool sim_disk_saving(const struct sim_disk *disk);
/* The process died: drop the save in progress. */
void sim_disk_killed(struct sim_disk *disk);
/* Erase the disk. */
void sim_disk_wipe(struct sim_disk *disk);

#endif
