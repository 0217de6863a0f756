/* The round machine: who works on what, from which versions, what has arrived, what may be merged, what opens next.
 * Pure: no floats, sockets, files or clock. Its state changes only by the fold functions round_fold_*, one per journal
 * record, which run live and in replay alike; the questions round_judge, round_next_close and round_plan answer from
 * that state, the time, and the two volatile fields of a member. How the methods differ is behind one table
 * (coordinator/round/policy.h).
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
#include "coordinator/round/deadline.h"
#include "coordinator/round/lease.h"
#include "coordinator/round/member.h"

struct policy;

struct round_params {
    uint32_t n_fragments;
    uint32_t sync_every, max_steps, min_workers;
    uint64_t step_samples;  /* samples of one inner step */
    uint64_t sample_tokens; /* tokens of one sample */
    uint32_t quorum;        /* workers; 0: by quorum_percent */
    uint32_t quorum_percent;
    uint32_t max_staleness;
    uint64_t evict_us; /* a member not heard of for so long loses its place; 0: as measured */
    bool dynamic;      /* H follows speed */
    bool together;     /* all fragments of a round close at once */
    uint8_t form;      /* enum delta_form of this run */
};

/* Differences of running totals lose a round behind one whose loss had 38 digits, so a round has sums of its own. */
struct round_tally {
    uint64_t tokens, compute_us;
    double loss_sum;
    uint32_t merged; /* assignments, with the last of their parts */
};

struct round {
    const struct policy *policy;
    struct round_params p;
    struct member_table members;
    struct lease_book leases;
    uint64_t versions[LAYOUT_FRAGMENTS_MAX];

    /* barrier */
    uint64_t round; /* open, or next to open */
    bool open;
    bool closed[LAYOUT_FRAGMENTS_MAX];
    uint32_t n_assigned; /* when it opened */

    /* async: inner steps of all workers */
    uint64_t steps_committed, steps_outstanding;

    /* totals of what was merged */
    uint64_t tokens, worker_steps, compute_us;
    double loss_sum;
    struct round_tally recent; /* the same since somebody cleared it; not journaled, for the line of a round */

    /* Not journaled: when things happened in this process. */
    uint64_t opened_us, quorum_us[LAYOUT_FRAGMENTS_MAX]; /* 0: not yet */
    bool resumed;              /* the open round was found at a start: how long it has taken is not known */
    uint64_t idle_us;          /* somebody has been ready since while nothing is open; 0: nobody is, or something */
    struct deadline arrivals;  /* from opening to delivery */
    struct deadline durations; /* from opening to closing; async: of each member's own, to its last part */
};

/* One assignment about to be made. */
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
    struct round_grant *grants; /* caller's, room for every member */
};

/* A fragment to be merged now: the members whose parts go in, ascending. */
struct round_close {
    uint32_t fragment;
    uint32_t n;
    uint32_t ids[WIRE_NAMED_MAX];
    bool late;                   /* a time limit closed it ... */
    struct deadline_limit limit; /* ... this one */
};

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
    ROUND_ACCEPT, /* wanted */
    ROUND_HAVE,   /* held or merged already */
    ROUND_REJECT, /* refused; the part is not waited for, or was dropped before */
    ROUND_DROP,   /* refused, and the part has to be dropped (round_fold_drop) */
};

void round_init(struct round *r, const struct config *config, uint32_t n_fragments);
void round_finish(struct round *r);

/* --- folds: STATE, and nothing changed, when the record does not fit the state (a damaged journal) --- */
enum status round_fold_join(struct round *r, uint32_t id, const uint8_t uuid[WIRE_UUID], const char *name) MUST_CHECK;
/* The member loses its place; what it has not delivered is waited for no more. */
enum status round_fold_leave(struct round *r, uint32_t id) MUST_CHECK;
enum status round_fold_open(struct round *r, const struct round_open *open) MUST_CHECK;
enum status round_fold_delta(struct round *r, uint32_t id, uint64_t round, uint32_t fragment,
                             const struct part *part) MUST_CHECK;
/* fragment UINT32_MAX: every part that is still waited for. */
enum status round_fold_drop(struct round *r, uint32_t id, uint64_t round, uint32_t fragment, uint16_t code) MUST_CHECK;
enum status round_fold_update(struct round *r, uint32_t fragment, uint64_t version, const struct round_named *named,
                              uint32_t n) MUST_CHECK;

/* CORRUPT unless a decoded round is one that the folds can reach: every open assignment has its lease,
 * steps_outstanding is the sum of their steps, no member merged a version that does not exist. */
enum status round_check(const struct round *r) MUST_CHECK;

/* --- questions --- */
/* reason: static text for REJECT. */
enum round_verdict round_judge(const struct round *r, const struct member *m, const struct round_offer *offer,
                               uint16_t *code_p, const char **reason_p);
/* The next fragment to merge; false: none now. */
bool round_next_close(const struct round *r, uint64_t now_us, struct round_close *close);
/* The i-th of the parts that go in. */
const struct part *round_close_part(const struct round *r, const struct round_close *close, uint32_t i);
/* When round_next_close may change its mind without an event; UINT64_MAX: never. */
uint64_t round_deadline_us(const struct round *r);
/* Assignments to make now; n == 0: none. LIMIT at the end of the sample order. */
enum status round_plan(const struct round *r, uint64_t now_us, struct round_open *open) MUST_CHECK;
/* Rounds merged completely, of round_total; async: inner steps merged, in rounds of min_workers workers. */
uint64_t round_done(const struct round *r);
uint64_t round_total(const struct round *r);
/* Nothing is left to do but the final evaluation. */
bool round_over(const struct round *r);
uint64_t round_staleness(const struct round *r, uint32_t fragment, uint64_t base_version);
/* Any part of any assignment waited for or held. */
bool round_busy(const struct round *r);

/* --- for the shell: volatile bookkeeping (round_time.c) --- */
/* Assignments were made: their clocks start now. */
void round_note_open(struct round *r, uint64_t now_us);
/* Assignments were found in the journal at a start. Who works on them has to find the way back; nothing about them is
 * measured. */
void round_note_resume(struct round *r, uint64_t now_us);
void round_note_delivery(struct round *r, const struct member *m, uint32_t fragment, uint64_t now_us);
void round_note_close(struct round *r, uint64_t now_us);
/* For so long nobody was listened to: everything that happened before counts as that much later. */
void round_note_pause(struct round *r, uint64_t gap_us);
/* After every change: since when is somebody ready while no work is open? */
void round_note_idle(struct round *r, uint64_t now_us);

#endif
