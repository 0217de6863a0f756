/* Workers that have a place in the run, by id. A place outlives connections: it is given once per uuid, is journaled,
 * and a worker that returns takes the same one. Sessions (coordinator/engine/session.h) come and go. */
#ifndef COORDINATOR_MEMBER_H
#define COORDINATOR_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "wire/msg.h"

/* Where bytes lie in the journal. */
struct journal_ref {
    uint64_t segment, offset;
};

/* One fragment of an assignment. */
enum part_state {
    PART_WAITED, /* not here yet */
    PART_HELD,   /* delivered, in the journal, not merged */
    PART_MERGED,
    PART_DROPPED, /* refused, or closed without it; `code` says why */
};

struct part {
    uint8_t state; /* enum part_state */
    uint16_t code; /* enum reject_code when dropped */
    uint64_t base_version, tokens, bytes, compute_us;
    uint32_t steps, crc;
    double loss_sum;
    float norm;
    struct journal_ref at; /* of the payload */
};

struct assignment {
    bool open;   /* some part is waited for or held */
    bool merged; /* some part was merged: the lease is committed */
    uint64_t round;
    uint32_t steps;
    double step0, step_rate;
    uint32_t n_ranges;
    struct wire_range ranges[WIRE_RANGES_MAX];
    uint64_t *versions; /* [n_fragments] */
    struct part *parts; /* [n_fragments] */
};

#define MEMBER_ASSIGNED_EARLIER UINT64_MAX /* before this process began */

struct member {
    uint32_t id; /* its index */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    bool active;         /* not evicted, has not left */
    bool in_step;        /* its last assignment was merged: the next round opens with it, heard of or not */
    uint64_t next_round; /* last round assigned + 1 */
    uint64_t *merged;    /* [n_fragments] last round merged + 1; 0: none */
    uint64_t *merged_in; /* [n_fragments] the version that merged it */
    struct assignment work;
    uint64_t tokens, steps, compute_us; /* merged so far */

    /* What its session last said. Not part of the journaled state. */
    bool ready;           /* may be given work */
    double step_s;        /* 0: not known */
    uint64_t assigned_us; /* 0: no work is open */
    uint64_t heard_us;
    bool left; /* it knows that the run is over */
};

struct member_table {
    struct member **members;
    uint32_t n, cap, n_fragments;
};

void member_table_init(struct member_table *t, uint32_t n_fragments);
void member_table_finish(struct member_table *t);
/* A new place with id n, active. LIMIT at UINT32_MAX - 1 places. */
enum status member_add(struct member_table *t, const uint8_t uuid[WIRE_UUID], const char *name,
                       struct member **member_p) MUST_CHECK;
/* NULL when there is none. */
struct member *member_by_id(const struct member_table *t, uint32_t id);
struct member *member_by_uuid(const struct member_table *t, const uint8_t uuid[WIRE_UUID]);
uint32_t member_count_active(const struct member_table *t);

#endif
