/* What deltas and updates of a run contain, decided by its configuration alone. Pure: the round machine checks offers
 * with it, the outer state merges and publishes with it. */
#ifndef COORDINATOR_OUTER_FORM_H
#define COORDINATOR_OUTER_FORM_H

#include <stdint.h>

#include "common/config/config.h"

/* enum delta_form: gradients (ddp), parameters (lossless uplink with a barrier) or pseudo-gradients. */
uint8_t outer_delta_form(const struct config *config);
/* enum update_form: new parameters or an increment. */
uint8_t outer_update_form(const struct config *config);

#endif
