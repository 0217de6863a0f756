#include "wire/model_object.h"

#include <assert.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/format/field_rows.h"
#include "common/tensor/frozen.h"

static const struct field file_fields[] = {LINE(model_file, name, 1), U64(model_file, size), END};
const struct field model_object_fields[] = {
    CONST("magic", 4, 0x444d5441), /* bytes "ATMD" */
    CONST("format", 1, 1),
    CONST("zero", 1, 0),
    CONST("zero", 2, 0),
    COUNT(model_object, n_files, 0, MODEL_FILES_MAX),
    LIST(model_object, files, n_files, file_fields, MODEL_FILES_MAX),
    BLOB(model_object, layout, layout_size, 1, WIRE_BODY_MAX),
    TEXT(model_object, config_json, WIRE_CONFIG_MAX - 1),
    TEXT(model_object, settings, WIRE_CONFIG_MAX - 1),
    END,
};

size_t model_object_size(const struct model_object *m)
{
    return fields_size(model_object_fields, m) + sizeof(uint32_t);
}

enum status model_object_encode(const struct model_object *m, uint8_t *dst)
{
    size_t size = model_object_size(m);
    struct writer w = writer_of(dst, size);
    if (fields_check(model_object_fields, m)) return STATUS_LIMIT;
    fields_put(model_object_fields, m, &w);
    put_u32(&w, crc32c(0, dst, w.pos));
    assert(!w.bad && w.pos == size);
    return STATUS_OK;
}

enum status model_object_decode(struct model_object *m, const uint8_t *src, size_t size)
{
    struct reader r = reader_of(src, size);
    *m = (struct model_object){0};
    fields_read(model_object_fields, m, &r);
    uint32_t crc = crc32c(0, src, r.pos);
    if (r.bad || get_u32(&r) != crc || !reader_done(&r)) return STATUS_CORRUPT;
    for (uint32_t i = 0; i < m->n_files; i++) {
        if (!hf_files_allowed(m->files[i].name) && strcmp(m->files[i].name, FROZEN_FILE) != 0) return STATUS_CORRUPT;
        for (uint32_t k = 0; k < i; k++)
            if (!strcmp(m->files[k].name, m->files[i].name)) return STATUS_CORRUPT;
    }
    return STATUS_OK;
}
