/* The codec of each fragment in each direction, as the codec section of a resolved configuration chooses it. */
#ifndef COMMON_CODEC_CHOICE_H
#define COMMON_CODEC_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/config/config.h"

/* codec.embeddings is a spec of its own. */
bool config_embeddings_differ(const struct config *config);
/* The codec of a fragment's deltas: codec.up, or codec.embeddings. */
const char *config_up_spec(const struct config *config, uint32_t fragment);
enum config_down config_down(const struct config *config);
/* Updates may travel as the deltas themselves: relay, or auto where that is smaller. */
bool config_may_relay(const struct config *config);
/* Of one fragment: as the run, but dense deltas make no union, so that embeddings with a dense codec beside a sparse
 * codec.up go down by a codec, too, which is theirs. */
enum config_down config_down_of(const struct config *config, uint32_t fragment);
/* The codec of a fragment's updates that are not relayed: codec.down; for union (and auto) top-k without a limit. ""
 * for relay. */
void config_down_spec(const struct config *config, uint32_t fragment, char out[CODEC_SPEC_MAX]);
/* Updates carry the new parameters instead of increments (enum update_form). */
bool config_update_replaces(const struct config *config);
bool config_error_feedback(const struct config *config, const char *spec);

#endif
