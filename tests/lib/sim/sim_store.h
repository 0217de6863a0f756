/* The coordinator's disk in the simulation: a store_mem that the checker watches and that can fail at any operation. */
#ifndef TESTS_LIB_SIM_STORE_H
#define TESTS_LIB_SIM_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/sim/sim_check.h"

struct sim_store;

/* Called before every operation that writes. False: the process is dead and the operation has no effect. */
typedef bool (*sim_store_alive_fn)(void *ctx);

enum status sim_store_create(struct sim_store **s_p, struct sim_check *check, sim_store_alive_fn alive,
                             void *ctx) MUST_CHECK;
void sim_store_destroy(struct sim_store *s);
struct store *sim_store_store(struct sim_store *s);
/* Appends beyond `bytes` in total fail like a full disk; UINT64_MAX: no limit. */
void sim_store_set_room(struct sim_store *s, uint64_t bytes);
/* The process is dead. power: unsynced bytes are lost in part; `draw` decides how much. */
void sim_store_crash(struct sim_store *s, bool power, uint64_t draw);

#endif
