/* One fragment at the coordinator, and the deltas of some workers for it: what the tests of relayed updates and of
 * unions begin with. Everything that goes wrong fails the running cmocka test. */
#ifndef TESTS_LIB_MERGE_RIG_H
#define TESTS_LIB_MERGE_RIG_H

#include "common/tensor/layout.h"
#include "coordinator/outer/outer_state.h"

enum { MERGERIG_WORKERS = 16 };

struct merge_rig {
    struct config config; /* local-sgd, with these codecs up and down */
    struct layout layout;
    struct outer_state outer;
    struct merge_delta deltas[MERGERIG_WORKERS]; /* payloads and rooms are the rig's */
    uint64_t tokens[MERGERIG_WORKERS];
    float *x; /* one vector of all parameters, to work in */
};

struct merge_rig_tensor {
    const char *name;
    uint64_t rows, cols; /* cols 0: a vector */
};

void merge_rig_open(struct merge_rig *rig, const char *up, const char *down, const struct merge_rig_tensor *tensors,
                    int n_tensors);
/* rig->x becomes the delta of `worker`. */
void merge_rig_encode(struct merge_rig *rig, uint32_t worker);
/* The first n deltas go into rig->outer.acc. */
void merge_rig_merge(struct merge_rig *rig, uint32_t n);
/* Also: nothing that was allocated is left. */
void merge_rig_close(struct merge_rig *rig);

#endif
