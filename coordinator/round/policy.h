/* The policy table: the functions in which barrier methods and async differ. */
#ifndef COORDINATOR_POLICY_H
#define COORDINATOR_POLICY_H

#include "coordinator/round/round.h"

struct policy {
    bool barrier; /* all members share one round; false: each member has its own rounds */
    /* Whether a part with this base version may be merged: 0, or enum reject_code with *reason_p (static text). */
    uint16_t (*judge)(const struct round *r, const struct member *m, const struct round_offer *offer,
                      const char **reason_p);
    /* As round_next_close. */
    bool (*close)(const struct round *r, uint64_t now_us, struct round_close *close);
    uint64_t (*deadline_us)(const struct round *r);
    /* As round_plan. */
    enum status (*plan)(const struct round *r, uint64_t now_us, struct round_open *open);
    /* Finishes round_fold_update after the fragment's version has grown. */
    void (*updated)(struct round *r, uint32_t fragment);
    uint64_t (*done)(const struct round *r);
    bool (*over)(const struct round *r);
};

extern const struct policy policy_barrier, policy_async;

/* Counts a part of an open assignment: by 1, or by UINT32_MAX to take it out. */
void round_count_part(struct round *r, struct member *m, uint32_t fragment, uint8_t state, uint32_t by);
/* Changes a part of an open assignment, and the counts with it. */
void round_set_part(struct round *r, struct member *m, uint32_t fragment, const struct part *part);

/* Ends the member's assignment if none of its parts is in state WAITED or HELD. Unmerged work returns its lease. */
void round_settle(struct round *r, struct member *m);

/* The number of delivered parts that closes a fragment after its time limit. */
uint32_t round_quorum(const struct round *r);

#endif
