/* The engine's state for comparison by tests and the simulation. */
#ifndef TESTS_LIB_ENGINE_VIEW_H
#define TESTS_LIB_ENGINE_VIEW_H

#include "coordinator/engine/engine.h"

/* NULL before the first join. */
const float *engine_theta(const struct engine *engine);
const struct layout *engine_layout(const struct engine *engine);
/* Writes the residual of a fragment's downlink codec to out[count]. False: the codec has none. */
bool engine_residual(const struct engine *engine, uint32_t fragment, float *out);
uint64_t engine_version(const struct engine *engine, uint32_t fragment);
/* hash_floats of the fragment at `version`; 0 if the log lacks that version. */
uint64_t engine_version_hash(const struct engine *engine, uint32_t fragment, uint64_t version);
/* INVALID unless the granted credit is that of all uploads; LIMIT if it is too much. CORRUPT unless
 * - committed + outstanding + free sample positions are [0, cursor), disjoint;
 * - kept counts equal a new count, and the indexes of sessions lead to each session and to no other;
 * - each connected worker in time finds the update that it needs next. */
enum status engine_check(const struct engine *engine, struct err *err) MUST_CHECK;
uint32_t engine_members(const struct engine *engine); /* places given so far */
/* The name of the worker that has this place, or had it last; NULL: the place was never given. */
const char *engine_member_name(const struct engine *engine, uint32_t id);
/* The version that the worker at this place is known to hold, + 1; 0: none is known. */
uint64_t engine_member_have(const struct engine *engine, uint32_t id, uint32_t fragment);
uint64_t engine_samples_committed(const struct engine *engine);

#endif
