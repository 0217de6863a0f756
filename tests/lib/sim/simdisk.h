/* The disk of a simulated worker, which survives its death: two generations of its state, and a save that takes its
 * time beside everything else, while what it reads must not change. */
#ifndef TESTS_LIB_SIMDISK_H
#define TESTS_LIB_SIMDISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/lib/sim/simcheck.h"
#include "tests/lib/sim/simnet.h"
#include "worker/outer/outer_loop.h"

enum { SIMDISK_SAVES = 2 };

struct simdisk_file {
    uint8_t *data;
    size_t size;
    struct simcheck_mark *mark; /* what the checker knew of the worker when this was written */
};

struct simdisk {
    /* set by the owner; stays where it is */
    struct simnet *net;
    struct simcheck *check;
    int client;
    bool full;        /* saves fail */
    uint64_t save_us; /* a save takes so long */

    struct simdisk_file files[SIMDISK_SAVES]; /* newest first */
    struct {
        uint64_t number; /* of the save under way; 0: none is */
        uint64_t count;
        bool over;       /* on disk, or failed */
        struct simdisk_file file;
        const struct outer_part *body;
        size_t parts;
    } save;
};

/* As struct outer_setup says; ctx is the disk. */
void simdisk_save_begin(void *ctx, const struct saved_state *state, const struct outer_part *body, size_t n);
enum status simdisk_save_poll(void *ctx, bool wait, struct err *err);
enum status simdisk_load(void *ctx, int age, const uint8_t **data_p, size_t *size_p, struct err *err);
void simdisk_release(void *ctx, const uint8_t *data, size_t size);

/* A save has begun that has not reached the disk yet. */
bool simdisk_saving(const struct simdisk *disk);
/* The process is gone before the save is. */
void simdisk_killed(struct simdisk *disk);
/* Nothing is left on it. */
void simdisk_wipe(struct simdisk *disk);

#endif
