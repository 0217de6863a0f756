/* Connections of workers that have joined, and what each last said. Sessions are not part of the run: they end with the
 * process, with silence, or when the same worker joins again. */
#ifndef COORDINATOR_SESSION_H
#define COORDINATOR_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/engine/download.h"
#include "coordinator/engine/upload.h"
#include "wire/msg.h"

#define SESSION_NO_MEMBER UINT32_MAX
#define SESSION_NO_PEER UINT64_MAX

/* The last delta of a fragment that came whole in this session. Its worker keeps the bytes until an update names it. */
struct session_own {
    uint64_t round;             /* + 1; 0: none */
    uint64_t version, from, to; /* where it lies in the update that relays it; version 0: in none */
};

struct session {
    uint64_t id; /* random; 0: slot is free */
    uint8_t uuid[WIRE_UUID];
    char name[WIRE_NAME_MAX];
    char devices[WIRE_NAME_MAX]; /* what it computes on, as it said */
    uint32_t member;             /* id of its place, SESSION_NO_MEMBER before the first round */
    uint64_t control, bulk;      /* peers; SESSION_NO_PEER: not connected */
    uint64_t joined_us, heard_us;
    uint64_t moved_us;                /* when its work last went on: another state or step, or bytes of a delta */
    uint64_t before;                  /* id of the session it replaced; 0: none */
    uint32_t times;                   /* sessions in a row that were replaced soon after they began, up to this one */
    struct msg_heartbeat last;        /* zeros before the first one */
    bool beating;                     /* a heartbeat has come */
    bool silent;                      /* said so in the log */
    uint64_t ready_us;                /* since when it may be given work; 0: it may not */
    uint64_t step_round, step_tokens; /* tokens of the steps reported of the round it trains */
    uint32_t last_step;               /* of these */
    uint64_t skips, skips_said_us;    /* steps it skipped that were not told of yet; when some were: 0: never */
    struct download download;
    struct upload *uploads;  /* [n_fragments], owned */
    struct session_own *own; /* [n_fragments], owned */
};

struct session_table {
    struct session *sessions; /* [cap] */
    uint32_t cap, n_fragments;
};

enum status session_table_init(struct session_table *t, uint32_t cap, uint32_t n_fragments) MUST_CHECK;
void session_table_finish(struct session_table *t);
/* All slots are taken. */
bool session_table_full(const struct session_table *t);
/* A free slot made a session; NULL when all are taken or memory is short. */
struct session *session_add(struct session_table *t, uint64_t id);
void session_remove(struct session_table *t, struct session *s);
/* NULL when there is none. */
struct session *session_by_id(const struct session_table *t, uint64_t id);
struct session *session_by_uuid(const struct session_table *t, const uint8_t uuid[WIRE_UUID]);
/* The one that replaced `id`. */
struct session *session_after(const struct session_table *t, uint64_t id);
struct session *session_by_name(const struct session_table *t, const char *name);
struct session *session_by_member(const struct session_table *t, uint32_t member);
struct session *session_by_bulk(const struct session_table *t, uint64_t peer);

const char *session_state_name(uint8_t state);

#endif
