/* Deltas made where the trained parameters are: on a device whose memory is not the host's. Anchor and residuals lie
 * there, too; what crosses the bus for a round is the fragments of the anchor that changed on their way in and the
 * numbers of the payload on their way out (common/tensor/delta_format.h), not the parameters.
 *
 *     delta_device_anchor     for each fragment: what the next round starts from
 *     delta_device_base       the round starts: the parameters are there already
 *     delta_device_make       training is done: the numbers of all fragments; nothing is changed
 *     codec_encode_quantized    for each fragment, from delta_device_quantized
 *     delta_device_keep_residuals       all of them were encoded: what was not sent is the residual now
 *     delta_device_add        an update came: where its codec has the form its numbers go up, in place of the anchor
 *
 * A refused payload is put back by the host: delta_device_read_residual, feedback_rollback,
 * delta_device_residual_changed. */
#ifndef WORKER_DELTA_DEVICE_H
#define WORKER_DELTA_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "compress/codec.h"
#include "compress/feedback.h"
#include "gpu/device.h"

struct delta_device;

/* One fragment of theta. Both objects stay the caller's, and valid as long as the delta device. */
struct delta_source {
    uint64_t offset, count;
    const struct codec *codec;
    struct codec *down;        /* of updates; NULL: all are relayed deltas */
    struct feedback *feedback; /* its residual: the host's copy, NULL when feedback is off */
};

/* theta [n_params] is memory of the device. UNSUPPORTED: not with this codec on this device (err says why); NOMEM. */
enum status delta_device_create(struct delta_device **out, struct device *dev, const float *theta,
                                const struct delta_source *sources, uint32_t n, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void delta_device_destroy(struct delta_device *device);

/* Training will start from `values` in fragment i (memory of the host). `hash` is hash_floats of them: what the device
 * has by this hash does not go up again. Not between the begin of training and delta_device_make. */
void delta_device_anchor(struct delta_device *device, uint32_t i, const float *values, uint64_t hash);
/* Fragment i of the anchor, where it has the hash `before`, becomes `after` by an update's payload of codec `down`,
 * which was decoded once without error: theta + x. False: the device cannot, or has other floats (delta_device_anchor
 * helps). When, as above; the numbers of the last make are gone. */
bool delta_device_add(struct delta_device *device, uint32_t i, const uint8_t *payload, size_t size, uint64_t before,
                      uint64_t after);
/* Whether updates of codec `down` (NULL: false) go up as numbers, and in which shape. They do where that is at least a
 * quarter fewer bytes than floats; room for what a union may hold would be more. */
bool delta_device_supports(const struct codec *down, struct delta_format *shape);
/* All fragments [n_params] as anchored, in the device's memory; as long as the delta device. */
const float *delta_device_base(const struct delta_device *device);
/* NONFINITE: theta or what is made of it holds NaN or infinity. */
enum status delta_device_make(struct delta_device *device, struct err *err) MUST_CHECK;
/* Of the last make. norm: L2, of the delta without its residual. */
const struct quantized_delta *delta_device_quantized(const struct delta_device *device, uint32_t i, double *norm);
void delta_device_keep_residuals(struct delta_device *device);

/* Bring the host's copy of a residual up to date. */
enum status delta_device_read_residual(struct delta_device *device, uint32_t i, struct err *err) MUST_CHECK;
/* The host's copy was changed: it counts from now on. */
void delta_device_residual_changed(struct delta_device *device, uint32_t i);

#endif
