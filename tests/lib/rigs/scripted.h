/* A coordinator that does what a test tells it (tests/lib/rigs/scripted_coordinator.c), a network between it and one
 * worker that may lose and double messages, and that worker: worker/outer/outer_loop.h with "training" that is a pure
 * function. State is global: one test at a time. */
#ifndef TESTS_LIB_SCRIPTED_H
#define TESTS_LIB_SCRIPTED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "compress/codec.h"
#include "gpu/device.h"
#include "worker/outer/outer_loop.h"
#include "worker/outer/outer_loop_impl.h"

enum { SCRIPTED_F = 2, SCRIPTED_N = 3000, SCRIPTED_VERSIONS = 64 };

struct scripted {
    struct config config;
    char config_text[CONFIG_TEXT_MAX]; /* as CONFIG carries it */
    struct layout layout;

    /* The coordinator's log. */
    float theta[SCRIPTED_F][SCRIPTED_VERSIONS][SCRIPTED_N];
    uint64_t top[SCRIPTED_F], hash_at[SCRIPTED_F][SCRIPTED_VERSIONS];
    float received[SCRIPTED_N]; /* sum of all merged deltas */
    struct msg_offer offered[SCRIPTED_F];
    uint64_t part_have[SCRIPTED_F]; /* bytes it holds of that */
    bool merged_round[SCRIPTED_F][SCRIPTED_VERSIONS];
    uint64_t session, snapshot_at, oldest; /* oldest: first version of which updates still exist */

    /* What it counted, and how it misbehaves. */
    int joins, leaves, offers, merges, snapshot_gets;
    bool mute;                      /* nothing passes in either direction */
    bool no_work;                   /* no assignments */
    uint16_t reject;                /* refuses every delta with this code; 0: none */
    bool hold_merge;                /* takes deltas, merges none */
    bool spoil_hash, spoil_payload; /* of the next update */
    int spoil_snapshots;            /* so many have a bit in a number that their hash does not know */
    uint16_t refuse_hello;
    double loss;   /* probability of a lost message; half of it: doubled */
    uint64_t draw; /* position in the random numbers */

    /* The worker. */
    struct outer_loop *loop;
    struct outer_setup setup;
    uint64_t now;
    float params[SCRIPTED_N], computed[SCRIPTED_N]; /* computed: sum of all deltas that were trained */
    float inner[8];                                 /* inner[0] counts the rounds trained */
    uint8_t *stored[2];                             /* its disk, newest first */
    size_t stored_size[2];
    int saves;
    uint64_t save_us; /* a save takes so long, beside the worker */
    bool save_fails;
    uint64_t save_end;   /* when the one under way ends; 0: none is */
    uint8_t *save_bytes; /* what it writes */
    size_t save_size, save_parts;
    const struct outer_part *save_body;
    struct device *device; /* deltas are made there, from device_theta [SCRIPTED_N]; NULL: in memory of the host */
    float *device_theta;
};

extern struct scripted scripted;

/* Start anew with this codec in both directions; the worker is up. */
void scripted_begin(const char *codec);
/* With these codecs; device: NULL, or one that makes the deltas, which stays the caller's. */
void scripted_begin_on(const char *codec_up, const char *codec_down, struct device *device);
/* The same with method async: updates (scripted_publish, without its delta) may come while it trains. */
void scripted_begin_async(const char *codec_up, const char *codec_down, struct device *device);
void scripted_end(void);
int scripted_teardown(void **state); /* the same, for cmocka */
void scripted_worker_up(void);
void scripted_worker_kill(void);
/* Until a save that is under way has reached the disk, without the worker noticing. */
void scripted_save_ends(void);
/* Take a round (want is OUTER_TRAIN) / hand it in. */
void scripted_train(void);
void scripted_train_done(void);
/* Let time pass. */
void scripted_pass(uint64_t us);
/* Until it wants to train; false: nothing helps. */
bool scripted_until_training(void);
/* Train n rounds, until the next is wanted. */
void scripted_rounds(int n);
/* A message of the coordinator. */
void scripted_answer(const struct msg *m);
/* Publish the next version of fragment f: with the delta that was offered, or (others' work) without. */
void scripted_publish(uint32_t f, bool with_delta);

/* The worker has the log's parameters. */
void scripted_check_theta(void);
/* merged + residual = computed, to the rounding of the additions. */
void scripted_check_nothing_lost(void);

#endif
