/* The codec of each direction, as the codec section of a resolved configuration chooses it. */
#ifndef COMMON_CODEC_CHOICE_H
#define COMMON_CODEC_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

enum config_down config_down(const struct config *config);
/* True when updates may be sent as the deltas themselves: relay, or auto where relay is smaller. */
bool config_may_relay(const struct config *config);
/* `mean` below: the fragment holds mean tensors (layout_is_mean). They travel in fp32, whatever codec is configured,
 * and have no residual: a quantized variance could become negative. */

/* The codec of this worker's deltas: codec.up. */
const char *config_up_spec(const struct config *config, bool mean);
/* The codec of updates that are not relayed: codec.down; for union (and auto) top-k without a limit. "" for relay.
 * Updates of mean tensors are never relayed. */
void config_down_spec(const struct config *config, bool mean, char out[CODEC_SPEC_MAX]);
enum { CONFIG_UP_MAX = 8 };

/* True when workers may have codecs of their own (codec.up_allowed). Each delta then names its codec, and the
 * coordinator journals it in fp32. Deltas of mean tensors name none. */
bool config_up_mixed(const struct config *config);
/* The codecs that deltas may have: codec.up, then those of codec.up_allowed. Returns their number; 0: too many (above
 * CONFIG_UP_MAX), or one is empty or too long. */
uint32_t config_up_specs(const struct config *config, char out[CONFIG_UP_MAX][CODEC_SPEC_MAX]);
/* True when updates lose what their codec cannot represent, so that the coordinator keeps a residual. */
bool config_down_loses(const struct config *config);
/* Vectors of the outer optimizer's state beside theta: 0 to 2. */
uint32_t config_outer_vectors(const struct config *config);
/* True when the coordinator keeps momentum and residual in bf16 (outer.state). */
bool config_outer_half(const struct config *config);
/* The codec of deltas in the journal, from which they are merged: codec.up, or fp32 if config_up_mixed. */
const char *config_merge_spec(const struct config *config, bool mean);
/* True when updates carry the new parameters instead of increments (enum update_form). */
bool config_update_replaces(const struct config *config, bool mean);
/* True when deltas carry the trained parameters (DELTA_PARAMETERS): a lossless codec with a barrier. */
bool config_delta_replaces(const struct config *config, bool mean);

#endif
