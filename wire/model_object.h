/* The description of a run's model, which a follower reads before its parameters: tensors, config.json, settings, and
 * the files beside the model. It is the same for the whole run. docs/protocol.md has the bytes. */
#ifndef WIRE_MODEL_OBJECT_H
#define WIRE_MODEL_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/format/field.h"
#include "common/tensor/hf_files.h"
#include "wire/msg.h"

enum {
    MODEL_FILES_MAX = HF_FILES_MAX + 1, /* with frozen.safetensors */
    MODEL_OBJECT_MAX = WIRE_BODY_MAX + 2 * WIRE_CONFIG_MAX + MODEL_FILES_MAX * (2 + WIRE_NAME_MAX + 8) + 256,
};

struct model_file {
    char name[WIRE_NAME_MAX]; /* hf_files_allowed, or FROZEN_FILE */
    uint64_t size;
};

struct model_object {
    const uint8_t *layout; /* [layout_size] layout_encode; decode: borrowed from src, as the texts are */
    size_t layout_size;
    const char *config_json; /* "": one of the files is config.json, or there is none */
    const char *settings;    /* all shared keys, YAML */
    uint32_t n_files;
    struct model_file files[MODEL_FILES_MAX];
};

/* The object without the CRC-32C behind it. */
extern const struct field model_object_fields[];

size_t model_object_size(const struct model_object *m);
/* dst[model_object_size(m)]. LIMIT: a part is too long. */
enum status model_object_encode(const struct model_object *m, uint8_t *dst) MUST_CHECK;
/* CORRUPT for anything that model_object_encode does not write: a file of another name, a wrong checksum. */
enum status model_object_decode(struct model_object *m, const uint8_t *src, size_t size) MUST_CHECK;

#endif
