/* The initial model of a run of model.family external as the bytes of wire/initial.h: the program's files, a
 * model.safetensors made of its parameters, and a frozen.safetensors if checkpoints hold the frozen tensors. Nothing is
 * copied but names and one chunk. */
#ifndef WORKER_OUTER_INITIAL_H
#define WORKER_OUTER_INITIAL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "worker/outer/outer_loop.h"

struct outer_initial; /* opaque */

/* The model's parameters, files and layout are borrowed. INVALID: the model has no parameters to start from, or a file
 * that may not be uploaded; NONFINITE, with the tensor; NOMEM. */
enum status outer_initial_open(struct outer_initial **initial_p, const struct outer_model *model,
                               struct err *err) MUST_CHECK;
void outer_initial_close(struct outer_initial *initial); /* accepts NULL */
uint64_t outer_initial_total(const struct outer_initial *initial);
/* Bytes [offset, offset + length), length at most SYNC_CHUNK. Valid until the next call. NULL: the program cannot read
 * a frozen tensor; err says which. */
const uint8_t *outer_initial_read(struct outer_initial *initial, uint64_t offset, size_t length, struct err *err);

#endif
