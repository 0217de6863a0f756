/* Makes deltas on the device that trains, if its memory is not the host's. Anchor and residuals are in the device's
 * memory too. Per round the bus carries the changed fragments of the anchor to the device and the quantized deltas back
 * (common/tensor/delta_format.h), but no parameters.
 *
 *     delta_device_anchor          for each fragment: upload the parameters that the next round starts from
 *     delta_device_base            the round starts from these parameters
 *     delta_device_make            after training: quantize the deltas of all fragments; changes no state
 *     codec_encode_quantized       for each fragment, from delta_device_quantized
 *     delta_device_keep_residuals  after all fragments are encoded: the quantization error becomes the residual
 *     delta_device_add             an update arrived: add its quantized values to the anchor, if its codec has the
 * format
 *
 * The host rolls back a refused payload: delta_device_read_residual, feedback_rollback, delta_device_residual_changed.
 * One thread uses a delta device, the one that trains. */
#ifndef WORKER_DELTA_DEVICE_H
#define WORKER_DELTA_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "compress/codec.h"
#include "compress/feedback.h"
#include "gpu/device.h"

struct delta_device;

/* One fragment of theta. The objects are borrowed and outlive the delta device. */
struct delta_source {
    uint64_t offset, count; /* floats of theta */
    const struct codec *codec;
    struct codec *down;        /* codec of updates; NULL: all updates are relayed deltas */
    struct feedback *feedback; /* `residual` is the host's copy, NULL if feedback is off */
};

/* theta[n_params] is device memory. UNSUPPORTED: this device cannot make deltas for this codec (err says why); NOMEM.
 */
enum status delta_device_create(struct delta_device **out, struct device *dev, const float *theta,
                                const struct delta_source *sources, uint32_t n, struct err *err) MUST_CHECK;
/* NULL is allowed. */
void delta_device_destroy(struct delta_device *device);

/* Sets fragment i of the anchor to `values` [count] (host memory), from which the next round starts. `hash` is
 * hash_floats of them: a fragment that already has this hash is not uploaded. Not allowed between the start of training
 * and delta_device_make. */
void delta_device_anchor(struct delta_device *device, uint32_t i, const float *values, uint64_t hash);
/* Adds an update's payload (codec `down`, decoded once before without error) to fragment i of the anchor: its hash goes
 * from `before` to `after`. False: the codec has no device format, or the anchor has another hash; the caller then
 * calls delta_device_anchor. Not allowed during training, as above. Overwrites the results of the last
 * delta_device_make. */
bool delta_device_add(struct delta_device *device, uint32_t i, const uint8_t *payload, size_t size, uint64_t before,
                      uint64_t after);
/* Whether updates of codec `down` (NULL: false) are uploaded as quantized values, and their format. They are if that
 * takes at most 3/4 of the bytes of floats. */
bool delta_device_supports(const struct codec *down, struct delta_format *format);
/* The anchor [n_params] in device memory; valid as long as the delta device. */
const float *delta_device_base(const struct delta_device *device);
/* Quantizes the deltas of all fragments and downloads them. NONFINITE: theta or a delta holds NaN or infinity. */
enum status delta_device_make(struct delta_device *device, struct err *err) MUST_CHECK;
/* Fragment i of the last make; *norm is the L2 norm of the delta without its residual. */
const struct quantized_delta *delta_device_quantized(const struct delta_device *device, uint32_t i, double *norm);
/* The quantization error of the last make becomes the residual, for all fragments. */
void delta_device_keep_residuals(struct delta_device *device);

/* Downloads the residual to the host's copy if the device's is newer. */
enum status delta_device_read_residual(struct delta_device *device, uint32_t i, struct err *err) MUST_CHECK;
/* The host's copy was changed and is now the newest. */
void delta_device_residual_changed(struct delta_device *device, uint32_t i);

#endif
