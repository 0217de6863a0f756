/* The coordinator's disk in the simulation: store_mem, watched by the checker, and able to die at any operation. */
#ifndef TESTS_LIB_SIMSTORE_H
#define TESTS_LIB_SIMSTORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "coordinator/ledger/store.h"
#include "tests/lib/sim/simcheck.h"

struct simstore;

/* Asked before every operation that writes; false: the process is dead, the operation has no effect. */
typedef bool (*simstore_alive_fn)(void *ctx);

enum status simstore_create(struct simstore **s_p, struct simcheck *check, simstore_alive_fn alive,
                            void *ctx) MUST_CHECK;
void simstore_destroy(struct simstore *s);
struct store *simstore_store(struct simstore *s);
/* Appends beyond `bytes` in total fail like a full disk; UINT64_MAX: no limit. */
void simstore_set_room(struct simstore *s, uint64_t bytes);
/* The process is gone. power: so is what was not synced, in part (`draw` decides how much). */
void simstore_crash(struct simstore *s, bool power, uint64_t draw);

#endif
