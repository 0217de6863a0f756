#include "cli/launch/launch_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/os/host_memory.h"
#include "common/tensor/layout.h"
#include "coordinator/outer/outer_state.h"
#include "coordinator/round/upload.h"
#include "wire/zmq/backlog.h"
#include "worker/model/model.h"
#include "worker/replica/memory_plan.h"

/* Sets *bytes to the coordinator's state plus the limits of its queues for all workers. */
static enum status coordinator_bytes(uint64_t *bytes, const struct config *config, uint32_t workers)
{
    const struct model_family *family = model_family_find(config->model.family);
    struct model_config model = model_config_of(config);
    struct layout layout;
    layout_init(&layout);
    enum status status = family ? family->layout(&model, &layout, NULL) : STATUS_UNSUPPORTED;
    if (status == STATUS_OK) status = model_split_fragments(config, &layout, NULL);
    if (status == STATUS_OK) status = outer_state_bytes(bytes, config, &layout, workers, NULL);
    if (status == STATUS_OK) *bytes += BACKLOG_BYTES + UPLOAD_CREDIT;
    layout_finish(&layout);
    return status;
}

static void announce(const char *name, uint64_t bytes)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, bytes);
    setenv(name, text, 1);
}

void launch_memory_announce(const struct config *config, uint32_t workers)
{
    uint64_t free_bytes, total, coordinator;
    host_memory(&free_bytes, &total);
    if (coordinator_bytes(&coordinator, config, workers) != STATUS_OK) coordinator = 0;
    announce(MEMORY_HOST_ENV, free_bytes);
    announce(MEMORY_COORDINATOR_ENV, coordinator);
}
