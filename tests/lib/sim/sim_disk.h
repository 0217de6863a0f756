/* The disk of a simulated worker, which survives its death: two generations of its state, and a save that takes its
 * time beside everything else, while what it reads must not change. */
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
    struct sim_check_mark *mark; /* what the checker knew of the worker when this was written */
};

struct sim_disk {
    /* set by the owner; stays where it is */
    struct sim_net *net;
    struct sim_check *check;
    int client;
    bool full;        /* saves fail */
    uint64_t save_us; /* a save takes so long */

    struct sim_disk_file files[SIM_DISK_SAVES]; /* newest first */
    struct {
        uint64_t number; /* of the save under way; 0: none is */
        uint64_t count;
        bool over; /* on disk, or failed */
        struct sim_disk_file file;
        const struct outer_part *body;
        size_t parts;
    } save;
};

/* As struct outer_setup says; ctx is the disk. */
void sim_disk_save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n);
enum status sim_disk_save_poll(void *ctx, bool wait, struct err *err);
enum status sim_disk_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err);
void sim_disk_release(void *ctx, const uint8_t *data, size_t size);

/* A save has begun that has not reached the disk yet. */
bool sim_disk_saving(const struct sim_disk *disk);
/* The process is gone before the save is. */
void sim_disk_killed(struct sim_disk *disk);
/* Nothing is left on it. */
void sim_disk_wipe(struct sim_disk *disk);

#endif
