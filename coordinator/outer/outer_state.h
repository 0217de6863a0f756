/* The outer state: theta, the outer optimizer's vectors, the downlink residual and one accumulator, with the step that
 * turns merged deltas into an update.
 *
 * Memory in bytes per parameter: theta 4; momentum (Nesterov) and residual (lossy downlink) 2 each in bf16, 4 each in
 * fp32 (outer.state); AdamW's two vectors 8. The accumulator has the size of the largest fragment. The payload buffer
 * has the size of the largest payload, or 32 MiB if several payloads fit into that. */
#ifndef COORDINATOR_OUTER_STATE_H
#define COORDINATOR_OUTER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/pool.h"
#include "common/base/status.h"
#include "common/config/codec_choice.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "compress/feedback.h"
#include "compress/merge.h"
#include "coordinator/outer/outer_report.h"

struct codec;
struct update; /* wire/object.h */

struct outer_fragment {
    struct codec *up, *down;               /* up: of deltas in the journal; down: NULL if all updates are relayed */
    struct codec *arriving[CONFIG_UP_MAX]; /* codec.up_allowed: of deltas that arrive (coordinator/outer/arrival.h) */
    uint32_t n_arriving;                   /* 0: they arrive as they are journaled */
    struct feedback residual;
    uint16_t *owed; /* [count] the residual in bf16, in place of residual.residual (outer.state); or NULL */
    uint64_t hash;  /* hash_floats of the current theta */
};

struct outer_state {
    const struct config *config; /* borrowed */
    const struct layout *layout; /* borrowed */
    float *theta, *m, *v;        /* [n_params]; m, v: NULL if the optimizer does not use them */
    uint16_t *m_half;            /* [n_params] momentum in bf16, in place of m (outer.state); or NULL */
    float *acc;                  /* [largest fragment] */
    struct outer_fragment *fragments;
    int file;          /* borrowed: holds theta and the arrays of the state; -1: they are in memory */
    struct pool *pool; /* NULL: one thread */
    struct merger merger;
    struct merge_delta *deltas; /* [WIRE_NAMED_MAX], of one merge */
    uint64_t *tokens;           /* [WIRE_NAMED_MAX] */
    double *squares;            /* [most parts of a codec] sums of squares of one delta */
    /* [payload_cap] encoded bytes. Used in turn for an incoming delta, for deltas read from the journal (as many as
     * fit), and for the update with its object head. */
    uint8_t *payload;
    size_t payload_cap, delta_cap; /* bytes of the buffer; bytes of the largest delta */
    uint64_t norm_round;           /* ddp: round of `norm`, + 1 */
    double norm;                   /* ddp: global norm of the merged gradient */
    double lr;                     /* of the latest outer step */
    struct outer_sums sums;        /* of the latest outer step */
    struct outer_sums *cells;      /* [outer_cells of the largest fragment] parts of the dot products */
};

/* Parameters of one outer step. */
struct outer_step {
    uint32_t fragment;
    uint64_t version; /* after the step: >= 1 */
    uint64_t round;
    uint64_t steps;   /* async: inner steps of the merged deltas */
    double fresh;     /* async: the sum of (1 + staleness)^-1/2 over them */
    uint32_t members; /* async: active workers */
    double norm;      /* ddp: global norm of the merged gradient */
    bool relay;       /* the deltas themselves are the payload: nothing is encoded */
};

/* Allocates all buffers and creates both codecs of every fragment; theta is zero. INVALID: a bad codec spec, named in
 * the text. NOMEM. */
enum status outer_state_init(struct outer_state *s, const struct config *config, const struct layout *layout,
                             struct err *err) MUST_CHECK;
/* The same with theta[n_params] of the caller, which it takes, also on failure. NULL: it allocates theta. `file` not
 * -1: theta and the arrays of the state are in that open file, mapped (coordinator/outer/outer_arrays.h). */
enum status outer_state_init_with(struct outer_state *s, const struct config *config, const struct layout *layout,
                                  int file, float *theta, struct err *err) MUST_CHECK;
/* Computes the bytes that outer_state_init will allocate, plus outer_state_reserve for the deltas of `workers`. Needs
 * little memory itself. */
enum status outer_state_bytes(uint64_t *bytes, const struct config *config, const struct layout *layout,
                              uint32_t workers, struct err *err) MUST_CHECK;
/* Most bytes that a coordinator needs beside these: deltas that arrive or wait for their merge, and encoded chunks. */
uint64_t outer_buffer_bytes(uint32_t workers, uint64_t n_params);
/* Accepts a zeroed struct. */
void outer_state_finish(struct outer_state *s);
/* Sets theta_0: from the layout's rules and the seed, or from a Hugging Face folder (init_dir not NULL). */
enum status outer_state_fill(struct outer_state *s, const char *init_dir, struct err *err) MUST_CHECK;
/* A region: the outer step is taken elsewhere. Frees the state of the optimizer and the residuals. */
void outer_state_follow(struct outer_state *s);
/* Applies an update as a worker does. CORRUPT, NONFINITE: not an update of this run; nothing changed. MISMATCH: theta
 * has another hash afterwards. */
enum status outer_state_apply(struct outer_state *s, const struct update *u) MUST_CHECK;
/* Recomputes the hash of every fragment from theta. */
void outer_state_rehash(struct outer_state *s);

/* Grows s->payload to `bytes`; its content is lost. The buffer is sized for the usual merge. It must grow if all deltas
 * have to be in memory together and are more than usual. NOMEM. */
enum status outer_state_reserve(struct outer_state *s, size_t bytes) MUST_CHECK;
/* codec.down auto, one round: the bytes to all workers together, as relayed deltas and as a union. A worker that is
 * named in the update gets all deltas except its own. */
struct outer_ways {
    uint32_t fragment, members, named; /* members: workers that receive the update; named: deltas in it */
    uint64_t head, deltas;             /* bytes of the update without payload and codec name; bytes of all deltas */
    uint64_t relay_bytes, union_bytes; /* out; union_bytes is counted, not encoded: compress/topk/union_size.h */
};

/* Fills relay_bytes and union_bytes; true: relay the deltas. s->acc contains the merged delta. The result depends on
 * the journal alone and uses integers only. */
bool outer_state_relays(const struct outer_state *s, struct outer_ways *ways);
/* Takes the outer step with the merged delta in s->acc (its first floats) and publishes it.
 * - OK: the payload is s->payload[at .. at + *size_p); theta, state and hash of the fragment are updated. With `relay`
 *   the caller has put the payload there, and *size_p stays.
 * - NONFINITE: the result would not be finite.
 * - After an error the caller must not use s again. */
enum status outer_state_step(struct outer_state *s, const struct outer_step *step, size_t at,
                             size_t *size_p) MUST_CHECK;
/* The spool offset of an incoming delta of `fragment` in `slot`. A slot has space for one payload of every fragment,
 * concatenated, each at a multiple of `align` (> 0). */
uint64_t outer_state_spool_at(const struct outer_state *s, uint32_t slot, uint32_t fragment, uint64_t align);
/* Whether the outer step of a round is the plain mean of the workers' parameters (train.start_step): rate 1, and the
 * state vectors stay as they are. */
bool outer_state_averages(const struct outer_state *s, uint64_t round);
/* The learning rate of an outer step before it is taken, as configured (ddp: by inner.schedule); mean tensors and
 * averaged rounds: 1. */
double outer_state_lr(const struct outer_state *s, const struct outer_step *step);
/* Cells of a fragment of `count` floats. Each cell is summed by one thread, so sums have one order. */
size_t outer_cells(size_t count);

#endif
