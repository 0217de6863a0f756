/* The round machine: assigns work, tracks arrivals, decides what is merged and which round opens next.
 *
 * - Pure: no sockets, files or clock, and no arithmetic on parameters.
 * - Its state changes only by the fold functions round_fold_*, one per journal record. They run the same way live and
 *   in replay.
 * - The questions round_judge, round_next_close and round_plan read that state, the time and a member's volatile
 *   fields. They change nothing.
 * - The methods differ in one table, struct policy (coordinator/round/policy.h):
 *
 *     barrier: round r opens with a set of members -> their parts arrive -> each fragment closes -> r + 1 opens
 *     async:   each member has its own rounds; every part that arrives closes its fragment at once */
#ifndef COORDINATOR_ROUND_H
#define COORDINATOR_ROUND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/config/sync_points.h"
#include "coordinator/round/deadline.h"
#include "coordinator/round/gate.h"
#include "coordinator/round/lease.h"
#include "coordinator/round/member.h"

struct policy;

struct round_params {
    uint32_t n_fragments;
    uint32_t sync_every, max_steps, start_step, min_workers;
    uint64_t step_samples;  /* samples of one inner step */
    uint64_t sample_tokens; /* tokens of one sample */
    bool any_length;        /* samples may have fewer tokens (model.family external) */
    uint32_t quorum;        /* workers; 0: by quorum_percent */
    uint32_t quorum_percent;
    uint32_t max_staleness;
    uint64_t evict_us; /* a member that is silent for this long is evicted; 0: the limit is measured */
    bool dynamic;      /* H follows the worker's speed */
    uint32_t overlap;  /* train.overlap */
    uint64_t grace_us; /* async: outer.grace; UINT64_MAX: auto */
    bool together;     /* all fragments of a round close at once */
    uint8_t form;      /* enum delta_form of trained tensors */
    uint8_t form_of_means;
    struct gate_rule gate;
    bool clips; /* merge.clip is on */
};

/* Sums since the last round line. Differences of running totals would lose precision after one huge loss. */
enum { ROUND_STALENESS = 8 };

struct round_tally {
    uint64_t tokens, compute_us, loss_tokens; /* loss_tokens: of the deltas whose loss is known */
    double loss_sum;
    uint32_t merged;                 /* assignments whose last part was merged */
    uint64_t stale[ROUND_STALENESS]; /* assignments by the staleness of their first merged part; the last: or more */
};

/* A region: its outer step is taken by the run upstream, which also grants the samples (round_region.c). */
struct round_region {
    bool on;          /* round_follow */
    bool sealed;      /* the deltas of the open round are fixed: upstream may get them */
    uint64_t granted; /* the last round with a grant, + 1; 0: none */
    uint32_t steps;   /* of each worker in it */
    double step0, step_rate;
};

/* What upstream grants for a round: an assignment. */
struct round_upstream {
    uint64_t round;
    uint32_t steps;
    double step0, step_rate;
    bool kept; /* upstream merged the grant before: positions of it that no worker used stay the region's */
    uint32_t n_ranges;
    struct wire_range ranges[WIRE_RANGES_MAX];
};

/* Parts of one fragment in open assignments. */
struct round_count {
    uint32_t waited, held;
};

struct round {
    const struct policy *policy;
    struct round_params p;
    struct member_table members;
    struct lease_book leases;
    uint32_t first_mean; /* fragments from here on hold mean tensors; the ledger sets it after round_init */
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    /* Where train.max_steps was raised (struct sync_rounds). */
    uint64_t again;
    uint32_t again_steps, again_before;
    uint64_t clock_us; /* record_clock time of the last record that has one; the ledger sets it before a fold */

    /* barrier */
    uint64_t round; /* open, or next to open */
    bool open;
    bool closed[LAYOUT_FRAGMENTS_MAX];
    uint32_t n_assigned; /* members assigned when the round opened */
    struct round_region region;

    /* async: inner steps of all workers */
    uint64_t steps_committed, steps_outstanding;

    /* What the folds keep, so that no message costs a pass over members or fragments (round_recount). */
    struct round_count counts[LAYOUT_FRAGMENTS_MAX];
    uint32_t n_open; /* open assignments */
    uint32_t n_free; /* active members without one */

