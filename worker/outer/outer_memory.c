#include "worker/outer/outer_memory.h"

#include <string.h>

#include "common/base/minmax.h"
#include "common/config/codec_choice.h"
#include "common/config/codec_spec.h"
#include "common/config/sync_points.h"
#include "compress/codec.h"
#include "compress/relay.h"
#include "wire/msg.h"
#include "wire/object.h"
#include "worker/outer/delta_device.h"
#include "worker/outer/outer_loop.h"
#include "worker/sync/sync_rate.h"

/* The list of deltas that an update names: per fragment in its object, and once decoded. */
enum { OBJECT_BYTES = WIRE_NAMED_MAX * 24, READ_BYTES = WIRE_NAMED_MAX * sizeof(struct update_named) };
/* For relayed updates: the views of the deltas, and their weights. */
enum { MERGE_BYTES = WIRE_NAMED_MAX * (sizeof(struct merge_delta) + sizeof(uint64_t)) };

/* Bytes of the piece tables of both codecs. *values_p: bytes of the larger quantized payload. format: that of `up`. */
static uint64_t device_table_bytes(const struct codec *up, const struct codec *down, const struct delta_format *format,
                                   uint64_t *values_p)
{
    struct quantized_delta unused;
    struct delta_format down_format;
    uint64_t values = delta_format_lay_out(format, NULL, &unused), pieces = format->n_pieces, down_values;
    if (delta_device_supports(down, &down_format)) {
        down_values = delta_format_lay_out(&down_format, NULL, &unused);
        if (strcmp(codec_spec(up), codec_spec(down)) != 0) pieces += down_format.n_pieces;
        if (down_values > values) values = down_values;
    }
    *values_p = values;
    return pieces * sizeof(struct piece_range);
}

/* Bytes of the buffer that assembles a fragment's update, encoded by codec.down or as relayed deltas. relayed: number
 * of workers whose deltas an update may relay; then codec.down is only used where it is smaller. 0: never. */
static uint64_t update_bytes(const struct codec *up, const struct codec *down, uint32_t relayed)
{
    uint64_t coded = down ? codec_bound(down) : 0, deltas = relayed * (uint64_t)(codec_bound(up) + relay_head_size(1));
    return OBJECT_BYTES + (relayed ? deltas : coded);
}

/* Adds the codecs and buffers of one fragment on the host, and its quantized values on the device. Sets *device to
 * false if the codec has no device format. */
static enum status add_fragment(struct replica_outer *o, const struct config *config, const struct layout *layout,
                                uint32_t i, uint32_t relayed, size_t *part_max, bool *device, struct err *err)
{
    struct codec *up = NULL, *down = NULL;
    struct delta_format format;
    char spec[CODEC_SPEC_MAX];
    bool mean = layout_is_mean(layout, i);
    if (mean) relayed = 0;
    enum status status = codec_describe_for_fragment(&up, config_up_spec(config, mean), layout, i, err);
    config_down_spec(config, mean, spec);
    if (status == STATUS_OK && spec[0]) status = codec_describe_for_fragment(&down, spec, layout, i, err);
    if (status == STATUS_OK) {
        o->host.messages += codec_memory(up) + codec_bound(up) + update_bytes(up, down, relayed);
        if (down) o->host.messages += codec_memory(down);
        if (relayed && merge_part_max(up) > *part_max) *part_max = merge_part_max(up);
        *device = *device && codec_delta_format(up, &format, NULL);
        if (*device) {
            uint64_t values, tables = device_table_bytes(up, down, &format, &values);
            o->device.messages += tables + values;
            o->pinned += values;
        }
    }
    codec_destroy(up);
    codec_destroy(down);
    return status;
}

bool outer_copies_delta(const struct config *config, bool mean, bool adds)
{
    if (!mean && !codec_spec_lossless(config->codec.up)) return !adds;
    return config->train.method != METHOD_DDP && !config_delta_replaces(config, mean);
}

enum status outer_memory_bytes(struct replica_outer *out, const struct config *config, const struct layout *layout,
                               uint32_t workers, bool lent, struct err *err)
{
    uint64_t theta = layout->n_params * sizeof(float), largest = 0;
    bool feedback = !codec_spec_lossless(config->codec.up);
    bool overlaps = sync_overlaps(config);
    bool lossless = codec_spec_lossless(config->codec.up) && !config_up_mixed(config);
    bool device = config->train.method != METHOD_DDP && !lossless && !overlaps;
    bool based = config->train.method == METHOD_ASYNC || (overlaps && !strcmp(config->train.apply, "correct"));
    bool relays = config_may_relay(config);
    bool adds = lent && outer_loop_adds(config), copies = relays;
    uint32_t relayed = !relays ? 0 : workers ? workers : 1;
    size_t part_max = 0;
    *out = (struct replica_outer){.device.optional = true};
    for (uint32_t i = 0; i < layout->n_fragments; i++) {
        if (layout->fragments[i].count > largest) largest = layout->fragments[i].count;
        copies = copies || outer_copies_delta(config, layout_is_mean(layout, i), adds);
        TRY(add_fragment(out, config, layout, i, relayed, &part_max, &device, err));
    }
    out->base = based ? theta : 0;
    out->host.anchor = theta + out->base + (overlaps ? theta : 0); /* with overlap: the trained parameters */
    out->host.residual = feedback ? theta : 0;
    if (overlaps && config_worker_every(config)) /* payloads are part of the messages, too */
        out->saved = out->host.anchor + out->host.residual + out->host.messages;
    out->inbox = min_u64(SYNC_ARRIVING_MOST, theta + out->host.messages);
    out->host.messages += (copies ? largest * sizeof(float) : 0) + READ_BYTES;
    if (relays) out->host.messages += MERGE_BYTES + 2 * part_max * sizeof(float); /* merger_init */
    out->device.anchor = device ? theta : 0;
    out->device.residual = device && feedback ? 2 * theta : 0;
    if (!device) out->device.messages = out->pinned = 0;
    return STATUS_OK;
}
