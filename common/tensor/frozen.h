/* The tensors of a model that are not exchanged: frozen parameters and buffers. All workers of a run have the same.
 *
 * - A worker sends their description with JOIN, without their values. `hash` covers values that the program samples.
 * - The coordinator keeps the first list and compares later ones with it.
 * - frozen.safetensors holds their values if checkpoints contain them (common/tensor/hf_folder.h). */
#ifndef COMMON_FROZEN_H
#define COMMON_FROZEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/tensor/layout.h"
#include "common/tensor/safetensors.h"

enum { FROZEN_MAX = 16384, FROZEN_DTYPE_MAX = 16, FROZEN_DIFFERENCE_MAX = 640 };
#define FROZEN_BYTES_MAX ((uint64_t)1 << 44) /* of frozen.safetensors */
#define FROZEN_FILE "frozen.safetensors"

struct frozen_tensor {
    char name[LAYOUT_NAME_MAX];   /* as that of a tensor of the layout */
    char dtype[FROZEN_DTYPE_MAX]; /* "BF16", as safetensors writes it; 1..15 bytes of printable ASCII */
    uint32_t ndim;                /* 0 .. LAYOUT_DIMS_MAX */
    uint64_t shape[LAYOUT_DIMS_MAX];
    uint64_t bytes; /* of its values */
    uint64_t hash;  /* of the sampled values */
};

struct frozen {
    struct frozen_tensor *tensors; /* [n] in ascending order of their names */
    uint32_t n;
};

/* Accepts a zeroed struct; zeroes it. */
void frozen_finish(struct frozen *list);
/* False: a name or dtype that no list may hold, or too many dimensions. */
bool frozen_tensor_ok(const struct frozen_tensor *t);
/* Sorts tensors[n] by name. INVALID with text: a name that appears twice, or that the layout has, too. */
enum status frozen_sort(struct frozen *list, const struct layout *layout, struct err *err) MUST_CHECK;
/* NULL: there is none of this name. */
const struct frozen_tensor *frozen_find(const struct frozen *list, const char *name);

/* An empty list has no bytes. */
size_t frozen_encoded_size(const struct frozen *list);
void frozen_encode(const struct frozen *list, struct writer *w);
/* Fills a zeroed list from src[size]. CORRUPT for anything that frozen_encode does not write; NOMEM. Call frozen_finish
 * then, too. */
enum status frozen_decode(struct frozen *list, const uint8_t *src, size_t size) MUST_CHECK;

/* Writes how `other` differs from `run` in the first tensor by name that does. NULL: they are the same. Otherwise
 * returns out. */
const char *frozen_difference(const struct frozen *other, const struct frozen *run, char out[FROZEN_DIFFERENCE_MAX]);

/* The most bytes that a frozen.safetensors of this list has; UINT64_MAX: the sum is too large. */
uint64_t frozen_file_most(const struct frozen *list);
/* INVALID with text: the tensor's values have another size than its dtype and shape say, or safetensors has no such
 * dtype, so no file can hold it. */
enum status frozen_storable(const struct frozen_tensor *t, struct err *err) MUST_CHECK;
/* Fills out[list->n] for safetensors_head, in the list's order; their data stays NULL. */
void frozen_entries(const struct frozen *list, struct safetensors_tensor *out);
/* True: the entry of this name has the same dtype, shape and size. */
bool frozen_is(const struct frozen_tensor *t, const struct safetensors_entry *e);
/* MISMATCH with text: the file does not hold exactly these tensors. Values are not compared. */
enum status frozen_check_file(const struct frozen *list, const struct safetensors *file, struct err *err) MUST_CHECK;

#endif
