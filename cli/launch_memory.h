/* What `atoll launch` tells its workers of the host's memory, for their plans (worker/replica/memory_plan.h). */
#ifndef CLI_LAUNCH_MEMORY_H
#define CLI_LAUNCH_MEMORY_H

#include "common/config/config.h"

/* Into the environment: what the host has free now, and what the coordinator of this configuration will take of it with
 * so many workers; of a model that cannot be laid out nothing, its workers say why. */
void launch_memory_announce(const struct config *config, uint32_t workers);

#endif
