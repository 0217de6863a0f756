/* One fragment at the coordinator, and the deltas of some workers for it: what the tests of relayed updates and of
 * unions begin with. Everything that goes wrong fails the running cmocka test. */
#ifndef TESTS_LIB_MERGERIG_H
#define TESTS_LIB_MERGERIG_H

#include "common/tensor/layout.h"
#include "coordinator/outer/outer_state.h"

enum { MERGERIG_WORKERS = 16 };

struct mergerig {
    struct config config; /* local-sgd, with these codecs up and down */
    struct layout layout;
    struct outer_state outer;
    struct merge_delta deltas[MERGERIG_WORKERS]; /* payloads and rooms are the rig's */
    uint64_t tokens[MERGERIG_WORKERS];
    float *x; /* one vector of all parameters, to work in */
};

struct mergerig_tensor {
    const char *name;
    uint64_t rows, cols; /* cols 0: a vector */
};

void mergerig_open(struct mergerig *rig, const char *up, const char *down, const struct mergerig_tensor *tensors,
                   int n_tensors);
/* rig->x becomes the delta of `worker`. */
void mergerig_encode(struct mergerig *rig, uint32_t worker);
/* The first n deltas go into rig->outer.acc. */
void mergerig_merge(struct mergerig *rig, uint32_t n);
/* Also: nothing that was allocated is left. */
void mergerig_close(struct mergerig *rig);

#endif
