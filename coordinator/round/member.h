/* The table of members: workers with a place in the run, by id. A place belongs to one uuid, is journaled and outlives
 * connections: a worker that returns gets the same place. A session (coordinator/engine/state/session.h) is one
 * connection.
 *
 * A member that left or was evicted before any of its work was merged keeps its place only until another worker needs
 * one. So the table grows with the workers that contribute, and not with joins. */
#ifndef COORDINATOR_MEMBER_H
#define COORDINATOR_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/round/gate.h"
#include "wire/msg.h"

/* A position in the journal. */
struct journal_ref {
    uint64_t segment, offset;
};

/* One fragment of an assignment. */
enum part_state {
    PART_WAITED, /* has not arrived */
    PART_HELD,   /* delivered, in the journal, not merged */
    PART_MERGED,
    PART_DROPPED, /* refused, or the fragment closed without it; `code` is the reason */
};

struct part {
    uint8_t state; /* enum part_state */
    uint16_t code; /* enum reject_code when dropped */
    uint64_t base_version, tokens, bytes, compute_us;
    uint32_t steps, crc;
    double loss_sum;
    float norm;
    struct journal_ref at; /* of the payload */
    uint64_t held_us;      /* async: when it was delivered; volatile, 0: by an earlier process */
    uint32_t place;        /* of the payload in memory (coordinator/outer/held.h); volatile, 0: none */
};

struct assignment {
    bool open;             /* at least one part is in state WAITED or HELD */
    uint32_t waited, held; /* while open: parts in these states (round_recount) */
    bool merged;           /* at least one part was merged: the lease is committed */
    uint64_t round;
    uint32_t steps;
    double step0, step_rate;
    double peak; /* of the inner learning rate: the largest since it was assigned */
    uint32_t n_ranges;
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint64_t *versions; /* [n_fragments] */
    struct part *parts; /* [n_fragments] */
};

#define MEMBER_ASSIGNED_EARLIER UINT64_MAX /* assigned before this process started */

enum { MEMBER_SPEEDS = 64 };

/* Seconds of an assignment. */
struct member_times {
    double step_s; /* of one inner step; 0: unknown */
    /* async: from the beginning to the first OFFER, beside the steps; from there to the last part */
    double down_s, up_s;
};

/* The latest measured assignments of a member (round_note_delivery). */
struct member_speed {
    struct {
        struct member_times times;
        double all_s;    /* of all steps */
    } at[MEMBER_SPEEDS]; /* ring */
    uint32_t n, next;
    struct member_times usual; /* medians of the latest that took 10 s together, at least of three */
};

struct member {
    uint32_t id, n_fragments; /* its index; the length of the arrays below */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    bool active;  /* has neither left nor been evicted */
    bool in_step; /* its last assignment was merged or refused for its content: the next round opens with it, connected
                     or not */
    uint64_t next_round;      /* last round assigned + 1 */
    uint64_t *merged;         /* [n_fragments] last round merged + 1; 0: none */
    uint64_t *merged_in;      /* [n_fragments] the version that merged it */
    uint64_t *have;           /* [n_fragments] volatile: the version that its worker holds + 1; 0: unknown */
    struct gate_sample *last; /* [n_fragments] async: its last merged delta */
    struct assignment work;
    uint64_t tokens, steps, compute_us; /* merged so far */
    uint32_t strikes;                   /* assignments in a row that were not finite; a merged one ends the row */
    uint64_t struck_us;                 /* record_clock time of the last of them */

    /* Volatile: from its session, not part of the journaled state. */
    bool ready;       /* can take an assignment */
    uint32_t workers; /* behind this one: a region; 0: unknown */
    struct member_speed speed;
    uint64_t assigned_us;   /* 0: no work is open */
    uint64_t offered_us;    /* time of the first OFFER of that work; 0: none */
    uint32_t offered_tail;  /* inner steps that its worker trains after that OFFER (train.overlap) */
    uint64_t before_us;     /* offered_us of the work before; 0: none */
    uint32_t before_tail;   /* offered_tail of the work before */
    uint64_t heard_us;      /* time of its last message */
    uint32_t records;       /* step records that METRICS may still bring */
    bool left;              /* the worker has acknowledged the end of the run */
    char refused[160];      /* why its last delta was refused for its values */
    uint32_t clipped;       /* rounds in a row whose delta was clipped */
    uint64_t clipped_round; /* the last of them + 1; 0: none */
    double norm_ratio;      /* round_excess of its last delta; 0: unknown */
    bool data_known[2];     /* its hash of the training and validation tokens was counted */
    /* For alerts: part i-th last rounds without a merged delta (bits), its merged steps at the last round's end. */
    uint32_t missed;
    uint64_t seen_steps;
    bool expected;    /* it had a part in a round of this process and has not left since */
    bool false_evals; /* one of its evaluations was proven wrong: it evaluates no more */
};

enum { MEMBERS_MAX = 1 << 16 }; /* their encoded state, with 256 fragments each, fits into a checkpoint's head */

struct member_table {
    struct member **members;
    uint32_t n, cap, n_fragments;
    uint32_t n_active; /* kept by the folds of the round (round_recount) */
};

void member_table_init(struct member_table *t, uint32_t n_fragments);
void member_table_finish(struct member_table *t);
/* Adds an active member with id n. LIMIT when the table is full (MEMBERS_MAX), NOMEM. */
enum status member_add(struct member_table *t, const uint8_t uuid[WIRE_UUID], const char *name,
                       struct member **member_p) MUST_CHECK;
/* The member is gone, and none of its work was merged or can be: another worker may get its place. */
bool member_is_vacant(const struct member *m);
/* Gives a vacant place to another worker. next_round stays, so that (id, round) names one assignment only. */
void member_replace(struct member *m, const uint8_t uuid[WIRE_UUID], const char *name);
/* The place of a new worker: the lowest vacant one, otherwise n; UINT32_MAX: all places are taken. */
uint32_t member_free_place(const struct member_table *t);
/* NULL: there is no such member. */
struct member *member_by_id(const struct member_table *t, uint32_t id);
struct member *member_by_uuid(const struct member_table *t, const uint8_t uuid[WIRE_UUID]);
uint32_t member_count_active(const struct member_table *t);
/* The part of this fragment is in this state, and the assignment is open. */
bool member_has(const struct member *m, uint32_t fragment, enum part_state state);
/* A part of its open assignment has not arrived. */
bool member_waits(const struct member *m);
/* The member after m, by id; m NULL: the first. NULL: none. */
struct member *member_next(const struct member_table *t, const struct member *m);
/* A loop over all members, by id; m: the name of its variable. */
#define for_each_member(table, m) for (struct member *m = member_next((table), NULL); m; m = member_next((table), m))
/* Adds an assignment of `steps` inner steps, and computes the medians. One assignment with an outage does not change
 * them, and short ones on a busy machine scatter less together. */
void member_speed_add(struct member_speed *s, const struct member_times *times, uint32_t steps);

#endif
