/* The replica of a worker from its configuration. The trainer builds it; `atoll plan` measures it. */
#ifndef WORKER_REPLICA_SETUP_H
#define WORKER_REPLICA_SETUP_H

#include "common/base/status.h"
#include "common/config/config.h"
#include "common/tensor/layout.h"
#include "worker/model/model.h"
#include "worker/replica/replica.h"

/* Finds the model's family and fills an initialised layout with its fragments. UNSUPPORTED for model.family external,
 * whose tensors a program defines. The caller calls layout_finish, also after an error. */
enum status replica_layout_of(const struct config *config, struct layout *layout, const struct model_family **family_p,
                              struct err *err) MUST_CHECK;
/* Fills *out for a resolved configuration. `workers`: as in outer_memory_bytes. The caller adds sharers, end and
 * pool. */
enum status replica_config_of(const struct config *config, const struct model_family *family,
                              const struct layout *layout, uint32_t workers, struct replica_config *out,
                              struct err *err) MUST_CHECK;

#endif
