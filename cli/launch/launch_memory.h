/* Announces host memory from `atoll launch` to its workers, for their plans (worker/replica/memory_plan.h). */
#ifndef CLI_LAUNCH_MEMORY_H
#define CLI_LAUNCH_MEMORY_H

#include "common/config/config.h"

/* Sets two variables in the environment: the free bytes of the host now, and the bytes of the coordinator with
 * `workers` workers. The latter is 0 for an invalid model, which the workers then report. */
void launch_memory_announce(const struct config *config, uint32_t workers);

#endif