    /* totals of merged work */
    uint64_t tokens, worker_steps, compute_us;
    double loss_sum;
    struct round_tally recent; /* since the caller last cleared it; not journaled, for the round line */

    /* Not journaled: times of this process. */
    uint64_t opened_us, quorum_us[LAYOUT_FRAGMENTS_MAX]; /* 0: not yet */
    uint64_t updated_us[LAYOUT_FRAGMENTS_MAX];           /* the last update; 0: none */
    double beat_s;                                       /* async (coordinator/round/beat.h); 0: unknown */
    bool resumed;              /* the open round comes from the journal: its opening time is unknown */
    uint64_t idle_us;          /* a member has been ready since then and no work is open; 0: not idle */
    struct deadline arrivals;  /* from opening to delivery */
    struct deadline durations; /* from opening to closing; async: from assignment to a member's last part */
};

/* One planned assignment. */
struct round_grant {
    uint32_t id;
    uint64_t round;
    uint32_t steps;
    double step0, step_rate;
    uint32_t n_ranges;
    struct wire_range ranges[WIRE_RANGES_MAX];
};

struct round_open {
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];
    uint32_t n;
    struct round_grant *grants; /* [members], owned by the caller */
};

/* A fragment to merge now, with the ids of the members whose parts are merged, ascending. */
struct round_close {
    uint32_t fragment;
    uint32_t n;
    uint32_t ids[WIRE_NAMED_MAX];
    bool late;                   /* the time limit closed it */
    struct deadline_limit limit; /* that limit */
};

struct round_peers {
    const struct round_close *close;
    struct gate_sample samples[WIRE_NAMED_MAX];
    uint32_t n;
    double reach, expected; /* the last answer of gate_expected: most deltas of a round have the same reach */
};

/* One delta that an update names: worker id and round. */
struct round_named {
    uint32_t id;
    uint64_t round;
};

struct round_offer {
    uint64_t round, base_version, bytes, tokens;
    uint32_t fragment, steps;
    uint8_t form;
};

enum round_verdict {
    ROUND_ACCEPT, /* the coordinator waits for this part */
    ROUND_HAVE,   /* held or merged already */
    ROUND_REJECT, /* refused; the coordinator does not wait for this part */
    ROUND_DROP,   /* refused; the caller drops the part (round_fold_drop) */
};

void round_init(struct round *r, const struct config *config, uint32_t n_fragments);
void round_finish(struct round *r);

/* --- folds: a record that contradicts the state (a damaged journal) returns STATE and changes nothing --- */
/* The worker gets its own place, a vacant one, or the next new one. */
enum status round_fold_join(struct round *r, uint32_t id, const uint8_t uuid[WIRE_UUID], const char *name) MUST_CHECK;
/* The member loses its place; its undelivered parts are dropped. */
enum status round_fold_leave(struct round *r, uint32_t id) MUST_CHECK;
enum status round_fold_open(struct round *r, const struct round_open *open) MUST_CHECK;
enum status round_fold_delta(struct round *r, uint32_t id, uint64_t round, uint32_t fragment,
                             const struct part *part) MUST_CHECK;
/* Drops one part that has not arrived; fragment UINT32_MAX drops all of them. */
enum status round_fold_drop(struct round *r, uint32_t id, uint64_t round, uint32_t fragment, uint16_t code) MUST_CHECK;
/* Ends a member's row of refused deltas: it gets work again. */
enum status round_fold_readmit(struct round *r, uint32_t id) MUST_CHECK;
/* The settings of the run changed (--change), or were read again. */
void round_fold_settings(struct round *r, const struct config *config);
/* A region: n may be 0, and the round need not be open. Held parts that are not named are dropped. */
enum status round_fold_update(struct round *r, uint32_t fragment, uint64_t version, const struct round_named *named,
                              uint32_t n) MUST_CHECK;

/* --- folds of a region (round_region.c) --- */
/* Makes a new round that of a region. Call it again after the settings changed. */
void round_follow(struct round *r);
/* The round may open with these samples. Granted again: its open work is dropped. */
enum status round_fold_grant(struct round *r, const struct round_upstream *grant) MUST_CHECK;
/* No delta joins the open round any more: the parts of members that have not delivered all of them are dropped. */
enum status round_fold_seal(struct round *r, uint64_t round) MUST_CHECK;
/* Upstream's parameters were loaded at these versions: all open work is dropped. */
void round_fold_jump(struct round *r, const uint64_t *versions);
/* The member has delivered all parts of the open round. */
bool round_is_complete(const struct round *r, const struct member *m);
/* Workers for which a round needs samples, those behind members included. */
uint32_t round_count_workers(const struct round *r);

