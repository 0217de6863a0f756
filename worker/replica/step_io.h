/* What goes in and comes out of a rank's steps: tokens and targets up, losses and the gradient's norm down, in memory
 * that the device reaches beside its work. Where the host's memory is the device's a step is over when its call
 * returns, and one slot does; elsewhere two, for a step is read when the next one has been submitted. */
#ifndef WORKER_STEP_IO_H
#define WORKER_STEP_IO_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "gpu/device.h"

enum { STEP_SLOTS_MAX = 2 };

struct step_slot {
    int32_t *tokens, *targets; /* [micro-steps][micro_tokens] */
    float *loss;               /* likewise */
    float *norm;               /* one */
};

struct step_io {
    struct device *dev; /* borrowed */
    size_t micro_tokens;
    int n_slots; /* a slot's number is that of the device's mark, too */
    struct step_slot slots[STEP_SLOTS_MAX];
};

/* Bytes of host memory of all slots. */
size_t step_io_bytes(const struct device *dev, size_t micro_tokens, uint32_t micro_steps);
/* NOMEM; step_io_close is due then, too. `io` is zeroed before. */
enum status step_io_open(struct step_io *io, struct device *dev, size_t micro_tokens, uint32_t micro_steps) MUST_CHECK;
void step_io_close(struct step_io *io);
/* Losses of `rows` sequences of one micro-step that came, each summed in double in the order of its tokens, into
 * out[rows]. */
void step_io_row_losses(const struct step_io *io, int slot, uint32_t micro, size_t rows, double *out);

#endif
