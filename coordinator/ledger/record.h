/* Journal records: encoding and decoding of their bodies. Every change of the run's state is a record, and the state is
 * the fold of all records (coordinator/ledger/ledger.h). Little-endian; strings are u16 length + bytes. */
#ifndef COORDINATOR_RECORD_H
#define COORDINATOR_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"
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

enum { RECORD_CLOCK_BYTES = 40, RECORD_SMALL_MAX = 256 };

void record_clock_encode(const struct record_clock *c, struct writer *w);
void record_clock_decode(struct record_clock *c, struct reader *r);

/* Encoders set w->bad when the buffer is too small. Decoders return CORRUPT for malformed bodies. */
size_t record_run_size(const struct record_run *m);
void record_run_encode(const struct record_run *m, struct writer *w);
enum status record_run_decode(struct record_run *m, const uint8_t *body, size_t size) MUST_CHECK;
size_t record_model_size(const struct record_model *m);
void record_model_encode(const struct record_model *m, struct writer *w);
/* The first fields of the same encoding, up to sample_tokens. */
void record_model_head_encode(const struct record_model *m, struct writer *w);
enum status record_model_decode(struct record_model *m, const uint8_t *body, size_t size) MUST_CHECK;
void record_val_encode(const struct record_val *m, struct writer *w);
enum status record_val_decode(struct record_val *m, const uint8_t *body, size_t size) MUST_CHECK;
void record_member_encode(const struct record_member *m, struct writer *w);
enum status record_member_decode(struct record_member *m, const uint8_t *body, size_t size) MUST_CHECK;
size_t record_open_size(const struct round_open *open, uint32_t n_fragments);
void record_open_encode(const struct round_open *open, uint32_t n_fragments, const struct record_clock *clock,
                        struct writer *w);
/* open->grants: [cap]. */
enum status record_open_decode(struct round_open *open, uint32_t cap, uint32_t n_fragments, struct record_clock *clock,
                               const uint8_t *body, size_t size) MUST_CHECK;
/* The head only; the caller appends the payload. Decoding accepts a body with or without payload. */
void record_delta_encode(const struct record_delta *m, struct writer *w);
enum status record_delta_decode(struct record_delta *m, const uint8_t *body, size_t size) MUST_CHECK;
void record_drop_encode(const struct record_drop *m, struct writer *w);
enum status record_drop_decode(struct record_drop *m, const uint8_t *body, size_t size) MUST_CHECK;
void record_eval_encode(const struct record_eval *m, struct writer *w);
enum status record_eval_decode(struct record_eval *m, const uint8_t *body, size_t size) MUST_CHECK;

#endif
