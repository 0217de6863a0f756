/* Journal records: encoding and decoding of their bodies. Every change of the run's state is a record, and the state is
 * the fold of all records (coordinator/ledger/ledger.h). docs/recovery.md lists the bytes. */
#ifndef COORDINATOR_RECORD_H
#define COORDINATOR_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "coordinator/round/round.h"

enum record_type {
    RECORD_RUN = 1, /* the first record: run id, configuration; repeated if the configuration changes before MODEL */
    RECORD_START,   /* a coordinator process started */
    RECORD_MODEL,   /* the first JOIN: layout, data set, config.json, hashes of theta_0 */
    RECORD_MEMBER,  /* a worker joined, left or was evicted */
    RECORD_OPEN,    /* assignments */
    RECORD_DELTA,   /* a delivered delta with its payload */
    RECORD_DROP,    /* parts that will not be merged */
    RECORD_UPDATE,  /* an outer step: clock, then the object that workers download (wire/object.h) */
    RECORD_EVAL,    /* a finished evaluation */
    RECORD_DONE,
    RECORD_VAL, /* the first worker with validation data joined a run without */
    /* A region (coordinator/engine/engine_region.c): */
    RECORD_GRANT, /* upstream's assignment */
    RECORD_SEAL,  /* the deltas of the round are fixed, and may go upstream */
    RECORD_JUMP,  /* upstream's parameters were loaded; a checkpoint with them follows */
    RECORD_CLOCK, /* nothing else was written for a while: what run.max_hours and run.max_gb count stays known */

    RECORD_TAKEN, /* an operator took rounds back; the records behind it are the run's history from there on */
};

/* Running totals over all coordinator processes of the run. */
struct record_clock {
    uint64_t elapsed_us;           /* time that coordinators have served this run */
    uint64_t bytes_up, bytes_down; /* of the run: messages of workers that have joined */
    uint64_t other_up, other_down; /* other bytes on the socket: joining, status, probes, strangers */
};

struct record_run {
    uint8_t run_id[WIRE_UUID];
    uint64_t config_hash;
    const char *config_text; /* borrowed, not terminated when decoded */
    size_t config_size;
};

struct record_model {
    uint64_t train_hash, val_hash, train_samples, val_samples;
    uint32_t sample_tokens;
    const uint8_t *layout; /* layout_encode bytes */
    size_t layout_size;
    const char *model_config; /* not terminated when decoded */
    size_t model_config_size;
    uint32_t n_hashes; /* the number of fragments */
    uint64_t hashes[LAYOUT_FRAGMENTS_MAX];
    const uint8_t *frozen; /* frozen_encode bytes; NULL: a record of an older release, which compared no such tensors */
    size_t frozen_size;
    bool frozen_whole; /* checkpoints hold these tensors, too */
};

enum record_member_what { RECORD_MEMBER_JOIN, RECORD_MEMBER_LEAVE, RECORD_MEMBER_EVICT, RECORD_MEMBER_READMIT };

struct record_member {
    uint8_t what; /* enum record_member_what */
    uint32_t id;
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
};

struct record_delta {
    uint32_t id, fragment;
    uint64_t round;
    struct part part; /* without state, code and at */
    /* part.bytes of payload follow */
};

enum { RECORD_DELTA_HEAD = 68 };

struct record_open {
    struct record_clock clock;
    uint32_t n_fragments; /* of the run, not in the record: set before encoding and decoding */
    uint32_t cap;         /* set before decoding: room in open.grants */
    struct round_open open;
};

struct record_drop {
    uint32_t id, fragment; /* fragment UINT32_MAX: all parts that have not arrived */
    uint64_t round;
    uint16_t code; /* enum reject_code */
};

struct record_eval {
    struct record_clock clock;
    uint64_t round; /* rounds done */
    bool final;
    bool by_one; /* nobody checked the worker, or one of the workers */
    double loss_sum;
    uint64_t tokens;
};

struct record_val {
    uint64_t hash, samples;
};

struct record_seal {
    uint64_t round;
};

struct record_jump {
    uint32_t n_fragments;
    struct wire_version versions[LAYOUT_FRAGMENTS_MAX];
};

enum record_taken_what {
    RECORD_TAKEN_ROLLBACK, /* atoll rollback: the rounds behind `round` are gone */
    RECORD_TAKEN_EXCLUDE,  /* atoll exclude: they were merged again without a worker's deltas */
};

struct record_taken {
    uint8_t what;             /* enum record_taken_what */
    uint64_t time_s;          /* since the epoch */
    uint64_t round;           /* rounds that are as before */
    uint64_t before;          /* rounds that the run had */
    char name[WIRE_NAME_MAX]; /* of the excluded worker; rollback: "" */
};

enum { RECORD_CLOCK_BYTES = 40, RECORD_SMALL_MAX = 256 };

extern const struct field record_clock_fields[], record_run_fields[], record_taken_fields[];

/* "RUN"; NULL: an unknown number. */
const char *record_name(uint16_t type);
/* The first rows of a body; record_more: rows that some bodies have behind them, or NULL:
 * MODEL: once, if `frozen` is not NULL. OPEN: once for each grant. */
const struct field *record_fields(enum record_type type);
const struct field *record_more(enum record_type type);

/* record: struct record_X of the type, record_clock of DONE, CLOCK and UPDATE, NULL of START,
 * round_upstream of GRANT. */
size_t record_size(enum record_type type, const void *record);
/* DELTA and UPDATE: the caller appends the payload or the object. Sets w->bad when the buffer is too small. */
void record_encode(enum record_type type, const void *record, struct writer *w);
/* Decodes into a zeroed struct. DELTA: a body with or without payload. UPDATE: the clock, and the object is not read.
 * CORRUPT for malformed bodies. */
enum status record_decode(enum record_type type, void *record, const uint8_t *body, size_t size) MUST_CHECK;

#endif
