/* The head of an initial model: the Hugging Face folder that the first worker of a run uploads (model.family external).
 * The object is this head, then the files end to end. docs/protocol.md has the bytes. */
#ifndef WIRE_INITIAL_H
#define WIRE_INITIAL_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "common/tensor/frozen.h"
#include "common/tensor/hf_files.h"
#include "wire/msg.h"

#define INITIAL_MODEL "model.safetensors"
#define INITIAL_FROZEN FROZEN_FILE /* the tensors that are not exchanged, if checkpoints hold them */

enum { INITIAL_FILES_MAX = HF_FILES_MAX + 2, INITIAL_HEAD_MAX = 16 + INITIAL_FILES_MAX * (2 + WIRE_NAME_MAX + 8) };

struct initial_file {
    char name[WIRE_NAME_MAX]; /* hf_files_allowed, INITIAL_MODEL or INITIAL_FROZEN */
    uint64_t size;            /* at least 1 */
};

struct initial_head {
    uint32_t n_files;
    struct initial_file files[INITIAL_FILES_MAX];
};

/* The head, without the CRC-32C behind it. */
extern const struct field initial_head_fields[];

/* Bytes that initial_head_encode writes. */
size_t initial_head_size(const struct initial_head *h);
/* Bytes of the whole object. */
uint64_t initial_total(const struct initial_head *h);
/* dst[INITIAL_HEAD_MAX]. Returns the size. */
size_t initial_head_encode(const struct initial_head *h, uint8_t *dst);
/* Decode the head from src[size], the first bytes of an object. CORRUPT with text: short, wrong checksum, a file of
 * another name, an empty file, two files of one name, not exactly one INITIAL_MODEL, or sizes that do not fit in 64
 * bits. */
enum status initial_head_decode(struct initial_head *h, const uint8_t *src, size_t size, struct err *err) MUST_CHECK;

#endif
