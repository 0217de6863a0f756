/* What makes one method of merging differ from another. */
#ifndef COORDINATOR_POLICY_H
#define COORDINATOR_POLICY_H

#include "coordinator/round/round.h"

struct policy {
    bool barrier; /* one round of all members at a time; false: each member has rounds of its own */
    /* May a waited-for part of this base be merged? 0, or enum reject_code with *reason_p. */
    uint16_t (*judge)(const struct round *r, const struct member *m, const struct round_offer *offer,
                      const char **reason_p);
    /* As round_next_close. */
    bool (*close)(const struct round *r, uint64_t now_us, struct round_close *close);
    uint64_t (*deadline_us)(const struct round *r);
    /* As round_plan. */
    enum status (*plan)(const struct round *r, uint64_t now_us, struct round_open *open);
    /* After a fragment took its step: the rest of the fold. */
    void (*updated)(struct round *r, uint32_t fragment);
    uint64_t (*done)(const struct round *r);
    bool (*over)(const struct round *r);
};

extern const struct policy policy_barrier, policy_async;

/* For policies: an assignment with no part waited for or held ends; unmerged work gives its lease back. */
void round_settle(struct round *r, struct member *m);

/* Delivered parts of a fragment that are enough to close it once its time limit has passed. */
uint32_t round_quorum(const struct round *r);

#endif
