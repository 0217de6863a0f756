/* safetensors files: read and write.
 *
 * - Format: u64 header length, JSON header, then the tensors' bytes, all little-endian
 *   (https://github.com/huggingface/safetensors has the description and the rules for readers).
 * - The reader checks everything before use: a header of at most 100 MB that starts with '{', no duplicate keys, shapes
 *   and offsets without overflow, tensors that tile the buffer exactly, and a file of exactly that length.
 * - Any element type may be present; F32, F16 and BF16 can be read as fp32. */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/os/fileio.h"
#include "common/tensor/layout.h"

enum { SAFETENSORS_DIMS_MAX = 16, SAFETENSORS_TENSORS_MAX = 1 << 20, SAFETENSORS_HEADER_MAX = 100000000 };

struct safetensors_entry {
    const char *name;  /* borrowed from the header's JSON */
    const char *dtype; /* "F32", ...; static */
    uint32_t ndim;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t count;      /* elements */
    const uint8_t *data; /* borrowed from the buffer */
    uint64_t bytes;
};

struct safetensors {
    struct safetensors_entry *entries; /* [n] sorted by position in the buffer */
    uint32_t n;
    void *json;          /* owner of the names */
    struct file_map map; /* set by safetensors_open */
};

/* Parse a whole file in memory; `where` names it in errors. data[size] must outlive `st`. CORRUPT, LIMIT, NOMEM. */
enum status safetensors_parse(struct safetensors *st, const void *data, size_t size, const char *where,
                              struct err *err) MUST_CHECK;
/* Map and parse a file. The same errors, and those of file_map_open. */
enum status safetensors_open(struct safetensors *st, const char *path, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void safetensors_close(struct safetensors *st);
/* NULL when there is no tensor of this name. */
const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name);
/* Convert a tensor to out[count]. UNSUPPORTED for other types than F32, F16, BF16. */
enum status safetensors_read_f32(const struct safetensors_entry *entry, float *out, struct err *err) MUST_CHECK;
/* Elements [first, first + n) of a tensor of whole-byte elements, n > 0, as a tensor of the same name. */
struct safetensors_entry safetensors_slice(const struct safetensors_entry *entry, uint64_t first, uint64_t n);

/* One tensor to be written. */
struct safetensors_tensor {
    const char *name;
    const char *dtype; /* NULL: F32 */
    uint64_t bytes;    /* of a tensor with a dtype */
    bool frozen;       /* not one of theta */
    uint32_t ndim;
    uint64_t shape[LAYOUT_DIMS_MAX];
    const void *data; /* the product of shape elements */
};

/* Bits of one element; 0: safetensors has no such dtype. */
uint32_t safetensors_bits(const char *dtype);

uint64_t safetensors_tensor_bytes(const struct safetensors_tensor *t);
/* Sort tensors[n], and make the bytes before their data in a file; the caller frees *head (mem_free). INVALID for a
 * repeated or non-UTF-8 name, NOMEM.
 *
 * - Order: frozen tensors of 8-byte elements, theta by name, then the other frozen tensors. Larger elements come first,
 *   then the order is by name. So each tensor is aligned, as PyTorch needs it.
 * - With frozen tensors, `__metadata__` has `theta`: "BEGIN END", the bytes of theta behind the header. */
enum status safetensors_head(struct safetensors_tensor *tensors, uint32_t n, uint8_t **head, size_t *size,
                             struct err *err) MUST_CHECK;
/* Fill tensors[layout->n_tensors] with the tensors of theta[layout->n_params], which is borrowed. */
void safetensors_of_theta(struct safetensors_tensor *tensors, const struct layout *layout, const float *theta);

/* Write tensors[n] atomically, with the header of safetensors_head: `__metadata__` {"format":"pt"}, padded with spaces
 * to a multiple of 8 bytes. `tensors` is sorted in place. INVALID for a repeated or non-UTF-8 name; otherwise as
 * file_write. */
enum status safetensors_write(const char *path, struct safetensors_tensor *tensors, uint32_t n,
                              struct err *err) MUST_CHECK;
/* Write theta[layout->n_params] as the tensors of its layout, and all tensors of the file `frozen` (NULL: none). */
enum status safetensors_write_theta(const char *path, const struct layout *layout, const float *theta,
                                    const struct safetensors *frozen, struct err *err) MUST_CHECK;

#endif
