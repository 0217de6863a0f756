/* Random runs of the simulated cluster: everything about run `seed` (method, codecs, links, speeds, who joins when,
 * which faults strike when) follows from the seed. After some virtual time the faults stop; then the run has to end. */
#ifndef TESTS_LIB_SIMRANDOM_H
#define TESTS_LIB_SIMRANDOM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "tests/lib/sim/simcluster.h"

struct simrandom_plan {
    char text[512];   /* one line for people */
    bool comparable;  /* must end at the theta of the same run without faults, unless a worker was evicted */
};

struct simrandom_outcome {
    bool ended;
    struct simcluster_result result;
    struct simcheck_counts checks;
    struct simnet_counts net;
    uint64_t kills;
};

enum simrandom_flags {
    SIMRANDOM_HARSH = 1, /* of another distribution: more workers, fragments, quorums, evictions, losses and faults */
    SIMRANDOM_CALM = 2,  /* the same run without any fault */
    SIMRANDOM_TRACE = 4, /* every event is printed */
};

/* Run seed `seed`; flags: enum simrandom_flags, or-ed. explain: where a failure is printed (NULL: nowhere). */
enum status simrandom_run(uint64_t seed, unsigned flags, FILE *explain, struct simrandom_plan *plan,
                          struct simrandom_outcome *outcome) MUST_CHECK;

#endif
