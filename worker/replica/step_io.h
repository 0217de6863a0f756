/* Host buffers of a rank's steps: tokens and targets to the device, losses and the gradient norm back, in pinned memory
 * for transfers in parallel with computation.
 *
 * If device memory is host memory, a step has finished when its call returns, and one slot suffices. Other devices use
 * two slots, because a step is read after the next one was submitted. */
#ifndef WORKER_STEP_IO_H
#define WORKER_STEP_IO_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu/device.h"

enum { STEP_SLOTS_MAX = 2 };

struct step_slot {
    int32_t *tokens, *targets; /* [micro-steps][micro_tokens] */
    float *loss;               /* [micro-steps][micro_tokens] */
    float *norm;               /* [1] */
};

struct step_io {
    struct device *dev; /* borrowed */
    size_t micro_tokens;
    int n_slots; /* a slot's index is also its mark on the device (device_ops.mark) */
    struct step_slot slots[STEP_SLOTS_MAX];
};

/* Bytes of host memory for all slots. micro_tokens: tokens of one micro-step of the rank. */
size_t step_io_bytes(const struct device *dev, size_t micro_tokens, uint32_t micro_steps);
/* Requires a zeroed `io`. NOMEM; the caller then calls step_io_close too. */
enum status step_io_open(struct step_io *io, struct device *dev, size_t micro_tokens, uint32_t micro_steps) MUST_CHECK;
void step_io_close(struct step_io *io);
/* Sums the downloaded losses of one micro-step into out[rows]: one sum per sequence, in double, in the order of its
 * tokens. */
void step_io_row_losses(const struct step_io *io, int slot, uint32_t micro, size_t rows, double *out);

#endif
