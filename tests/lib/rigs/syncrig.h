/* One sync machine, its time, and the words its tests are written in. State is global: one test at a time. */
#ifndef TESTS_LIB_SYNCRIG_H
#define TESTS_LIB_SYNCRIG_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/sync/sync.h"

struct syncrig {
    struct sync s;
    uint64_t now;
};

extern struct syncrig syncrig;

/* The next action: any (false: none), this one, or none. */
bool syncrig_poll_one(struct sync_action *a);
struct sync_action syncrig_expect(enum sync_action_type type);
void syncrig_expect_none(void);
/* Everything that is due now; counts by type. */
void syncrig_drain(int counts[8]);
void syncrig_drain_all(void);
/* Time goes on until something is due. */
void syncrig_sleep_until_due(void);

/* Messages; the same version for every fragment. */
struct msg_welcome syncrig_welcome(uint64_t session, bool resume, uint64_t current, uint64_t snapshot);
struct msg_assign syncrig_assign(uint64_t round, uint64_t version);
struct msg_eval syncrig_eval(uint64_t id, uint64_t version);

/* Events. */
void syncrig_refuse(uint16_t code);
void syncrig_give(uint64_t round, uint64_t version);
void syncrig_credit(uint64_t round, uint32_t fragment, uint64_t have, uint64_t upto);
bool syncrig_reject(uint64_t round, uint32_t fragment);
/* The update after the held version arrives whole and is applied. */
enum sync_verdict syncrig_update(uint32_t fragment, uint64_t round, uint64_t named);

/* Joined, holding `version` of every fragment, READY, nothing due. */
void syncrig_start(bool async, uint32_t n_fragments, uint64_t version);
/* From assignment to payloads of `bytes` each. */
void syncrig_train(uint64_t round, uint64_t version, uint64_t bytes);
/* HELLO .. WELCOME with what the machine holds. */
void syncrig_join_again(uint64_t session, bool resume, uint64_t current, uint64_t snapshot);

#endif
