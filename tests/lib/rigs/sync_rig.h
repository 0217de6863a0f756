/* One sync machine, its clock, and the steps of its tests. State is global: one test at a time. */
#ifndef TESTS_LIB_SYNC_RIG_H
#define TESTS_LIB_SYNC_RIG_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/sync/sync.h"

struct sync_rig {
    struct sync s;
    uint64_t now;
};

extern struct sync_rig sync_rig;

/* Return the next action: any (false: none), of this type, or none. */
bool sync_rig_poll_one(struct sync_action *a);
struct sync_action sync_rig_expect(enum sync_action_type type);
void sync_rig_expect_none(void);
/* Run every action that is due; counts them by type. */
void sync_rig_drain(int counts[9]);
void sync_rig_drain_all(void);
/* Advance the clock until an action is due. */
void sync_rig_sleep_until_due(void);

/* Make messages with the same version for every fragment. */
struct msg_welcome sync_rig_welcome(uint64_t session, bool resume, uint64_t current, uint64_t snapshot);
struct msg_assign sync_rig_assign(uint64_t round, uint64_t version);
struct msg_eval sync_rig_eval(uint64_t id, uint64_t version);

/* Events. */
void sync_rig_refuse(uint16_t code);
void sync_rig_give(uint64_t round, uint64_t version);
void sync_rig_credit(uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto);
bool sync_rig_reject(uint64_t round, uint32_t fragment);
/* Receive and apply the whole update after the held version. */
enum sync_verdict sync_rig_update(uint32_t fragment, uint64_t round, uint64_t named);

/* Join with `version` of every fragment, READY, no action due. */
void sync_rig_start(bool async, uint32_t n_fragments, uint64_t version);
/* Take an assignment and finish it with payloads of `bytes` each. */
void sync_rig_train(uint64_t round, uint64_t version, uint64_t bytes);
/* From HELLO to WELCOME with the machine's versions. */
void sync_rig_join_again(uint64_t session, bool resume, uint64_t current, uint64_t snapshot);

#endif
