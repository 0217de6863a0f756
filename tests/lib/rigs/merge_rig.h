/* One fragment at the coordinator, and deltas of several workers for it, for the tests of relayed updates and
 * unions. An error fails the running cmocka test. */
#ifndef TESTS_LIB_MERGE_RIG_H
#define TESTS_LIB_MERGE_RIG_H

#include "common/tensor/layout.h"
#include "coordinator/outer/outer_state.h"

enum { MERGERIG_WORKERS = 16 };

struct merge_rig {
    struct config config; /* local-sgd, with these codecs up and down */
    struct layout layout;
    struct outer_state outer;
    struct merge_delta deltas[MERGERIG_WORKERS]; /* the rig owns payloads and buffers */
    uint64_t tokens[MERGERIG_WORKERS];
    float *x; /* scratch: one vector of all parameters */
};

struct merge_rig_tensor {
    const char *name;
    uint64_t rows, cols; /* cols 0: a vector */
};

void merge_rig_open(struct merge_rig *rig, const char *up, const char *down, const struct merge_rig_tensor *tensors,
                    int n_tensors);
/* Encode rig->x as the delta of `worker`. */
void merge_rig_encode(struct merge_rig *rig, uint32_t worker);
/* Merge the first n deltas into rig->outer.acc. */
void merge_rig_merge(struct merge_rig *rig, uint32_t n);
/* Also fails the test if memory leaks. */
void merge_rig_close(struct merge_rig *rig);

#endif
