/* The codec of each direction, as the codec section of a resolved configuration chooses it. */
#ifndef COMMON_CODEC_CHOICE_H
#define COMMON_CODEC_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

enum config_down config_down(const struct config *config);
/* True when updates may be sent as the deltas themselves: relay, or auto where relay is smaller. */
bool config_may_relay(const struct config *config);
/* The codec of updates that are not relayed: codec.down; for union (and auto) top-k without a limit. ""
 * for relay. */
void config_down_spec(const struct config *config, char out[CODEC_SPEC_MAX]);
/* True when updates carry the new parameters instead of increments (enum update_form). */
bool config_update_replaces(const struct config *config);
/* True when the residual of this codec is added to the next delta. */
bool config_error_feedback(const struct config *config, const char *spec);

#endif
