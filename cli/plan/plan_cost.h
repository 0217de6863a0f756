/* The costs of a round: bytes and seconds of each part. The rounds (cli/plan/plan_rounds.h) take them as given;
 * plan_cost_measure measures them on this machine. */
#ifndef CLI_PLAN_COST_H
#define CLI_PLAN_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"

/* One fragment of theta. */
struct plan_fragment {
    uint64_t floats;
    uint64_t up_bytes;   /* of a delta */
    uint64_t down_bytes; /* of an update that is not relayed */
    bool relayed;        /* the update carries the deltas themselves */
    double compress_s;   /* a worker makes a delta */
    double deliver_s;    /* the coordinator checks one */
    double merge_s;      /* it adds one to the mean */
    double outer_s;      /* it takes the outer step and encodes the update */
    double apply_s;      /* a worker applies the update of `workers` deltas */
};

struct plan_costs {
    double step_s;  /* an inner step */
    double place_s; /* copying parameters to the model before a round, and back after it */
    /* The coordinator's disk: an fsync, for each byte written since the one before it, and to write or read a byte
     * without an fsync. */
    double sync_s, sync_byte_s, byte_s;
    double save_s; /* a worker saves its state */
    uint32_t n_fragments;
    struct plan_fragment fragments[LAYOUT_FRAGMENTS_MAX];
};

/* Fills all costs except step_s, for `workers` workers and the fragments of the layout. Real codecs, merges and outer
 * steps work on random deltas; of a model above PLAN_WHOLE_FLOATS on PLAN_SAMPLE_FLOATS of them. */
enum { PLAN_WHOLE_FLOATS = 4 << 20, PLAN_SAMPLE_FLOATS = 1 << 20 };
enum status plan_cost_measure(struct plan_costs *costs, const struct config *config, const struct layout *layout,
                              uint32_t workers, struct err *err) MUST_CHECK;

/* Fills the layout of a model whose tensors are not known: one matrix. NOMEM. */
enum status plan_matrix(struct layout *layout, uint64_t params) MUST_CHECK;

#endif
