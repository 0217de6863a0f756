/* The forms of deltas and updates, which follow from the configuration alone. mean: of a fragment of mean tensors.
 * Pure. The round machine checks offers with them; the outer state merges and publishes with them. */
#ifndef COORDINATOR_ROUND_FORM_H
#define COORDINATOR_ROUND_FORM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

/* enum delta_form: gradients (ddp), parameters (lossless uplink with a barrier) or pseudo-gradients. */
uint8_t round_delta_form(const struct config *config, bool mean);
/* enum update_form: new parameters or an increment. */
uint8_t round_update_form(const struct config *config, bool mean);

#endif