/* Checks a decoded round; CORRUPT when the folds cannot reach it:
 * - every open, unmerged assignment has its lease;
 * - steps_outstanding is the sum of the steps of open assignments;
 * - no member was merged in a version that does not exist. */
enum status round_check(const struct round *r) MUST_CHECK;
/* Counts all that the folds keep: parts, open assignments, active and free members. For a decoded round. */
void round_recount(struct round *r);
/* What the folds kept equals a new count. For tests. */
bool round_counts_hold(const struct round *r);

/* --- questions --- */
/* Judges an offered part. REJECT and DROP set *code_p and *reason_p (static text). */
enum round_verdict round_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                               uint16_t *code_p, const char **reason_p);
/* The workers behind a member, itself included: those of its heartbeat, otherwise those of its last assignment. */
uint32_t round_workers(const struct round *r, const struct member *m);
/* The next fragment to merge; false: none now. */
bool round_next_close(const struct round *r, uint64_t now_us, struct round_close *close);
/* The part of close->ids[i]. */
const struct part *round_close_part(const struct round *r, const struct round_close *close, uint32_t i);
/* Norm of the delta of close->ids[i] over the norm that the other workers expect. async: from the last delta of each
 * active member (coordinator/round/gate.h); otherwise the median of the round. 0: fewer than three workers. */
double round_excess(const struct round *r, struct round_peers *p, uint32_t i);
/* The deltas that those of a close are compared with; borrows `close`. */
void round_peers_of(const struct round *r, const struct round_close *close, struct round_peers *p);
/* The time at which round_next_close or round_plan may answer differently without an event; UINT64_MAX: never. */
uint64_t round_deadline_us(const struct round *r);
/* Plans the assignments to make now into *open; open->n == 0: none. LIMIT at the end of the sample order. */
enum status round_plan(const struct round *r, uint64_t now_us, struct round_open *open) MUST_CHECK;
/* Completely merged rounds, at most round_total. async: merged inner steps / (sync_every x min_workers). */
uint64_t round_done(const struct round *r);
uint64_t round_total(const struct round *r);
/* The steps of round `round` (common/config/sync_points.h). */
struct sync_round round_span(const struct round *r, uint64_t round);
/* All work is merged; only the final evaluation is left. */
bool round_over(const struct round *r);
/* Rounds that base_version is behind: updates since then / active members. */
uint64_t round_staleness(const struct round *r, uint32_t fragment, uint64_t base_version);
/* Some assignment is open: one of its parts is missing, or held and not merged. */
bool round_busy(const struct round *r);

/* --- for the shell: volatile bookkeeping (round_time.c) --- */
/* Starts the clocks of new assignments. */
void round_note_open(struct round *r, uint64_t now_us);
/* Starts the clocks of assignments that were read from the journal. Their workers must reconnect first, so their times
 * are not measured. */
void round_note_resume(struct round *r, uint64_t now_us);
/* The member offers a part of its open assignment. */
void round_note_offer(struct round *r, const struct member *m, uint64_t now_us);
/* async: when the last part of the member's open assignment is expected; NaN: unknown. */
double round_expected_us(const struct round *r, const struct member *m);
/* A part is held. The last one measures the member's speed: an offer alone proves no work. */
void round_note_delivery(struct round *r, const struct member *m, uint32_t fragment, uint64_t now_us);
void round_note_close(struct round *r, uint64_t now_us);
/* An update of the fragment was published. */
void round_note_update(struct round *r, uint32_t fragment, uint64_t now_us);
/* The member's worker holds this version of the fragment, or a later one. */
void round_note_have(struct round *r, uint32_t id, uint32_t fragment, uint64_t version);
/* Moves all noted times gap_us later: the coordinator read no messages during that gap. */
void round_note_pause(struct round *r, uint64_t gap_us);
/* Updates idle_us; the caller calls it after every change. */
void round_note_idle(struct round *r, uint64_t now_us);

#endif
