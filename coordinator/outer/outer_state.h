/* The numbers of the run: theta, the outer optimizer's state, the downlink residual and one accumulator, with the step
 * that turns merged deltas into an update. At most 16 bytes a parameter with one state vector (Nesterov, delayed or
 * not) and a lossy downlink, 4 more with two (AdamW); the accumulator is as large as the largest fragment, the buffer
 * for encoded bytes as the largest payload of one, or 32 MiB where several fit. */
#ifndef COORDINATOR_OUTER_STATE_H
#define COORDINATOR_OUTER_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/pool.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "compress/feedback.h"
#include "compress/merge.h"

struct codec;

struct outer_fragment {
    struct codec *up, *down; /* down: NULL when all updates are relayed */
    struct feedback residual;
    uint64_t hash;                  /* hash_floats of theta now */
    uint32_t buffered;              /* async: arrivals since the momentum moved */
    uint64_t merged, merged_tokens; /* async: deltas merged so far and their tokens */
};

struct outer_state {
    const struct config *config; /* borrowed */
    const struct layout *layout; /* borrowed */
    float *theta, *m, *v;        /* [n_params]; m, v: NULL when the optimizer has none */
    float *acc;                  /* [largest fragment] */
    struct outer_fragment *fragments;
    struct pool *pool; /* NULL: one thread */
    struct merger merger;
    struct merge_delta *deltas; /* [WIRE_NAMED_MAX] of one merge */
    uint64_t *tokens;           /* [WIRE_NAMED_MAX] */
    /* Encoded bytes, one thing at a time: a delta that arrived, or as many as fit read back from the journal, then the
     * update, with room for its object head. */
    uint8_t *payload;
    size_t payload_cap, delta_cap; /* of the buffer; of the largest delta */
    uint64_t norm_round;           /* ddp: round whose gradient norm is known, + 1 */
    double norm;
};

/* What the policy says about a step. */
struct outer_step {
    uint32_t fragment;
    uint64_t version; /* after the step: >= 1 */
    uint64_t round;
    uint64_t staleness; /* async */
    uint64_t tokens;    /* async: of the delta */
    uint32_t members;   /* async: active workers */
    double norm;        /* ddp: global norm of the merged gradient */
    bool relay;         /* the deltas are the payload already: nothing is encoded */
};

/* Allocates everything. theta is zero. Both codecs of every fragment are made here: INVALID names a bad spec. */
enum status outer_state_init(struct outer_state *s, const struct config *config, const struct layout *layout,
                             struct err *err) MUST_CHECK;
/* What it will take, outer_state_reserve for the deltas of `workers` included. Takes next to nothing itself. */
enum status outer_state_bytes(uint64_t *bytes, const struct config *config, const struct layout *layout,
                              uint32_t workers, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void outer_state_finish(struct outer_state *s);
/* theta_0: from the layout's rules and the seed, or from a Hugging Face folder (init_dir not NULL). */
enum status outer_state_fill(struct outer_state *s, const char *init_dir, struct err *err) MUST_CHECK;
/* Recompute every fragment's hash from theta. */
void outer_state_rehash(struct outer_state *s);

/* Room for `bytes` in s->payload, keeping nothing. It is sized for the usual merge at start: this grows it when all
 * deltas must be there together and there are more of them than that. NOMEM. */
enum status outer_state_reserve(struct outer_state *s, size_t bytes) MUST_CHECK;
/* codec.down auto, in one round: what all workers together would receive of the update as relayed deltas, where each of
 * the `named` gets all but its own, and as a union. */
struct outer_ways {
    uint32_t fragment, members, named; /* members: workers that get it */
    uint64_t head, deltas; /* bytes of the update but its payload and the codec's name; of all the deltas' payloads */
    uint64_t relay_bytes, union_bytes; /* out; the latter is counted, not encoded: compress/topk/union_size.h */
};

/* True: relay it. acc holds the merged delta. Decided from the log alone, in integers. */
bool outer_state_relays(const struct outer_state *s, struct outer_ways *ways);
/* acc (the first floats of s->acc) holds the merged delta: take the outer step and publish it. On OK the payload is
 * s->payload[at .. at + *size_p) (relayed: it was there before, and *size_p stays), and theta, state and hash of the
 * fragment have moved. NONFINITE: the outcome would not be finite. After an error nothing of s may be used again. */
enum status outer_state_step(struct outer_state *s, const struct outer_step *step, size_t at,
                             size_t *size_p) MUST_CHECK;
/* Where the spool keeps a delta of `fragment` while it arrives in `slot`. A slot holds a payload of every fragment, end
 * to end, each at a multiple of `align` (> 0). */
uint64_t outer_state_spool_at(const struct outer_state *s, uint32_t slot, uint32_t fragment, uint64_t align);
/* Learning rate of the outer step of a round. */
double outer_state_lr(const struct outer_state *s, uint64_t round);
/* Every number of a delta is smaller than 2^64. What is larger is damage, such as a flipped bit of an exponent: merged
 * it would be the end of theta, or of the run where the step overflows. */
bool outer_state_takes(const struct outer_state *s, const struct codec_view *view);

#endif
