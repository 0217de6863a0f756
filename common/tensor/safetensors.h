/* safetensors: u64 header length, JSON header, then the tensors' bytes, all little-endian
 * (https://github.com/huggingface/safetensors, the format's own description and reader's rules).
 *
 * Reading checks everything before it is used: header at most 100 MB and starting with '{', no duplicate keys, shapes
 * and offsets that do not overflow, tensors that tile the buffer exactly, and a file of exactly that length. Any
 * element type may be present; F32, F16 and BF16 can be read as fp32. */
#ifndef COMMON_SAFETENSORS_H
#define COMMON_SAFETENSORS_H

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
    struct safetensors_entry *entries; /* sorted by place in the buffer */
    uint32_t n;
    void *json;          /* owner of the names */
    struct file_map map; /* of safetensors_open */
};

/* Decode a whole file lying in memory; `where` names it in errors. `data` must outlive `st`. */
enum status safetensors_parse(struct safetensors *st, const void *data, size_t size, const char *where,
                              struct err *err) MUST_CHECK;
enum status safetensors_open(struct safetensors *st, const char *path, struct err *err) MUST_CHECK;
/* Accepts a zeroed struct. */
void safetensors_close(struct safetensors *st);
/* NULL when there is none. */
const struct safetensors_entry *safetensors_find(const struct safetensors *st, const char *name);
/* Convert to out[count]. UNSUPPORTED for other types than F32, F16, BF16. */
enum status safetensors_read_f32(const struct safetensors_entry *entry, float *out, struct err *err) MUST_CHECK;

/* One fp32 tensor to be written; data has the product of shape elements. */
struct safetensors_tensor {
    const char *name;
    uint32_t ndim;
    uint64_t shape[LAYOUT_DIMS_MAX];
    const float *data;
};

/* Write atomically: tensors in order of name, `__metadata__` {"format":"pt"}, header padded with spaces to a multiple
 * of
 * 8. `tensors` is sorted in place. INVALID for a repeated or non-UTF-8 name. */
enum status safetensors_write(const char *path, struct safetensors_tensor *tensors, uint32_t n,
                              struct err *err) MUST_CHECK;
/* The flat vector theta, cut by its layout. */
enum status safetensors_write_theta(const char *path, const struct layout *layout, const float *theta,
                                    struct err *err) MUST_CHECK;

#endif
