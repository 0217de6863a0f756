/* A scripted coordinator (tests/lib/rigs/scripted_coordinator.c), one worker, and a network between them that may
 * lose and duplicate messages.
 * The worker is worker/outer/outer_loop.h with "training" that is a pure function. State is global: one test at a
 * time. */
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
    char config_text[CONFIG_TEXT_MAX]; /* as in CONFIG */
    struct layout layout;

    /* The coordinator's log. */
    float theta[SCRIPTED_F][SCRIPTED_VERSIONS][SCRIPTED_N];
    uint64_t top[SCRIPTED_F], hash_at[SCRIPTED_F][SCRIPTED_VERSIONS];
    float received[SCRIPTED_N]; /* sum of all merged deltas */
    struct msg_offer offered[SCRIPTED_F];
    uint64_t part_have[SCRIPTED_F]; /* received bytes of that */
    bool merged_round[SCRIPTED_F][SCRIPTED_VERSIONS];
    uint64_t session, snapshot_at, oldest; /* oldest: the first version whose update still exists */

    /* Its counters, and its faults. */
    int joins, leaves, offers, merges, snapshot_gets;
    bool mute;                      /* drops every message in both directions */
    bool no_work;                   /* sends no assignments */
    uint16_t reject;                /* refuses every delta with this code; 0: none */
    bool hold_merge;                /* accepts deltas, merges none */
    bool spoil_hash, spoil_payload; /* damages the next update */
    int spoil_snapshots;            /* number of snapshots to damage by one bit that their hash does not cover */
    uint16_t refuse_hello;
    double loss;   /* probability of a lost message; half of it: duplicated */
    uint64_t draw; /* position in the random sequence */

    /* The worker. */
    struct outer_loop *loop;
    struct outer_setup setup;
    uint64_t now;
    float params[SCRIPTED_N], computed[SCRIPTED_N]; /* computed: sum of all trained deltas */
    float inner[8];                                 /* inner[0] counts the trained rounds */
    uint8_t *stored[2];                             /* the worker's disk, newest first */
    size_t stored_size[2];
    int saves;
    uint64_t save_us; /* duration of a save, beside the worker */
    bool save_fails;
    uint64_t save_end;   /* end of the save in progress; 0: none */
    uint8_t *save_bytes; /* the bytes of that save */
    size_t save_size, save_parts;
    const struct outer_part *save_body;
    struct device *device; /* makes the deltas from device_theta [SCRIPTED_N]; NULL: made in host memory */
    float *device_theta;
    const float *initial; /* [SCRIPTED_N] the program's own parameters; NULL: none */
};

extern struct scripted scripted;

/* Start a new run with this codec in both directions; the worker is up. */
void scripted_begin(const char *codec);
/* With these codecs; device: NULL, or the device that makes the deltas, owned by the caller. */
void scripted_begin_on(const char *codec_up, const char *codec_down, struct device *device);
/* The same with method async: updates (scripted_publish without the worker's delta) may arrive during training. */
void scripted_begin_async(const char *codec_up, const char *codec_down, struct device *device);
void scripted_end(void);
int scripted_teardown(void **state); /* the same, for cmocka */
void scripted_worker_up(void);
void scripted_worker_kill(void);
/* Take a round (want is OUTER_TRAIN); deliver its delta. */
void scripted_train(void);
void scripted_train_done(void);
/* Let time pass. */
void scripted_pass(uint64_t us);
/* Run until the worker wants to train; false if it never does. */
bool scripted_until_training(void);
/* Train n rounds, until the worker wants the next. */
void scripted_rounds(int n);
/* Send a message of the coordinator. */
void scripted_answer(const struct msg *m);
/* Publish the next version of fragment f: with the offered delta, or (other workers' deltas) without. */
void scripted_publish(uint32_t f, bool with_delta);

/* Check that the worker has the log's parameters. */
void scripted_check_theta(void);
/* Check that merged + residual = computed, within rounding. */
void scripted_check_nothing_lost(void);

#endif
